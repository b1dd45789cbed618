"""The command of the study: prints a line per setting, and with --out writes results, points and the picture."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

import cascadice_experiments.anomalies
from cascadice import data, files
from cascadice.data import DataSet
from cascadice.influence import Evaluation
from cascadice.names import lookup
from cascadice_experiments.anomalies.measure import measure, summary
from cascadice_experiments.anomalies.picture import HEADER, draw, line
from cascadice_experiments.anomalies.settings import FEW, QUICK, SETTINGS, Plan, Setting, check
from cascadice_experiments.data_sets import find_and_tell


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one by one; each is printed, and with --out written, as soon as it is measured."""
    args = _parser().parse_args(arguments)
    changes = {f.name: value for f in fields(Plan) if (value := getattr(args, f.name, None)) is not None}
    try:
        plan = check(replace(Plan(), **{**(QUICK if args.quick else {}), **changes}))
        names = args.settings or (FEW if args.quick else list(SETTINGS))
        chosen = {name: lookup(SETTINGS, name, "setting") for name in names}
        source, root = find_and_tell(args.data_root)
        if source == "digits":
            plan = replace(plan, per_node=None)
        results = list(_measured(chosen, plan, data.load(source, root).to(plan.device), args.limit, args.out))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "anomalies", "results": results}))
    return 0


def _measured(
    chosen: Mapping[str, Setting], plan: Plan, dataset: DataSet, limit: float, out: Path | None
) -> Iterator[dict[str, Any]]:
    start, evaluations, results = time.perf_counter(), dict[Any, Evaluation](), list[dict[str, Any]]()
    print(HEADER, flush=True)
    for name, setting in chosen.items():
        began = time.perf_counter()
        if began - start > limit:
            print(f"stopped before {name}: the time limit of {limit:g} s has passed.", flush=True)
            break
        try:
            rows = measure(setting, plan, dataset, evaluations)
        except ArithmeticError as error:  # an attack that breaks its network says nothing about the other settings
            print(f"{name}: {error}", flush=True)
            continue
        results.append({**summary(name, setting, rows), "seconds": time.perf_counter() - began})
        print(line(results[-1]), flush=True)
        if out is not None:
            write(out, plan, name, rows, results)
        yield results[-1]


def write(out: Path, plan: Plan, name: str, rows: Mapping[str, Tensor], results: Sequence[Mapping[str, Any]]) -> None:
    """Write result.json with all settings so far, the points of this one as Parquet, and the picture."""
    import pyarrow as pa
    from pyarrow import parquet

    with files.replacing(out / f"{name}.parquet") as draft:
        parquet.write_table(pa.table({column: values.numpy() for column, values in rows.items()}), draft)
    files.write_json(out / "result.json", {"experiment": "anomalies", "plan": asdict(plan), "results": list(results)})
    for suffix in ("png", "svg"):
        draw(results, out / f"anomalies.{suffix}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cascadice_experiments.anomalies",
        description=(cascadice_experiments.anomalies.__doc__ or "").partition("\n")[0],
        epilog=f"settings: {', '.join(SETTINGS)}",
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="settings to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few small settings")
    parser.add_argument("--model", choices=("mlp", "cnn"), help="everyone's model [mlp]")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds [5]")
    parser.add_argument(
        "--first-seed", type=int, metavar="N", help="first seed, to measure on other seeds than a rule was tuned on [0]"
    )
    parser.add_argument("--places", type=int, metavar="N", help="places of the attacker per seed [8]")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), metavar="S", help="start no further setting after S seconds"
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for result.json, the points and the picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
