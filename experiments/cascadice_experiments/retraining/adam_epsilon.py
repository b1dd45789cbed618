"""Does a larger ε make networks that train with Adam predictable?

Adam divides the mean gradient m̂ by √v̂ + ε. Where gradients are much larger than ε, a step keeps only their direction,
and a coordinate whose gradient is nearly 0 moves as far as any other, forwards or backwards as chance has it. With an ε
above such gradients, steps there are proportional to them, as with SGD, and training changes smoothly with its data.

    python -m cascadice_experiments.retraining.adam_epsilon --out DIR
    python -m cascadice_experiments.retraining.adam_epsilon --cifar --out DIR
    python -m cascadice_experiments.retraining.adam_epsilon --show DIR
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.retraining.measure import measure
from cascadice_experiments.retraining.settings import CASES, QUICK
from cascadice_experiments.retraining.table import markdown, read, side_by_side

DIGITS_RATES = {1e-8: 0.003, 1e-4: 0.003, 1e-3: 0.003, 1e-2: 0.01}  # ε: the learning rate
CIFAR_RATES = {1e-8: 0.001, 1e-4: 0.001, 1e-3: 0.003}
SMALL: dict[str, Any] = {
    "nodes": 8, "participants": (0.75,), "samples": (0.5,), "alphas": (1.0, 0.5), "by_class": (), "points": 0,
    "halves": 0,
}  # fmt: skip
DIGITS = replace(CASES["adam"], **{**QUICK, **SMALL, "rounds": 120, "subsets": 48})
CIFAR = replace(CASES["adam"], **{**SMALL, "participants": ()}, batch=64, rounds=160, subsets=24, together=6)
ESTIMATES = {"whole-run at 1": "α = 1", "whole-run at 0.5": "α = 0.5", "first order, 1 hop": "one hop"}  # to show
FLAGS: study.Flags = {
    "--cifar": {
        "action": "store_true",
        "help": "CIFAR-10 instead of digits: about five minutes of processor time for each seed and ε",
    },
    "--epsilon": {"metavar": "LIST", "help": f"only these, of {', '.join(f'{e:g}' for e in DIGITS_RATES)}"},
    "--seeds": {"default": 5},
    "--first-seed": {},
    "--show": {"type": Path, "metavar": "DIR", "help": "measure nothing: print the results in this folder"},
    "--out": {"help": "folder for a JSON file for each ε and first seed"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the same networks for each ε."""
    return study.run("adam-epsilon", _measure, study.parser("retraining.adam_epsilon", FLAGS).parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    if args.show:
        shown = read(args.show)
        print(*lines(shown), sep="\n")
        return {"cases": shown}
    base, rates = (CIFAR, CIFAR_RATES) if args.cifar else (DIGITS, DIGITS_RATES)
    source, root = find(args.data_root) if args.cifar else ("digits", None)
    seeds = tuple(range(args.first_seed, args.first_seed + args.seeds))
    results: list[dict[str, Any]] = []
    for epsilon in map(float, args.epsilon.split(",")) if args.epsilon else rates:
        case = replace(base, name=f"adam with ε = {epsilon:g}", epsilon=epsilon, lr=rates[epsilon], seeds=seeds)
        result = measure(case, source, root, args.device, lambda line: None)
        results.append({"data": source, **result, "costs": {}})  # of no use: these networks are too small to time
        if args.out:
            files.write_json(args.out / f"epsilon-{epsilon:g}-from-seed-{args.first_seed}.json", results[-1])
    print(*lines(results), sep="\n")
    return {"data": source, "cases": results}


def lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table: for each ε, how well the estimates predict networks that were retrained."""
    ordered = sorted(results, key=lambda result: float(result["settings"]["epsilon"]))

    def name(settings: Mapping[str, Any]) -> tuple[str, str]:
        return f"{settings['epsilon']:g}, {settings['lr']:g}", f"{settings['epsilon']:g}"

    yield from markdown(side_by_side(ordered, "ε, learning rate", name, ESTIMATES))


if __name__ == "__main__":
    sys.exit(main())
