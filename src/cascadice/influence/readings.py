"""Readings of influence: sums, slices and ratios of cascades and scores. Negative helped, everywhere."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.engine.rounds import Round
from cascadice.influence.cascade import Cascade


def one_hop(cascade: Cascade, *, own: bool = True) -> Float[Tensor, " s"]:
    """Each source's influence on itself and on its direct neighbours (Definition 2): hops 0 and 1.

    A self-loop is a link (footnote 3), so entry (1, j) counts: what the source keeps of its own update through gossip.

    Args:
        cascade: What `truth`, `first_order` or `path_integrated` returned.
        own: Whether to count entry (1, j); the authors' published code does not.

    Returns:
        A sum for each source.

    Raises:
        ValueError: If the cascade has only hop 0.

    Example:
        >>> cascade = Cascade("truth", 0, (1,), torch.tensor([[[0.0, -3.0, 0.0]], [[-1.0, -2.0, 0.5]]]))
        >>> one_hop(cascade), one_hop(cascade, own=False)
        (tensor([-5.5000]), tensor([-3.5000]))
    """
    total, sources = cascade.value[0].sum(1) + proximal(cascade).sum(1), list(cascade.sources)
    return total if own else total - proximal(cascade)[torch.arange(len(sources)), sources]


def r_hop(cascade: Cascade) -> Float[Tensor, " s"]:
    """Each source's influence on everyone it reached, over all hops of the cascade (Definition 3).

    Args:
        cascade: What `truth`, `first_order` or `path_integrated` returned.

    Returns:
        A sum for each source.

    Example:
        >>> r_hop(Cascade("truth", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]], [[0.0, 0.25]]])))
        tensor([-3.2500])
    """
    return cascade.total


def by_hop(cascade: Cascade) -> Float[Tensor, "hops s"]:
    """The influence of each source at each hop: the sum over receivers, which shows how it decays.

    Args:
        cascade: What `truth`, `first_order` or `path_integrated` returned.

    Returns:
        `[hop, source]`.

    Example:
        >>> by_hop(Cascade("truth", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]])))
        tensor([[-3.0000],
                [-0.5000]])
    """
    return cascade.value.sum(2)


def by_receiver(cascade: Cascade) -> Float[Tensor, "s n"]:
    """The influence of each source on each receiver: the sum over hops.

    Args:
        cascade: What `truth`, `first_order` or `path_integrated` returned.

    Returns:
        `[source, receiver]`.

    Example:
        >>> by_receiver(Cascade("truth", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]])))
        tensor([[-4.0000,  0.5000]])
    """
    return cascade.value.sum(0)


def proximal(cascade: Cascade) -> Float[Tensor, "s n"]:
    """The influence of each source on each receiver after one gossip (Definition 4); 0 if k receives nothing from j.

        I^{k,j} = W[k, j] q_k ∇L(θ_k^{t+1})ᵀ Δ_j

    This is the entry of a first-order cascade, with Δ_j = −η ∇L(θ_j; z_j) for SGD as in print; cascades of other kinds
    have their own entries. With all participants as sources, in order, it is `given` of the reciprocity factors.

    Args:
        cascade: What `truth`, `first_order` or `path_integrated` returned.

    Returns:
        `[source, receiver]`.

    Raises:
        ValueError: If the cascade has only hop 0.

    Example:
        >>> proximal(Cascade("first order", 0, (0,), torch.tensor([[[-3.0, 0.0]], [[-1.0, 0.5]]])))
        tensor([[-1.0000,  0.5000]])
    """
    if len(cascade.value) < 2:
        raise ValueError("the cascade must have at least one hop; found only hop 0. Compute it from one round or more.")
    return cascade.value[1]


def reciprocity(given: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """What k gains from j divided by what j gains from k (Definition 5); near 1 is an even exchange.

        R[k, j] = given[j, k] / given[k, j]

    Departs from print, which evaluates j's gradient on k's data (∇L(θ_j; z_k)) and k's on j's; here everyone's update
    comes from its own data, as in Definition 4.

    Args:
        given: `[j, k]`, the proximal influence of j on k, in one round or summed over rounds.

    Returns:
        `R[k, j]`; negative if one helps and the other harms, NaN if j gains nothing from k.

    Example:
        >>> reciprocity(torch.tensor([[0.0, -1.0], [-2.0, 0.0]]))[0, 1]  # 0 gains twice as much from 1 as 1 from 0
        tensor(2.)
    """
    return _ratio(given.T, given)


def neighbourhood_reciprocity(given: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """What j's neighbours gain from j divided by what j gains from its neighbours (Definition 5).

        R[j] = Σ_{k≠j} given[j, k] / Σ_{l≠j} given[l, j]

    What j gives itself is left out. Departs from print, whose denominator has q_l and z_j; as j receives from l, it
    must be the receiver's weight q_j and the source's data z_l.

    Args:
        given: `[j, k]`, the proximal influence of j on k, in one round or summed over rounds.

    Returns:
        `R[j]`; NaN if j gains nothing.

    Example:
        >>> neighbourhood_reciprocity(torch.tensor([[0.0, -1.0], [-2.0, 0.0]]))
        tensor([0.5000, 2.0000])
    """
    others = given - given.diag().diag()
    return _ratio(others.sum(1), others.sum(0))


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.where(denominator == 0, torch.nan, numerator / denominator)


def accumulate(cascades: Iterable[Cascade]) -> Cascade:
    """Sum the cascades of several rounds, holding one at a time.

    Args:
        cascades: Cascades of one kind, with the same sources and number of hops.

    Returns:
        One cascade, with the round of the first.

    Raises:
        ValueError: If there are none, or they cannot be summed.

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
        compared = {
            "kinds": (repr(first.kind), repr(cascade.kind)),
            "sources": (list(first.sources), list(cascade.sources)),
            "values of shape": (list(first.value.shape), list(cascade.value.shape)),
        }
        why = [f"found {what} {one} and {other}" for what, (one, other) in compared.items() if one != other]
        if first.samples is not None or cascade.samples is not None:
            why = ["found single samples, which differ from round to round"]
        if why:
            raise ValueError(f"cascades must have the same kind, sources and number of hops to be summed; {why[0]}.")
        total = total + cascade.value
    return first._replace(value=total)


def summed(per_round: Iterable[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    """Sum each participant's scores over rounds. For its effect on the final models, use `whole_run_shares`.

    Args:
        per_round: The scores of each round, `[n]`.

    Returns:
        The sums, in double precision.

    Raises:
        ValueError: If there are no rounds, or they score different numbers of participants.

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
    """`value[i]` is the sum of the scores of training sample i, and `uses[i]` how often it was drawn."""

    value: Float[Tensor, " size"]
    uses: Int[Tensor, " size"]


def sample_contributions(scores: Iterable[tuple[Round, Float[Tensor, "n batch"]]], size: int) -> Contributions:
    """Sum the scores of each training sample over rounds and participants.

    Args:
        scores: Rounds with the scores of their samples, from `by_sample`.
        size: The number of training samples.

    Returns:
        The sum and the number of uses of each training sample; 0 if it was never drawn.

    Raises:
        ValueError: If `size` is too small, or scores do not match their round.

    Example:
        >>> sample_contributions([(round, by_sample(network, round, adjoint))], len(data.train))  # doctest: +SKIP
    """
    value, uses = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.int64)
    for round_, scored in scores:
        used = (drawn := samples_of(round_, scored)) >= 0
        drawn, numbers = drawn[used], scored.detach().cpu().double()[used]
        if (largest := int(drawn.max())) >= size:
            found = f"found {size}, and round {round_.t} drew sample {largest}. Use len(network.data.train)."
            raise ValueError(f"size must be the number of training samples; {found}")
        value.index_add_(0, drawn, numbers)
        uses += torch.bincount(drawn, minlength=size)
    return Contributions(value, uses)


def samples_of(round_: Round, scores: Float[Tensor, "n samples"]) -> Int[Tensor, "n samples"]:
    """The index of the training sample that each score of a round belongs to."""
    drawn = round_.draw.batch.cpu()
    if drawn.flatten(1).shape != scores.shape:
        batches = f"batches of [participants, steps, batch] = {list(drawn.shape)}"
        raise ValueError(
            f"scores must be [participants, samples of the round]; found {list(scores.shape)} for {batches}."
        )
    return drawn.flatten(1)


class Extremes(NamedTuple):
    """Indices of the most negative and of the most positive values, the strongest first."""

    helpful: Int[Tensor, " helpful"]
    harmful: Int[Tensor, " harmful"]


def extremes(values: Float[Tensor, " size"], most: int = 10) -> Extremes:
    """The most helpful (negative) and most harmful (positive) samples or participants; 0 is neither.

    Args:
        values: A score for each sample or participant.
        most: How many of each at most.

    Returns:
        Indices of the helpful and of the harmful ones.

    Raises:
        ValueError: If `most` is less than 1.

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
