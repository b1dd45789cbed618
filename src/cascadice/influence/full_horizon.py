"""Full horizon: one sweep backwards over all rounds scores every participant, sample and round on the final models.

λ_k^T = q_k ∇L(θ_k^T)      λ_k^t = (I − η H_k) Σ_l W[l, k] λ_l^{t+1}      score_i = −η/B ∇ℓ_iᵀ Σ_k W[k, j] λ_k
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import Evaluation, Network
from cascadice.engine.operator import Operator, Pulled
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.checks import check_form, check_many, check_recording, check_samples_are_separate


class HorizonScores(NamedTuple):
    """What the updates of round t did to the final models, to first order: of participants, and of their samples."""

    t: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]


def full_horizon(
    network: Network, backwards: Iterable[Round], evaluation: Evaluation, *, samples: bool = True,
    operator: Operator | None = None,
) -> Iterator[HorizonScores]:  # fmt: skip
    """The influence of every participant, sample and round on the models after the last round, in one sweep.

    Scores and Hessian-vector products share one pass. Cost: about two training passes a round, whatever the number of
    rounds and samples.

    Args:
        backwards: The rounds from the last to the first, e.g. read one by one from a recording.
        samples: Score samples too; without, their scores are empty.
        operator: The operator to use, where its exchange is not the one in memory.

    Yields:
        The scores of each round, from the last to the first; negative helped.

    Raises:
        ValueError: Where the rounds do not go back one by one, or samples have no scores of their own.

    Example:
        >>> for scores in full_horizon(network, reversed(rounds), evaluate_on(network)):
        ...     print(scores.t, scores.participants)
    """
    op = operator or Operator(network)
    for round_, pulled in pull_back(op, backwards, partial(final_adjoint, op, evaluation), samples=samples):
        yield HorizonScores(round_.t, pulled.participants, pulled.samples)


def pull_back(
    operator: Operator, backwards: Iterable[Round], final: Callable[[Round], Adjoint], *,
    adjoint: Adjoint | None = None, samples: bool = True,
) -> Iterator[tuple[Round, Pulled]]:  # fmt: skip
    """Rounds pulled back through one by one, the last one first.

    Args:
        final: The adjoint after the last round, which is checked before.
        adjoint: The adjoint to go on from instead.
        samples: Score samples too.
    """
    network = operator.network
    for round_ in one_by_one(backwards):
        check_form(network, round_)
        if adjoint is None:
            check_recording(network, [round_], many=1)  # a sweep may be short, and each step is as long as its round
            _check_buffers(round_)
            if samples:
                check_samples_are_separate(network, round_.draw, round_.before)
            adjoint = final(round_)
        pulled = operator.pull_scored(round_, adjoint, samples)
        adjoint = pulled.before
        yield round_, pulled


def _check_buffers(round_: Round) -> None:
    """Running statistics (BatchNorm) move without any learning rate, so α does not weigh what data does to them."""
    for name, value in round_.half.buffers.items():
        if value.is_floating_point() and not torch.equal(value, round_.before.buffers[name]):
            raise ValueError(
                f"whole-run influence does not follow what data does to running statistics; {name!r} has moved. Use "
                "GroupNorm or LayerNorm, or retrain without the data."
            )


def one_by_one(backwards: Iterable[Round]) -> Iterator[Round]:
    """The same rounds, which must go back one by one, and be at least one."""
    check_many(backwards)
    later: int | None = None
    for round_ in backwards:
        if later is not None and round_.t + 1 != later:
            raise ValueError(
                f"rounds must go back one by one; found {round_.t} after {later}. Keep or record all of them."
            )
        later = round_.t
        yield round_
    if later is None:
        raise ValueError("at least one round is needed; found none.")


def final_adjoint(operator: Operator, evaluation: Evaluation, last: Round) -> Adjoint:
    """λ^T: the derivative of the measured sum by the final models; nothing measured depends on optimizer state."""
    return Adjoint(operator.objective(evaluation, last.after), tree_map(torch.zeros_like, last.after.state))
