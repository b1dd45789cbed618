"""The command of the study: prints a line per case, and with --out writes results, points and the picture."""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.unlearning.measure import deviation, mean, measure, summary
from cascadice_experiments.unlearning.picture import draw
from cascadice_experiments.unlearning.settings import LEVELS, REPAIRED, SETTINGS, TRAINED, Setting

KINDS = ("sample", "batch", "participant")
FLAGS: study.Flags = {
    "--quick": {"help": "two small settings: less than a minute on two cores"},
    "--device": {"help": "cpu: digits; cuda: CIFAR-10 where it is found [%(default)s]"},
    "--kind": {"choices": KINDS, "help": "only what is forgotten over all rounds, of this kind"},
    "--seeds": {"help": "networks in a fleet [5; with --quick 2]"},
    "--first-seed": {"help": "seed of the first network [%(default)s]"},
    "--limit": {},
    "--out": {},
}
HEADER = (
    "distance left (mean ± deviation over seeds); membership AUC and test loss: as trained > first-order > replayed\n"
    f"{'forgotten':18} {'gossip':>13} {'first-order':>13} {'1 point':>13} {'2 points':>13} | {'repair alone':>13} "
    f"{'gossip+repair':>13} {'first+repair':>13} | {'AUC':>21} | {'test loss':>21} | times replay"
)
DISTANCES = (*[name for name in LEVELS if name != "replay"], *(f"{n}, repaired" for n in (TRAINED, *REPAIRED[1:])))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure setting by setting; print each case, and with --out write each setting, as soon as it is measured."""
    return study.run("unlearning", _measured, study.parser("unlearning", FLAGS).parse_args(arguments))


def _measured(args: Namespace) -> dict[str, Any]:
    began, points = time.perf_counter(), list[dict[str, Any]]()
    for setting in _settings(args):
        print(f"\n{title(setting)}\n{HEADER}", flush=True)
        for case in measure(setting, args.kind):
            points += case
            print(line(case), *against_retraining(case), sep="\n", flush=True)
            if late := time.perf_counter() - began > args.limit:
                print(f"stopped: the time limit of {args.limit:g} s has passed", flush=True)
                break
        trained = [p for p in points if p["level"] == TRAINED and p["activation"] == setting.activation]
        print(title(setting, mean([p for p in trained if p["lr"] == setting.lr], "test_accuracy")), flush=True)
        if args.out:
            result = {"seconds": time.perf_counter() - began, "results": summary(points)}
            study.write(args.out, "unlearning", args.device, result, points, partial(draw, points))
        if late:
            break
    return {"results": summary(points)}


def _settings(args: Namespace) -> list[Setting]:
    source, root = find(args.data_root) if args.device.startswith("cuda") else ("digits", None)
    chosen = [replace(setting, data=source, data_root=root, device=args.device) for setting in SETTINGS]
    if source == "cifar10":
        chosen = [replace(setting, rounds=80) for setting in chosen]
    if args.quick:
        chosen = [replace(setting, nodes=8, rounds=24, seeds=2) for setting in chosen[:2]]
    return [replace(s, seeds=args.seeds or s.seeds, first_seed=args.first_seed) for s in chosen]


def line(points: Sequence[Mapping[str, Any]]) -> str:
    """One case of one setting as a line under `HEADER`."""
    by_level = {name: [p for p in points if p["level"] == name] for name in dict.fromkeys(p["level"] for p in points)}
    spreads = [(mean(by_level[name], "distance"), deviation(by_level[name], "distance")) for name in DISTANCES]
    left = [f"{middle:6.3f} ±{spread:5.3f}" for middle, spread in spreads]
    shown = (TRAINED, "first-order", "replay")
    auc, loss = (
        " > ".join(f"{mean(by_level[name], key):.3f}" for name in shown) for key in ("membership", "eval_loss")
    )
    cost = ", ".join(f"{mean(by_level[name], 'times_replay'):.2g}" for name in DISTANCES[:4])
    name = f"{points[0]['kind']}, {points[0]['span']}"
    return f"{name:18} {' '.join(left[:4])} | {' '.join(left[4:])} | {auc:>21} | {loss:>21} | {cost}"


def against_retraining(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a participant was forgotten over all rounds: every way to do so beside training again without it."""
    if (points[0]["kind"], points[0]["span"]) != ("participant", "long"):
        return []
    keys = {"distance left": "distance", "test loss": "eval_loss", "loss of its data": "forgotten_loss",
            "membership AUC": "membership"}  # fmt: skip
    lines = ["", f"{'against training without it':34}" + "".join(f"{name:>18}" for name in keys)]
    for level in dict.fromkeys(point["level"] for point in points):
        own = [point for point in points if point["level"] == level]
        cells = (f"{mean(own, key):.3f} ± {deviation(own, key):.3f}" for key in keys.values())
        lines.append(f"{level:34}" + "".join(f"{cell:>18}" for cell in cells))
    return [*lines, ""]


def title(setting: Setting, accuracy: float | None = None) -> str:
    """A setting in words."""
    reached = "" if accuracy is None else f", test accuracy {accuracy:.3f}"
    return f"{setting.data}, {setting.activation}, lr {setting.lr:g}, {setting.rounds} rounds{reached}"


if __name__ == "__main__":
    sys.exit(main())
