"""A run at α, in which everybody's updates count α, and what is measured on its final models: f(α)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import DivergedError, Evaluation, Network, Participants, draw, mix, simulate
from cascadice.engine.operator import Exchange, Operator
from cascadice.engine.rounds import Adjoint, Round
from cascadice.engine.weighting import as_recorded, with_weights
from cascadice.influence.checks import check_recording
from cascadice.influence.full_horizon import final_adjoint

Rounds = int | Sequence[Round]
Alpha = float | Float[Tensor, " n"]


@dataclass(frozen=True, eq=False)
class RunAt:
    """A run at α, and what is asked about it; `influence.whole_run` explains each attribute."""

    network: Network
    rounds: Rounds
    evaluation: Evaluation
    at: Alpha = 1.0
    during: range | None = None
    on: str | int = "all"
    samples: bool = True
    length: int | None = None
    played: Callable[[], None] | None = None
    exchange: Exchange | None = None

    @property
    def as_it_was(self) -> bool:
        """Whether rounds that were kept are those of the run at α, so that nothing has to be played again."""
        return not isinstance(self.rounds, int) and as_it_was(self.at)

    def operator(self) -> tuple[Operator, str]:
        """The operator of the network that trains as the run at α, and whether all or their average are measured."""
        network, on = focused(network_at(self.network, self.rounds, self.at, self.during), self.on)
        return Operator(network, self.exchange), on

    def diverged(self, error: DivergedError) -> DivergedError:
        """The error, saying at which α the run diverged."""
        return error.within(f"in the run at α = {in_words(self.at)}, ")


def value(run: RunAt) -> float:
    """f(α). Cost: a run; at 0 only its gossip; of rounds that were kept, nothing at α = 1."""
    operator, on = run.operator()
    return final(operator, run.evaluation, _last_round(run, operator), on)[1]


def _last_round(run: RunAt, operator: Operator) -> Round:
    start, stop = span_of(run.rounds)
    if not isinstance(run.rounds, int) and run.as_it_was:
        return run.rounds[-1]
    if not isinstance(run.at, Tensor) and run.at == 0 and run.during is None and run.exchange is None:
        return _only_gossip(operator.network, start, stop)
    try:
        for round_ in simulate(operator.network, stop, start=start, window=0, operator=operator):
            last = round_
            if run.played is not None:
                run.played()
    except DivergedError as error:
        raise run.diverged(error) from None
    return last


def _only_gossip(network: Network, start: int, stop: int) -> Round:
    """The last round of a run in which nobody trains."""
    here = network.initial
    for t in range(start, stop):
        here = mix(network.mixing(t), here)
    return Round(draw(network, stop - 1), here, here, here, here.theta[:, 0])


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
