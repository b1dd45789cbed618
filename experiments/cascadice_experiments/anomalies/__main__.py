"""The command of the study: prints a line per setting, and with --out writes results, points and the picture."""

import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from cascadice import data
from cascadice.influence import Evaluation
from cascadice.names import lookup
from cascadice_experiments import study
from cascadice_experiments.anomalies.ablation import lines
from cascadice_experiments.anomalies.measure import measure, summary
from cascadice_experiments.anomalies.picture import HEADER, draw, line
from cascadice_experiments.anomalies.settings import FEW, QUICK, SETTINGS, Plan, check, on_digits
from cascadice_experiments.data_sets import find_and_tell

FLAGS: study.Flags = {
    "settings": {"nargs": "*", "metavar": "SETTING", "help": "settings to measure (default: all)"},
    "--quick": {"help": "a few small settings"},
    "--digits": {
        "action": "store_true",
        "help": "digits in place of CIFAR-10: small models, batches an eighth as large",
    },
    "--model": {"choices": ("mlp", "cnn"), "help": "everyone's model [mlp]"},
    "--seeds": {"help": "number of seeds [5; with --quick 1]"},
    "--first-seed": {"help": "first seed, to measure on other seeds than a rule was tuned on [%(default)s]"},
    "--places": {"type": int, "metavar": "N", "help": "places of the attacker per seed [8]"},
    "--limit": {"help": "start no further setting after S seconds"},
    "--out": {},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings one by one; each is printed, and with --out written, as soon as it is measured."""
    parser = study.parser("anomalies", FLAGS, f"settings: {', '.join(SETTINGS)}")
    return study.run("anomalies", _measured, parser.parse_args(arguments))


def _measured(args: Namespace) -> dict[str, Any]:
    changes = {f.name: value for f in fields(Plan) if (value := getattr(args, f.name, None)) is not None}
    plan = check(replace(Plan(), **{**(QUICK if args.quick else {}), **changes}))
    names = args.settings or (FEW if args.quick else list(SETTINGS))
    chosen = {name: lookup(SETTINGS, name, "setting") for name in names}
    source, root = ("digits", None) if args.digits else find_and_tell(args.data_root)
    if source == "digits":
        plan, chosen = on_digits(plan, chosen)
    dataset = data.load(source, root).to(plan.device)
    start, evaluations, results = time.perf_counter(), dict[Any, Evaluation](), list[dict[str, Any]]()
    points = defaultdict[str, list[Any]](list)
    print(HEADER, flush=True)
    for name, setting in chosen.items():
        began = time.perf_counter()
        if began - start > args.limit:
            print(f"stopped before {name}: the time limit of {args.limit:g} s has passed.", flush=True)
            break
        try:
            rows = measure(setting, plan, dataset, evaluations)
        except ArithmeticError as error:  # an attack that breaks its network says nothing about the other settings
            print(f"{name}: {error}", flush=True)
            continue
        results.append({**summary(name, setting, rows), "seconds": time.perf_counter() - began})
        print(line(results[-1]), flush=True)
        if args.out:
            points["setting"] += [name] * len(rows["seed"])
            for column, values in rows.items():
                points[column] += values.tolist()
            result = {"settings": asdict(plan), "results": results}
            study.write(args.out, "anomalies", plan.device, result, points, partial(draw, results))
    print("\n".join(lines(results)), flush=True)
    return {"results": results}


if __name__ == "__main__":
    sys.exit(main())
