"""What retraining shows: networks trained again without some participants or samples, and how well scores predict them.

    f(S) = Σ_k q_k L(θ_k^T) of the network trained with the subset S        predicted: Σ_{j ∈ S} score_j

The linear datamodeling score (LDS; Ilyas et al. 2022, Park et al. 2023) is the rank correlation of the two over random
subsets.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import seeds
from cascadice.engine.backwards import bytes_of
from cascadice.engine.evaluation import Evaluation
from cascadice.engine.fleets import fleet
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network, draw
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import rows_of
from cascadice.engine.simulation import DivergedError, simulate
from cascadice.engine.weighting import with_weights
from cascadice.influence.checks import check_samples_are_separate
from cascadice.influence.readings import agreement, resampled_rank_correlations
from cascadice.influence.run_at import focused, judged, measured

MEMORY = 2**30
"""Bytes of parameters and optimizer state to train side by side."""
MOST = 256
"""Networks side by side: their W is dense."""


def random_subsets(size: int, keep: float, count: int, seed: int = 0) -> Float[Tensor, "subsets size"]:
    """Different random subsets of `size` participants or samples, which keep the part `keep` each: rows of 0 and 1.

    Where there are fewer than `count`, all of them.

    Args:
        size: The number of participants or samples.
        keep: The part of them in each subset, between 0 and 1.
        count: How many subsets.

    Returns:
        A row for each subset: 1 for those in it, 0 for the others.

    Raises:
        ValueError: Where a subset would keep nobody, or everybody; where none are asked for.

    Example:
        >>> random_subsets(4, keep=0.5, count=2)
        tensor([[0., 1., 1., 0.],
                [0., 1., 0., 1.]], dtype=torch.float64)
    """
    kept = round(keep * size)
    if not 0 < kept < size:
        who = "all of them" if kept >= size else "none"
        raise ValueError(
            f"each subset must keep some and leave some out; the part {keep:g} of {size} keeps {who}. "
            + (f"Keep a part from {1 / size:g} to {1 - 1 / size:g}." if size > 1 else "There must be at least 2.")
        )
    if count < 1:
        raise ValueError(f"at least one subset must be asked for; found {count}.")
    generator = seeds.generator(seed, "subsets", size, kept)
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < min(count, comb(size, kept)):
        chosen[tuple(sorted(torch.randperm(size, generator=generator)[:kept].tolist()))] = None
    return torch.zeros(len(chosen), size, dtype=torch.float64).scatter_(1, torch.tensor(list(chosen)), 1.0)


def without_each(nodes: int) -> Float[Tensor, "nodes nodes"]:
    """The subsets that leave out one participant each, as `retrain` takes them."""
    return 1 - torch.eye(nodes, dtype=torch.float64)


def retrain(
    network: Network,
    rounds: int,
    evaluation: Evaluation,
    *,
    updates: Float[Tensor, "subsets n"] | None = None,
    samples: Float[Tensor, "subsets size"] | None = None,
    on: str | int = "all",
    together: int | None = None,
    names: Sequence[str] | None = None,
    trained: Callable[[int], None] | None = None,
) -> Float[Tensor, " subsets"]:
    """Train the network again with each of these weights, many side by side, and measure the final models.

    Args:
        rounds: How many rounds to train; a mixing rule that the network was trained with (`simulate(rule=...)`) is
            not used.
        updates: Weights of everybody's updates, a row for each network to train: 0 leaves a participant out.
        samples: Weights of the training samples, a row for each network: 0 leaves a sample out.
        on: Whose final models: "all", weighted by q; "average", the average model; or the number of a participant.
        together: How many networks to train side by side; unless given, as many as fit in `MEMORY`.
        names: What to call each network in errors; "network 3 of those trained again" unless given.
        trained: Called with how many networks were trained, each time some are done.

    Returns:
        f of each network.

    Raises:
        ValueError: Where a network would have nobody, or nothing, to train, or weights have the wrong shape.
        DivergedError: Where one of them diverges.

    Example:
        >>> retrain(network, 100, evaluate_on(network), updates=without_each(network.nodes))
    """
    if not isinstance(rounds, int) or rounds < 1:
        found = rounds if isinstance(rounds, int | float) else type(rounds).__name__
        raise ValueError(f"rounds must be how many rounds to train, at least 1; found {found}.")
    total = _checked(network, updates, samples)
    if names is not None and len(names) != total:
        raise ValueError(f"there must be a name for each of {total} networks; found {len(names)}.")
    names = names or [f"network {i} of those trained again" for i in range(total)]
    if samples is not None:
        check_samples_are_separate(network, draw(network, 0), network.initial)
    alone = network.groups or network.uneven
    count = 1 if alone else together or min(MOST, max(1, MEMORY // bytes_of(network.initial)))
    there, on = focused(network, on)
    operator, values = Operator(there), list[Tensor]()
    for first in range(0, total, count):
        part = slice(first, min(first + count, total))
        own_updates, own_samples = (None if weights is None else weights[part] for weights in (updates, samples))
        models = _trained(network, rounds, own_updates, own_samples, names[part])
        for i in range(0, len(models.theta), network.nodes):
            own = judged(operator, rows_of(models, slice(i, i + network.nodes)), on)
            values.append(measured(operator, evaluation, own).double())
        if trained is not None:
            trained(part.stop)
    return torch.stack(values).cpu()


def _checked(network: Network, updates: Tensor | None, samples: Tensor | None) -> int:
    """How many networks there are to train; each must have somebody, and something, to train."""
    given = {name: w for name, w in (("updates", updates), ("samples", samples)) if w is not None}
    if not given:
        raise ValueError("there must be weights of updates, of samples or of both; found neither.")
    wanted = {"updates": (network.nodes, "participants"), "samples": (len(network.data.train), "training samples")}
    for name, weights in given.items():
        size, what = wanted[name]
        if weights.dim() != 2 or weights.shape[1] != size:
            raise ValueError(
                f"{name} must have a row for each network and a column for each of {size} {what}; found shape "
                f"{list(weights.shape)}. Use weights[None] for one network."
            )
        if not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(f"weights of {name} must be at least 0 and finite; found {float(weights.min()):g}.")
        if not len(weights) or not bool(weights.any(1).all()):
            row = int((~weights.any(1)).nonzero()[0]) if len(weights) else 0
            raise ValueError(f"every network must have something to train on; row {row} of {name} leaves nothing.")
    if len({len(weights) for weights in given.values()}) > 1:
        raise ValueError(
            f"updates and samples must have a row for each network; found {len(given['updates'])} and "
            f"{len(given['samples'])} rows."
        )
    return len(next(iter(given.values())))


def _trained(
    network: Network, rounds: int, updates: Tensor | None, samples: Tensor | None, names: Sequence[str]
) -> Participants:
    """The final models of networks side by side, one for each row of weights."""
    count = next(len(weights) for weights in (updates, samples) if weights is not None)
    many = network if count == 1 else fleet([network] * count)
    if updates is not None:
        many = with_weights(many, updates.reshape(-1))
    if samples is not None:
        rows = samples.to(network.initial.theta).repeat_interleave(network.nodes, 0)
        many = replace(many, sample_weights=rows if many.sample_weights is None else rows * many.sample_weights)
    try:
        *_, last = simulate(many, rounds, window=0)
    except DivergedError as error:
        which, node = divmod(error.node, network.nodes)
        raise error.within(f"in {names[which]}, ", node) from None
    return last.after


class Prediction(NamedTuple):
    """How well scores predict retraining: rank correlation with a 95 % interval over subsets, and correlation."""

    spearman: float
    low: float
    high: float
    pearson: float


def datamodeling_score(
    scores: Float[Tensor, " size"], subsets: Float[Tensor, "subsets size"], retrained: Float[Tensor, " subsets"],
    resamples: int = 1000,
) -> Prediction:  # fmt: skip
    """LDS: how well the sum of a subset's scores predicts f of the network trained on it.

    Args:
        scores: ∂f/∂α, shares, or any scores of which negative means that it helped.
        subsets: Rows of 0 and 1, or of weights.
        retrained: f of each subset, from `retrain`.
        resamples: Bootstrap samples of subsets for the interval.

    Returns:
        The agreement of predictions with f, 1 where they rank all subsets alike.

    Example:
        >>> subsets = random_subsets(network.nodes, keep=0.8, count=48)
        >>> truth = retrain(network, 100, evaluation, updates=subsets)
        >>> datamodeling_score(whole_run(network, 100, evaluation, at=0.8).participants, subsets, truth)
    """
    if subsets.dim() != 2 or scores.shape != subsets.shape[1:] or retrained.shape != subsets.shape[:1]:
        raise ValueError(
            f"subsets must have a row for each of {list(retrained.shape)} retrained networks and a column for each of "
            f"{list(scores.shape)} scores; found shape {list(subsets.shape)}."
        )
    return predicts(subsets.double() @ scores.double().cpu(), retrained, resamples)


def predicts(predicted: Float[Tensor, " points"], found: Float[Tensor, " points"], resamples: int = 1000) -> Prediction:
    """How well predictions rank what was found, e.g. scores of participants and what leaving each out changed."""
    if predicted.dim() != 1 or predicted.shape != found.shape or resamples < 1:
        raise ValueError(
            "there must be one prediction for each retrained value, and at least one resample; found shapes "
            f"{list(predicted.shape)} and {list(found.shape)}, and {resamples} resamples."
        )
    whole, each = agreement(found, predicted), _resampled(found, [predicted], resamples)[0]
    return Prediction(whole.spearman, *_middle_95(each), whole.pearson)


def paired_advantage(
    better: Float[Tensor, " points"], worse: Float[Tensor, " points"], found: Float[Tensor, " points"],
    resamples: int = 1000,
) -> tuple[float, float]:  # fmt: skip
    """The 95 % interval of how much better one prediction ranks what was found than another does.

    Both are resampled together: what makes some points hard to predict for both does not widen the interval. NaN where
    one of them is the same everywhere.

    Example:
        >>> low, high = paired_advantage(subsets @ scores, subsets @ others, retrained)
        >>> low > 0  # clearly better
    """
    one, other = _resampled(found, [better, worse], resamples)
    return _middle_95(one - other)


def _resampled(found: Tensor, predictions: Sequence[Tensor], resamples: int) -> list[Tensor]:
    """The rank correlation of each prediction with what was found, over the same bootstrap samples of the points."""
    finite = torch.stack([found, *predictions]).isfinite().all(0)
    found = found[finite]
    generator = seeds.generator(0, "bootstrap", len(found))
    picks = torch.randint(len(found), (resamples, len(found)), generator=generator)
    return [resampled_rank_correlations(found, predicted[finite], picks) for predicted in predictions]


def _middle_95(each: Tensor) -> tuple[float, float]:
    """The interval that has 95 % of these numbers, without those that are NaN."""
    each = each[each.isfinite()]
    if not len(each):
        return float("nan"), float("nan")
    low, high = each.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def leave_one_out(
    network: Network, rounds: int, evaluation: Evaluation, *, on: str | int = "all",
    trained: Callable[[int], None] | None = None,
) -> Float[Tensor, " n"]:  # fmt: skip
    """What each participant's data did, by retraining without it: f(1) − f(1 − e_j). Negative helped.

    Cost: a training for each participant, and one with all of them.

    Args:
        rounds: How many rounds to train; a mixing rule that the network was trained with (`simulate(rule=...)`) is
            not used.
        on: Whose final models: "all", weighted by q; "average", the average model; or the number of a participant.
        trained: Called with how many networks were trained, each time some are done.

    Returns:
        A value for each participant.

    Example:
        >>> leave_one_out(network, 100, evaluate_on(network))
    """
    everybody = torch.ones(1, network.nodes, dtype=torch.float64)
    rows = torch.cat([everybody, without_each(network.nodes)])
    values = retrain(network, rounds, evaluation, updates=rows, on=on, trained=trained)
    return values[0] - values[1:]
