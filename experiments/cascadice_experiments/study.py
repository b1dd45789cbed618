"""What the commands of all studies share: flags, one-line errors, a final JSON object, and files in --out.

The files are those of `cascadice.report.page.results`, so `cascadice report OUT` makes a page of them.
"""

import json
import os
import platform
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import cascadice
from cascadice import files

Flags = Mapping[str, Mapping[str, Any]]  # what `add_argument` is given, by name
Points = Sequence[Mapping[str, Any]] | Mapping[str, Any]  # rows, or columns by name

SHARED: Flags = {
    "--quick": {"action": "store_true"},
    "--seeds": {"type": int, "metavar": "N", "help": "number of seeds [%(default)s]"},
    "--first-seed": {"type": int, "default": 0, "metavar": "N", "help": "first seed [%(default)s]"},
    "--limit": {"type": float, "default": float("inf"), "metavar": "S", "help": "start nothing after S seconds"},
    "--out": {"type": Path, "metavar": "DIR", "help": "folder for result.json, the points and the picture"},
    "--device": {"default": "cpu", "help": "cpu or cuda [%(default)s]"},
    "--data-root": {"metavar": "DIR", "help": "folder that holds CIFAR-10"},
    "--json": {"action": "store_true", "help": "print one JSON object last"},
}
ALWAYS = ("--device", "--data-root", "--json")
DEVIATION = "_deviation"  # suffix of a measure's standard deviation


def parser(name: str, flags: Flags, epilog: str | None = None) -> ArgumentParser:
    """The parser of a study's command: its own `flags`, which may override those in `SHARED`, and the shared ones."""
    made = ArgumentParser(prog=_command(name), description=_question(name), epilog=epilog)
    for flag in dict.fromkeys((*flags, *ALWAYS)):
        made.add_argument(flag, **{**SHARED.get(flag, {}), **flags.get(flag, {})})
    return made


def run(name: str, measure: Callable[[Namespace], Mapping[str, Any]], args: Namespace) -> int:
    """Measure; with --json, print the result last, as one object. Return the exit code."""
    try:
        if "seeds" in args and args.seeds is not None and args.seeds < 1:
            raise ValueError(f"--seeds must be at least 1; found {args.seeds}.")
        result = measure(args)
        if args.json:
            print(json.dumps({"experiment": name, **result}))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has left, as `head` does; what is not yet written would fail again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, RuntimeError, OSError) as error:  # torch raises RuntimeError for an unknown device
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 2
    return 0


def clock(device: str | torch.device) -> float:
    """The time in seconds, after the device has finished its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def device_name(device: str) -> str:
    """The GPU's name, or the CPU's kind."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else f"cpu ({platform.machine()})"


def write(out: Path, name: str, device: str, result: Mapping[str, Any], points: Points, draw: Callable[[Path], None]) \
        -> None:  # fmt: skip
    """Write the points as Parquet, the picture as PNG and SVG, and result.json with a table of `result["results"]`."""
    from cascadice.report.page.results import PICTURES, POINTS, RESULT

    write_points(out / POINTS, points)
    for picture in PICTURES:
        draw(out / picture)
    results = result["results"]
    rows = [dict(row) for entry in results for row in _rows(entry)]
    columns = dict.fromkeys(column for row in rows for column in row)
    about = {
        "experiment": name, "title": _question(name), "command": _command(name), "version": cascadice.__version__,
        "device": device_name(device), "seconds": sum(entry.get("seconds", 0) for entry in results), "settings": {},
        "findings": [f"{len(rows)} rows; mean ± standard deviation where a measurement was repeated."],
        "summary": [{column: row.get(column) for column in columns} for row in rows],
    }  # fmt: skip
    files.write_json(out / RESULT, {**about, **result})


def _command(name: str) -> str:
    return f"python -m cascadice_experiments.{name}"


def _question(name: str) -> str:
    return (import_module(f"cascadice_experiments.{name}").__doc__ or "").partition("\n")[0]


def _rows(entry: Mapping[str, Any]) -> Iterator[Iterator[tuple[str, Any]]]:
    """One row for an entry; if the entry has named `rows` of its own, one row for each."""
    if not isinstance(entry.get("rows"), Mapping):
        yield _cells(entry)
        return
    shared = {name: value for name, value in entry.items() if not isinstance(value, (Mapping, list)) or "mean" in value}
    others = {key: value for key, value in entry.items() if isinstance(value, Mapping) and key != "rows"}
    for name, own in entry["rows"].items():
        more = {key: value[name] for key, value in others.items() if name in value}
        yield _cells({**shared, "of": name, **own, **more})


def _cells(entry: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in entry.items():
        if name.endswith(DEVIATION) and name.removesuffix(DEVIATION) in entry:
            continue
        if isinstance(value, Mapping) and "mean" not in value:
            yield from _cells(value, f"{within}{name}: ")
        elif (cell := _cell(value, entry.get(f"{name}{DEVIATION}"))) is not None:
            yield f"{within}{name}", cell


def _cell(value: Any, deviation: float | None) -> Any:
    """A value ± its standard deviation, if known; None for what does not fit into a cell."""
    if isinstance(value, Mapping):
        return _cell(value["mean"], value.get("sd", value.get("std")))
    if isinstance(value, list):
        numbers = [number for number in value if isinstance(number, float)]
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        return _cell(statistics.fmean(numbers), spread) if numbers and len(numbers) == len(value) else None
    return f"{value:.4g} ± {deviation:.2g}" if deviation else value


def write_points(path: Path, points: Points) -> None:
    """Write rows or columns as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(dict(points)) if isinstance(points, Mapping) else pa.Table.from_pylist(list(points))
    with files.replacing(path) as draft:
        parquet.write_table(table, draft)
