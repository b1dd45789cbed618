"""The command of the study: prints each case as it is measured, and with --out keeps the results."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cascadice import files
from cascadice.names import lookup
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.retraining import contest, measure
from cascadice_experiments.retraining.settings import CASES, QUICK
from cascadice_experiments.retraining.table import lines, paired_lines, read

KNOWN = {**CASES, contest.CASE.name: contest.CASE}
FLAGS: study.Flags = {
    "--quick": {"help": "digits, a small network, two seeds"},
    "--case": {"metavar": "NAMES", "help": f"which cases, separated by commas: {', '.join(KNOWN)} [mlp]; or all"},
    "--seeds": {"help": "number of seeds [as many as the case has; with --quick 2]"},
    "--first-seed": {},
    "--rounds": {"type": int, "metavar": "N", "help": "rounds to train"},
    "--subsets": {"type": int, "metavar": "N", "help": "subsets in each condition"},
    "--together": {"type": int, "metavar": "N", "help": "networks to retrain side by side"},
    "--limit": {},
    "--show": {"type": Path, "metavar": "DIR", "help": "measure nothing: print the results in this folder"},
    "--paired": {
        "nargs": 2,
        "metavar": ("A", "B"),
        "help": "with --show: how far estimate A is above B, seed by seed, with its 95 %% interval",
    },
    "--out": {"help": "folder for a JSON file for each case and first seed"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure case by case."""
    return study.run("retraining", _measure, study.parser("retraining", FLAGS).parse_args(arguments))


def _show(args: Namespace) -> dict[str, Any]:
    kept = read(args.show)
    if args.paired:
        known = {row["estimate"]: row for result in kept for row in result["rows"]}
        for name in args.paired:
            lookup(known, name, "estimate")
    for result in kept:
        for line in paired_lines(result, *args.paired) if args.paired else [*lines(result), ""]:
            print(line)
    return {"cases": kept}


def _measure(args: Namespace) -> dict[str, Any]:
    if args.show:
        return _show(args)
    if args.paired:
        raise ValueError("--paired compares results that were kept; found no --show. Add --show and their folder.")
    torch.set_float32_matmul_precision("high")
    source, root = ("digits", None) if args.quick else find(args.data_root)
    names = list(KNOWN) if args.case == "all" else (args.case or "mlp").split(",")
    given = {name: getattr(args, name) for name in ("rounds", "subsets", "together") if getattr(args, name) is not None}
    results, start = [], study.clock(args.device)
    for name in names:
        if study.clock(args.device) - start > args.limit:
            print(f"{name}: not started, the time is over", flush=True)
            continue
        case = replace(lookup(KNOWN, name, "case"), **{**(QUICK if args.quick else {}), **given})
        count = len(case.seeds) if args.seeds is None else args.seeds
        case = replace(case, seeds=tuple(range(args.first_seed, args.first_seed + count)))
        asked = contest if name == contest.CASE.name else measure
        results.append(asked.measure(case, source, root, args.device, lambda line: print(line, flush=True)))
        print(*lines(results[-1]), sep="\n", flush=True)
        if args.out:
            later = f"-from-seed-{args.first_seed}" if args.first_seed else ""
            files.write_json(args.out / f"{name.replace(' ', '-')}{later}.json", {"data": source, **results[-1]})
        if args.device != "cpu":
            torch.cuda.empty_cache()
    return {"data": source, "cases": results}


if __name__ == "__main__":
    sys.exit(main())
