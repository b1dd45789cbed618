"""Whole-run influence on each class, and predictions that bend: whoever holds a class alone is missed the most.

    f(S) ≈ Σ_c p_c L_c(α) exp(Σ_j (s_j − α) ∂ log L_c / ∂α_j)        s_j is 1 if j stays, and 0 if it is left out

A sum of scores charges the same for a participant whoever else is left out. Holders of the same class stand in for each
other, so each costs more than the one before; the logarithm of a class's loss is much closer to a sum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import tee

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.data.inputs import at as rows_at
from cascadice.engine import DivergedError, Evaluation, Network
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.full_horizon import final_adjoint, pull_back
from cascadice.influence.run_at import Rounds, RunAt
from cascadice.influence.whole_run import rounds_backwards

SAME = 1e-3  # by how much parts of the measure may miss it: a mean over samples differs in rounding only


@dataclass(frozen=True, eq=False)
class ByClass:
    """What the run at α knows of each class, and how that depends on everybody.

    Attributes:
        at: α.
        parts: `[classes]`: the part of the evaluation samples that each class has.
        losses: `[classes, n]`: q_k L_c(θ_k) of everybody's final model; their sum over k is the loss on the class.
        slopes: `[classes, n]`: ∂L_c/∂α_j. Negative helped.
    """

    at: float
    parts: Float[Tensor, " classes"]
    losses: Float[Tensor, "classes n"]
    slopes: Float[Tensor, "classes n"]

    @property
    def participants(self) -> Float[Tensor, " n"]:
        """∂f/∂α_j, as `whole_run` has it."""
        return self.parts @ self.slopes

    def predicted(self, kept: Float[Tensor, "subsets n"]) -> Float[Tensor, " subsets"]:
        """f of the network trained with each of these subsets of the participants.

        Args:
            kept: A row for each subset: 1 for those who stay, 0 for those who are left out.

        Example:
            >>> by_class.predicted(without_each(network.nodes)) - by_class.predicted(torch.ones(1, network.nodes))
        """
        values = self.losses.sum(1)
        return (self.parts * values * torch.exp((kept.double() - self.at) @ (self.slopes / values[:, None]).T)).sum(1)

    @property
    def packed(self) -> Float[Tensor, "classes columns"]:
        """All but α in one tensor, to be kept in a file; `unpack` reads it."""
        return torch.cat([self.parts[:, None], self.losses, self.slopes], 1)


def unpack(packed: Float[Tensor, "classes columns"], at: float) -> ByClass:
    """What was packed, at this α."""
    nodes = packed.shape[1] // 2
    return ByClass(at, packed[:, 0], packed[:, 1 : nodes + 1], packed[:, nodes + 1 :])


def whole_run_by_class(
    network: Network,
    rounds: Rounds,
    evaluation: Evaluation,
    *,
    at: float = 1.0,
    length: int | None = None,
    played: Callable[[], None] | None = None,
) -> ByClass:
    """Whole-run influence of every participant on the loss of each class, from one run at α.

    Cost: that of `whole_run`, and about two trainings more for each further class.

    Args:
        rounds: How many rounds to train, without a mixing rule; or rounds that were kept, from the first to the last.
        evaluation: What is measured: a positive mean over samples with a class each, the same for everyone.
        at: α; to predict subsets, take the part that they keep.
        length: How many rounds to keep at a time, where they have to be played; see `engine.backwards`.
        played: Called after each round that was played, and after each that was scored.

    Returns:
        The slopes, and `predicted` for subsets of the participants.

    Raises:
        ValueError: Where the evaluation has no classes, or is no positive mean over its samples.
        DivergedError: Where the run diverges at this α.

    Example:
        >>> by_class = whole_run_by_class(network, 100, evaluate_on(network), at=0.5)
        >>> by_class.predicted(random_subsets(network.nodes, keep=0.5, count=48))
    """
    classes, parts = split(evaluation)
    run = RunAt(network, rounds, evaluation, at, samples=False, length=length, played=played)
    playing, _ = run.operator()
    source, operator = rounds_backwards(run, playing), playing.fresh()
    losses, slopes = torch.zeros(2, len(classes), network.nodes, dtype=torch.float64)

    def final(place: int, last: Round) -> Adjoint:
        losses[place] = _losses(operator, classes[place], last)
        if place == len(classes) - 1:
            _check_mean(float(parts @ losses.sum(1)), float(_losses(operator, evaluation, last).sum()), losses.sum(1))
        return final_adjoint(operator, classes[place], last)

    sweeps = [
        pull_back(operator, each, partial(final, place), samples=False)
        for place, each in enumerate(tee(source, len(classes)))
    ]
    try:
        for pulled in zip(*sweeps, strict=True):  # in step: each round is played once for all classes
            slopes += torch.stack([scores.rates.double().cpu() for _, scores in pulled]) / at
            if played is not None:
                played()
    except DivergedError as error:
        raise run.diverged(error) from None
    return ByClass(at, parts, losses, slopes)


def split(evaluation: Evaluation) -> tuple[list[Evaluation], Float[Tensor, " classes"]]:
    """An evaluation for each class that occurs in it, and the part of the samples that it has."""
    y = evaluation.y
    if evaluation.own or not isinstance(y, Tensor) or y.dim() != 1 or y.is_floating_point():
        raise ValueError(
            "influence by class needs evaluation data that everyone shares, with one class for each sample; found "
            f"{evaluation!r}. Use evaluate_on(network), or whole_run, which takes any."
        )
    rows = [(y == label).nonzero().flatten() for label in sorted(set(y.tolist()))]
    parts = torch.tensor([len(index) / len(y) for index in rows], dtype=torch.float64)
    return [replace(evaluation, x=rows_at(evaluation.x, index), y=y[index]) for index in rows], parts


def _losses(operator: Operator, evaluation: Evaluation, last: Round) -> Float[Tensor, " n"]:
    nodes = range(operator.network.nodes)
    return (operator.network.weights * operator.losses(evaluation, last.after, nodes)).double().cpu()


def _check_mean(joined: float, whole: float, values: Tensor) -> None:
    """Classes must make up the whole, and a logarithm needs them positive."""
    if abs(joined - whole) > SAME * abs(whole):
        raise ValueError(
            f"influence by class needs a measure that is a mean over samples; its classes give {joined:.4g} together, "
            f"and all samples {whole:.4g}. Use the plain loss."
        )
    if not bool((values > 0).all()):
        raise ValueError(
            f"influence by class needs a measure above 0 on every class; found {float(values.min()):.4g}. Use a loss."
        )
