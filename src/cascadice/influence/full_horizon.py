"""Full horizon: one backward sweep over all rounds scores every participant, sample and round on the final models.

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
from cascadice.engine.evaluation import check_asked
from cascadice.engine.operator import Operator, Pulled
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence import checks


class HorizonScores(NamedTuple):
    """First-order influence on the final models of the updates of round t, by participant and by sample."""

    t: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]


def full_horizon(
    network: Network, backwards: Iterable[Round], evaluation: Evaluation, *, samples: bool = True,
    operator: Operator | None = None,
) -> Iterator[HorizonScores]:  # fmt: skip
    """The first-order influence of every participant, sample and round on the models after the last round.

    Scores and Hessian-vector products share one pass. Cost: about two training passes per round, however many rounds
    and samples there are.

    Args:
        network: The network that made the rounds.
        backwards: The rounds from the last to the first, e.g. read one by one from a recording.
        evaluation: What to measure, from `evaluate_on`.
        samples: Whether to score samples too; if not, their scores are empty.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Yields:
        The scores of each round, from the last to the first; negative helped.

    Raises:
        ValueError: If a round is missing or not this network's, or the loss or model couples samples.
        DivergedError: If a derivative is no longer finite.

    Example:
        >>> for scores in full_horizon(network, reversed(rounds), evaluate_on(network)):
        ...     print(scores.t, scores.participants)
    """
    check_asked(network, evaluation)
    op = operator or Operator(network)
    for round_, pulled in pull_back(op, backwards, partial(final_adjoint, op, evaluation), samples=samples):
        yield HorizonScores(round_.t, pulled.participants, pulled.samples)


def pull_back(
    operator: Operator, backwards: Iterable[Round], final: Callable[[Round], Adjoint], *,
    adjoint: Adjoint | None = None, samples: bool = True,
) -> Iterator[tuple[Round, Pulled]]:  # fmt: skip
    """Pull the adjoint back through consecutive rounds, the last one first, and yield each round with its scores.

    It continues from `adjoint` or, once the last round has been checked, begins with what `final` makes of that round.
    """
    checks.check_many(backwards)
    network, later = operator.network, None
    for round_ in backwards:
        checks.check_form(network, round_)
        if later is not None:
            checks.check_joined(round_, later)
        later = round_  # before the work, so that at most two rounds are held
        if adjoint is None:
            checks.check_recording(network, [round_], many=1)  # one participant: a sweep may be short
            _check_buffers(round_)
            if samples:
                checks.check_samples_are_separate(network, round_.draw, round_.before)
            adjoint = final(round_)
        pulled = operator.pull_scored(round_, adjoint, samples)
        checks.check_numbers(round_.t, pulled.rates)
        adjoint = pulled.before
        yield round_, pulled
    if later is None:
        raise ValueError("at least one round is needed; found none.")


def _check_buffers(round_: Round) -> None:
    """Running statistics (BatchNorm) change regardless of the learning rate, so α does not weight their change."""
    if name := changed_statistic(round_):
        raise ValueError(
            f"whole-run influence does not follow changes of running statistics; {name!r} has changed. Use "
            "GroupNorm or LayerNorm, or retrain without the data."
        )


def changed_statistic(round_: Round) -> str:
    """The name of a buffer that local work has changed, such as a running mean; "" if there is none."""
    before, half = round_.before.buffers, round_.half.buffers
    changed = (name for name, value in half.items() if value.is_floating_point() and not value.equal(before[name]))
    return next(changed, "")


def final_adjoint(operator: Operator, evaluation: Evaluation, last: Round) -> Adjoint:
    """λ^T: the derivative of the measured sum by the final models; it does not depend on optimizer state."""
    return Adjoint(operator.objective(evaluation, last.after), tree_map(torch.zeros_like, last.after.state))
