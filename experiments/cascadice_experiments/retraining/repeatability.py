"""How much of what retraining shows is chance? The same networks, trained again from almost the same parameters.

Where training is smooth, networks whose first parameters differ by one part in a million end alike, and the ranks of
all subsets repeat. Where they do not, no estimate can predict them: one that knew everything but chance would have a
rank correlation of about the square root of theirs.

    python -m cascadice_experiments.retraining.repeatability --device cuda --case mlp,adam --out DIR
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from cascadice import files
from cascadice.engine import Network, evaluate_on
from cascadice.influence.agreement import agreement
from cascadice.names import lookup
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.retraining.measure import made_by, retrain_conditions
from cascadice_experiments.retraining.settings import Case, load, make_networks
from cascadice_experiments.retraining.table import read, spread

KEPT = Path("docs/results/retraining")
JITTER = 1e-6  # of each parameter, relative
FLAGS: study.Flags = {
    "--results": {"type": Path, "default": KEPT, "metavar": "DIR", "help": "what was retrained before [%(default)s]"},
    "--case": {"default": "mlp", "metavar": "NAMES", "help": "which of its cases, separated by commas [%(default)s]"},
    "--participants": {
        "default": "0.8",
        "metavar": "PARTS",
        "help": "parts of the participants that were kept [%(default)s]",
    },
    "--samples": {"default": "0.5", "metavar": "PARTS", "help": "parts of the samples that were kept [%(default)s]"},
    "--seeds": {"help": "only so many of its seeds [all]"},
    "--out": {"help": "folder for a JSON file for each case"},
    "--show": {"type": Path, "metavar": "DIR", "help": "train nothing: print the results in this folder"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Retrain case by case, and print how well the results repeat."""
    return study.run("repeatability", _measure, study.parser("retraining.repeatability", FLAGS).parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    if args.show:
        shown = read(args.show)
        print(*lines(shown), sep="\n")
        return {"cases": shown}
    torch.set_float32_matmul_precision("high")
    found, root = find(args.data_root)
    before, again = {result["case"]: result for result in read(args.results)}, []
    for name in args.case.split(","):
        kept = lookup(before, name, "case")
        if (source := kept["data"]) not in ("digits", found):
            raise ValueError(f"{name} was retrained on {source}, which was not found. Give --data-root.")
        case = _same_case(kept["settings"], _parts(args.participants), _parts(args.samples), args.seeds)
        again.append({"data": source, **repeat(case, kept, source, root if source == found else None, args.device)})
        print(*lines(again[-1:]), sep="\n", flush=True)
        if args.out:
            files.write_json(args.out / f"{name.replace(' ', '-')}.json", again[-1])
    return {"cases": again}


def _parts(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part)


def _same_case(
    settings: Mapping[str, Any], participants: tuple[float, ...], samples: tuple[float, ...], seeds: int | None
) -> Case:
    """The case that a result was measured with, for some of its conditions and the first of its seeds."""
    known = {field.name for field in fields(Case)}
    case = Case(**{name: _as_tuples(value) for name, value in settings.items() if name in known})
    return replace(case, participants=participants, samples=samples, seeds=case.seeds[:seeds])


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def repeat(case: Case, kept: Mapping[str, Any], source: str, root: str | None, device: str) -> dict[str, Any]:
    """Retrain the networks of a case from slightly other parameters, and compare with what was kept of the first time.

    Example:
        >>> repeat(replace(CASES["mlp"], participants=(0.8,), samples=()), result, "cifar10", None, "cuda")["rows"]
    """
    whole, held = load(case, source, root)
    rows = []
    for network, own in zip(make_networks(case, whole, held, device), held, strict=True):
        moved = _moved(network)
        for condition, (_, found) in retrain_conditions(case, moved, own, evaluate_on(moved)).items():
            first = next(
                one["found"]
                for one in kept["retrained"]
                if (one["condition"], one["seed"]) == (condition, network.seed)
            )
            everybody = int(condition == "leave one out")  # comes first there, and is no subset
            agreed = agreement(torch.tensor(first[everybody:]).double(), found[everybody:])
            row = {"condition": condition, "seed": network.seed, "spearman": agreed.spearman, "found": found.tolist()}
            rows.append({**row, "relative_rmse": agreed.relative_rmse})
    accuracy = kept["accuracy"][: len(case.seeds)]
    result = {"case": case.name, "jitter": JITTER, "accuracy": accuracy, "rows": rows, "costs": {}}
    return {**result, **made_by(case, device)}


def _moved(network: Network) -> Network:
    theta = network.initial.theta
    noise = torch.randn(theta.shape, generator=torch.Generator().manual_seed(network.seed), dtype=theta.dtype)
    return replace(network, initial=network.initial._replace(theta=theta * (1 + JITTER * noise.to(theta))))


def lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table: how well the ranks of retrained networks repeat, and how far an estimate could get at most."""
    conditions = list(dict.fromkeys(row["condition"] for result in results for row in result["rows"]))
    yield f"| ranks of the same subsets, trained twice | {' | '.join(conditions)} |"
    yield "|---" * (len(conditions) + 1) + "|"
    for result in results:
        by_condition = [[row["spearman"] for row in result["rows"] if row["condition"] == c] for c in conditions]
        most = [f"{mean(max(0.0, value) ** 0.5 for value in values):.2f}" if values else "–" for values in by_condition]
        yield f"| {result['case']} | {' | '.join(map(spread, by_condition))} |"
        yield f"| … so an estimate has at most about | {' | '.join(most)} |"


if __name__ == "__main__":
    sys.exit(main())
