"""Whole-run influence: what the final models would be if somebody's updates, or some samples, had counted less.

    f(α) = Σ_k q_k L(θ_k^T(α))          α_j weights every update of j, from the first round to the last
    ∂f/∂α_j = Σ_t λ_j^{t+½ ᵀ} Δ_j^t     one run at α, one sweep backwards: all participants and samples at once

f(1) is the run, f(1 − e_j) the run without j. α_j multiplies j's learning rate, so f is a run like any other.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from cascadice.data.batches import PADDING
from cascadice.engine import DivergedError, Evaluation, Network, Participants
from cascadice.engine.backwards import backwards
from cascadice.engine.operator import Exchange, Operator
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.full_horizon import pull_back
from cascadice.influence.run_at import Alpha, Rounds, RunAt, final, span_of

KeptScores = tuple[Float[Tensor, " n"], Float[Tensor, "n _"], Int[Tensor, "n _"]]
"""Scores of a round: of participants, of the samples they drew, and which samples these are."""


@dataclass(frozen=True, eq=False)
class WholeRun:
    """∂f/∂α, or shares of f(1) − f(0), round by round. Negative helped.

    Attributes:
        value: f: the measured sum on the final models of the run at α; of the run itself for shares.
        first: The number of the first round.
        by_round: `[rounds, n]`: the part of each participant's updates in each round.
        samples: `[rounds, n, samples]`: the part of each sample that was drawn; none if they were not asked for.
        drawn: Which training samples those are; −1 where a participant has fewer than others.
        gap: For shares, how far they are from summing to f(1) − f(0).
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
        """∂f/∂α_i of each of `size` training samples, over all rounds; 0 if it was never drawn."""
        if not self.samples.shape[2]:
            raise ValueError("samples were not scored. Ask for them with samples=True.")
        used = self.drawn >= 0
        return torch.zeros(size, dtype=torch.float64).index_add_(0, self.drawn[used], self.samples[used].double())


class Sweep(NamedTuple):
    """A sweep under way: the adjoint of what everybody has before round `t`, and f. Rounds from t on are scored."""

    t: int
    adjoint: Adjoint
    value: float


class RoundScores(NamedTuple):
    """What one round adds to ∂f/∂α, and the sweep so far."""

    t: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]
    drawn: Int[Tensor, "n samples"]
    sweep: Sweep

    @property
    def kept(self) -> KeptScores:
        """What is kept of it: scores of participants and of samples, and which those are."""
        return self.participants.cpu(), self.samples.cpu(), self.drawn


def whole_run(
    network: Network,
    rounds: Rounds,
    evaluation: Evaluation,
    *,
    at: Alpha = 1.0,
    during: range | None = None,
    on: str | int = "all",
    samples: bool = True,
    length: int | None = None,
    played: Callable[[], None] | None = None,
    exchange: Exchange | None = None,
) -> WholeRun:
    """∂f/∂α of every participant and sample, at the run in which all updates count α.

    It is a slope: how f moves as somebody's data counts a little more than α, which is not what leaving it out changes.
    To predict runs that keep a random part of the participants or samples, take that part for α.

    Cost: about four trainings, or three where all rounds fit in memory; at α = 1 with rounds that were kept, two.

    Args:
        rounds: How many rounds to train, without a mixing rule; or rounds that were kept, from the first to the last.
        at: α, one number or one for each participant: 0 leaves it out, and its own derivative is NaN.
        during: The rounds whose updates α weights; all of them unless given.
        on: Whose final models: "all", weighted by q; "average", the average model; or the number of a participant.
        samples: Score samples too; they must have a part of their own in the loss.
        length: How many rounds to keep at a time, where they have to be played; see `engine.backwards`.
        played: Called after each round that was played, and after each that was scored.
        exchange: How what is sent is exchanged; in memory unless given.

    Returns:
        The scores; negative helped.

    Raises:
        ValueError: Where rounds are missing, or were mixed by a rule that does not average, or an optimizer's step is
            not proportional to its learning rate; where `during` is empty or goes beyond the run.
        DivergedError: Where the run diverges at this α.

    Example:
        >>> whole_run(network, 100, evaluate_on(network), at=0.5).participants
    """
    return gathered(
        sweep(RunAt(network, rounds, evaluation, at, during, on, samples, length, played=played, exchange=exchange))
    )


def gathered(scored: Iterable[RoundScores]) -> WholeRun:
    """The scores of all rounds, the last one first, as one result; no adjoint is held but the latest."""
    kept = []
    for each in scored:
        kept.append(each.kept)
    return from_kept(kept, each.sweep)


def from_kept(kept: Sequence[KeptScores], sweep: Sweep) -> WholeRun:
    """The kept scores of all rounds of a sweep, the last one first, as one result."""
    participants, samples, drawn = stacked(kept[::-1])
    return WholeRun(sweep.value, sweep.t, participants.double(), samples, drawn)


def stacked(kept: Sequence[KeptScores]) -> tuple[Tensor, Tensor, Tensor]:
    """The kept scores of several rounds as one; who is watched may draw more samples in one round than in another."""
    participants, samples, drawn = zip(*kept, strict=True)
    most = max(rows.shape[1] for rows in drawn)
    more = [(0, most - rows.shape[1]) for rows in drawn]
    padded = [pad(*pair, value=0.0) for pair in zip(samples, more, strict=True)]
    none = [pad(*pair, value=PADDING) for pair in zip(drawn, more, strict=True)]
    return torch.stack(participants), torch.stack(padded), torch.stack(none)


def sweep(
    run: RunAt, resume: Sweep | None = None, saved: MutableMapping[int, Participants] | None = None
) -> Iterator[RoundScores]:
    """`whole_run` round by round, the last one first, for those who keep results as they come.

    Args:
        resume: The sweep of the last round that was scored before, to go on from; it must be of the same run.
        saved: Where checkpoints go, see `engine.backwards`.
    """
    operator, on = run.operator()
    source = rounds_backwards(run, operator, None if resume is None else resume.t, saved)
    alpha = torch.as_tensor(run.at, dtype=torch.float64, device=run.network.device).expand(run.network.nodes)
    per_unit = torch.where(alpha > 0, 1 / alpha, torch.nan)
    try:
        for scored in _scored(operator.fresh(), source, run, on, resume):  # the other one is playing rounds
            counts = per_unit if run.during is None or scored.t in run.during else 0 * alpha
            participants, samples = scored.participants * counts, scored.samples * counts[:, None].to(scored.samples)
            yield scored._replace(participants=participants, samples=samples)
            if run.played is not None:
                run.played()
    except DivergedError as error:
        raise run.diverged(error) from None


def rounds_backwards(
    run: RunAt, operator: Operator, stop: int | None = None, saved: MutableMapping[int, Participants] | None = None
) -> Iterable[Round]:
    """The rounds of the run at α before round `stop`, the last one first: as they were kept, or played again."""
    start, end = span_of(run.rounds)
    stop = end if stop is None else stop
    if not isinstance(run.rounds, int) and run.as_it_was:
        kept: Iterable[Round] = reversed(run.rounds[: stop - start])
        return kept
    return backwards(
        operator.network, stop, start=start, length=run.length, saved=saved, played=run.played, operator=operator
    )


def _scored(
    operator: Operator, source: Iterable[Round], run: RunAt, on: str, resume: Sweep | None
) -> Iterator[RoundScores]:
    adjoint, value = (None, 0.0) if resume is None else (resume.adjoint, resume.value)

    def start(last: Round) -> Adjoint:
        nonlocal value
        adjoint, value = final(operator, run.evaluation, last, on)
        return adjoint

    for round_, pulled in pull_back(operator, source, start, adjoint=adjoint, samples=run.samples):
        drawn = round_.draw.batch.flatten(1)[:, : pulled.samples.shape[1]].cpu()
        yield RoundScores(round_.t, pulled.rates, pulled.samples, drawn, Sweep(round_.t, pulled.before, value))
