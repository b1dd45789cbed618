"""How surely are attackers told from honest neighbours? Influence and its factors against what people use instead.

    python -m cascadice_experiments.anomalies --quick                       a few settings, under a minute
    python -m cascadice_experiments.anomalies --device cuda --out out/anomalies
    python -m cascadice_experiments.anomalies flip-16-0.1 honest-128-0.1    some of the settings, by name
    python -m cascadice_experiments.anomalies --model cnn --device cuda     with CNNs in place of MLPs

The paper's nine settings: CIFAR-10, 32 participants on an exponential graph, MLPs from shared parameters, 512 samples
each, 5 epochs. One attacker in each network, at one of 8 places that train side by side. A point is what an honest
receiver thinks of one in-neighbour; every score is gathered over rounds in the same robust way, and the area under the
ROC curve (AUROC) says how often the attacker ranks above an honest neighbour. An attack in one batch only is judged in
its round alone. Honest networks, with data alike and unlike, show how often the innocent are flagged.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice import data, files, models
from cascadice.applications.detect.idea import (
    RIVALS,
    SIGNS,
    Evidence,
    deviations,
    gathered,
    links,
    nothing,
    signs_and_rivals,
    strengths,
    threshold,
)
from cascadice.applications.detect.picture import STUDY_HEADER, draw_study, study_line
from cascadice.data import DataSet, corruption
from cascadice.data import partition as partitions
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, Network, evaluate, network, simulate
from cascadice.influence import Evaluation, evaluate_on, own_data
from cascadice.influence.proximity import in_turn
from cascadice.names import lookup
from cascadice_experiments.fleets import fleet
from cascadice_experiments.regimes import find

RATE = 0.01
# the usual allowance; flags if less or more were allowed for, or if nothing were known of how data differ
TERMS: Mapping[str, tuple[float, bool]] = {
    "0.25": (0.25, False),
    "0.5": (0.5, False),
    "0.7": (0.7, False),
    "1": (1.0, False),
    "unlike": (0.5, True),
}
SCORES = (*SIGNS, *RIVALS)
DETECTOR = "detector"


@dataclass(frozen=True)
class Plan:
    """How large the networks are, how long they train, and how many there are of them."""

    nodes: int = 32
    per_node: int | None = 512
    model: str = "mlp"
    hidden: tuple[int, ...] = (256, 256)
    epochs: float = 5.0
    seeds: int = 5
    first_seed: int = 0
    places: int = 8
    samples: int = 128
    device: str = "cpu"


QUICK: Mapping[str, Any] = {"hidden": (32,), "epochs": 2.5, "seeds": 1, "places": 2, "samples": 64}


class Setting(NamedTuple):
    """What the attacker does (nothing, if `kind` is empty), in every round or in one batch only, and how all train."""

    kind: str
    batch_size: int
    lr: float
    strength: float = 1.0
    once: bool = False
    partition: str = "iid"


def _named(settings: Sequence[Setting]) -> dict[str, Setting]:
    return {name_of(setting): setting for setting in settings}


def name_of(setting: Setting) -> str:
    """`flip-128-0.1-once`, say."""
    kind = {"flip-labels": "flip", "permute-labels": "permute", "": "honest"}.get(setting.kind, setting.kind)
    strength = f"×{setting.strength:g}" if setting.kind == "sign-flipper" and setting.strength != 1 else ""
    more = ("-once" if setting.once else "") + ("" if setting.partition == "iid" else f"-{setting.partition}")
    return f"{kind}{strength}-{setting.batch_size}-{setting.lr:g}{more}"


PACES = ((128, 0.1), (64, 0.1), (16, 0.1), (128, 0.01), (64, 0.01), (16, 0.01))
NINE = (
    *(Setting("flip-labels", *pace) for pace in PACES),
    *(Setting("noise", *pace, strength=100.0) for pace in ((128, 0.1), (64, 0.01), (16, 0.1))),
)
HONEST = tuple(Setting("", *pace, partition=how) for how in ("iid", "dirichlet") for pace in PACES)
OTHERS = tuple(
    Setting(kind, *pace, strength=strength)
    for pace in ((128, 0.1), (64, 0.01))
    for kind, strength in (
        ("permute-labels", 1.0), ("sign-flipper", 1.0), ("sign-flipper", 3.0), ("free-rider", 1.0),
        ("noise-sender", 1e-8),
    )
)  # fmt: skip
SETTINGS = _named([*NINE, *HONEST, *(s._replace(once=True) for s in NINE), *OTHERS])
FEW = ("flip-128-0.1", "noise-128-0.1", "flip-128-0.1-once", "honest-128-0.1")


def base(setting: Setting, plan: Plan, dataset: DataSet, seed: int) -> Network:
    """The network without its attacker."""
    shape, classes = dataset.train.shape, len(dataset.classes)
    # the same at every batch size, up to the largest
    least = min(128, len(dataset.train) // plan.nodes // 2)
    each = plan.per_node if setting.partition == "iid" else None
    parts = partitions.build(
        setting.partition, dataset.train.y.cpu(), plan.nodes, per_node=each, minimum=least, seed=seed
    )
    options = {"hidden": plan.hidden} if plan.model == "mlp" else {}
    return network(
        lambda: models.build(plan.model, shape, classes, seed=torch.initial_seed(), **options),
        dataset, nodes=plan.nodes, mixing="exponential", partition=parts, batch_size=setting.batch_size, lr=setting.lr,
        seed=seed, device=plan.device, strategy="vmap" if plan.device.startswith("cuda") else "auto",
    )  # fmt: skip


def rounds_of(setting: Setting, plan: Plan, held: int) -> int:
    """Rounds to train; for an attack in one batch, up to that batch."""
    rounds = max(2, round(plan.epochs * (held // setting.batch_size)))
    return rounds // 2 + 1 if setting.once else rounds


def attacked(net: Network, setting: Setting, place: int, last: int) -> Network:
    """The network with its attacker."""
    when = range(last, last + 1) if setting.once else None
    if not setting.kind:
        return net
    if setting.kind in corruption.CORRUPTIONS:
        return replace(net, corruptions=(Corruption(setting.kind, (place,), when, setting.strength),))
    return replace(net, behaviours=(Behaviour(setting.kind, (place,), when, setting.strength),))


Side = tuple[tuple[int, int], ...]  # (seed, place of the attacker) of networks side by side


def sides(setting: Setting, plan: Plan) -> list[Side]:
    """Which networks train side by side: all places of one seed; without attackers, all seeds."""
    drawn = range(plan.first_seed, plan.first_seed + plan.seeds)
    if not setting.kind:
        return [tuple((seed, -1) for seed in drawn)]
    apart = plan.nodes // plan.places
    # places change with the seed, so that no participant of the graph is always spared
    return [tuple((seed, (i * apart + seed) % plan.nodes) for i in range(plan.places)) for seed in drawn]


def own_judge(networks: Sequence[Network], together: Network) -> Evaluation:
    """Everybody's own data, as many as the poorest holds."""
    most = min(512, *(len(part) for part in together.partition or ()))
    samples = {id(net): own_data(net, most) for net in networks}
    return evaluate_on(together, [own for net in networks for own in samples[id(net)]])


class Watched(NamedTuple):
    """|deviation| by each score of each link after each round, whose links they are, and how good models became.

    `flagged` is who is flagged after the last round, on each of the terms.
    """

    deviation: Float[Tensor, "rounds scores links"]
    flagged: Bool[Tensor, "terms links"]
    source: Int[Tensor, " links"]
    receiver: Int[Tensor, " links"]
    accuracy: Float[Tensor, " n"]


def watch(net: Network, rounds: int, whole: Evaluation, samples: int, once: bool = False) -> Watched:
    """Train, and gather evidence on every link on the way, or of the last round alone."""
    heard, found = links(net.mixing(0)).to(net.device), []
    source, receiver = heard.nonzero().unbind(1)
    evidence: Evidence | None = None
    for done in simulate(net, rounds):
        if once and done.t < rounds - 1:
            continue
        turn = in_turn(whole, done.t, samples)
        scores = signs_and_rivals(net, done, turn)
        evidence = gathered(nothing(scores) if evidence is None else evidence, scores, heard)
        found.append(deviations(evidence)[:, source, receiver].abs().float())
    assert evidence is not None  # there is a last round
    told = evidence._replace(total=evidence.total[: len(SIGNS)], latest=evidence.latest[: len(SIGNS)])
    flagged = torch.stack([strengths(told, RATE, *terms)[source, receiver] > 1 for terms in TERMS.values()])
    accuracy = evaluate(net, done.after).accuracy
    return Watched(torch.stack(found).cpu(), flagged.cpu(), source.cpu(), receiver.cpu(), accuracy.cpu())


def points(seen: Watched, side: Side, nodes: int) -> dict[str, Tensor]:
    """A row for each honest receiver and in-neighbour: the evidence at the end, who attacks, since when it is flagged.

    `delay` counts the rounds until the flag stood for good: one more than there are, where it does not.
    """
    which = seen.receiver // nodes
    seed, place = torch.tensor(side)[which].unbind(1)
    source, receiver = seen.source % nodes, seen.receiver % nodes
    limit = threshold(_degree(seen), RATE / len(SIGNS))
    strength = seen.deviation[:, : len(SIGNS)].amax(1) / limit
    stood = (strength > 1).flip(0).cumprod(0).sum(0)
    columns = {
        "seed": seed, "attacker": place, "source": source, "receiver": receiver, "attacks": source == place,
        DETECTOR: strength[-1], **{name: seen.deviation[-1, i] for i, name in enumerate(SCORES)},
        **{_flagged(terms): seen.flagged[i] for i, terms in enumerate(TERMS)},
        "ever": (strength > 1).any(0), "delay": len(strength) - stood + 1,
        "accuracy": seen.accuracy[seen.receiver],
    }  # fmt: skip
    return {name: column[receiver != place] for name, column in columns.items()}


def _flagged(terms: str) -> str:
    return f"flagged at {terms}"


def _degree(seen: Watched) -> int:
    """In-neighbours; the graph is regular."""
    return int((seen.receiver == 0).sum())


def auroc(values: Tensor, positive: Tensor) -> float:
    """How often a positive ranks above a negative; ties count half. NaN where either is missing."""
    _, order, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).double()[order]
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def measure(setting: Setting, plan: Plan, dataset: DataSet, judges: dict[Any, Evaluation]) -> dict[str, Tensor]:
    """All points of a setting; `judges` are kept from setting to setting, as data do not change."""
    found = []
    for side in sides(setting, plan):
        bases = {seed: base(setting, plan, dataset, seed) for seed in {seed for seed, _ in side}}
        held = min(len(part) for net in bases.values() for part in net.partition or ())
        rounds = rounds_of(setting, plan, plan.per_node or held)
        together = fleet([attacked(bases[seed], setting, place, rounds - 1) for seed, place in side])
        key = (setting.partition, tuple(seed for seed, _ in side))
        if key not in judges:
            judges[key] = own_judge([bases[seed] for seed, _ in side], together)
        samples = min(plan.samples, judges[key].x.shape[1])
        found.append(points(watch(together, rounds, judges[key], samples, setting.once), side, plan.nodes))
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}


def summary(name: str, setting: Setting, rows: Mapping[str, Tensor]) -> dict[str, Any]:
    """Means over seeds and their spread: AUROC of every score, flags among attackers and the honest, and accuracy."""
    per_seed = [{n: column[rows["seed"] == seed] for n, column in rows.items()} for seed in set(rows["seed"].tolist())]
    bad, good = rows["attacks"], ~rows["attacks"]
    networks = {*zip(rows["seed"].tolist(), rows["attacker"].tolist(), strict=True)}
    areas = {score: [auroc(one[score], one["attacks"]) for one in per_seed] for score in (DETECTOR, *SCORES)}
    result = {
        "name": name, **setting._asdict(), "networks": len(networks),
        "points": len(bad), "accuracy": _spread([float(one["accuracy"].mean()) for one in per_seed]),
        "false_alarms": {terms: _shares(per_seed, terms, False) for terms in TERMS},
        "false_alarms_ever": float(rows["ever"][good].double().mean()),
    }  # fmt: skip
    if not setting.kind:
        return result
    return {
        **result,
        "auroc": {score: _spread(values) for score, values in areas.items()},
        "flagged": {terms: _shares(per_seed, terms, True) for terms in TERMS},
        "delay": float(rows["delay"][bad].double().median()),
    }


def _shares(per_seed: Sequence[Mapping[str, Tensor]], terms: str, attacks: bool) -> dict[str, float]:
    """How many of the attackers' links, or of the honest ones, are flagged in the end."""
    name = _flagged(terms)
    return _spread([float(one[name][one["attacks"] == attacks].double().mean()) for one in per_seed])


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "sd": deviation, "least": min(values), "most": max(values)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one after another; each is printed, and written if asked, as soon as it is done."""
    args = _parser().parse_args(arguments)
    given = {f.name: value for f in fields(Plan) if (value := getattr(args, f.name, None)) is not None}
    try:
        plan = _checked(replace(Plan(), **{**(QUICK if args.quick else {}), **given}))
        names = args.settings or (FEW if args.quick else list(SETTINGS))
        chosen = {name: lookup(SETTINGS, name, "setting") for name in names}
        source, root = find(args.data_root)
        if source == "digits":
            print("CIFAR-10 was not found (--data-root, $CASCADICE_DATA, the cache, ../shared/data): using digits.")
            plan = replace(plan, per_node=None)
        results = list(_measured(chosen, plan, data.load(source, root).to(plan.device), args.limit, args.out))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "anomalies", "results": results}))
    return 0


def _checked(plan: Plan) -> Plan:
    for name, least, most in (("seeds", 1, math.inf), ("first_seed", 0, math.inf), ("places", 1, plan.nodes)):
        if not least <= (found := getattr(plan, name)) <= most:
            allowed = f"at least {least}" if most == math.inf else f"in {least}..{most}, the participants"
            raise ValueError(f"--{name.replace('_', '-')} must be {allowed}; found {found}.")
    return plan


def _measured(
    chosen: Mapping[str, Setting], plan: Plan, dataset: DataSet, limit: float, out: Path | None
) -> Iterator[dict[str, Any]]:
    start, judges, results = time.perf_counter(), dict[Any, Evaluation](), list[dict[str, Any]]()
    print(STUDY_HEADER, flush=True)
    for name, setting in chosen.items():
        begun = time.perf_counter()
        if begun - start > limit:
            print(f"stopped before {name}: the limit of {limit:g} s is spent.", flush=True)
            break
        try:
            rows = measure(setting, plan, dataset, judges)
        except ArithmeticError as error:  # an attack that breaks the network says nothing about the others
            print(f"{name}: {error}", flush=True)
            continue
        results.append({**summary(name, setting, rows), "seconds": time.perf_counter() - begun})
        print(study_line(results[-1]), flush=True)
        if out is not None:
            write(out, plan, name, rows, results)
        yield results[-1]


def write(out: Path, plan: Plan, name: str, rows: Mapping[str, Tensor], results: Sequence[Mapping[str, Any]]) -> None:
    """result.json of all settings so far, the points of this one as Parquet, and the figure."""
    import pyarrow as pa
    from pyarrow import parquet

    with files.aside(out / f"{name}.parquet") as draft:
        parquet.write_table(pa.table({column: values.numpy() for column, values in rows.items()}), draft)
    files.write_json(out / "result.json", {"experiment": "anomalies", "plan": asdict(plan), "results": list(results)})
    for suffix in ("png", "svg"):
        draw_study(results, out / f"anomalies.{suffix}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog=f"settings: {', '.join(SETTINGS)}"
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="some of the settings (all)")
    parser.add_argument("--quick", action="store_true", help="a small version of a few settings")
    parser.add_argument("--model", choices=("mlp", "cnn"), help="of everybody [mlp]")
    parser.add_argument("--seeds", type=int, metavar="N", help="of everything [5]")
    parser.add_argument(
        "--first-seed", type=int, metavar="N", help="so that a rule chosen on some seeds is measured on others [0]"
    )
    parser.add_argument("--places", type=int, metavar="N", help="places of the attacker for each seed [8]")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), metavar="S", help="start no setting after S seconds"
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for result.json, the points and the figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
