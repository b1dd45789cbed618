"""Whole-run influence: what the final models would be if somebody's updates, or some samples, had counted less.

    f(α) = Σ_k q_k L(θ_k^T(α))          α_j weights every update of j, from the first round to the last
    ∂f/∂α_j = Σ_t λ_j^{t+½ ᵀ} Δ_j^t     one run at α, one sweep backwards: all participants and samples at once

f(1) is the run, f(1 − e_j) the run without j. α_j multiplies j's learning rate, so f is a run like any other.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from cascadice.data.batches import PADDING
from cascadice.engine import DivergedError, Evaluation, Network, Participants
from cascadice.engine.backwards import backwards
from cascadice.engine.operator import Exchange, Operator
from cascadice.engine.rounds import Adjoint, Round
from cascadice.engine.weighting import as_recorded, with_weights
from cascadice.influence.checks import check_recording
from cascadice.influence.full_horizon import final_adjoint, pull_back

Rounds = int | Sequence[Round]
Alpha = float | Float[Tensor, " n"]
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
    return gathered(sweep(
        network, rounds, evaluation, at=at, during=during, on=on, samples=samples, length=length, played=played,
        exchange=exchange,
    ))  # fmt: skip


def gathered(scored: Iterable[RoundScores]) -> WholeRun:
    """The scores of all rounds, the last one first, as one result; no adjoint is held but the latest."""
    parts = []
    for each in scored:
        parts.append(each.kept)
    return from_parts(parts, each.sweep)


def from_parts(parts: Sequence[KeptScores], sweep: Sweep) -> WholeRun:
    """Parts of all rounds of a sweep, the last one first, as one result."""
    participants, samples, drawn = stacked(parts[::-1])
    return WholeRun(sweep.value, sweep.t, participants.double(), samples, drawn)


def stacked(parts: Sequence[KeptScores]) -> tuple[Tensor, Tensor, Tensor]:
    """Parts of several rounds as one; who is watched may draw more samples in one round than in another."""
    participants, samples, drawn = zip(*parts, strict=True)
    most = max(rows.shape[1] for rows in drawn)
    more = [(0, most - rows.shape[1]) for rows in drawn]
    padded = [pad(*pair, value=0.0) for pair in zip(samples, more, strict=True)]
    none = [pad(*pair, value=PADDING) for pair in zip(drawn, more, strict=True)]
    return torch.stack(participants), torch.stack(padded), torch.stack(none)


def sweep(
    network: Network,
    rounds: Rounds,
    evaluation: Evaluation,
    *,
    at: Alpha = 1.0,
    during: range | None = None,
    on: str | int = "all",
    samples: bool = True,
    length: int | None = None,
    resume: Sweep | None = None,
    saved: MutableMapping[int, Participants] | None = None,
    played: Callable[[], None] | None = None,
    exchange: Exchange | None = None,
) -> Iterator[RoundScores]:
    """`whole_run` round by round, the last one first, for those who keep results as they come.

    Args:
        resume: The sweep of the last round that was scored before, to go on from; its other arguments must be the same.
        saved: Where checkpoints go, see `engine.backwards`.
    """
    start, stop = span_of(rounds)
    stop = stop if resume is None else resume.t
    there, on = focused(network_at(network, rounds, at, during), on)
    if isinstance(rounds, int) or not as_it_was(at):
        source: Iterable[Round] = backwards(
            there, stop, start=start, length=length, saved=saved, played=played, operator=Operator(there, exchange)
        )
    else:
        source = reversed(rounds[: stop - start])
    alpha = torch.as_tensor(at, dtype=torch.float64, device=network.device).expand(network.nodes)
    per_unit = torch.where(alpha > 0, 1 / alpha, torch.nan)
    try:
        for scored in _scored(Operator(there, exchange), source, evaluation, on, samples, resume):
            counts = per_unit if during is None or scored.t in during else 0 * alpha
            participants, parts = scored.participants * counts, scored.samples * counts[:, None].to(scored.samples)
            yield scored._replace(participants=participants, samples=parts)
            if played is not None:
                played()
    except DivergedError as error:
        raise error.within(f"in the run at α = {in_words(at)}, ") from None


def _scored(
    operator: Operator, source: Iterable[Round], evaluation: Evaluation, on: str, samples: bool, resume: Sweep | None
) -> Iterator[RoundScores]:
    adjoint, value = (None, 0.0) if resume is None else (resume.adjoint, resume.value)

    def start(last: Round) -> Adjoint:
        nonlocal value
        adjoint, value = final(operator, evaluation, last, on)
        return adjoint

    for round_, pulled in pull_back(operator, source, start, adjoint=adjoint, samples=samples):
        drawn = round_.draw.batch.flatten(1)[:, : pulled.samples.shape[1]].cpu()
        yield RoundScores(round_.t, pulled.rates, pulled.samples, drawn, Sweep(round_.t, pulled.before, value))


def final(operator: Operator, evaluation: Evaluation, last: Round, on: str) -> tuple[Adjoint, float]:
    """λ^T and f, on the final models of all or on their average."""
    weights, models = operator.network.weights, judged(operator, last.after, on)
    adjoint = final_adjoint(operator, evaluation, last._replace(after=models))
    if on == "average":
        adjoint = adjoint._replace(theta=weights[:, None] * adjoint.theta.sum(0))
    return adjoint, float(measured(operator, evaluation, models))


def judged(operator: Operator, models: Participants, on: str) -> Participants:
    """The models that are measured: everybody's, or their average in everybody's place."""
    weights = operator.network.weights
    return tree_map(lambda tensor: _averaged(weights, tensor), models) if on == "average" else models


def measured(operator: Operator, evaluation: Evaluation, models: Participants) -> Tensor:
    """f of these models: everybody's loss, weighted by q."""
    losses = operator.losses(evaluation, models, range(operator.network.nodes))
    return (operator.network.weights * losses).sum()


def _averaged(weights: Tensor, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return torch.einsum("k,k...->...", weights.to(tensor), tensor).expand(tensor.shape).contiguous()


def focused(network: Network, on: str | int) -> tuple[Network, str]:
    """The network with all weight on one participant, where `on` is its number."""
    if isinstance(on, int) and 0 <= on < network.whole:
        numbers = torch.tensor(network.members or range(network.nodes))
        return replace(network, q=(numbers == on).to(network.q)), "all"
    if on == "average" and network.blocks > 1:
        raise ValueError("networks side by side have no average model in common. Take them one by one.")
    if on == "average" and network.members:
        raise ValueError('no process has the average model. Use "all", or the number of a participant.')
    if on not in ("all", "average"):
        raise ValueError(f'on must be "all", "average" or a participant below {network.whole}; found {on!r}.')
    return network, str(on)


def network_at(network: Network, rounds: Rounds, at: Alpha, during: range | None = None) -> Network:
    """The network whose run is the one at α."""
    span = range(*span_of(rounds))
    if during is not None and not (during and min(during) in span and max(during) in span):
        raise ValueError(f"during must be rounds of the run, from {span[0]} to {span[-1]}; found {during}.")
    if not isinstance(rounds, int) and not as_it_was(at):
        if any(round_.rule is not None for round_ in rounds):
            raise ValueError(
                "rounds that were mixed by a rule that does not average cannot be played again at another α. "
                "Use at=1.0, which follows them as they were."
            )
        check_recording(network, [rounds[0]], many=1)
        network = as_recorded(network, rounds)
    return with_weights(network, at, during=during)


def as_it_was(at: Alpha) -> bool:
    """Whether α is that of the run itself."""
    return not isinstance(at, Tensor) and at == 1


def span_of(rounds: Rounds) -> tuple[int, int]:
    """The first round, and the one after the last."""
    if isinstance(rounds, Round) or not isinstance(rounds, int | Sequence):
        raise TypeError(
            f"rounds must be a number of rounds to train, or a list of rounds that were kept; found "
            f"{type(rounds).__name__}. Use list(rounds)."
        )
    count = rounds if isinstance(rounds, int) else len(rounds)
    if count < 1:
        raise ValueError(f"at least one round is needed; found {count}.")
    return (0, count) if isinstance(rounds, int) else (rounds[0].t, rounds[0].t + count)


def in_words(at: Any) -> str:
    """α as it is written in messages."""
    return ", ".join(f"{a:g}" for a in torch.as_tensor(at).reshape(-1).tolist())
