"""The command of the study: prints each part, and with --out writes results, points and the picture."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cascadice_experiments.incentives
from cascadice import files
from cascadice_experiments.data_sets import find
from cascadice_experiments.incentives.measure import measure
from cascadice_experiments.incentives.picture import draw, lines
from cascadice_experiments.incentives.settings import CIFAR, QUICK, Setting


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure part by part; each is printed, and with --out written, as soon as it is measured."""
    args = _parser().parse_args(arguments)
    study: dict[str, Any] = {"experiment": "incentives", "results": []}
    try:
        source, root = find(args.data_root) if args.cifar or args.device != "cpu" else ("digits", None)
        setting = replace(Setting(device=args.device), **{**(CIFAR if source == "cifar10" else {}), **_changes(args)})
        study |= {"data": source, "setting": asdict(setting)}
        print(f"{source}: {setting.rounds} rounds, {setting.per_node} samples each, seeds {setting.seeds}", flush=True)
        for result in measure(setting, source, root):
            study["results"].append(result)
            print(*lines(result), sep="\n", flush=True)
            if args.out:
                write(args.out, study)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(study))
    return 0


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    count = args.seeds or (2 if args.quick else 5)
    given = {name: value for name in ("rounds", "players", "crowd") if (value := getattr(args, name)) is not None}
    return {**(QUICK if args.quick else {}), **given, "seeds": tuple(range(args.first_seed, args.first_seed + count))}


def write(out: Path, study: Mapping[str, Any]) -> None:
    """Write result.json, the points as Parquet and the picture of all parts measured so far."""
    import pyarrow as pa
    from pyarrow import parquet

    files.write_json(out / "result.json", study)
    points = [point for result in study["results"] if "truth" in result for point in _points(result)]
    with files.replacing(out / "points.parquet") as draft:
        parquet.write_table(pa.Table.from_pylist(points), draft)
    for suffix in ("png", "svg"):
        draw(study, out / f"incentives.{suffix}")


def _points(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for seed, roles in enumerate(result["roles"]):
        for node, role in enumerate(roles):
            contributed = {name: value[seed][node] for name, value in result["found"].items()}
            yield {"part": result["part"], "network": seed, "node": node, "role": role,
                   "truth": result["truth"][seed][node], **contributed}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cascadice_experiments.incentives",
        description=(cascadice_experiments.incentives.__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--quick", action="store_true", help="small networks, two seeds")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cifar", action="store_true", help="use CIFAR-10 on a CPU too, if it is found")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds CIFAR-10")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds [5]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="first seed [0]")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds to train")
    parser.add_argument("--players", type=int, metavar="N", help="participants whose every coalition is trained [6]")
    parser.add_argument("--crowd", type=int, metavar="N", help="participants of which each is left out once [16]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for result.json, points.parquet, the picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
