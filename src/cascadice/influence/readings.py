"""Readings of influence: sums, slices and ratios of cascades and scores. Negative helped, everywhere."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.engine.rounds import Round
from cascadice.influence.cascade import Cascade


def one_hop(cascade: Cascade, *, own: bool = True) -> Float[Tensor, " s"]:
    """Each source's influence on itself and on its direct neighbours (Definition 2): hops 0 and 1.

    A self-loop is a link (footnote 3), so what the source keeps of its own update through gossip counts, entry (1, j);
    `own=False` leaves that entry out, as the authors' published code does.

    Example:
        >>> cascade = Cascade("truth", 0, (1,), torch.tensor([[[0.0, -3.0, 0.0]], [[-1.0, -2.0, 0.5]]]))
        >>> one_hop(cascade), one_hop(cascade, own=False)
        (tensor([-5.5000]), tensor([-3.5000]))
    """
    total, sources = cascade.value[0].sum(1) + proximal(cascade).sum(1), list(cascade.sources)
    return total if own else total - proximal(cascade)[torch.arange(len(sources)), sources]


def r_hop(cascade: Cascade) -> Float[Tensor, " s"]:
    """Each source's influence on everyone it reached, over all hops of the cascade (Definition 3).

    Example:
        >>> r_hop(Cascade("truth", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]], [[0.0, 0.25]]])))
        tensor([-3.2500])
    """
    return cascade.total


def by_hop(cascade: Cascade) -> Float[Tensor, "hops s"]:
    """How the influence of each source decays from hop to hop: the sum over receivers.

    Example:
        >>> by_hop(Cascade("truth", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]])))
        tensor([[-3.0000],
                [-0.5000]])
    """
    return cascade.value.sum(2)


def by_receiver(cascade: Cascade) -> Float[Tensor, "s n"]:
    """On whom each source's influence fell: the sum over hops.

    Example:
        >>> by_receiver(Cascade("truth", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]])))
        tensor([[-4.0000,  0.5000]])
    """
    return cascade.value.sum(0)


def proximal(cascade: Cascade) -> Float[Tensor, "s n"]:
    """`[s, k]`: influence of source s on receiver k after one gossip (Definition 4), 0 where k hears nothing from s.

        I^{k,j} = W[k, j] q_k ∇L(θ_k^{t+1})ᵀ Δ_j

    That is the first-order entry, with Δ_j = −η ∇L(θ_j; z_j) for SGD as in print; of another kind of cascade it is that
    kind's entry. With all participants as sources, in order, it is `given` of the reciprocity factors.

    Example:
        >>> proximal(Cascade("first order", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]])))
        tensor([[-1.0000,  0.5000]])
    """
    if len(cascade.value) < 2:
        raise ValueError("the cascade must have at least one hop; found only hop 0. Compute it from one round or more.")
    return cascade.value[1]


def reciprocity(given: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """`R[k, j]`: what k gains from j over what j gains from k (Definition 5); near 1 is an even exchange.

        R[k, j] = given[j, k] / given[k, j],   given[j, k] the proximal influence of j on k, in one round or summed

    NaN where j gains nothing from k. Negative: one helps, the other harms. Departs from print, which evaluates j's
    gradient on k's data (∇L(θ_j; z_k)) and k's on j's; everyone's update comes from its own data, as in Definition 4.

    Example:
        >>> reciprocity(torch.tensor([[0.0, -1.0], [-2.0, 0.0]]))[0, 1]  # 0 gains twice as much from 1 as 1 from 0
        tensor(2.)
    """
    return _ratio(given.T, given)


def neighbourhood_reciprocity(given: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """`R[j]`: what j's neighbours gain from j over what j gains from its neighbours (Definition 5); NaN if nothing.

        R[j] = Σ_{k≠j} given[j, k] / Σ_{l≠j} given[l, j],   given[j, k] the proximal influence of j on k

    What j gives itself is no exchange, and is left out. Departs from print, whose denominator has q_l and z_j where j
    receives from l: the receiver's weight q_j and the source's data z_l.

    Example:
        >>> neighbourhood_reciprocity(torch.tensor([[0.0, -1.0], [-2.0, 0.0]]))
        tensor([0.5000, 2.0000])
    """
    others = given - given.diag().diag()
    return _ratio(others.sum(1), others.sum(0))


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below == 0, torch.nan, above / below)


def accumulate(cascades: Iterable[Cascade]) -> Cascade:
    """The sum of the cascades of several rounds, as one that starts in the first of them; one is held at a time.

    Example:
        >>> one = Cascade("truth", 4, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]]))
        >>> r_hop(accumulate([one, one])), accumulate([one, one]).t
        (tensor([-7.], dtype=torch.float64), 4)
    """
    remaining = iter(cascades)
    first = next(remaining, None)
    if first is None:
        raise ValueError("there must be at least one cascade to accumulate; found none.")
    total = first.value.double()
    for cascade in remaining:
        if (what := _difference(first, cascade)) is not None:
            raise ValueError(f"cascades must have one kind, the same sources and as many hops to be summed; {what}.")
        total = total + cascade.value
    return first._replace(value=total)


def _difference(one: Cascade, other: Cascade) -> str | None:
    """What keeps two cascades from being summed."""
    if one.kind != other.kind:
        return f"found kinds {one.kind!r} and {other.kind!r}"
    if one.samples is not None or other.samples is not None:
        return "found single samples, which differ from round to round"
    if one.sources != other.sources:
        return f"found sources {list(one.sources)} and {list(other.sources)}"
    if one.value.shape != other.value.shape:
        return f"found values of shape {list(one.value.shape)} and {list(other.value.shape)}"
    return None


def summed(per_round: Iterable[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    """Each participant's scores of all rounds, summed. What it did to the final models is `whole_run_shares`.

    Example:
        >>> summed([torch.tensor([-1.0, 0.5]), torch.tensor([-2.0, 0.25])])
        tensor([-3.0000,  0.7500], dtype=torch.float64)
    """
    total: Tensor | None = None
    for scores in per_round:
        if total is not None and len(scores) != len(total):
            raise ValueError(f"every round must score the same participants; found {len(total)}, then {len(scores)}.")
        total = scores.double() if total is None else total + scores
    if total is None:
        raise ValueError("there must be at least one round of scores; found none.")
    return total


class Contributions(NamedTuple):
    """`value[i]` of training sample i over the run, and how often it was used; 0 if never."""

    value: Float[Tensor, " size"]
    uses: Int[Tensor, " size"]


def sample_contributions(scores: Iterable[tuple[Round, Float[Tensor, "n batch"]]], size: int) -> Contributions:
    """What each of the `size` training samples contributed, whoever drew it and however often: a sum over rounds."""
    value, uses = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.int64)
    for round_, scored in scores:
        drawn = samples_of(round_, scored).reshape(-1)
        numbers = scored.detach().cpu().double().reshape(-1)[drawn >= 0]
        drawn = drawn[drawn >= 0]
        if int(drawn.max()) >= size:
            raise ValueError(
                f"size must be the number of training samples; found {size}, and round {round_.t} drew sample "
                f"{int(drawn.max())}. Use len(network.data.train)."
            )
        value.index_add_(0, drawn, numbers)
        uses += torch.bincount(drawn, minlength=size)
    return Contributions(value, uses)


def samples_of(round_: Round, scores: Float[Tensor, "n samples"]) -> Int[Tensor, "n samples"]:
    """Which training sample each score of a round belongs to; the batches of local steps follow one another."""
    drawn = round_.draw.batch.cpu()
    if drawn.flatten(1).shape != scores.shape:
        raise ValueError(
            f"scores must be [participants, samples of the round]; found {list(scores.shape)} for "
            f"batches of [participants, steps, batch] = {list(drawn.shape)}."
        )
    return drawn.flatten(1)


class Extremes(NamedTuple):
    """Places of the most negative values and of the most positive ones, the strongest first."""

    helpful: Int[Tensor, " helpful"]
    harmful: Int[Tensor, " harmful"]


def extremes(values: Float[Tensor, " size"], most: int = 10) -> Extremes:
    """The `most` helpful and harmful samples, or participants; fewer if fewer helped or harmed.

    Only what is below 0 helped and what is above 0 harmed: samples that were never used, at 0, are in neither.

    Example:
        >>> helpful, harmful = extremes(torch.tensor([0.5, -1.0, 0.0, -2.0]))
        >>> helpful, harmful
        (tensor([3, 1]), tensor([0]))
    """
    if most < 1:
        raise ValueError(f"most must be at least 1; found {most}.")
    order = values.argsort(stable=True)
    rising = values[order]
    return Extremes(order[rising < 0][:most], order[rising > 0].flip(0)[:most])


class Agreement(NamedTuple):
    """How well an estimate follows the truth; correlations are NaN where either does not vary."""

    pearson: float
    spearman: float
    slope: float
    relative_rmse: float


def agreement(truth: Float[Tensor, " points"], estimate: Float[Tensor, " points"]) -> Agreement:
    """Correlation of values and of ranks, least-squares slope of the estimate on the truth, and error.

        relative RMSE = √(mean (estimate − truth)² / mean truth²)

    An estimate that is right has 1, 1, 1, 0. Points at which either is NaN or infinite are left out.

    Args:
        truth: The true values, e.g. `truth(network, rounds, evaluation).value.flatten()`.
        estimate: The estimates of the same values, in the same order.

    Returns:
        Pearson's and Spearman's correlation, the slope, the relative RMSE.

    Example:
        >>> exact = torch.tensor([1.0, 2.0, 4.0])
        >>> agreement(exact, 2 * exact).slope
        2.0
    """
    finite = truth.isfinite() & estimate.isfinite()
    if (points := int(finite.sum())) < 3:
        raise ValueError(f"agreement needs at least 3 finite points; found {points}. Score more rounds or sources.")
    true, guess = truth[finite].double(), estimate[finite].double()
    (spread, shared), _ = torch.cov(torch.stack([true, guess]))
    error = ((guess - true).square().mean() / true.square().mean()).sqrt()
    return Agreement(
        _correlation(true, guess), _correlation(_ranks(true), _ranks(guess)), float(shared / spread), float(error)
    )


def resampled_rank_correlations(
    one: Float[Tensor, " points"], other: Float[Tensor, " points"], picks: Int[Tensor, "resamples points"]
) -> Float[Tensor, " resamples"]:
    """The rank correlation of the points in each row of `picks`; NaN where one of the two does not vary."""
    a, b = (ranks - ranks.mean(1, keepdim=True) for ranks in (_resampled_ranks(v, picks) for v in (one, other)))
    return ((a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()).clamp(-1, 1)


def _resampled_ranks(values: Tensor, picks: Tensor) -> Tensor:
    """`_ranks` of the values in each row of `picks`."""
    _, places = np.unique(values.cpu().numpy(), return_inverse=True)
    which = torch.from_numpy(places)[picks]
    counts = torch.zeros(len(picks), int(which.max()) + 1, dtype=torch.float64)
    counts.scatter_add_(1, which, torch.ones_like(which, dtype=torch.float64))
    return (counts.cumsum(1) - (counts - 1) / 2).gather(1, which)


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def _ranks(values: Tensor) -> Tensor:
    """Places in order, from 1; equal values share the mean of their places."""
    _, which, counts = np.unique(values.cpu().numpy(), return_inverse=True, return_counts=True)
    return torch.from_numpy((counts.cumsum() - (counts - 1) / 2)[which])
