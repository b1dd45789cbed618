"""Does the ledger pay those who deserve it? Against exact Shapley values, against leaving participants out, and cheats.

    python -m cascadice_experiments.incentives                      digits, some minutes on two cores
    python -m cascadice_experiments.incentives --quick              under a minute
    python -m cascadice_experiments.incentives --device cuda        CIFAR-10

Participants differ in quality: few samples, some or most labels wrong, two classes only. The game: a member of a
coalition works; the others do no local work but still gossip, as free-riders do, so that who hears whom stays the same
and the value of data is not mixed up with that of links. The loss of a coalition is the mean test loss of all final
models. A Shapley value needs every coalition of 6 trained: 64 networks, side by side. Ledgers see one run, of all.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice import data, files, models, seeds
from cascadice.applications.reward.ledger import by_horizon, by_shares
from cascadice.applications.reward.payouts import pay, shapley
from cascadice.applications.reward.picture import draw_study, lines
from cascadice.data import DataSet, Samples
from cascadice.engine import Behaviour, Network, Round, evaluate, network, simulate
from cascadice.influence import agreement, contributions, evaluate_on, shares
from cascadice_experiments.fleets import apart, fleet
from cascadice_experiments.regimes import find


@dataclass(frozen=True)
class Setting:
    """How large the networks are and how long they train; `seeds` of everything."""

    players: int = 6
    crowd: int = 16
    rounds: int = 60
    hops: tuple[int, ...] = (1, 4)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    per_node: int = 80
    batch_size: int = 16
    lr: float = 0.2
    hidden: int = 32
    judged: int = 1000
    device: str = "cpu"


CIFAR: Mapping[str, Any] = {"per_node": 512, "batch_size": 64, "lr": 0.1, "rounds": 80, "hops": (1, 4, 16)}
QUICK: Mapping[str, Any] = {
    "players": 4, "crowd": 8, "rounds": 20, "hops": (1, 2), "per_node": 64, "batch_size": 16, "hidden": 16,
    "judged": 200,
}  # fmt: skip


class Quality(NamedTuple):
    """What a participant's data are like."""

    share: float = 1.0
    wrong: float = 0.0
    classes: int | None = None


QUALITIES: Mapping[str, Quality] = {
    "plain": Quality(),
    "few samples": Quality(share=0.25),
    "40 % wrong": Quality(wrong=0.4),
    "80 % wrong": Quality(wrong=0.8),
    "two classes": Quality(classes=2),
}
WRONG = tuple(dict.fromkeys(quality.wrong for quality in QUALITIES.values()))
CHEATS = ("honest", "free-rider", "noise-sender", "duplicator")
CHEAT, TWIN = 0, 1


def mislabelled(clean: DataSet, seed: int = 0) -> DataSet:
    """The training data once for each share of wrong labels, one after the other: who holds which are its indices."""
    y, classes = clean.train.y, len(clean.classes)
    labels = []
    for share in WRONG:
        draw = seeds.generator(seed, "wrong labels", f"{share:g}")
        other = torch.randint(1, classes, y.shape, generator=draw)
        labels.append((y + other * (torch.rand(y.shape, generator=draw) < share)) % classes)
    x = clean.train.x
    train = replace(clean.train, x=x.repeat(len(WRONG), *[1] * (x.dim() - 1)), y=torch.cat(labels))
    return replace(clean, train=train)


def holdings(clean: Samples, qualities: Sequence[Quality], per_node: int, seed: int) -> list[Tensor]:
    """Disjoint holdings of these qualities, as indices into `mislabelled` data."""
    order = torch.randperm(len(clean), generator=seeds.generator(seed, "holdings"))
    held = []
    for node, quality in enumerate(qualities):
        size = int(quality.share * per_node)
        if quality.classes is None:
            mine = order[:size]
        else:  # from the other end, or those who come next would lack these classes
            kinds = torch.randperm(int(clean.y.max()) + 1, generator=seeds.generator(seed, "classes", node))
            mine = order[torch.isin(clean.y[order], kinds[: quality.classes])][-size:]
        order = order[~torch.isin(order, mine)]
        held.append(mine + WRONG.index(quality.wrong) * len(clean))
    return held


def roles(nodes: int, seed: int) -> list[str]:
    """Who is of which quality: about a third plain, the others in turn, at places drawn at random."""
    spoilt = [name for name in QUALITIES if name != "plain"]
    plain = max(1, nodes // 3)
    names = ["plain"] * plain + [spoilt[i % len(spoilt)] for i in range(nodes - plain)]
    return [names[i] for i in torch.randperm(nodes, generator=seeds.generator(seed, "roles")).tolist()]


def made(setting: Setting, whole: DataSet, clean: Samples, names: Sequence[str], seed: int, cheat: str = "") -> Network:
    """A network of participants of these qualities, in which participant CHEAT may cheat."""
    parts = holdings(clean, [QUALITIES[name] for name in names], setting.per_node, seed)
    if cheat == "duplicator":
        parts[TWIN] = parts[CHEAT]
    model = models.build("mlp", whole.train.shape, len(whole.classes), hidden=(setting.hidden,), seed=seed)
    size = sum(p.numel() for p in model.parameters())
    # noise about as long as an honest update, whatever the size of the model
    noise = Behaviour("noise-sender", (CHEAT,), strength=0.25 / size)
    behaviours = {"free-rider": [Behaviour("free-rider", (CHEAT,))], "noise-sender": [noise]}.get(cheat, [])
    return network(
        model, whole, nodes=len(names), partition=parts, batch_size=setting.batch_size, lr=setting.lr, seed=seed,
        behaviours=behaviours, device=setting.device, strategy="vmap",
    )  # fmt: skip


class Trained(NamedTuple):
    """The mean test loss and accuracy of each of several networks."""

    loss: Tensor
    accuracy: Tensor


def retrained(one: Network, members: Tensor, setting: Setting) -> Trained:
    """The network trained with each of these coalitions, [coalitions, n] of 0 and 1, side by side.

    Without work: a learning rate of 0. Whoever sends noise draws it anew in every coalition.
    """
    working = members.reshape(-1)
    rates = (working * setting.lr).to(one.initial.theta)
    idle = set((working == 0).nonzero().flatten().tolist())
    many = fleet([replace(one, behaviours=())] * len(members))
    noisy = [
        replace(b, nodes=tuple(k for k in range(b.nodes[0], many.nodes, one.nodes) if k not in idle))
        for b in one.behaviours
    ]
    many = replace(
        many,
        batches=lambda t: one.batches(t).repeat(len(members), 1, 1),
        lr=lambda t: rates,  # type: ignore[arg-type,return-value]  # one for each is a Draw's to have
        behaviours=tuple(b for b in noisy if b.nodes),
    )
    *_, last = simulate(many, setting.rounds, window=0)
    found = evaluate(many, last.after, _judged(one, setting))
    return Trained(*(apart(part.double().cpu(), len(members)).mean(1) for part in found))


def _judged(one: Network, setting: Setting) -> Samples:
    return one.data.test.subset(torch.arange(min(setting.judged, len(one.data.test))))


def coalitions(nodes: int) -> Tensor:
    """All of them; bit j of a coalition's number says that j works."""
    return torch.stack([torch.arange(2**nodes) >> j & 1 for j in range(nodes)], dim=1)


def all_but_one(nodes: int) -> Tensor:
    """Everybody, then everybody but 0, but 1, …"""
    return torch.cat([torch.ones(1, nodes), 1 - torch.eye(nodes)])


def ledgers(networks: Sequence[Network], setting: Setting) -> dict[str, Tensor]:
    """What each ledger says everybody contributed, [networks, n], and what people would pay by instead."""
    together = fleet(networks)
    yardstick = evaluate_on(together, _judged(together, setting))
    rounds = list(simulate(together, setting.rounds))
    shared_out = {
        f"shares, {hops} hop{'s' * (hops > 1)}": contributions(
            by_shares(together, window, yardstick).participants for window in _windows(rounds, hops)
        )
        for hops in setting.hops
    }
    found = {
        **shared_out,
        "shares, 1 hop, and on oneself": contributions(shares(together, [done], yardstick) for done in rounds),
        "horizon": contributions(e.participants for e in by_horizon(together, reversed(rounds), yardstick)),
        "cosine to the mean update": -contributions(_cosine(done, len(networks)) for done in rounds),
        "samples held": -torch.tensor([float(len(part)) for part in together.partition or ()]),
    }
    return {name: apart(value.double().cpu(), len(networks)) for name, value in found.items()}


def _windows(rounds: Sequence[Round], size: int) -> Iterator[Sequence[Round]]:
    """Each round with those that follow it; of long windows, which overlap, one in each quarter of their length."""
    for start in range(0, len(rounds) - size + 1, max(1, size // 4)):
        yield rounds[start : start + size]


def _cosine(done: Round, count: int) -> Tensor:
    update = apart(done.update, count)
    return torch.cosine_similarity(update, update.mean(1, keepdim=True), dim=2).reshape(-1)


def compared(setting: Setting, whole: DataSet, clean: Samples, exact: bool) -> dict[str, Any]:
    """Ledgers against exact Shapley values of a few, or against leaving each of a crowd out."""
    start, nodes = time.perf_counter(), setting.players if exact else setting.crowd
    names = [roles(nodes, seed) for seed in setting.seeds]
    networks = [made(setting, whole, clean, who, seed) for who, seed in zip(names, setting.seeds, strict=True)]
    played = [retrained(one, coalitions(nodes) if exact else all_but_one(nodes), setting) for one in networks]
    truth = torch.stack([shapley(p.loss) if exact else p.loss[0] - p.loss[1:] for p in played])
    found = ledgers(networks, setting)
    accuracy = torch.stack([p.accuracy[-1 if exact else 0] for p in played])
    return {
        "part": "Shapley values" if exact else "leaving one out", "nodes": nodes, "roles": names,
        "truth": truth.tolist(), "found": {name: value.tolist() for name, value in found.items()},
        "rows": {name: _agreements(truth, value) for name, value in found.items()},
        "paid": {name: _by_role(names, value) for name, value in {"truth": truth, **found}.items()},
        "test_accuracy": _spread(accuracy), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _agreements(truth: Tensor, found: Tensor) -> dict[str, Any]:
    each = [agreement(true, value) for true, value in zip(truth, found, strict=True)]
    return {name: _spread(torch.tensor([getattr(a, name) for a in each])) for name in ("spearman", "pearson")}


def _by_role(names: Sequence[Sequence[str]], contributed: Tensor) -> dict[str, Any]:
    """What one participant of each quality is paid, over participants and seeds."""
    payment = torch.stack([_paid(row) for row in contributed])
    return {
        role: _spread(payment[torch.tensor([[name == role for name in who] for who in names])])
        for role in QUALITIES
        if any(role in who for who in names)
    }


def _spread(values: Tensor) -> dict[str, float]:
    """Mean and standard deviation over seeds, of those that are numbers."""
    there = values.double()[values.isfinite()]
    return {"mean": float(there.mean()), "std": float(there.std()) if len(there) > 1 else 0.0}


def cheated(setting: Setting, whole: DataSet, clean: Samples) -> dict[str, Any]:
    """What part of the budget each cheat earns among plain participants; a duplicator's two identities together."""
    start, names = time.perf_counter(), ["plain"] * setting.players
    networks = [made(setting, whole, clean, names, seed, cheat) for cheat in CHEATS for seed in setting.seeds]
    played = [retrained(one, coalitions(setting.players), setting) for one in networks]
    found = {"Shapley values": torch.stack([shapley(p.loss) for p in played]), **ledgers(networks, setting)}
    accuracy = torch.stack([p.accuracy[-1] for p in played]).view(len(CHEATS), -1)
    rows = {}
    for cheat, some in zip(CHEATS, torch.arange(len(networks)).view(len(CHEATS), -1), strict=True):
        who = [CHEAT, TWIN] if cheat == "duplicator" else [CHEAT]
        earned = {name: torch.stack([_paid(value[i])[who].sum() for i in some]) for name, value in found.items()}
        rows[cheat] = {name: _spread(value) for name, value in earned.items()}
    return {
        "part": "cheats", "nodes": setting.players, "rows": rows,
        "test_accuracy": {cheat: _spread(row) for cheat, row in zip(CHEATS, accuracy, strict=True)},
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _paid(contributed: Tensor) -> Tensor:
    """The parts of a budget that all are paid; NaN where nobody would be, because nobody helped."""
    helped = bool((contributed < 0).any())
    return pay(contributed[None], 1.0).payment if helped else torch.full_like(contributed, torch.nan)


def study(setting: Setting, source: str, root: str | None) -> Iterator[dict[str, Any]]:
    """All parts, one by one."""
    clean = data.load(source, root)
    whole = mislabelled(clean)
    for exact in (True, False):
        yield compared(setting, whole, clean.train, exact)
    yield cheated(setting, whole, clean.train)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print each part as soon as it is done and, if asked, write all and print JSON last."""
    args = _parser().parse_args(arguments)
    found: dict[str, Any] = {"experiment": "incentives", "results": []}
    try:
        source, root = find(args.data_root) if args.cifar or args.device != "cpu" else ("digits", None)
        setting = replace(Setting(device=args.device), **{**(CIFAR if source == "cifar10" else {}), **_given(args)})
        found |= {"data": source, "setting": asdict(setting)}
        print(f"{source}: {setting.rounds} rounds, {setting.per_node} samples each, seeds {setting.seeds}", flush=True)
        for result in study(setting, source, root):
            found["results"].append(result)
            print(*lines(result), sep="\n", flush=True)
            if args.out:
                write(args.out, found)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(found))
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    count = args.seeds or (2 if args.quick else 5)
    given = {name: value for name in ("rounds", "players", "crowd") if (value := getattr(args, name)) is not None}
    return {**(QUICK if args.quick else {}), **given, "seeds": tuple(range(args.first_seed, args.first_seed + count))}


def write(out: Path, found: Mapping[str, Any]) -> None:
    """result.json, the points as Parquet, the figure as PNG and SVG; whatever is there by now."""
    import pyarrow as pa
    from pyarrow import parquet

    files.write_json(out / "result.json", found)
    points = [point for result in found["results"] if "truth" in result for point in _points(result)]
    with files.aside(out / "points.parquet") as draft:
        parquet.write_table(pa.Table.from_pylist(points), draft)
    for suffix in ("png", "svg"):
        draw_study(found, out / f"incentives.{suffix}")


def _points(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for seed, who in enumerate(result["roles"]):
        for node, role in enumerate(who):
            told = {name: value[seed][node] for name, value in result["found"].items()}
            yield {"part": result["part"], "network": seed, "node": node, "role": role,
                   "truth": result["truth"][seed][node], **told}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small networks, two seeds")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cifar", action="store_true", help="CIFAR-10 on CPU too, if it is found")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many [5]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the first of them [0]")
    parser.add_argument("--rounds", type=int, metavar="N", help="how long to train")
    parser.add_argument("--players", type=int, metavar="N", help="participants of whom all coalitions are trained [6]")
    parser.add_argument("--crowd", type=int, metavar="N", help="participants of whom each is left out once [16]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for result.json, points.parquet, the figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
