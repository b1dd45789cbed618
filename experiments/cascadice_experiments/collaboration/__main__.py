"""The command of the study: prints a table per setting, and with --out writes results, points and the picture."""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cascadice import data
from cascadice.data import DataSet
from cascadice.names import lookup
from cascadice_experiments import study
from cascadice_experiments.collaboration.measure import costs, measure, summary
from cascadice_experiments.collaboration.picture import draw
from cascadice_experiments.collaboration.settings import NOBODY, Setting, quick_settings, settings, title
from cascadice_experiments.data_sets import find_and_tell

FLAGS: study.Flags = {
    "settings": {"nargs": "*", "metavar": "SETTING", "help": "settings to measure (default: all)"},
    "--quick": {"help": "five small settings, two seeds"},
    "--digits": {"action": "store_true", "help": "digits in place of CIFAR-10"},
    "--whole-run": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "whole-run trust too, swept every N rounds; 0: never [%(default)s]",
    },
    "--seeds": {"help": "networks in each setting [5; with --quick 2]"},
    "--first-seed": {"help": "seed of the first network [%(default)s]"},
    "--limit": {"help": "stop before exceeding S seconds"},
    "--out": {},
}
EPILOG = f"settings: {', '.join(map(title, settings()))}; with --quick: {', '.join(map(title, quick_settings()))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one by one; each is printed, and with --out written, as soon as it is measured."""
    return study.run("collaboration", _measured, study.parser("collaboration", FLAGS, EPILOG).parse_args(arguments))


def _measured(args: Namespace) -> dict[str, Any]:
    source, root = ("digits", None) if args.digits else find_and_tell(args.data_root)
    dataset = data.load(source, root).to(args.device)
    numbers = range(args.first_seed, args.first_seed + (args.seeds or (2 if args.quick else 5)))
    chosen, hidden = (quick_settings(), (32,)) if args.quick else (settings(), None)
    named = {title(setting): setting for setting in chosen}
    chosen = [lookup(named, name, "setting") for name in args.settings or named]
    results = run(chosen, dataset, numbers, args.out, args.limit, hidden, args.whole_run)
    if not args.quick:
        for name, share in costs(Setting(NOBODY, 0.0), dataset).items():
            print(f"\n{name} costs {share:.0%} of a training round")
    return {"results": results}


def run(chosen: Sequence[Setting], dataset: DataSet, numbers: Sequence[int], out: Path | None, limit: float,
        hidden: Sequence[int] | None = None, every: int = 0) -> list[dict[str, Any]]:  # fmt: skip
    """Measure, print and write one setting after another, as long as there is time for one more."""
    start = time.perf_counter()
    results: list[dict[str, Any]] = []
    for setting in chosen:
        slowest = max((result["seconds"] for result in results), default=0.0)
        if time.perf_counter() - start + slowest > limit:
            stopped = f"stopped before {setting.attack}, {setting.graph}"
            print(f"{stopped}: it would exceed the limit of {limit:.0f} s", flush=True)
            break
        results.append(measure(setting, dataset, numbers, hidden, every))
        print(*_lines(results[-1]), sep="\n", flush=True)
        if out is not None:
            write(results, out, str(dataset.train.y.device))
    return results


def write(results: Sequence[Mapping[str, Any]], out: Path, device: str) -> None:
    """Write the results, a point per setting, rule and seed, and the picture."""
    points = [
        {"attack": r["attack"], "fraction": r["fraction"], "graph": r["graph"], "rule": rule, "seed": seed,
         "accuracy": accuracy}
        for r in results
        for rule, values in r["accuracy"].items()
        for seed, accuracy in zip(r["seeds"], values, strict=True)
    ]  # fmt: skip
    summaries = [(_title(result), summary(result)) for result in results]
    study.write(out, "collaboration", device, {"results": results}, points, partial(draw, summaries))


def _title(result: Mapping[str, Any]) -> str:
    share = f" {result['fraction']:.0%}" if result["attack"] != NOBODY else ""
    return f"{result['attack']}{share}, {result['graph']}"


def _lines(result: Mapping[str, Any]) -> list[str]:
    lines = [f"\n{_title(result)}: {len(result['seeds'])} networks of {result['nodes']}, {result['seconds']:.0f} s"]
    for row in summary(result):
        closed = "" if row["closed"] is None else f"   {row['closed']:7.1%} of the gap"
        links = result["links"].get(row["rule"])
        kept = f"   kept {links['wrong kept']:.1%} wrong, dropped {links['right dropped']:.1%} right" if links else ""
        lines.append(f"  {row['rule']:26} {row['accuracy']:.3f} ± {row['spread']:.3f}{closed}{kept}")
    for name, indices in result["rand_index"].items():
        lines.append(f"  groups by {name}: adjusted Rand index {min(indices):.2f} to {max(indices):.2f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
