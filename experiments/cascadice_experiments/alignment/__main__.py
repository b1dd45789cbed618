"""The command of the study: prints a line for each setting and number of hops."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cascadice.names import lookup
from cascadice_experiments import study
from cascadice_experiments.alignment import table
from cascadice_experiments.alignment.measure import ESTIMATORS, TRUTH, measure
from cascadice_experiments.alignment.settings import SETTINGS, Setting
from cascadice_experiments.data_sets import find_and_tell

FLAGS: study.Flags = {
    "settings": {"nargs": "*", "help": "named settings; options below change each of them"},
    "--all": {"action": "store_true", "help": "all named settings"},
    "--model": {"choices": ["mlp", "cnn"]},
    "--batch-size": {"type": int},
    "--activation": {"help": "relu, gelu, tanh, …"},
    "--pool": {"help": "pooling of the CNN: max or average"},
    "--epochs": {"type": float},
    "--nodes": {"type": int, "help": "number of participants"},
    "--hops": {"type": int, "help": "greatest number of hops"},
    "--every": {"type": int, "help": "measure influence every so many rounds"},
    "--dtype": {"help": "float32 or float64"},
    "--show": {"type": Path, "metavar": "DIR", "help": "measure nothing: print the README's table from these results"},
}
HEADER = (
    "Pearson / relative RMSE of          first order      1 point          2 points         3 points\n"
    "model activation   batch hops" + 71 * " " + "  points  test accuracy       s"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one by one; with --json, print one JSON object last."""
    parser = study.parser("alignment", FLAGS, f"settings: {', '.join(SETTINGS)}")
    return study.run("alignment", _measured, parser.parse_args(arguments))


def _measured(args: Namespace) -> dict[str, Any]:
    if args.show:
        shown = list(table.lines(args.show))
        print(*shown, sep="\n")
        return {"table": shown}
    changes = {f.name: value for f in fields(Setting) if (value := getattr(args, f.name)) is not None}
    named = SETTINGS.values() if args.all else [lookup(SETTINGS, name, "setting") for name in args.settings]
    source, root = find_and_tell(args.data_root)
    print(HEADER)
    results = []
    for setting in named or [Setting()]:
        results.append(measure(replace(setting, **changes), source, root))
        print(*_lines(results[-1]), sep="\n", flush=True)
    return {"results": results}


def _lines(measured: Mapping[str, Any]) -> Iterator[str]:
    for result in measured["results"]:
        kind = measured["activation"] + (" average" if measured["pool"] == "average" else "")
        setting = f"{measured['model']:5} {kind:12} {measured['batch_size']:5} {result['hops']:4}"
        estimates = (result[name] for name in ESTIMATORS if name != TRUTH)
        columns = "  ".join(f"{one['pearson']:6.4f} / {one['relative_rmse']:6.4f}" for one in estimates)
        rest = f"{measured['points']:6} {measured['test_accuracy']:14.3f} {measured['seconds']:7.0f}"
        yield f"{setting}      {columns}  {rest}"


if __name__ == "__main__":
    sys.exit(main())
