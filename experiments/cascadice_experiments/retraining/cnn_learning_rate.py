"""Does a lower learning rate make CNNs predictable?

At the rate at which a CNN learns fastest, its final loss is a rough function of how much each participant counts, and a
slope sees only the nearest bump. The same network is trained at two rates, with more rounds at the lower one, and
the same estimates predict the same subsets.

    python -m cascadice_experiments.retraining.cnn_learning_rate --minutes 120 --out DIR
    python -m cascadice_experiments.retraining.cnn_learning_rate --show DIR
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascadice_experiments import study
from cascadice_experiments.retraining import missing
from cascadice_experiments.retraining.laws import FRESH_SEEDS, SMALL_CNN
from cascadice_experiments.retraining.table import markdown, read, side_by_side

ROUNDS = {0.5: 200, 0.25: 300}  # learning rate: rounds
CASES = {
    lr: replace(
        SMALL_CNN, name=f"8 participants, cnn at {lr:g}", lr=lr, rounds=rounds, samples=(0.5,), subsets=16,
        alphas=(1.0, 0.75, 0.5), by_class=(), every=rounds // 4,
    )
    for lr, rounds in ROUNDS.items()
}  # fmt: skip
PLAN = tuple(replace(CASES[lr], seeds=(seed,)) for lr in sorted(CASES) for seed in FRESH_SEEDS)
ESTIMATES = {
    "whole-run at 1": "α = 1",
    "whole-run at 0.75": "α = 0.75",
    "whole-run at 0.5": "α = 0.5",
    "whole-run at 0.75, by class": "α = 0.75, by class",
    "truth, 1 hop": "one-hop truth",
}
FLAGS: study.Flags = {
    "--show": {"type": Path, "metavar": "DIR", "help": "measure nothing: print the results in this folder"},
    **{name: missing.FLAGS[name] for name in ("--minutes", "--case", "--seeds")},
    "--first-seed": {"default": FRESH_SEEDS[0]},
    "--out": {"default": Path("out/cnn-learning-rate"), "help": "folder for the results [%(default)s]"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the same networks at each learning rate, or show what was measured."""
    parser = study.parser("retraining.cnn_learning_rate", FLAGS)
    return study.run("cnn-learning-rate", _measure, parser.parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    if not args.show:
        missing.carry_out(PLAN, args)
    results = read(args.show or args.out)
    print(*lines(results), sep="\n")
    return {"cases": results}


def lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table with a column for each learning rate: how well estimates predict retrained networks."""
    ordered = sorted(results, key=lambda result: -float(result["settings"]["lr"]))

    def name(settings: Mapping[str, Any]) -> tuple[str, str]:
        return f"{settings['lr']:g}, {settings['rounds']} rounds", f"{settings['lr']:g}"

    rows = side_by_side(ordered, "learning rate", name, ESTIMATES)
    yield from markdown(list(zip(*rows, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
