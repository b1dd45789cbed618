"""The command of the study: prints a table per setting, and with --out writes results, points and the picture."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cascadice_experiments.collaboration
from cascadice import data, files
from cascadice.data import DataSet
from cascadice_experiments.collaboration.measure import cost, measure, summary
from cascadice_experiments.collaboration.picture import draw
from cascadice_experiments.collaboration.settings import NOBODY, Setting, quick_settings, settings
from cascadice_experiments.data_sets import find_and_tell


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one by one; each is printed, and with --out written, as soon as it is measured."""
    args = _parser().parse_args(arguments)
    try:
        count = (2 if args.quick else 5) if args.seeds is None else args.seeds
        if count < 1:
            raise ValueError(f"--seeds must be at least 1; found {count}.")
        source, root = find_and_tell(args.data_root)
        dataset = data.load(source, root).to(args.device)
        numbers = range(args.first_seed, args.first_seed + count)
        chosen, hidden = (quick_settings(), (32,)) if args.quick else (settings(), None)
        results = run(chosen, dataset, numbers, args.out, args.limit, hidden)
        if not args.quick:
            print(f"\ninfluence-aware gossip costs {cost(Setting(NOBODY, 0.0), dataset):.0%} of a training round")
    except (ValueError, RuntimeError, OSError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "collaboration", "results": results}))
    return 0


def run(chosen: Sequence[Setting], dataset: DataSet, numbers: Sequence[int], out: Path | None, limit: float,
        hidden: Sequence[int] | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Measure, print and write one setting after another, as long as there is time for one more."""
    start = time.perf_counter()
    results: list[dict[str, Any]] = []
    for setting in chosen:
        slowest = max((result["seconds"] for result in results), default=0.0)
        if time.perf_counter() - start + slowest > limit:
            print(
                f"stopped before {setting.attack}, {setting.graph}: it would exceed the limit of {limit:.0f} s",
                flush=True,
            )
            break
        results.append(measure(setting, dataset, numbers, hidden))
        print(*_lines(results[-1]), sep="\n", flush=True)
        if out is not None:
            write(results, out)
    return results


def write(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write result.json, points.parquet with a row per setting, rule and seed, and the picture."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [
        {"attack": r["attack"], "fraction": r["fraction"], "graph": r["graph"], "rule": rule, "seed": seed,
         "accuracy": accuracy}
        for r in results
        for rule, values in r["accuracy"].items()
        for seed, accuracy in zip(r["seeds"], values, strict=True)
    ]  # fmt: skip
    files.write_json(out / "result.json", {"experiment": "collaboration", "results": list(results)})
    with files.replacing(out / "points.parquet") as draft:
        parquet.write_table(pa.Table.from_pylist(rows), draft)
    summaries = [(_title(result), summary(result)) for result in results]
    for suffix in ("png", "svg"):
        draw(summaries, out / f"collaboration.{suffix}")


def _title(result: Mapping[str, Any]) -> str:
    share = f" {result['fraction']:.0%}" if result["attack"] != NOBODY else ""
    return f"{result['attack']}{share}, {result['graph']}"


def _lines(result: Mapping[str, Any]) -> list[str]:
    lines = [f"\n{_title(result)}: {len(result['seeds'])} networks of {result['nodes']}, {result['seconds']:.0f} s"]
    for row in summary(result):
        closed = "" if row["closed"] is None else f"   {row['closed']:7.1%} of the gap"
        links = result["links"].get(row["rule"])
        kept = f"   kept {links['wrong kept']:.1%} wrong, dropped {links['right dropped']:.1%} right" if links else ""
        lines.append(f"  {row['rule']:22} {row['accuracy']:.3f} ± {row['spread']:.3f}{closed}{kept}")
    for name, indices in result["rand_index"].items():
        lines.append(f"  groups by {name}: adjusted Rand index {min(indices):.2f} to {max(indices):.2f}")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cascadice_experiments.collaboration",
        description=(cascadice_experiments.collaboration.__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--quick", action="store_true", help="three small settings, two seeds")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--seeds", type=int, metavar="N", help="networks in each setting [5]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="seed of the first network [0]")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), metavar="S", help="stop before exceeding S seconds"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for result.json, points.parquet and the picture"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
