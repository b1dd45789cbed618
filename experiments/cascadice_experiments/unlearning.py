"""How near each level of forgetting comes to models that never used the data, and what it costs beside replaying.

    python -m cascadice_experiments.unlearning                    digits, some minutes on two cores
    python -m cascadice_experiments.unlearning --device cuda      CIFAR-10, about a minute
    python -m cascadice_experiments.unlearning --quick            digits, small

A sample, a batch and a participant are forgotten, over the last 10 rounds and over (nearly) all of them; networks with
several seeds, each with another participant concerned, train and forget as one fleet. Distances are what is left of
the way from the models as trained (1) to those replayed without (0). Repaired models are compared with replayed ones
that trained on for as many rounds.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascadice import files, models, seeds
from cascadice.applications.forget.idea import Corrected, Removal, advantage, forget, losses, repair
from cascadice.applications.forget.removals import samples_of
from cascadice.data import DataSet, load
from cascadice.engine import Network, Participants, Round, evaluate, network, simulate
from cascadice_experiments.fleets import apart, fleet
from cascadice_experiments.regimes import find


@dataclass(frozen=True)
class Setting:
    """Networks of 16 on the exponential graph; CIFAR-10 with so few samples each that models come to know them."""

    data: str = "digits"
    activation: str = "relu"
    lr: float = 0.1
    rounds: int = 60
    batch_size: int = 16
    nodes: int = 16
    seeds: int = 5
    first_seed: int = 0
    short: int = 10
    repairs: int = 10
    device: str = "cpu"
    data_root: str | None = None


SETTINGS = tuple(Setting(activation=a, lr=lr) for lr in (0.1, 0.02) for a in ("relu", "gelu"))
LEVELS: Mapping[str, tuple[str, int]] = {
    "replay": ("replay", 1),
    "gossip": ("gossip", 1),
    "first-order": ("first-order", 1),
    "path-integrated, 1 point": ("path-integrated", 1),
    "path-integrated, 2 points": ("path-integrated", 2),
}
REPAIRED = ("replay", "gossip", "first-order")
TRAINED = "as trained"


def made(setting: Setting, data: DataSet, seed: int) -> Network:
    """One network of the fleet."""
    hidden, per_node = ((256, 256), 64) if setting.data == "cifar10" else ((64, 64), None)
    options = {"hidden": hidden, "activation": setting.activation}
    return network(
        lambda: models.build("mlp", data.train.shape, len(data.classes), seed=torch.initial_seed(), **options), data,
        nodes=setting.nodes, mixing="exponential", per_node=per_node, batch_size=setting.batch_size, lr=setting.lr,
        seed=seed, device=setting.device, strategy="vmap",
    )  # fmt: skip


@cache
def _loaded(name: str, root: str | None, device: str) -> DataSet:
    """Read once for all settings and seeds: on a fast device it would take longer than training."""
    return load(name, root).to(device)


class Case(NamedTuple):
    """What the networks of a fleet forget, each of its own, and the rounds from the first that is touched on."""

    kind: str
    span: str
    removal: Removal
    rounds: Sequence[Round]


def cases(networks: Sequence[Network], rounds: Sequence[Round], setting: Setting) -> Iterator[Case]:
    """A sample, a batch and a participant of each network, over a short and a long range of rounds."""
    end, late = setting.rounds, setting.rounds - setting.short
    chosen = [seeds.derive(one.seed, "forgotten") % setting.nodes for one in networks]
    nodes = tuple(i * setting.nodes + k for i, k in enumerate(chosen))
    held = [one.partition[k].cpu() for one, k in zip(networks, chosen, strict=True) if one.partition]
    for span, first, batch in (("short", late, late), ("long", 0, end // 4)):
        drawn = rounds[first].draw.batch.cpu()[list(nodes), 0]
        samples = tuple(_own(row, held[:i] + held[i + 1 :]) for i, row in enumerate(drawn))
        yield Case("sample", span, Removal(nodes, samples, range(first, end)), rounds[first:])
        yield Case("batch", span, Removal(nodes, rounds=range(batch, batch + 1)), rounds[batch:])
        yield Case("participant", span, Removal(nodes, rounds=range(first, end)), rounds[first:])


def _own(batch: Tensor, others: Sequence[Tensor]) -> int:
    """A sample of this batch that none of the others holds: networks of a fleet share out the same data."""
    shared = torch.isin(batch, torch.cat([batch.new_zeros(0), *others]))
    return int(batch[int((~shared).int().argmax())])


def measure(setting: Setting) -> Iterator[list[dict[str, Any]]]:
    """Train a fleet, forget each case by each level: a point for every level and seed, case by case."""
    data = _loaded(setting.data, setting.data_root, setting.device)
    networks = [made(setting, data, setting.first_seed + seed) for seed in range(setting.seeds)]
    together = fleet(networks)
    rounds = list(simulate(together, setting.rounds))
    _warm(together, rounds)
    for case in cases(networks, rounds, setting):
        yield [{**asdict(setting), **point} for point in _forgotten(together, case, setting)]


def _warm(network: Network, rounds: Sequence[Round]) -> None:
    """What is loaded or compiled on its first use is no part of a level's time."""
    for level, points in LEVELS.values():
        forget(network, rounds[-2:], Removal((0,)), level, points)
        forget(network, rounds[-2:], Removal(samples=(int(rounds[-1].draw.batch[0, 0, 0]),)), level, points)


def _forgotten(network: Network, case: Case, setting: Setting) -> Iterator[dict[str, Any]]:
    found: dict[str, Participants] = {TRAINED: case.rounds[-1].after}
    seconds: dict[str, float] = {}
    corrected: dict[str, Corrected] = {}
    for name, (level, points) in LEVELS.items():
        began = _now(network)
        corrected[name] = forget(network, case.rounds, case.removal, level, points)
        seconds[name] = _now(network) - began
        found[name] = corrected[name].participants
    start = corrected["replay"]._replace(participants=found[TRAINED])
    for name, at in {TRAINED: start, **{name: corrected[name] for name in REPAIRED}}.items():
        found[f"{name}, repaired"] = repair(network, at, case.removal, setting.repairs).participants
    draws = [done.draw for done in case.rounds]
    each = [replace(case.removal, nodes=(node,)) for node in case.removal.nodes]
    members = [samples_of(removal, draws, network.nodes) for removal in each]
    traces = {name: _traces(network, people, members, setting.seeds) for name, people in found.items()}
    for name, people in found.items():
        aim = "replay, repaired" if name.endswith(", repaired") else "replay"
        left = _left(people, found[aim], found[TRAINED], found["replay"], setting.seeds)
        for seed in range(setting.seeds):
            yield {
                "kind": case.kind, "span": case.span, "level": name, "seed": setting.first_seed + seed,
                "distance": left[seed], "seconds": seconds.get(name, float("nan")),
                "times_replay": seconds.get(name, float("nan")) / seconds["replay"],
                **traces[name][seed],
                **{f"{key}_off": traces[name][seed][key] - traces[aim][seed][key] for key in OFF},
            }  # fmt: skip


def _now(network: Network) -> float:
    """Seconds: on CPU those of this process, which others on the same machine do not stretch."""
    if network.device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(network.device)
    return time.perf_counter()


def _left(
    people: Participants, aim: Participants, trained: Participants, replayed: Participants, count: int
) -> list[float]:
    """What is left of the way, network by network."""

    def norms(one: Participants, other: Participants) -> Tensor:
        return apart((one.theta - other.theta).double().square().sum(1), count).sum(1).sqrt()

    left: list[float] = (norms(people, aim) / norms(trained, replayed)).tolist()
    return left


def _traces(network: Network, people: Participants, members: Sequence[Tensor], count: int) -> list[dict[str, float]]:
    """Test loss and accuracy, loss of what was forgotten and the attack's AUC, mean over each network's models."""
    fresh = network.data.test.subset(torch.arange(min(1000, len(network.data.test))))
    judged = apart(losses(network, people, fresh), count)
    known = apart(losses(network, people, network.data.train.subset(torch.cat(list(members)))), count)
    correct = apart(evaluate(network, people, fresh).accuracy, count)
    own = torch.split(known, [len(part) for part in members], dim=2)
    return [
        {
            "eval_loss": float(judged[i].mean()), "test_accuracy": float(correct[i].mean()),
            "forgotten_loss": float(own[i][i].mean()), "membership": float(advantage(own[i][i], judged[i]).mean()),
        }
        for i in range(count)
    ]  # fmt: skip


HEADER = (
    "distance left (mean ± deviation over seeds); AUC of membership, test loss: as trained > first-order > replayed\n"
    f"{'forgotten':18} {'gossip':>13} {'first-order':>13} {'1 point':>13} {'2 points':>13} | {'repair alone':>13} "
    f"{'gossip+repair':>13} {'first+repair':>13} | {'AUC':>21} | {'test loss':>21} | times replay"
)
DISTANCES = (*[name for name in LEVELS if name != "replay"], *(f"{n}, repaired" for n in (TRAINED, *REPAIRED[1:])))


def line(points: Sequence[Mapping[str, Any]]) -> str:
    """A case of one setting in a line."""
    by_level = {name: [p for p in points if p["level"] == name] for name in dict.fromkeys(p["level"] for p in points)}
    found = [(_mean(by_level[name], "distance"), _deviation(by_level[name], "distance")) for name in DISTANCES]
    left = [f"{middle:6.3f} ±{spread:5.3f}" for middle, spread in found]
    told = (TRAINED, "first-order", "replay")
    auc, loss = (
        " > ".join(f"{_mean(by_level[name], key):.3f}" for name in told) for key in ("membership", "eval_loss")
    )
    cost = ", ".join(f"{_mean(by_level[name], 'times_replay'):.2g}" for name in DISTANCES[:4])
    name = f"{points[0]['kind']}, {points[0]['span']}"
    return f"{name:18} {' '.join(left[:4])} | {' '.join(left[4:])} | {auc:>21} | {loss:>21} | {cost}"


def _mean(points: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([point[key] for point in points]))


def _deviation(points: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.std([point[key] for point in points], ddof=1)) if len(points) > 1 else 0.0


def title(setting: Setting, accuracy: float | None = None) -> str:
    """A setting in words."""
    reached = "" if accuracy is None else f", test accuracy {accuracy:.3f}"
    return f"{setting.data}, {setting.activation}, lr {setting.lr:g}, {setting.rounds} rounds{reached}"


def write(points: Sequence[Mapping[str, Any]], out: Path, seconds: float) -> None:
    """All points as Parquet, their means and spreads as JSON, and the picture."""
    import pyarrow as pa
    from pyarrow import parquet

    from cascadice.applications.forget.picture import draw_levels

    with files.aside(out / "points.parquet") as draft:
        parquet.write_table(pa.Table.from_pylist([dict(point) for point in points]), draft)
    files.write_json(out / "result.json", {"experiment": "unlearning", "seconds": seconds, "results": summary(points)})
    for suffix in ("png", "svg"):
        draw_levels(points, out / f"unlearning.{suffix}")


def summary(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of all that was measured, for each setting, case and level."""
    keys = ("data", "activation", "lr", "rounds", "kind", "span", "level")
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for point in points:
        groups.setdefault(tuple(point[key] for key in keys), []).append(point)
    found = []
    for values, group in groups.items():
        means = {key: _mean(group, key) for key in MEASURED}
        means |= {f"{key}_deviation": _deviation(group, key) for key in MEASURED}
        known = {key: value for key, value in means.items() if isfinite(value)}
        found.append({**dict(zip(keys, values, strict=True)), "seeds": len(group), **known})
    return found


OFF = ("eval_loss", "membership")  # also as differences from the replayed models of the same seed
MEASURED = (
    "distance", "seconds", "times_replay", "eval_loss", "test_accuracy", "forgotten_loss", "membership",
    *(f"{key}_off" for key in OFF),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure setting by setting; each case is printed, and with --out written, as soon as it is done."""
    args, began = _parser().parse_args(arguments), time.perf_counter()
    points: list[dict[str, Any]] = []
    try:
        for setting in _settings(args):
            print(f"\n{title(setting)}\n{HEADER}", flush=True)
            for found in measure(setting):
                points += found
                print(line(found), flush=True)
                if time.perf_counter() - began > args.limit:
                    print(f"stopped: more than {args.limit:g} s", flush=True)
                    break
            trained = [p for p in points if p["level"] == TRAINED and p["activation"] == setting.activation]
            print(title(setting, _mean([p for p in trained if p["lr"] == setting.lr], "test_accuracy")), flush=True)
            if args.out:
                write(points, Path(args.out), time.perf_counter() - began)
            if time.perf_counter() - began > args.limit:
                break
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "unlearning", "results": summary(points)}))
    return 0


def _settings(args: argparse.Namespace) -> list[Setting]:
    if args.seeds is not None and args.seeds < 1:
        raise ValueError(f"--seeds must be at least 1; found {args.seeds}.")
    source, root = find(args.data_root) if args.device.startswith("cuda") else ("digits", None)
    chosen = [replace(setting, data=source, data_root=root, device=args.device) for setting in SETTINGS]
    if source == "cifar10":
        chosen = [replace(setting, rounds=80) for setting in chosen]
    if args.quick:
        chosen = [replace(setting, nodes=8, rounds=24, seeds=2) for setting in chosen[:2]]
    return [replace(s, seeds=args.seeds or s.seeds, first_seed=args.first_seed) for s in chosen]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small settings: less than a minute on two cores")
    parser.add_argument("--device", default="cpu", help="cpu: digits; cuda: CIFAR-10 where it is found [cpu]")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--seeds", type=int, metavar="N", help="networks in a fleet [5]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="of the first network [0]")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="start nothing after S seconds")
    parser.add_argument("--out", metavar="DIR", help="folder for result.json, points.parquet and the figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
