"""By which law does the loss of a class rise as its holders leave?

Influence by class knows the slopes of each class's loss L_c at α, and must assume how L_c continues from there. If
L_c^p is a sum over participants, then with the rise x = Σ_j (s_j − α) ∂ log L_c / ∂α_j

    L_c(S) = L_c(α) (1 + p x)^(1/p)        p = 1: L_c is a sum; p → 0: its logarithm is; p = −1: its reciprocal is

Slopes and retrained losses are kept with the results, so every law can be tried on them without training.

    python -m cascadice_experiments.retraining.laws --show docs/results/retraining
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice import files
from cascadice.influence.agreement import agreement
from cascadice.influence.by_class import ByClass
from cascadice.influence.retraining import random_subsets, without_each
from cascadice_experiments import study
from cascadice_experiments.retraining import missing
from cascadice_experiments.retraining.measure import ranked
from cascadice_experiments.retraining.settings import CASES
from cascadice_experiments.retraining.table import interval, read, spread

POWERS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0)
FULL = replace(
    CASES["mlp"], participants=(0.8, 0.5), samples=(), alphas=(0.5,), by_class=(0.8, 0.5), points=0, every=80,
)  # fmt: skip
SMALL = replace(
    FULL, nodes=8, batch=64, rounds=160, participants=(0.75, 0.5), subsets=28, by_class=(0.75, 0.5), every=40,
    together=8,
)  # fmt: skip
SMALL_CNN = replace(
    SMALL, name="8 participants, cnn", model="cnn", lr=CASES["cnn"].lr, batch=32, rounds=200,
    options=(("channels", (8, 16, 16)), ("activation", "gelu"), ("pool", "average")),
)  # fmt: skip
FRESH_SEEDS = (10, 11, 12, 13, 14)  # the law was chosen on 0 to 4
FRESH = (
    *(replace(SMALL, name="8 participants, dirichlet 0.1", concentration=0.1, seeds=(seed,)) for seed in FRESH_SEEDS),
    *(replace(SMALL, name="8 participants", seeds=(seed,)) for seed in FRESH_SEEDS),
    *(replace(SMALL_CNN, seeds=(seed,)) for seed in FRESH_SEEDS),
)
FULL_FRESH = (
    replace(FULL, name="dirichlet 0.1", concentration=0.1, seeds=FRESH_SEEDS),
    replace(FULL, name="mlp", seeds=FRESH_SEEDS),
    replace(FULL, name="ring", mixing="ring", seeds=FRESH_SEEDS),
)
FLAGS: study.Flags = {
    "--show": {"type": Path, "metavar": "DIR", "help": "measure nothing: try each law on the results in this folder"},
    "--rewrite": {
        "action": "store_true",
        "help": "with --show: in these files, compute the rows by class again, as predictions are made now",
    },
    "--full": {"action": "store_true", "help": "networks as large as those of the study, for a GPU"},
    **{name: missing.FLAGS[name] for name in ("--minutes", "--case", "--seeds")},
    "--first-seed": {"default": FRESH_SEEDS[0]},
    "--out": {"default": Path("out/laws"), "help": "folder for the results [%(default)s]"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try each law on kept results, or on newly trained networks with other seeds."""
    return study.run("laws", _measure, study.parser("retraining.laws", FLAGS).parse_args(arguments))


def _measure(args: Namespace) -> dict[str, Any]:
    if args.rewrite and not args.show:
        raise ValueError("--rewrite computes rows of kept results; found no --show. Add --show and their folder.")
    if args.rewrite:
        for path in sorted(args.show.glob("*.json")):
            if classes(kept := files.read_json(path)):
                files.write_json(path, rewritten(kept))
    if not args.show:
        missing.carry_out(FULL_FRESH if args.full else FRESH, args)
    results = read(args.show or args.out)
    print(*lines(results), "", *sizes(results), sep="\n")
    return {"cases": results}


def by_power(scores: ByClass, kept: Tensor, power: float) -> Tensor:
    """f of subsets of the participants, if L_c to this power is a sum.

    Where a negative power doubles the loss, it goes on in a straight line, as `ByClass.predicted` does.

    Example:
        >>> by_power(scores, without_each(8), -1.0)  # doctest: +SKIP
    """
    values = scores.losses.sum(1)
    rise = (kept.double() - scores.at) @ (scores.slopes / values[:, None]).T
    if power == 0:
        return (rise.exp() * values) @ scores.parts
    doubled = (2**power - 1) / power if power < 0 else torch.inf
    straight = 2 + 2 ** (1 - power) * (rise - doubled) if power < 0 else torch.zeros(())
    curved = (1 + power * rise.clamp(max=doubled)).clamp(min=0) ** (1 / power)
    return (torch.where(rise < doubled, curved, straight) * values) @ scores.parts


def conditions(result: Mapping[str, Any]) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """(condition, seed, subsets of the participants, loss of each when retrained) in what a study keeps."""
    nodes = result["settings"]["nodes"]
    for one in result["retrained"]:
        if one["condition"].startswith("samples"):
            continue
        subsets = without_each(nodes) if one["subsets"] is None else random_subsets(nodes, **one["subsets"])
        yield one["condition"], one["seed"], subsets, torch.tensor(one["found"][-len(subsets) :]).double()


def classes(result: Mapping[str, Any]) -> dict[tuple[str, int], ByClass]:
    """The scores by class in what a study keeps, by estimate and seed.

    Example:
        >>> classes(result)["whole-run at 0.5, by class", 0].at
    """
    found = {}
    for one in result.get("scores", ()):
        if "by_class" in one:
            at, *tensors = one["by_class"].values()
            found[one["estimate"], one["seed"]] = ByClass(at, *(torch.tensor(part).double() for part in tensors))
    return found


def rewritten(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same result, whose rows by class have the agreement of predictions as they are made now."""
    known = classes(result)
    now = {
        (condition, estimate, seed): ranked(agreement(found, scores.predicted(subsets)))
        for condition, seed, subsets, found in conditions(result)
        for (estimate, own), scores in known.items()
        if own == seed
    }
    rows = [{**row, **now.get((row["condition"], row["estimate"], row["seed"]), {})} for row in result["rows"]]
    return {**result, "rows": rows}


class Tried(NamedTuple):
    """Predictions of one seed, in one condition, from the slopes at one α."""

    scores: ByClass
    subsets: Tensor
    losses: Tensor

    def loss(self, power: float | None) -> Tensor:
        """The loss of each subset, if L_c to this power is a sum; if None, that of the retrained networks."""
        return self.losses if power is None else by_power(self.scores, self.subsets, power)


def tried(result: Mapping[str, Any]) -> dict[str, list[Tried]]:
    """What each condition and α have for each seed, the α nearest to what is kept first; none without classes."""
    known, found = classes(result), dict[str, list[Tried]]()
    for condition, seed, subsets, losses in conditions(result) if known else ():
        own = [scores for (_, s), scores in known.items() if s == seed]
        for scores in sorted(own, key=lambda scores: abs(scores.at - float(subsets.mean()))):
            found.setdefault(f"{condition}, α = {scores.at:g}", []).append(Tried(scores, subsets, losses))
    return found


def lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table: Spearman of each law in each case, from the slopes at each α.

    The last column is by how much the reciprocal is above the logarithm, seed by seed, with its 95 % interval.
    """
    yield from header("test accuracy", *(f"p = {power:g}" for power in POWERS), "−1 above 0")
    for result in results:
        for condition, seeds in tried(result).items():
            laws = {power: [agreement(one.losses, one.loss(power)).spearman for one in seeds] for power in POWERS}
            gap, low, high = interval([own - log for own, log in zip(laws[-1.0], laws[0.0], strict=True)])
            cells = [spread(values) for values in laws.values()]
            cells.append(f"{gap:+.2f} ({low:+.2f} to {high:+.2f})" if low == low else f"{gap:+.2f}")
            yield f"| {result['case']}: {condition} | {spread(result['accuracy'])} | {' | '.join(cells)} |"


def sizes(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table: the mean loss over subsets, and the largest, as retrained and as two laws predict them."""
    powers = {"retrained": None, "p = -1": -1.0, "p = 0": 0.0}
    yield from header(*(f"{name}, {law}" for name in ("mean", "largest") for law in powers))
    for result in results:
        for condition, seeds in tried(result).items():
            cells = [
                spread([float(of(one.loss(power))) for one in seeds])
                for of in (Tensor.mean, Tensor.max)
                for power in powers.values()
            ]
            yield f"| {result['case']}: {condition} | {' | '.join(cells)} |"


def header(*columns: str) -> Iterator[str]:
    """The first two lines of a table in Markdown, whose first column has no name."""
    yield f"|  | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"


if __name__ == "__main__":
    sys.exit(main())
