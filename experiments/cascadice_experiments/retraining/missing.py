"""Measure what docs/retraining.md lists as not measured yet, the most useful cells first, for as long as there is time.

    python -m cascadice_experiments.retraining.missing --device cuda --minutes 25 --out docs/results/retraining/next

Whatever is finished is kept: repeated, the command goes on where it stopped, even within a case.
"""

import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from cascadice import files
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.figures.parts import Parts, plain
from cascadice_experiments.retraining import measure
from cascadice_experiments.retraining.settings import CASES, CNN, SMOOTH_CNN, Case
from cascadice_experiments.retraining.table import lines, read

SEEDS = range(5)


def _each_seed(case: Case) -> list[Case]:
    """One seed at a time: networks of this size gain little by being trained beside others."""
    return [replace(case, seeds=(seed,)) for seed in SEEDS]


MORE: dict[str, Any] = {
    "participants": (0.8, 0.5),
    "samples": (0.5,),
    "subsets": 48,
    "by_class": (0.8, 0.5),
    "points": 3,
}
REST: dict[str, Any] = {"participants": (0.9,), "samples": (0.9, 0.8), "points": 0, "by_class": ()}
PLAN: tuple[Case, ...] = (
    *_each_seed(SMOOTH_CNN),
    *_each_seed(replace(CNN, **MORE)),
    replace(
        CASES["adam"], name="adam with ε = 0.0001", epsilon=1e-4, halves=0, participants=(0.8, 0.5),
        samples=(0.8, 0.5), by_class=(0.5,), points=0,
    ),
    replace(CASES["adam"], by_class=(0.8, 0.5)),
    *_each_seed(replace(CASES["transformer"], participants=(0.75, 0.5), alphas=(1.0, 0.75, 0.5), subsets=24)),
    *_each_seed(replace(CASES["cnn relu"], **MORE)),
    replace(CASES["resnet18"], alphas=(0.5,), seeds=(0,)),
    *_each_seed(replace(CNN, name="cnn, other parts", **{**MORE, **REST})),
)  # fmt: skip
FLAGS: study.Flags = {
    "--minutes": {
        "type": float,
        "default": 25.0,
        "metavar": "N",
        "help": "start nothing after so many minutes [%(default)s]",
    },
    "--case": {"metavar": "NAME", "help": "only this case"},
    "--seeds": {"default": len(SEEDS), "help": "only what begins with one of so many seeds [%(default)s]"},
    "--first-seed": {},
    "--out": {"default": Path("out/missing"), "help": "folder for the results [%(default)s]"},
}


class TimeOverError(Exception):
    """The time is over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure case by case until the time is over."""
    return study.run("retraining.missing", _measure, study.parser("retraining.missing", FLAGS).parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    return {"made": carry_out(PLAN, args)}


def carry_out(plan: Sequence[Case], args: Namespace) -> list[str]:
    """Measure these cases into `args.out` until the time is over, print everything there, and say what is new."""
    torch.set_float32_matmul_precision("high")
    chosen = _selected(plan, args)
    deadline, out, (source, root) = monotonic() + 60 * args.minutes, args.out, find(args.data_root)
    made = []
    try:
        for case in chosen:
            if is_there(out, case):
                print(f"{_label(case)}: measured earlier", flush=True)
                continue
            part = _until(deadline, Parts(_folder(out, case), plain(asdict(case)), print, 0).part)
            result = measure.measure(case, source, root, args.device, lambda line: None, part)
            files.write_json(_path(out, case), {"data": source, **result})
            shutil.rmtree(_folder(out, case))
            made.append(_label(case))
            print(f"{made[-1]}: in {_path(out, case)}", flush=True)
    except TimeOverError as error:
        print(f"{error}: not started, the time is over. The same command goes on from here.", flush=True)
    for result in read(out):
        print(*lines(result), "", sep="\n", flush=True)
    return made


def _selected(plan: Sequence[Case], args: Namespace) -> list[Case]:
    """The cases that --case, --seeds and --first-seed select; ValueError if there are none."""
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    chosen = [case for case in plan if args.case in (None, case.name) and case.seeds[0] in seeds]
    if not chosen:
        known = "; ".join(dict.fromkeys(case.name for case in plan))
        raise ValueError(
            f"nothing is selected: no case{f' {args.case!r}' * (args.case is not None)} begins with a seed from "
            f"{seeds[0]} to {seeds[-1]}. Change --case, --seeds or --first-seed; the cases are: {known}; their first "
            f"seeds: {', '.join(map(str, sorted({case.seeds[0] for case in plan})))}."
        )
    return chosen


def is_there(out: Path, case: Case) -> bool:
    """Whether the folder has this case with these settings."""
    path = _path(out, case)
    return path.exists() and json.loads(path.read_text())["settings"] == plain(asdict(case))


def _label(case: Case) -> str:
    return f"{case.name}, seed{'s' * (len(case.seeds) > 1)} {', '.join(map(str, case.seeds))}"


def _path(out: Path, case: Case) -> Path:
    return out / f"{case.name.replace(',', '').replace(' ', '-')}-from-seed-{case.seeds[0]}.json"


def _folder(out: Path, case: Case) -> Path:
    return out / "parts" / _path(out, case).stem


def _until(deadline: float, part: measure.Part) -> measure.Part:
    """The same, but parts that are not kept from before are made only if there is time left."""

    def limited(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        def in_time() -> dict[str, Any]:
            if monotonic() > deadline:
                raise TimeOverError(name)
            return make()

        return part(name, in_time)

    return limited


if __name__ == "__main__":
    sys.exit(main())
