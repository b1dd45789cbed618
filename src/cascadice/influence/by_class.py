"""Whole-run influence on the loss of each class, and predictions for subsets of participants that follow from it.

    f(S) ≈ Σ_c p_c L_c(S)        1 / L_c(S) ≈ 1 / L_c(α) + Σ_j (s_j − α) ∂(1 / L_c) / ∂α_j

where s_j is 1 if j stays, and 0 if it is left out. A sum of scores predicts the same effect of leaving out j whoever
else is left out. But participants that hold the same class can replace each other, so each further one left out costs
more: the loss of a class falls roughly as one over the amount of data in it, so its reciprocal is close to a sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import tee

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.data.inputs import IGNORED
from cascadice.data.inputs import at as rows_at
from cascadice.engine import DivergedError, Evaluation, Network, Operator, Participants
from cascadice.engine.evaluation import check_asked
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.full_horizon import final_adjoint, pull_back
from cascadice.influence.weighted_run import (
    Rounds,
    WeightedRun,
    check_weight,
    rounds_backwards,
    weighted_losses,
)  # fmt: skip
from cascadice.influence.whole_run import warn_if_rough

REMEDY = "Use the plain loss, or whole_run, which takes any measure."
TOLERANCE = 1e-3  # relative; the classes of a mean over samples differ from it by rounding only
DOUBLED = 0.5  # Σ (s − α) ∂ log L_c / ∂α at which L_c is predicted to double; above, it goes on in a straight line


@dataclass(frozen=True, eq=False)
class ByClass:
    """The loss of the run at α on each class, and its derivatives by the weights of participants.

    Attributes:
        at: α.
        parts: `[classes]`: the fraction of the evaluation samples in each class, p_c.
        losses: `[classes, n]`: q_k L_c(θ_k) of each final model; the sum over k is L_c.
        slopes: `[classes, n]`: ∂L_c/∂α_j. Negative helped.
    """

    at: float
    parts: Float[Tensor, " classes"]
    losses: Float[Tensor, "classes n"]
    slopes: Float[Tensor, "classes n"]

    @property
    def participants(self) -> Float[Tensor, " n"]:
        """∂f/∂α_j, as in `whole_run`."""
        return self.parts @ self.slopes

    def predicted(self, kept: Float[Tensor, "subsets n"]) -> Float[Tensor, " subsets"]:
        """Predict f of the network trained with each of these subsets of the participants.

        Args:
            kept: A row for each subset, e.g. from `random_subsets`: 1 for participants in it, 0 for the others.

        Returns:
            f of each subset. Its rank is closer to retraining than its size, above all where a class loses its last
            holder, and where α is far from the fraction kept.

        Raises:
            TypeError: If this is not a tensor.
            ValueError: If it has another shape, numbers that are not from 0 to 1, or a subset of nobody.

        Example:
            >>> by_class.predicted(without_each(network.nodes)) - by_class.predicted(torch.ones(1, network.nodes))
        """
        check_subsets(kept, self.slopes.shape[1])
        values = self.losses.sum(1)
        rise = (kept.double() - self.at) @ (self.slopes / values[:, None]).T
        return (reciprocal(rise) * values) @ self.parts

    @property
    def packed(self) -> Float[Tensor, "classes columns"]:
        """Everything but α in one tensor, to save in a file; `unpack` reverses it."""
        return torch.cat([self.parts[:, None], self.losses, self.slopes], 1)


def check_subsets(kept: Tensor, nodes: int) -> None:
    """Raise unless this has a row for each subset, with a number from 0 to 1 for each of `nodes` participants."""
    needed = f"kept must be a tensor with a row for each subset and a column for each of {nodes} participants"
    if not isinstance(kept, Tensor):
        raise TypeError(f"{needed}; found {type(kept).__name__}. Use torch.tensor(kept), or random_subsets.")
    if kept.dim() != 2 or kept.shape[1] != nodes:
        raise ValueError(f"{needed}; found shape {list(kept.shape)}. Use random_subsets, or kept[None] for one subset.")
    if (wrong := kept[~((kept >= 0) & (kept <= 1))]).numel():
        raise ValueError(f"kept must be 1 for participants in a subset, else 0; found {float(wrong[0]):g}. Correct it.")
    if nobody := (~kept.bool().any(1)).nonzero().flatten().tolist():
        how = "Without anyone, f is measured_at(…, 0.0)"
        raise ValueError(f"each subset must keep somebody; row {nobody[0]} of kept leaves nobody. {how}.")


def reciprocal(rise: Tensor) -> Tensor:
    """1 / (1 − rise), and its tangent 4 · rise from `DOUBLED` on, because a sum can take 1 / L_c to 0 and below."""
    return torch.where(rise < DOUBLED, 1 / (1 - rise.clamp(max=DOUBLED)), 4 * rise)


def unpack(packed: Float[Tensor, "classes columns"], at: float) -> ByClass:
    """The inverse of `ByClass.packed`.

    Args:
        packed: What `packed` returned.
        at: The α of the run.

    Returns:
        The scores by class.

    Example:
        >>> unpack(scores.packed, scores.at)  # doctest: +SKIP
    """
    nodes = packed.shape[1] // 2
    return ByClass(at, packed[:, 0], packed[:, 1 : nodes + 1], packed[:, nodes + 1 :])


def whole_run_by_class(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, at: float = 1.0, length: int | None = None,
    played: Callable[[], None] | None = None,
) -> ByClass:  # fmt: skip
    """Whole-run influence of every participant on the loss of each class, from one run at α.

    Cost: that of `whole_run`, and about two trainings more for each further class.

    Args:
        network: The network to train, or that made the rounds.
        rounds: How many rounds to train (without a mixing rule), or recorded rounds up to the last; see `whole_run`.
        evaluation: What to measure: a positive mean over classified samples, the same for everyone.
        at: α; to predict subsets, the fraction of participants that they keep.
        length: How many rounds to hold at a time if they have to be trained; see `engine.backwards`.
        played: Called after each round that was trained, and after each that was scored.

    Returns:
        The derivatives; its `predicted` predicts subsets of the participants.

    Raises:
        ValueError: If the evaluation has no classes, or is not a positive mean over its samples; if α is not above 0
            and at most 1.
        DivergedError: If the run diverges at this α.

    Example:
        >>> by_class = whole_run_by_class(network, 100, evaluate_on(network), at=0.5)
        >>> by_class.predicted(random_subsets(network.nodes, keep=0.5, count=48))
    """
    check_asked(network, evaluation)
    check_weight(at, 1.0, "Use the fraction of participants that stay.")
    classes, parts = split(evaluation)
    run = WeightedRun(network, rounds, evaluation, at, samples=False, length=length, played=played)
    training, _ = run.operator()
    source, operator = rounds_backwards(run, training), training.fresh()
    losses, slopes = torch.zeros(2, len(classes), network.nodes, dtype=torch.float64)

    def measure(models: Participants) -> Tensor:
        measured = losses_by_class(operator, classes, models)
        whole = float(weighted_losses(operator, evaluation, models).double().sum())
        _check_mean(parts, measured.sum(1), whole, 10 * torch.finfo(network.initial.theta.dtype).eps)
        return measured

    def final(c: int, last: Round) -> Adjoint:
        if c == 0:
            losses[:] = measure(last.after)
        return final_adjoint(operator, classes[c], last)

    measure(network.initial)  # a measure that does not fit is refused before anything is trained

    sweeps = [
        pull_back(operator, each, partial(final, c), samples=False) for c, each in enumerate(tee(source, len(classes)))
    ]
    try:
        for pulled in zip(*sweeps, strict=True):  # in step, so that each round is trained once for all classes
            slopes += torch.stack([scores.rates.double().cpu() for _, scores in pulled]) / at
            if played is not None:
                played()
    except DivergedError as error:
        raise run.diverged(error) from None
    result = ByClass(at, parts, losses, slopes)
    warn_if_rough(run, result.participants, float(parts @ losses.sum(1)))
    return result


def split(evaluation: Evaluation) -> tuple[list[Evaluation], Float[Tensor, " classes"]]:
    """One evaluation per class that occurs, and the fraction of the samples in each; ignored targets are no class."""
    y = evaluation.y
    if evaluation.own or not isinstance(y, Tensor) or y.dim() != 1 or y.is_floating_point():
        raise ValueError(
            "influence by class needs evaluation data that everyone shares, with one class for each sample; found "
            f"{evaluation!r}. Use evaluate_on(network), or whole_run, which takes any."
        )
    rows = [(y == label).nonzero().flatten() for label in sorted(set(y.tolist()) - {IGNORED})]
    parts = torch.tensor([len(index) for index in rows], dtype=torch.float64)
    return [replace(evaluation, x=rows_at(evaluation.x, index), y=y[index]) for index in rows], parts / parts.sum()


def losses_by_class(
    operator: Operator, classes: Sequence[Evaluation], models: Participants
) -> Float[Tensor, "classes n"]:
    """q_k L_c(θ_k) of these models; raise ValueError if the measure cannot be taken of the samples of one class."""
    each = []
    for part in classes:
        cause, problem = None, ""
        try:
            each.append(weighted_losses(operator, part, models).double())
            problem = "" if bool(each[-1].isfinite().all()) else f"it is {float(each[-1].sum())}"
        except (ValueError, RuntimeError) as error:
            cause, problem = error, f"it fails: {' '.join(str(error).split()[:30]).rstrip('.')}"
        if problem:
            found = f"on the samples of class {int(part.y[0])} {problem}"
            raise ValueError(f"influence by class needs a measure of any samples; {found}. {REMEDY}") from cause
    return torch.stack(each)


def _check_mean(parts: Tensor, values: Tensor, whole: float, rounding: float) -> None:
    """The classes must add up to the whole measure, and each must be above 0, and rounding, for its reciprocal."""
    if abs((joined := float(parts @ values)) - whole) > TOLERANCE * abs(whole):
        found = f"its classes add up to {joined:.4g}, all samples give {whole:.4g}"
        raise ValueError(f"influence by class needs a measure that is a mean over samples; {found}. {REMEDY}")
    if not (least := float(values.min())) > rounding:
        needed = f"a measure above 0 on every class, and above rounding ({rounding:.1e})"
        how = "Use a loss that is, or whole_run, which takes any measure."
        raise ValueError(f"influence by class needs {needed}; found {least:.4g}. {how}")
