"""What the commands of all studies share: flags, one-line errors, a final JSON object, and files in --out."""

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from cascadice import files

Flags = Mapping[str, Mapping[str, Any]]  # what `add_argument` is given, by name
Points = Sequence[Mapping[str, Any]] | Mapping[str, Any]  # rows, or columns by name

SHARED: Flags = {
    "--quick": {"action": "store_true"},
    "--seeds": {"type": int, "metavar": "N", "help": "number of seeds [5]"},
    "--first-seed": {"type": int, "default": 0, "metavar": "N", "help": "first seed [0]"},
    "--limit": {"type": float, "default": float("inf"), "metavar": "S", "help": "start nothing after S seconds"},
    "--out": {"type": Path, "metavar": "DIR", "help": "folder for result.json, the points and the picture"},
    "--device": {"default": "cpu", "help": "cpu or cuda [cpu]"},
    "--data-root": {"metavar": "DIR", "help": "folder that holds CIFAR-10"},
    "--json": {"action": "store_true", "help": "print one JSON object last"},
}
ALWAYS = ("--device", "--data-root", "--json")


def parser(name: str, flags: Flags, epilog: str | None = None) -> ArgumentParser:
    """The parser of a study's command: its own `flags`, which may override those in `SHARED`, and the shared ones."""
    module = import_module(f"cascadice_experiments.{name}")
    question = (module.__doc__ or "").partition("\n")[0]
    made = ArgumentParser(prog=f"python -m {module.__name__}", description=question, epilog=epilog)
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


def write(out: Path, name: str, result: Mapping[str, Any], points: Points, draw: Callable[[Path], None],
          table: str = "points") -> None:  # fmt: skip
    """Write result.json, the points as Parquet, and the picture as PNG and SVG."""
    write_points(out / f"{table}.parquet", points)
    files.write_json(out / "result.json", {"experiment": name, **result})
    for suffix in ("png", "svg"):
        draw(out / f"{name}.{suffix}")


def write_points(path: Path, points: Points) -> None:
    """Write rows or columns as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(dict(points)) if isinstance(points, Mapping) else pa.Table.from_pylist(list(points))
    with files.replacing(path) as draft:
        parquet.write_table(table, draft)
