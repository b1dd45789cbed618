"""The command of the study: prints each part, and with --out writes results, points and the picture."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.incentives.measure import measure
from cascadice_experiments.incentives.picture import draw, lines
from cascadice_experiments.incentives.settings import CIFAR, QUICK, Setting

FLAGS: study.Flags = {
    "--quick": {"help": "small networks, two seeds"},
    "--cifar": {"action": "store_true", "help": "use CIFAR-10 on a CPU too, if it is found"},
    "--seeds": {"help": "number of seeds [5; with --quick 2]"},
    "--first-seed": {},
    "--rounds": {"type": int, "metavar": "N", "help": "rounds to train"},
    "--players": {"type": int, "metavar": "N", "help": "participants whose every coalition is trained [6]"},
    "--crowd": {"type": int, "metavar": "N", "help": "participants of which each is left out once [16]"},
    "--out": {},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure part by part; each is printed, and with --out written, as soon as it is measured."""
    return study.run("incentives", _measured, study.parser("incentives", FLAGS).parse_args(arguments))


def _measured(args: Namespace) -> dict[str, Any]:
    source, root = find(args.data_root) if args.cifar or args.device != "cpu" else ("digits", None)
    setting = replace(Setting(device=args.device), **{**(CIFAR if source == "cifar10" else {}), **_changes(args)})
    results: list[dict[str, Any]] = []
    result = {"results": results, "data": source, "settings": asdict(setting)}
    print(f"{source}: {setting.rounds} rounds, {setting.per_node} samples each, seeds {setting.seeds}", flush=True)
    for part in measure(setting, source, root):
        results.append(part)
        print(*lines(part), sep="\n", flush=True)
        if args.out:
            points = [point for one in results if "truth" in one for point in _points(one)]
            study.write(args.out, "incentives", args.device, result, points, partial(draw, result))
    return result


def _changes(args: Namespace) -> dict[str, Any]:
    count = args.seeds or (2 if args.quick else 5)
    given = {name: value for name in ("rounds", "players", "crowd") if (value := getattr(args, name)) is not None}
    return {**(QUICK if args.quick else {}), **given, "seeds": tuple(range(args.first_seed, args.first_seed + count))}


def _points(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for seed, roles in enumerate(result["roles"]):
        for node, role in enumerate(roles):
            contributed = {name: value[seed][node] for name, value in result["found"].items()}
            yield {"part": result["part"], "network": seed, "node": node, "role": role,
                   "truth": result["truth"][seed][node], **contributed}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
