"""Whole-run influence: how the final models depend on the weight of each participant and sample.

    f(α) = Σ_k q_k L(θ_k^T(α))          α_j weights every update of j, from the first round to the last
    ∂f/∂α_j = Σ_t λ_j^{t+½ ᵀ} Δ_j^t     one run at α and one backward sweep give all participants and samples

f(1) is the run, f(1 − e_j) the run without j. α_j multiplies j's learning rate, so a run at α trains like any other.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from cascadice.data.batches import PADDING
from cascadice.engine import DivergedError, Evaluation, Network, Participants
from cascadice.engine.operator import Exchange
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.full_horizon import final_adjoint, pull_back
from cascadice.influence.weighted_run import (
    Alpha,
    Rounds,
    WeightedRun,
    initial_value,
    models_to_measure,
    rounds_backwards,
    weighted_losses,
)  # fmt: skip

KeptScores = tuple[Float[Tensor, " n"], Float[Tensor, "n _"], Int[Tensor, "n _"]]
"""Scores of a round: of participants, of the samples they drew, and the indices of these samples."""


@dataclass(frozen=True, eq=False)
class WholeRun:
    """∂f/∂α, or shares of f(1) − f(0), by round. Negative helped.

    Attributes:
        value: f, measured on the final models of the run at α; for shares, of the run itself.
        first: The number of the first round.
        by_round: `[rounds, n]`: the part of each participant's update in each round.
        samples: `[rounds, n, samples]`: the part of each drawn sample; empty if samples were not scored.
        drawn: The indices of these samples in the training data; −1 is padding.
        gap: For shares, their sum minus f(1) − f(0).
    """

    value: float
    first: int
    by_round: Float[Tensor, "rounds n"]
    samples: Float[Tensor, "rounds n samples"]
    drawn: Int[Tensor, "rounds n samples"]
    gap: float = 0.0

    def __repr__(self) -> str:
        (rounds, nodes), scored = self.by_round.shape, int((self.drawn >= 0).sum()) if self.samples.numel() else 0
        samples = f", {scored:,} scores of samples" if scored else ""
        return f"WholeRun({nodes} participants, {rounds} rounds{samples}, value {self.value:.4f}, gap {self.gap:.2g})"

    @property
    def participants(self) -> Float[Tensor, " n"]:
        """∂f/∂α_j of each participant, over all rounds."""
        return self.by_round.sum(0)

    def by_sample(self, size: int) -> Float[Tensor, " size"]:
        """∂f/∂α_i of each of `size` training samples, over all rounds; 0 for samples that were never drawn."""
        if not self.samples.shape[2]:
            raise ValueError("samples were not scored. Ask for them with samples=True.")
        used = self.drawn >= 0
        if (largest := int(self.drawn.max())) >= size:
            raise ValueError(
                f"size must be above {largest}, the largest index drawn; found {size}. Use len(network.data.train)."
            )
        return torch.zeros(size, dtype=torch.float64).index_add_(0, self.drawn[used], self.samples[used].double())


class Sweep(NamedTuple):
    """A sweep in progress: the adjoint of what everyone has before round `t`, and f. Rounds from t on are scored."""

    t: int
    adjoint: Adjoint
    value: float


class RoundScores(NamedTuple):
    """The part of one round in ∂f/∂α, and the sweep so far."""

    t: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]
    drawn: Int[Tensor, "n samples"]
    sweep: Sweep

    @property
    def kept(self) -> KeptScores:
        """The scores alone, on the CPU, to keep while the sweep goes on."""
        return self.participants.cpu(), self.samples.cpu(), self.drawn


def whole_run(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, at: Alpha = 1.0, during: range | None = None,
    on: str | int = "all", samples: bool = True, length: int | None = None, played: Callable[[], None] | None = None,
    exchange: Exchange | None = None,
) -> WholeRun:  # fmt: skip
    """∂f/∂α of every participant and sample, in the run in which all updates are weighted by α.

    This is a derivative: how f changes if data counts slightly more than α, not how f changes if the data is left out.
    To predict runs that keep a random fraction of the participants or samples, set α to that fraction. A RuntimeWarning
    says so if training is too rough: if a participant's slope implies a larger change of the loss than the whole loss.

    Cost: about four trainings, or three if all rounds fit in memory; two for recorded rounds at α = 1.

    Args:
        network: The network to train, or that made the rounds.
        rounds: How many rounds to train (without a mixing rule), or recorded rounds up to the last. If they begin later
            than the run did, α weights only these rounds; what was trained before them stays as it was.
        evaluation: What to measure, from `evaluate_on`.
        at: α, one number or one per participant; 0 leaves a participant out, and its own derivative is NaN.
        during: The rounds whose updates α weights; defaults to all.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.
        samples: Whether to score samples too.
        length: How many rounds to hold at a time if they have to be trained; see `engine.backwards`.
        played: Called after each round that was trained, and after each that was scored.
        exchange: The exchange to use; defaults to stacked averaging in memory.

    Returns:
        The scores; negative helped.

    Raises:
        ValueError: If rounds are missing or do not join; if α is 0 for everyone; if it is not 1, and rounds were mixed
            by a rule that does not average, or an optimizer's step is not proportional to its learning rate (at α = 1,
            α weights the steps themselves); if the loss or model couples samples; if `during` is
            empty or goes beyond the run.
        DivergedError: If the run diverges at this α, or its derivatives overflow.

    Example:
        >>> whole_run(network, 100, evaluate_on(network), at=0.5).participants
    """
    run = WeightedRun(network, rounds, evaluation, at, during, on, samples, length, played, exchange)
    result = combine_rounds(sweep(run))
    warn_if_rough(run, result.participants, result.value)
    return result


def warn_if_rough(run: WeightedRun, slopes: Float[Tensor, " n"], value: float) -> None:
    """Warn the caller's caller if these slopes of f are too large to believe; f at α is `value`. Cost: an evaluation.

    Nothing is said in one of several processes, which has a part of f: commands ask `doubt_of_slopes` about all parts.
    """
    if run.network.members or not measures_loss(run):
        return
    before, after = initial_value(run) / run.network.blocks, value / run.network.blocks
    if doubt := doubt_of_slopes((run.alpha.cpu() * slopes).tolist(), before, after):
        warnings.warn(doubt, RuntimeWarning, stacklevel=3)


def measures_loss(run: WeightedRun) -> bool:
    """Whether f is the training loss; other measures may be near 0, where a slope is larger than they are."""
    return run.evaluation.measure is run.network.learner.loss


def doubt_of_slopes(effects: Sequence[float], before: float, after: float) -> str:
    """What to say if a participant's slope implies a larger change of the loss than the whole loss; else "".

    Args:
        effects: α_j ∂f/∂α_j of each participant; NaN for those that were left out.
        before: The loss before training.
        after: The loss after it.
    """
    sizes = [0.0 if isnan(effect) else abs(effect) for effect in effects]
    if (most := max(sizes)) <= max(before, after):
        return ""
    return (
        f"the slope of participant {sizes.index(most)} implies a change of the loss by {most:.3g}, but the whole loss "
        f"was {before:.3g} before training and {after:.3g} after. Training is too rough for slopes to mean anything: "
        "lower the learning rate, or retrain without the data."
    )


def combine_rounds(scored: Iterable[RoundScores]) -> WholeRun:
    """One result from the scores of all rounds, the last one first; only the latest adjoint stays in memory."""
    kept = []
    for each in scored:
        kept.append(each.kept)
    return from_kept(kept, each.sweep)


def from_kept(kept: Sequence[KeptScores], sweep: Sweep) -> WholeRun:
    """One result from the kept scores of all rounds, the last one first, and the finished sweep."""
    participants, samples, drawn = stack_rounds(kept[::-1])
    return WholeRun(sweep.value, sweep.t, participants.double(), samples, drawn)


def stack_rounds(kept: Sequence[KeptScores]) -> tuple[Tensor, Tensor, Tensor]:
    """The kept scores of several rounds, stacked; padded, because recorded loops may vary the batch size."""
    participants, samples, drawn = zip(*kept, strict=True)
    most = max(rows.shape[1] for rows in drawn)

    def padded(each: Sequence[Tensor], value: int) -> Tensor:
        return torch.stack([pad(rows, (0, most - rows.shape[1]), value=value) for rows in each])

    return torch.stack(participants), padded(samples, 0), padded(drawn, PADDING)


def sweep(
    run: WeightedRun, resume: Sweep | None = None, saved: MutableMapping[int, Participants] | None = None
) -> Iterator[RoundScores]:
    """`whole_run` round by round, the last one first; `resume` continues an interrupted sweep of the same run."""
    operator, on = run.operator()
    if not bool((run.alpha > 0).any()):
        raise ValueError("at must be above 0 for at least one participant; found 0 for all. Use measured_at for f(0).")
    source = rounds_backwards(run, operator, None if resume is None else resume.t, saved)
    pulling = operator.fresh()  # the other one trains the rounds
    adjoint, value = (None, 0.0) if resume is None else (resume.adjoint, resume.value)
    per_unit = torch.where(run.alpha > 0, 1 / run.alpha, torch.nan)

    def start(last: Round) -> Adjoint:
        nonlocal value
        models = models_to_measure(pulling, last.after, on)
        value = float(weighted_losses(pulling, run.evaluation, models).sum())
        final = final_adjoint(pulling, run.evaluation, last._replace(after=models))
        if on == "average":
            final = final._replace(theta=pulling.network.weights[:, None] * final.theta.sum(0))
        return final

    try:
        for round_, pulled in pull_back(pulling, source, start, adjoint=adjoint, samples=run.samples):
            scale = per_unit if run.during is None or round_.t in run.during else torch.zeros_like(per_unit)
            samples = pulled.samples * scale[:, None].to(pulled.samples)
            drawn = round_.draw.batch.flatten(1)[:, : samples.shape[1]].cpu()
            yield RoundScores(round_.t, pulled.rates * scale, samples, drawn, Sweep(round_.t, pulled.before, value))
            if run.played is not None:
                run.played()
    except DivergedError as error:
        raise run.diverged(error) from None
