"""A run at α, in which everyone's updates are weighted by α, and what is measured on its final models: f(α)."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral, Real

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import DivergedError, Evaluation, Network, Participants, draw, mix, simulate
from cascadice.engine.backwards import backwards, check_length
from cascadice.engine.evaluation import check_asked
from cascadice.engine.operator import Exchange, Operator
from cascadice.engine.rounds import Round
from cascadice.engine.weighting import as_recorded, with_weights
from cascadice.influence.checks import check_recording, check_rounds

Rounds = int | Sequence[Round]
"""A number of rounds to train, or recorded rounds."""
Alpha = float | Float[Tensor, " n"]
"""The weight of everyone's updates, or one weight per participant."""


@dataclass(frozen=True, eq=False)
class WeightedRun:
    """A run at α and what to measure on it; `influence.whole_run` explains the attributes."""

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

    def __post_init__(self) -> None:
        if isinstance(self.at, bool):
            raise TypeError(f"at must be a number, or one per participant; found {self.at}. Use at={float(self.at):g}.")
        if isinstance(self.rounds, Integral) and not isinstance(self.rounds, bool):
            object.__setattr__(self, "rounds", int(self.rounds))  # NumPy's whole numbers are not Python's

    @property
    def span(self) -> range:
        """The numbers of the rounds."""
        rounds = self.rounds
        check_kind_of_rounds(rounds)
        count = rounds if isinstance(rounds, int) else len(rounds)
        if count < 1:
            raise ValueError(f"at least one round is needed; found {count}.")
        start = 0 if isinstance(rounds, int) else rounds[0].t
        return range(start, start + count)

    @property
    def recorded(self) -> Sequence[Round] | None:
        """The recorded rounds if they are those of the run at α, so that nothing has to be trained again."""
        return None if isinstance(self.rounds, int) or not _is(1.0, self.at) else self.rounds

    @property
    def alpha(self) -> Float[Tensor, " n"]:
        """α of each participant."""
        alpha = torch.as_tensor(self.at, dtype=torch.float64, device=self.network.device)
        return alpha.expand(self.network.nodes)

    def operator(self) -> tuple[Operator, str]:
        """The operator of the network that trains at α, and what to measure: "all" models or their "average"."""
        check_asked(self.network, self.evaluation)
        check_length(self.length)
        network, span, during = self.network, self.span, self.during
        if during is not None and not isinstance(during, range):
            raise ValueError(f"during must be a range of rounds, e.g. range(0, 100); found {during!r}.")
        if during is not None and not (during and min(during) in span and max(during) in span):
            raise ValueError(f"during must be rounds of the run, from {span[0]} to {span[-1]}; found {during}.")
        if not isinstance(self.rounds, int) and self.recorded is None:
            check_rounds(self.rounds)
            if any(round_.rule is not None for round_ in self.rounds):
                raise ValueError(
                    "rounds that were mixed by a rule that does not average cannot be trained again at another α. "
                    "Use whole_run at α = 1, which follows them as recorded."
                )
            check_recording(network, [self.rounds[0]], many=1)
            network = as_recorded(network, self.rounds)
        network, on = focus(with_weights(network, self.at, during=during), self.on)
        return Operator(network, self.exchange), on

    def diverged(self, error: DivergedError) -> DivergedError:
        """The same error, saying at which α the run diverged, with the participant's number in the whole network."""
        weights = ", ".join(f"{weight:g}" for weight in torch.as_tensor(self.at).reshape(-1).tolist())
        members = self.network.members
        return error.within(f"in the run at α = {weights}, ", members[error.node] if members else None)


def check_kind_of_rounds(rounds: Rounds) -> None:
    """Raise TypeError unless this is a number, or a list that begins with a Round; loads no other one."""
    if isinstance(rounds, int) and not isinstance(rounds, bool):
        return
    found = repr(rounds) if isinstance(rounds, bool) else type(rounds).__name__
    if isinstance(rounds, Sequence) and not isinstance(rounds, Round | str):
        if not rounds or isinstance(rounds[0], Round):
            return
        found = f"a {found} of {type(rounds[0]).__name__}"
    raise TypeError(
        f"rounds must be a number of rounds to train, or a list of recorded rounds; found {found}. Use list(rounds)."
    )


def check_weight(at: float, most: float, remedy: str) -> None:
    """Raise unless α is one number above 0, so that everyone's derivative by it exists, and at most `most`."""
    if isinstance(at, bool) or not isinstance(at, Real) or not 0 < at <= most:
        limit = f" and at most {most:g}" if most < inf else ""
        raise ValueError(f"at must be one number above 0{limit}; found {at!r}. {remedy}")


def _is(value: float, at: Alpha) -> bool:
    return not isinstance(at, Tensor) and at == value


def rounds_backwards(
    run: WeightedRun, operator: Operator, stop: int | None = None,
    saved: MutableMapping[int, Participants] | None = None,
) -> Iterator[Round]:  # fmt: skip
    """The rounds of the run at α before round `stop`, the last one first: as recorded, or trained again."""
    start, stop = run.span.start, run.span.stop if stop is None else stop
    if run.recorded is not None:
        yield from reversed(run.recorded[: stop - start])
        return
    yield from backwards(
        operator.network, stop, start=start, length=run.length, saved=saved, played=run.played, operator=operator
    )


def final_value(run: WeightedRun) -> float:
    """f(α). Cost: a run; at α = 0 only its gossip; nothing for recorded rounds at α = 1."""
    operator, on = run.operator()
    models = models_to_measure(operator, _last_round(run, operator).after, on)
    return float(weighted_losses(operator, run.evaluation, models).sum())


def initial_value(run: WeightedRun) -> float:
    """f of the models that training starts from. Cost: an evaluation."""
    operator, on = run.operator()
    models = run.network.initial if isinstance(run.rounds, int) else run.rounds[0].before
    return float(weighted_losses(operator, run.evaluation, models_to_measure(operator, models, on)).sum())


def _last_round(run: WeightedRun, operator: Operator) -> Round:
    network, span = operator.network, run.span
    if run.recorded is not None:
        return run.recorded[-1]
    if _is(0.0, run.at) and run.during is None and run.exchange is None:  # nobody trains
        here = network.initial
        for t in span:
            here = mix(network.mixing(t), here)
        return Round(draw(network, span[-1]), here, here, here, here.theta[:, 0])
    try:
        for round_ in simulate(network, span.stop, start=span.start, window=0, operator=operator):
            last = round_
            if run.played is not None:
                run.played()
    except DivergedError as error:
        raise run.diverged(error) from None
    return last


def models_to_measure(operator: Operator, models: Participants, on: str) -> Participants:
    """These models or, for "average", as many copies of their average."""
    weights = operator.network.weights

    def average(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.einsum("k,k...->...", weights.to(tensor), tensor).expand(tensor.shape).contiguous()

    return tree_map(average, models) if on == "average" else models


def weighted_losses(operator: Operator, evaluation: Evaluation, models: Participants) -> Float[Tensor, " n"]:
    """q_k L(θ_k) of these models; their sum is f."""
    return operator.network.weights * operator.losses(evaluation, models, range(operator.network.nodes))


def focus(network: Network, on: str | int) -> tuple[Network, str]:
    """The network to measure, and "all" or "average"; if `on` is a participant, it has all the weight q."""
    if isinstance(on, int) and not isinstance(on, bool) and 0 <= on < network.whole:
        numbers = torch.tensor(network.members or range(network.nodes))
        return replace(network, q=(numbers == on).to(network.q)), "all"
    if on == "average" and network.blocks > 1:
        raise ValueError("networks trained side by side have no common average model. Measure them one by one.")
    if on == "average" and network.members:
        raise ValueError('no single process has the average model. Use "all", or the number of a participant.')
    if on not in ("all", "average"):
        raise ValueError(f'on must be "all", "average" or a participant below {network.whole}; found {on!r}.')
    return network, str(on)
