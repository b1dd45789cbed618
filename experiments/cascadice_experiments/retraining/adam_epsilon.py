"""Does a larger ε make networks that train with Adam predictable?

Adam divides the mean gradient m̂ by √v̂ + ε. Where gradients are much larger than ε, a step keeps only their direction,
and a coordinate whose gradient is nearly 0 moves as far as any other, forwards or backwards as chance has it. With an ε
above such gradients, steps there are proportional to them, as with SGD, and training changes smoothly with its data.

    python -m cascadice_experiments.retraining.adam_epsilon --out DIR
    python -m cascadice_experiments.retraining.adam_epsilon --cifar --out DIR
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cascadice import files
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.retraining.measure import measure
from cascadice_experiments.retraining.settings import CASES, QUICK
from cascadice_experiments.retraining.table import lines

DIGITS_RATES = {1e-8: 0.003, 1e-4: 0.003, 1e-3: 0.003, 1e-2: 0.01}  # ε: the learning rate
CIFAR_RATES = {1e-8: 0.001, 1e-4: 0.001, 1e-3: 0.003}
SMALL: dict[str, Any] = {
    "nodes": 8, "participants": (0.75,), "samples": (0.5,), "alphas": (1.0, 0.5), "by_class": (), "points": 0,
    "halves": 0,
}  # fmt: skip
DIGITS = replace(CASES["adam"], **{**QUICK, **SMALL, "rounds": 120, "subsets": 48})
CIFAR = replace(CASES["adam"], **{**SMALL, "participants": ()}, batch=64, rounds=160, subsets=24, together=6)
FLAGS: study.Flags = {
    "--cifar": {
        "action": "store_true",
        "help": "CIFAR-10 instead of digits: about five minutes of processor time for each seed and ε",
    },
    "--epsilon": {"metavar": "LIST", "help": f"only these, of {', '.join(f'{e:g}' for e in DIGITS_RATES)}"},
    "--seeds": {"default": 5},
    "--first-seed": {},
    "--out": {"help": "folder for a JSON file for each ε and first seed"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the same networks for each ε."""
    return study.run("adam-epsilon", _measure, study.parser("retraining.adam_epsilon", FLAGS).parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    base, rates = (CIFAR, CIFAR_RATES) if args.cifar else (DIGITS, DIGITS_RATES)
    source, root = find(args.data_root) if args.cifar else ("digits", None)
    seeds = tuple(range(args.first_seed, args.first_seed + args.seeds))
    results = []
    for epsilon in map(float, args.epsilon.split(",")) if args.epsilon else rates:
        case = replace(base, name=f"adam with ε = {epsilon:g}", epsilon=epsilon, lr=rates[epsilon], seeds=seeds)
        result = measure(case, source, root, args.device, lambda line: None)
        results.append({**result, "costs": {}})  # of no use for networks as small as these, on a busy processor
        print(*lines(results[-1]), sep="\n", flush=True)
        if args.out:
            name = f"epsilon-{epsilon:g}-from-seed-{args.first_seed}.json"
            files.write_json(args.out / name, {"data": source, **results[-1]})
    return {"data": source, "cases": results}


if __name__ == "__main__":
    sys.exit(main())
