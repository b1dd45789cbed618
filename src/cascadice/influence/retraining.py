"""Retraining without some participants or samples, and how well scores predict its results.

    f(S) = Σ_k q_k L(θ_k^T) of the network trained on the subset S        prediction: Σ_{j ∈ S} score_j

The linear datamodeling score (LDS; Ilyas et al. 2022, Park et al. 2023) is their rank correlation over random subsets.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb, isfinite
from numbers import Real
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import seeds
from cascadice.engine.backwards import bytes_of
from cascadice.engine.evaluation import Evaluation, check_asked
from cascadice.engine.fleets import fleet
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Group, Network, draw
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import rows_of
from cascadice.engine.simulation import DivergedError, simulate
from cascadice.engine.step_memory import bytes_of_step
from cascadice.engine.weighting import with_weights
from cascadice.influence.agreement import agreement, resampled_rank_correlations
from cascadice.influence.checks import check_samples_are_separate
from cascadice.influence.retraining_checks import check_count, check_tensor, count_networks
from cascadice.influence.weighted_run import focus, models_to_measure, weighted_losses

MEMORY = 2**32
"""Most bytes that networks trained side by side should take on a CPU; on a GPU it is a quarter of its memory."""
MOST = 256
"""Most networks to train side by side."""
MOSTLY = 0.9
"""If more than this part of the participants work, the others work, too."""


def random_subsets(size: int, keep: float, count: int, seed: int = 0) -> Float[Tensor, "subsets size"]:
    """Distinct random subsets that each keep the fraction `keep` of `size` participants or samples.

    Args:
        size: The number of participants or samples.
        keep: The fraction of them in each subset, between 0 and 1.
        count: How many subsets; if fewer exist, all of them are returned.
        seed: Seed of the random choice.

    Returns:
        A row for each subset: 1 for those in it, 0 for the others.

    Raises:
        ValueError: If a subset would keep none or all of them, or `count` is no whole number from 1.
        TypeError: If `keep` is no number.

    Example:
        >>> random_subsets(4, keep=0.5, count=2)
        tensor([[0., 1., 1., 0.],
                [0., 1., 0., 1.]], dtype=torch.float64)
    """
    if not isinstance(keep, Real) or not isfinite(keep):
        raise TypeError(f"keep must be a number, the fraction of them in each subset; found {keep!r}.")
    kept = round(keep * size)
    if not 0 < kept < size:
        found = f"the fraction {keep:g} of {size} keeps {'all of them' if kept >= size else 'none'}"
        advice = f"Keep a fraction from {1 / size:g} to {1 - 1 / size:g}." if size > 1 else "There must be at least 2."
        raise ValueError(f"each subset must keep some and leave some out; {found}. {advice}")
    check_count(count, "count must be a whole number of subsets")
    generator = seeds.generator(seed, "subsets", size, kept)
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < min(count, comb(size, kept)):
        chosen[tuple(sorted(torch.randperm(size, generator=generator)[:kept].tolist()))] = None
    return torch.zeros(len(chosen), size, dtype=torch.float64).scatter_(1, torch.tensor(list(chosen)), 1.0)


def without_each(nodes: int) -> Float[Tensor, "nodes nodes"]:
    """The subsets that each leave out one participant, for `retrain(updates=...)`.

    Args:
        nodes: The number of participants.

    Returns:
        A row for each subset: 1 for who trains, 0 for who does not.

    Example:
        >>> without_each(2)
        tensor([[0., 1.],
                [1., 0.]], dtype=torch.float64)
    """
    return 1 - torch.eye(nodes, dtype=torch.float64)


def retrain(
    network: Network, rounds: int, evaluation: Evaluation, *, updates: Float[Tensor, "subsets n"] | None = None,
    samples: Float[Tensor, "subsets size"] | None = None, on: str | int = "all", together: int | None = None,
    names: Sequence[str] | None = None, trained: Callable[[int], None] | None = None,
) -> Float[Tensor, " subsets"]:  # fmt: skip
    """Train the network again with each row of weights, many side by side, and measure the final models.

    Cost: one training per row; on a CPU, participants that are left out cost little.

    Args:
        network: The network to train.
        rounds: How many rounds to train, with the network's own W (not by a mixing rule given to `simulate`).
        evaluation: What to measure, from `evaluate_on`.
        updates: Weights of everyone's updates, a row for each network to train; 0 leaves a participant out.
        samples: Weights of the training samples, a row for each network; 0 leaves a sample out.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.
        together: How many networks to train side by side; defaults to as many as fit in memory, by
            a forecast of their parameters, optimizer states, activations and joint W; at most `MOST`.
        names: What to call each network in errors; defaults to "retrained network 3".
        trained: Called with the number of networks trained so far, each time some are done.

    Returns:
        f of each network.

    Raises:
        ValueError: If weights have the wrong shape, or leave a network nothing to train on.
        TypeError: If weights are no tensors.
        DivergedError: If one of the networks diverges.

    Example:
        >>> retrain(network, 100, evaluate_on(network), updates=without_each(network.nodes))
    """
    check_asked(network, evaluation)
    check_count(rounds, "rounds must be the number of rounds to train")
    if together is not None:
        check_count(together, "together must be the number of networks to train side by side")
    total = count_networks(network, updates, samples)
    if names is not None and len(names) != total:
        raise ValueError(f"there must be a name for each of {total} networks; found {len(names)}.")
    names = names or [f"retrained network {i}" for i in range(total)]
    if samples is not None:
        check_samples_are_separate(network, draw(network, 0), network.initial)
    alone = network.groups or network.uneven
    count = 1 if alone else together or side_by_side(network)
    measured, on = focus(network, on)
    operator, values = Operator(measured), list[Tensor]()
    for first in range(0, total, count):
        part = slice(first, min(first + count, total))
        own_updates, own_samples = (None if weights is None else weights[part] for weights in (updates, samples))
        models = _train_side_by_side(network, rounds, own_updates, own_samples, names[part])
        for i in range(0, len(models.theta), network.nodes):
            own = models_to_measure(operator, rows_of(models, slice(i, i + network.nodes)), on)
            values.append(weighted_losses(operator, evaluation, own).sum().double())
        if trained is not None:
            trained(part.stop)
    return torch.stack(values).cpu()


def side_by_side(network: Network) -> int:
    """How many networks like this one to train at a time: as many as fit in `MEMORY`, or in a quarter of a GPU."""
    if network.groups or network.uneven:
        return 1
    gpu = network.device.type == "cuda"
    most = torch.cuda.get_device_properties(network.device).total_memory // 4 if gpu else MEMORY
    once, everybody = bytes_of(network.initial), network.initial.theta.nbytes
    # what they begin with, two rounds, those that work and what they return, and a step
    each = once + 2 * (once + everybody) + once + bytes_of_step(network)
    link = 8 + network.initial.theta.element_size()  # in the joint W, which is dense, and its copy for the models
    fits = (count for count in range(MOST, 1, -1) if count * each + (count * network.nodes) ** 2 * link <= most)
    return next(fits, 1)


def _train_side_by_side(
    network: Network, rounds: int, updates: Tensor | None, samples: Tensor | None, names: Sequence[str]
) -> Participants:
    """The final models of one network per row of weights."""
    many = network if len(names) == 1 else fleet([network] * len(names))
    if updates is not None:
        many = with_weights(many, updates.reshape(-1))
        many = _without_idle_work(many, updates.reshape(-1))
    if samples is not None:
        rows = samples.to(network.initial.theta).repeat_interleave(network.nodes, 0)
        many = replace(many, sample_weights=rows if many.sample_weights is None else rows * many.sample_weights)
    try:
        *_, last = simulate(many, rounds, window=0)
    except DivergedError as error:
        which, node = divmod(error.node, network.nodes)
        raise error.within(f"in {names[which]}, ", node) from None
    return last.after


def _without_idle_work(network: Network, updates: Tensor) -> Network:
    """The same, but participants whose updates have weight 0 do no local work, which would not change their parameters.

    Not if they are too few to be worth a copy of the others; not on a GPU, where a round is only captured if all
    participants work alike; nor with running statistics (BatchNorm), which local work does change.
    """
    busy = set(updates.nonzero().flatten().tolist())
    few_idle = len(busy) > MOSTLY * network.nodes
    if few_idle or network.device.type == "cuda" or network.initial.buffers:
        return network
    everybody = network.groups or (Group(network.learner, tuple(range(network.nodes))),)
    groups = (group._replace(nodes=tuple(k for k in group.nodes if k in busy)) for group in everybody)
    return replace(network, groups=tuple(group for group in groups if group.nodes))


class Prediction(NamedTuple):
    """How well scores predict retraining: rank correlation with its 95 % bootstrap interval, and linear correlation."""

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
        scores: ∂f/∂α, shares, or any scores for which negative means helped.
        subsets: A row of 0 and 1, or of weights, for each subset.
        retrained: f of each subset, from `retrain`.
        resamples: Bootstrap resamples of the subsets for the interval.

    Returns:
        The correlations of the predictions with f; 1 if they rank all subsets as retraining does.

    Raises:
        ValueError: If the shapes do not match, or there are fewer than 3 subsets with finite results.
        TypeError: If one of the three is no tensor.

    Example:
        >>> subsets = random_subsets(network.nodes, keep=0.8, count=48)
        >>> truth = retrain(network, 100, evaluation, updates=subsets)
        >>> datamodeling_score(whole_run(network, 100, evaluation, at=0.8).participants, subsets, truth)
    """
    for name, given in (("scores", scores), ("subsets", subsets), ("retrained", retrained)):
        check_tensor(name, given)
    if subsets.dim() != 2 or scores.shape != subsets.shape[1:] or retrained.shape != subsets.shape[:1]:
        raise ValueError(
            f"subsets must be a table with a row for each of {_sizes(retrained)} retrained networks and a column for "
            f"each of {_sizes(scores)} scores; found {_sizes(subsets)}."
        )
    return predicts(subsets.double() @ scores.double().cpu(), retrained, resamples)


def _sizes(given: Tensor) -> str:
    return " × ".join(map(str, given.shape)) or "1"


def predicts(
    predicted: Float[Tensor, " points"], actual: Float[Tensor, " points"], resamples: int = 1000
) -> Prediction:
    """How well predictions rank actual values, e.g. participants' scores and their leave-one-out changes."""
    if predicted.dim() != 1 or predicted.shape != actual.shape or resamples < 1:
        raise ValueError(
            "there must be one prediction for each retrained value, and at least one resample; found "
            f"{_sizes(predicted)} predictions of {_sizes(actual)} values, and {resamples} resamples."
        )
    if (points := int((predicted.isfinite() & actual.isfinite()).sum())) < 3:
        raise ValueError(
            f"at least 3 networks must be retrained, with finite results; found {points}. Retrain on more subsets."
        )
    whole, each = agreement(actual, predicted), _resampled(actual, [predicted], resamples)[0]
    return Prediction(whole.spearman, *_middle_95(each), whole.pearson)


def paired_advantage(
    better: Float[Tensor, " points"], worse: Float[Tensor, " points"], actual: Float[Tensor, " points"],
    resamples: int = 1000,
) -> tuple[float, float]:  # fmt: skip
    """The 95 % bootstrap interval of the difference between two predictions' rank correlations with actual values.

    Both use the same resamples, so points that are hard to predict for both do not widen the interval.
    """
    one, other = _resampled(actual, [better, worse], resamples)
    return _middle_95(one - other)


def _resampled(actual: Tensor, predictions: Sequence[Tensor], resamples: int) -> list[Tensor]:
    """The rank correlations of each prediction with the actual values, over the same bootstrap resamples."""
    finite = torch.stack([actual, *predictions]).isfinite().all(0)
    actual = actual[finite]
    generator = seeds.generator(0, "bootstrap", len(actual))
    picks = torch.randint(len(actual), (resamples, len(actual)), generator=generator)
    return [resampled_rank_correlations(actual, predicted[finite], picks) for predicted in predictions]


def _middle_95(each: Tensor) -> tuple[float, float]:
    """The central interval that holds 95 % of these numbers, ignoring NaN."""
    low, high = each.nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def leave_one_out(
    network: Network, rounds: int, evaluation: Evaluation, *, on: str | int = "all",
    trained: Callable[[int], None] | None = None,
) -> Float[Tensor, " n"]:  # fmt: skip
    """What each participant's data did, by retraining without it: f(1) − f(1 − e_j).

    Cost: n + 1 trainings.

    Args:
        network: The network to train.
        rounds: How many rounds to train, with the network's own W (not by a mixing rule given to `simulate`).
        evaluation: What to measure, from `evaluate_on`.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.
        trained: Called with the number of networks trained so far, each time some are done.

    Returns:
        A value for each participant; negative helped.

    Raises:
        ValueError: If there is only one participant.
        DivergedError: If one of the networks diverges.

    Example:
        >>> leave_one_out(network, 100, evaluate_on(network))
    """
    check_asked(network, evaluation)
    if network.nodes < 2:
        how = "To leave out samples, use retrain(samples=...)"
        raise ValueError(f"there must be at least 2 participants to leave one out; found {network.nodes}. {how}.")
    rows = torch.cat([torch.ones(1, network.nodes, dtype=torch.float64), without_each(network.nodes)])
    names = ["the network with everybody", *(f"the network without participant {j}" for j in range(network.nodes))]
    values = retrain(network, rounds, evaluation, updates=rows, on=on, names=names, trained=trained)
    return values[0] - values[1:]
