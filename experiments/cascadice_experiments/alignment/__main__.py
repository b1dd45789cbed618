"""The command of the study: prints a line for each setting and number of hops."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import cascadice_experiments.alignment
from cascadice.names import lookup
from cascadice_experiments.alignment.measure import ESTIMATORS, TRUTH, measure
from cascadice_experiments.alignment.settings import SETTINGS, Setting
from cascadice_experiments.data_sets import find_and_tell


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one by one; with --json, print one JSON object last."""
    args = _parser().parse_args(arguments)
    changes = {f.name: value for f in fields(Setting) if (value := getattr(args, f.name)) is not None}
    results = []
    try:
        named = SETTINGS.values() if args.all else [lookup(SETTINGS, name, "setting") for name in args.settings]
        source, root = find_and_tell(args.data_root)
        print(HEADER)
        for setting in named or [Setting()]:
            results.append(measure(replace(setting, **changes), source, root))
            print(*_lines(results[-1]), sep="\n", flush=True)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"experiment": "alignment", "results": results}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cascadice_experiments.alignment",
        description=(cascadice_experiments.alignment.__doc__ or "").partition("\n")[0],
        epilog=f"settings: {', '.join(SETTINGS)}",
    )
    parser.add_argument("settings", nargs="*", help="named settings; options below change each of them")
    parser.add_argument("--all", action="store_true", help="all named settings")
    parser.add_argument("--model", choices=["mlp", "cnn"])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--activation", help="relu, gelu, tanh, …")
    parser.add_argument("--pool", help="pooling of the CNN: max or average")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--nodes", type=int, help="number of participants")
    parser.add_argument("--hops", type=int, help="greatest number of hops")
    parser.add_argument("--every", type=int, help="measure influence every so many rounds")
    parser.add_argument("--dtype", help="float32 or float64")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


HEADER = (
    "Pearson / relative RMSE of          first order      1 point          2 points         3 points\n"
    "model activation   batch hops" + 71 * " " + "  points  test accuracy       s"
)


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
