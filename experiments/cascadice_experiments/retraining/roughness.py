"""How smooth is the final loss in the weight of one participant's updates? Where it jumps, no slope can predict."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cascadice import files
from cascadice.engine import evaluate_on
from cascadice.influence.retraining import retrain
from cascadice.names import lookup
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.retraining.settings import CASES, QUICK, load, make_networks

LESS = (0.0, 0.001, 0.1, 0.4, 1.0)  # how much less than everything a participant's updates count
FLAGS: study.Flags = {
    "--quick": {"help": "digits and a small network"},
    "--case": {"default": "resnet18", "metavar": "NAME", "help": f"one of {', '.join(CASES)} [%(default)s]"},
    "--participants": {
        "default": "0,3",
        "metavar": "NAMES",
        "help": "whose updates count less, one by one [%(default)s]",
    },
    "--optimizer": {"help": "instead of the case's own"},
    "--lr": {"type": float, "help": "instead of the case's own"},
    "--rounds": {"type": int, "metavar": "N", "help": "instead of the case's own"},
    "--out": {"help": "folder for roughness.json"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train once with each weight of each participant, and print the final losses."""
    return study.run("roughness", _measure, study.parser("retraining.roughness", FLAGS).parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    source, root = ("digits", None) if args.quick else find(args.data_root)
    given = {name: getattr(args, name) for name in ("optimizer", "lr", "rounds") if getattr(args, name) is not None}
    case = replace(lookup(CASES, args.case, "case"), **{**(QUICK if args.quick else {}), **given, "seeds": (0,)})
    [network] = make_networks(case, *load(case, source, root), args.device)
    asked = [int(name) for name in args.participants.split(",")]
    rows = torch.ones(len(asked), len(LESS), case.nodes, dtype=torch.float64)
    for row, j in zip(rows, asked, strict=True):
        row[:, j] -= torch.tensor(LESS, dtype=torch.float64)
    found = retrain(
        network, case.rounds, evaluate_on(network), updates=rows.flatten(0, 1), together=case.together
    ).view(len(asked), len(LESS))
    print("| updates of | " + " | ".join(f"{1 - less:g}" for less in LESS) + " |\n" + "|---" * (len(LESS) + 1) + "|")
    for j, losses in zip(asked, found.tolist(), strict=True):
        print(f"| participant {j} | " + " | ".join(f"{loss:.3f}" for loss in losses) + " |")
    result = {"case": case.name, "data": source, "less": LESS, **given,
              "loss": {str(j): losses for j, losses in zip(asked, found.tolist(), strict=True)}}  # fmt: skip
    if args.out:
        files.write_json(args.out / "roughness.json", result)
    return result


if __name__ == "__main__":
    sys.exit(main())
