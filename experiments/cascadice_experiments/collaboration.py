"""What it is worth to choose with whom to average: attackers of four kinds, and two groups that want different things.

    python -m cascadice_experiments.collaboration --device cuda --out out/collaboration    all settings, minutes
    python -m cascadice_experiments.collaboration --quick                                  three small ones, a minute

Every rule trains the same networks: the same data, batches, initial parameters, graph and attackers, at random places.
All rules and seeds of a setting train side by side as one fleet. Accuracy is that of the honest participants on the
test data; in the setting with groups, that of everybody on test data with the labels of its own group.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import cascadice as cd
from cascadice import data, files, models, optimizers, seeds, topology
from cascadice.applications.choose.groups import find_groups, rand_index
from cascadice.applications.choose.idea import InfluenceAware, influence_aware
from cascadice.data import DataSet
from cascadice.data.batches import rounds_per_epoch
from cascadice.engine import Network, Participants, evaluate, simulate
from cascadice.engine.exchange import robust
from cascadice.engine.rounds import Draw, MixingRule, mix
from cascadice_experiments.fleets import apart, blocks, fleet
from cascadice_experiments.regimes import find

NOISE, CLIP = 1e-3, 5.0  # variance of what noise senders add; gradients are clipped, or ascent would end in NaN
ATTACKS = ("random labels", "mirrored labels", "sign flipped x3", "noise")
GROUPS, NOBODY = "two groups", "nobody"
WORTH_CLOSING = 0.01  # a gap below a point is noise, and parts of it mean nothing


@dataclass(frozen=True)
class Setting:
    """What is wrong with how many participants of which network."""

    attack: str
    fraction: float = 0.25
    graph: str = "exponential"
    model: str = "mlp"
    nodes: int = 32
    per_node: int = 512
    batch_size: int = 64
    epochs: float = 20.0
    lr: float = 0.1


def settings() -> list[Setting]:
    """All of them, those first that matter most, because time may run out."""
    first = [Setting(attack, fraction) for fraction in (0.25, 0.4) for attack in ATTACKS]
    regular = [Setting(attack, 0.4, "random-regular") for attack in ATTACKS]
    between = [Setting(GROUPS, 0.5), Setting(NOBODY, 0.0)]
    return [*between, *first, Setting(GROUPS, 0.5, "random-regular"), *regular]


def quick() -> list[Setting]:
    """Three small ones."""
    small = Setting(ATTACKS[2], 0.25, nodes=12, per_node=96, batch_size=16, epochs=6)
    return [small, replace(small, attack=GROUPS, fraction=0.5), replace(small, attack=NOBODY, fraction=0.0)]


def strangers(setting: Setting, seed: int) -> tuple[int, ...]:
    """Who attacks, or is of the second group: drawn at random."""
    order = torch.randperm(setting.nodes, generator=seeds.generator(seed, "attackers"))
    return tuple(sorted(order[: round(setting.fraction * setting.nodes)].tolist()))


def network(setting: Setting, dataset: DataSet, seed: int, hidden: Sequence[int] | None = None) -> Network:
    """One network of the setting. Noise is added later, by `noisy`: its senders do no work of their own."""
    bad, corruptions, behaviours = strangers(setting, seed), [], []
    kinds = {"random labels": "permute-labels", "mirrored labels": "mirror-labels", GROUPS: "mirror-labels"}
    if setting.attack in kinds:
        corruptions = [cd.Corruption(kinds[setting.attack], bad)]
    elif setting.attack == "sign flipped x3":
        behaviours = [cd.Behaviour("sign-flipper", bad, strength=3.0)]
    elif setting.attack == "noise":
        behaviours = [cd.Behaviour("free-rider", bad)]
    options: dict[str, Any] = {"degree": 6} if setting.graph == "random-regular" else {}
    wide: dict[str, Any] = {} if hidden is None else {"hidden": tuple(hidden)}
    return cd.network(
        models.build(setting.model, dataset.train.shape, len(dataset.classes), seed=seed, **wide), dataset,
        mixing=topology.build(setting.graph, setting.nodes, seed=seed, **options), per_node=setting.per_node,
        batch_size=setting.batch_size, lr=setting.lr, optimizer=optimizers.clip(optimizers.build("sgd"), CLIP),
        corruptions=corruptions, behaviours=behaviours, seed=seed, device=dataset.train.x.device, strategy="vmap",
    )  # fmt: skip


def rules(setting: Setting, together: Network, bad: Sequence[int], count: int) -> dict[str, MixingRule]:
    """Every rule that is compared, for a fleet of `count` networks; robust ones are told the fraction of attackers."""
    own, exploring = (influence_aware(together, explore=explore, networks=count) for explore in (False, True))
    plain: dict[str, MixingRule] = {"uniform": lambda drawn, before, half: drawn.W}
    chosen: dict[str, MixingRule] = {"influence, own links": own, "influence": exploring}
    if setting.attack == GROUPS:
        group = torch.zeros(together.nodes, dtype=torch.int64).index_fill_(0, torch.tensor(bad), 1)
        return {**plain, "alone": robust.alone, **chosen, "oracle": robust.within(group)}
    share = setting.fraction or 0.25
    guards = {
        "trimmed mean": robust.trimmed_mean(share),
        "clipping": robust.clipping(share),
        "krum": robust.krum(share),
    }
    return {**plain, **guards, **chosen, "oracle": robust.without(bad)}


def side_by_side(parts: Sequence[MixingRule], size: int) -> MixingRule:
    """The first `size` participants by the first rule, the next by the second, and so on."""

    def rule(drawn: Draw, before: Participants, half: Participants) -> Participants:
        done = []
        for i, one in enumerate(parts):
            rows = slice(i * size, (i + 1) * size)
            earlier, now = tree_map(lambda leaf, rows=rows: leaf[rows], (before, half))
            chosen = one(drawn._replace(W=drawn.W[rows, rows]), earlier, now)
            done.append(chosen if isinstance(chosen, Participants) else mix(chosen, now))
        together: Participants = tree_map(lambda *leaves: torch.cat(leaves), *done)
        return together._replace(state=half.state)

    return rule


def noisy(rule: MixingRule, senders: Sequence[int], seed: int) -> MixingRule:
    """The rule, when these participants have sent noise; drawn on the device, for they are hundreds."""

    def spoilt(drawn: Draw, before: Participants, half: Participants) -> Tensor | Participants:
        draw = torch.Generator(half.theta.device).manual_seed(seeds.derive(seed, "noise senders", drawn.t))
        shape = (len(senders), half.theta.shape[1])
        half.theta[torch.tensor(senders)] += NOISE**0.5 * torch.randn(shape, generator=draw, device=half.theta.device)
        return rule(drawn, before, half)

    return spoilt


def measure(
    setting: Setting, dataset: DataSet, numbers: Sequence[int], hidden: Sequence[int] | None = None
) -> dict[str, Any]:
    """Train every rule on the networks of these seeds, side by side; their accuracies, seed by seed."""
    start = time.perf_counter()
    networks = [network(setting, dataset, seed, hidden) for seed in numbers]
    offsets = range(0, len(numbers) * setting.nodes, setting.nodes)
    bad = [by + k for by, seed in zip(offsets, numbers, strict=True) for k in strangers(setting, seed)]
    compared = rules(setting, fleet(networks), bad, len(networks))
    size = len(numbers) * setting.nodes
    everything = fleet(networks * len(compared))
    rule = side_by_side(list(compared.values()), size)
    if setting.attack == "noise":
        rule = noisy(rule, [i * size + k for i in range(len(compared)) for k in bad], numbers[0])
    assert networks[0].partition is not None
    rounds = round(setting.epochs * rounds_per_epoch(networks[0].partition, setting.batch_size))
    for done in simulate(everything, rounds, rule=rule):
        last = done.after
    odd = torch.zeros(size, dtype=torch.bool).index_fill_(0, torch.tensor(bad, dtype=torch.int64), True)
    held = _accuracies(setting, everything, last, odd.repeat(len(compared)), len(compared) * len(numbers))
    chosen = {name: one for name, one in compared.items() if isinstance(one, InfluenceAware)}
    return {
        **asdict(setting), "data": dataset.name, "parameters": networks[0].learner.size, "rounds": rounds,
        "seeds": list(numbers), "accuracy": dict(zip(compared, held.view(len(compared), -1).tolist(), strict=True)),
        "links": {name: _links(one, done.W[:size, :size], odd, setting) for name, one in chosen.items()},
        "rand_index": _indices(chosen, odd, len(numbers)) if setting.attack == GROUPS else {},
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _accuracies(setting: Setting, network: Network, last: Participants, odd: Tensor, count: int) -> Tensor:
    """The mean accuracy of those that matter, in each of `count` networks."""
    found = evaluate(network, last).accuracy.double().cpu()
    if setting.attack != GROUPS:
        honest = (~odd).double()
        return apart(found * honest, count).sum(1) / apart(honest, count).sum(1)
    test = network.data.test
    mirrored = evaluate(network, last, replace(test, y=len(network.data.classes) - 1 - test.y)).accuracy
    return apart(torch.where(odd, mirrored.double().cpu(), found), count).mean(1)


def _links(rule: InfluenceAware, W: Tensor, odd: Tensor, setting: Setting) -> dict[str, float]:
    """Of the links to those that matter, how many wrong ones were kept in the end, and how many right ones were not."""
    heard, trusted = robust.others(W), rule.evidence.trusted
    wrong = odd[:, None] != odd[None] if setting.attack == GROUPS else odd[None].expand_as(heard)
    evaluating = heard if setting.attack == GROUPS else heard & ~odd[:, None]
    parts = {"wrong kept": (evaluating & wrong, trusted), "right dropped": (evaluating & ~wrong, ~trusted)}
    return {name: float((among & which).sum() / among.sum().clamp(min=1)) for name, (among, which) in parts.items()}


def _indices(chosen: Mapping[str, InfluenceAware], odd: Tensor, count: int) -> dict[str, list[float]]:
    """Adjusted Rand index of the groups that each network's influence shows, with the planted ones."""
    planted = apart(odd.long(), count)
    return {
        name: [rand_index(find_groups(g), truth) for g, truth in zip(blocks(one.given, count), planted, strict=True)]
        for name, one in chosen.items()
    }


def cost(setting: Setting, dataset: DataSet, rounds: int = 30) -> float:
    """What influence-aware gossip takes, in training rounds of the setting."""
    seconds = []
    for make in (lambda net: None, influence_aware):
        net = network(setting, dataset, 0)
        for done in simulate(net, rounds, rule=make(net), window=0):
            if done.t == rounds // 3:
                begun = _clock(net)
        seconds.append(_clock(net) - begun)
    return seconds[1] / seconds[0] - 1


def _clock(network: Network) -> float:
    if network.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def summary(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each rule: mean and spread over seeds, and how much of the gap from uniform to the oracle it closed."""
    held = {name: torch.tensor(values, dtype=torch.float64) for name, values in result["accuracy"].items()}
    low, high = held["uniform"].mean(), held["oracle"].mean()
    return [
        {
            "rule": name,
            "accuracy": float(values.mean()),
            "spread": float(values.std()) if len(values) > 1 else 0.0,
            "closed": float((values.mean() - low) / (high - low)) if float(high - low) >= WORTH_CLOSING else None,
        }
        for name, values in held.items()
    ]


def run(chosen: Sequence[Setting], dataset: DataSet, numbers: Sequence[int], out: Path | None, limit: float,
        hidden: Sequence[int] | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Measure setting after setting, printing and keeping each as soon as it is done, while there is time."""
    start = time.perf_counter()
    results: list[dict[str, Any]] = []
    for setting in chosen:
        slowest = max((result["seconds"] for result in results), default=0.0)
        if time.perf_counter() - start + slowest > limit:
            print(f"stopped before {setting.attack}, {setting.graph}: {limit:.0f} s would not be enough", flush=True)
            break
        results.append(measure(setting, dataset, numbers, hidden))
        print(*_lines(results[-1]), sep="\n", flush=True)
        if out is not None:
            keep(results, out)
    return results


def keep(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """result.json, points.parquet with a row for each setting, rule and seed, and the picture."""
    import pyarrow as pa
    from pyarrow import parquet

    from cascadice.applications.choose.picture import compare

    rows = [
        {
            "attack": r["attack"],
            "fraction": r["fraction"],
            "graph": r["graph"],
            "rule": rule,
            "seed": seed,
            "accuracy": a,
        }
        for r in results
        for rule, values in r["accuracy"].items()
        for seed, a in zip(r["seeds"], values, strict=True)
    ]
    files.write_json(out / "result.json", {"experiment": "collaboration", "results": list(results)})
    with files.aside(out / "points.parquet") as draft:
        parquet.write_table(pa.Table.from_pylist(rows), draft)
    summaries = [(_title(result), summary(result)) for result in results]
    for suffix in ("png", "svg"):
        compare(summaries, out / f"collaboration.{suffix}")


def _title(result: Mapping[str, Any]) -> str:
    share = f" {result['fraction']:.0%}" if result["attack"] != NOBODY else ""
    return f"{result['attack']}{share}, {result['graph']}"


def _lines(result: Mapping[str, Any]) -> list[str]:
    head = f"\n{_title(result)}: {len(result['seeds'])} networks of {result['nodes']}, {result['seconds']:.0f} s"
    lines = [head]
    for row in summary(result):
        closed = "" if row["closed"] is None else f"   {row['closed']:7.1%} of the gap"
        found = result["links"].get(row["rule"])
        links = f"   kept {found['wrong kept']:.1%} wrong, dropped {found['right dropped']:.1%} right" if found else ""
        lines.append(f"  {row['rule']:22} {row['accuracy']:.3f} ± {row['spread']:.3f}{closed}{links}")
    for name, indices in result["rand_index"].items():
        lines.append(f"  groups by {name}: adjusted Rand index {min(indices):.2f} to {max(indices):.2f}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three small settings, two seeds")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--seeds", type=int, metavar="N", help="networks in each setting [5]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="seed of the first network [0]")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="seconds after which to stop")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for result.json, points.parquet and a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args(arguments)
    try:
        count = (2 if args.quick else 5) if args.seeds is None else args.seeds
        if count < 1:
            raise ValueError(f"--seeds must be at least 1; found {count}.")
        source, root = find(args.data_root)
        if source == "digits":
            print("CIFAR-10 was not found (--data-root, $CASCADICE_DATA, the cache, ../shared/data): using digits.")
        dataset = data.load(source, root).to(args.device)
        numbers = range(args.first_seed, args.first_seed + count)
        results = run(quick() if args.quick else settings(), dataset, numbers, args.out, args.limit, _width(args.quick))
        if not args.quick:
            print(f"\ninfluence-aware gossip costs {cost(Setting(NOBODY, 0.0), dataset):.0%} of a training round")
    except (ValueError, RuntimeError, OSError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "collaboration", "results": results}))
    return 0


def _width(small: bool) -> Sequence[int] | None:
    return (32,) if small else None


if __name__ == "__main__":
    sys.exit(main())
