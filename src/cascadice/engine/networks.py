"""A network: everything that determines a run. From it, training is a pure replay."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cascadice import learning_rates, seeds, topology
from cascadice.data import DataSet, corruption
from cascadice.data.batches import Batches
from cascadice.data.corruption import Corruption
from cascadice.data.inputs import in_precision
from cascadice.data.partition import Partition
from cascadice.engine import behaviours
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.compression import Compression
from cascadice.engine.dropout import GeneratorState, Start
from cascadice.engine.learner import Learner, Maybe, Participants, trained, unflatten
from cascadice.engine.rounds import Draw

Nodes = Sequence[int] | None
"""Participants for which rows stand, in order; None for all."""


class Group(NamedTuple):
    """Participants that work alike: with one optimizer, as many local steps, batches of one size; all, if nothing else.

    `state` names what their optimizer keeps.
    """

    learner: Learner
    nodes: tuple[int, ...] = ()
    steps: int | None = None
    size: int | None = None
    state: tuple[str, ...] | None = None


class Weights(NamedTuple):
    """How much of each row's update, and of each sample in it, counts. () is all of it.

    `updates` [rows] is α_j: (θ, state)^t + α_j Δ_j is sent. `samples` [rows, steps, batch] is α_i, the weight of a
    sample's term in its gradient.
    """

    updates: Maybe = ()
    samples: Maybe = ()


ALL = Weights()


class LocalInputs(NamedTuple):
    """The inputs of the local work of some rows in one round."""

    x: Any  # Inputs
    y: Tensor
    lr: Float[Tensor, " rows"]
    samples: Maybe
    starts: tuple[Start, ...]


@dataclass(frozen=True, eq=False)
class Network:
    """Participants, their data and how they talk. `draw` and `load` are pure functions of (network, round).

    `groups` is empty where all participants work alike, by `learner`. `sample_weights` says how much the term of each
    training sample counts in each participant's gradients. `seeds` are those of networks that stand side by side;
    `members` are the numbers of these participants in a network of which this is a part. `generators` has the states
    from which the dropout of a watched loop was drawn, by round, participant and step; else it is drawn from the seed.
    In a watched loop that is `uneven`, sizes of batches and learning rates change from step to step, numbers of steps
    from round to round, and somebody may not train at all.
    """

    learner: Learner
    initial: Participants
    data: DataSet
    batches: Batches
    mixing: topology.Schedule
    lr: learning_rates.Schedule
    q: Float[Tensor, " n"]
    seed: int
    strategy: str
    partition: Partition | None = None
    corruptions: tuple[Corruption, ...] = ()
    behaviours: tuple[Behaviour, ...] = ()
    compression: Compression | None = None
    groups: tuple[Group, ...] = ()
    sample_weights: Float[Tensor, "n size"] | None = None
    seeds: tuple[int, ...] = ()
    members: tuple[int, ...] = ()
    generators: Callable[[int], tuple[tuple[GeneratorState, ...], ...]] | None = None
    uneven: bool = False

    def __repr__(self) -> str:
        names = dict.fromkeys(learner.optimizer.name for learner in self.learners)
        links = "links that change"
        if isinstance(self.mixing, topology.Cycle) and len(self.mixing.matrices) == 1:
            receivers, sources, _ = topology.links(self.mixing(0))
            links = f"{int((receivers != sources).sum())} links"
        return (
            f"Network({self.nodes} participants, {self.learner.size:,} parameters each, {' and '.join(names)}, "
            f"{links}, strategy {self.strategy!r}, {self.device})"
        )

    def _repr_html_(self) -> str:
        """In a notebook."""
        what, _, rest = repr(self).removesuffix(")").partition("(")
        return f"<b>{what}</b>: {escape(rest)}; data: {escape(self.data.name)}"

    @property
    def nodes(self) -> int:
        """How many participants there are."""
        return len(self.initial.theta)

    @property
    def whole(self) -> int:
        """How many participants the network has of which this may be a part."""
        return self.mixing(0).shape[0] if self.members else self.nodes

    @cached_property
    def weights(self) -> Float[Tensor, " n"]:
        """q where the participants live, in their precision."""
        return self.q.to(self.initial.theta)

    @property
    def blocks(self) -> int:
        """How many networks stand side by side."""
        return max(1, len(self.seeds))

    def origins(self, nodes: Sequence[int]) -> list[tuple[int, int]]:
        """The (seed, number) by which each of these participants draws: as in its own network."""
        if self.members:
            return [(self.seed, self.members[k]) for k in nodes]
        size, own = self.nodes // self.blocks, self.seeds or (self.seed,)
        return [(own[k // size], k % size) for k in nodes]

    @property
    def device(self) -> torch.device:
        """Where the participants live."""
        return self.initial.theta.device

    @property
    def learners(self) -> tuple[Learner, ...]:
        """The different ways in which participants work."""
        return tuple(group.learner for group in self.groups) or (self.learner,)


def draw(network: Network, t: int) -> Draw:
    """What chance and schedules say for round t. Batch and rates are copies: their functions may refill one buffer."""
    conduct: Any = behaviours.conduct(network.behaviours, t, range(network.nodes))
    states = network.generators(t) if network.generators else ()
    return Draw(t, network.batches(t).clone(), network.mixing(t), _drawn_rate(network, t), conduct, states)


def _drawn_rate(network: Network, t: int) -> float | Float[Tensor, "n *steps"]:
    """The learning rate of round t, one for everybody or one each."""
    lr, nodes, dtype = network.lr(t), network.nodes, network.initial.theta.dtype
    rates = torch.as_tensor(lr)
    if not rates.dim():
        if abs(rate := float(lr)) > (most := torch.finfo(dtype).max):
            raise ValueError(f"lr must be at most {most:.3g}, the largest {dtype}; round {t} has {rate:g}.")
        if rate < 0:
            raise ValueError(f"lr must be at least 0; round {t} has {rate:g}. To ascend, negate the loss.")
        return rate
    by_step = network.uneven and rates.dim() == 2 and len(rates) == nodes  # of a watched loop
    if rates.shape != (nodes,) and not by_step:
        raise ValueError(f"lr must be one number or {nodes}, one a participant; round {t} has {list(rates.shape)}.")
    # of rates on CUDA only the first are looked at, because a look waits for the device
    if (t == 0 or not rates.is_cuda) and bool((rates < 0).any()):
        k, rate = int(rates.reshape(nodes, -1).amin(1).argmin()), float(rates.min())
        raise ValueError(
            f"lr must be at least 0; participant {k} has {rate:g} in round {t}. To ascend, negate the loss."
        )
    return rates.clone()


def load(
    network: Network, drawn: Draw, nodes: Nodes = None, samples: Maybe = (), group: Group | None = None
) -> LocalInputs:
    """The inputs of the local work of these participants (all, unless said), one row each, in the round that was drawn.

    Rows of a `group` have its number of steps and its batch size; the rest of a padded batch, and of the weights of
    `samples`, is cut off.
    """
    rows = list(range(network.nodes)) if nodes is None else list(nodes)
    batch = drawn.batch if nodes is None else drawn.batch[torch.tensor(rows)]
    if group is not None:
        batch, *weights = (part[:, : group.steps, : group.size] for part in (batch, *samples))
        samples = tuple(weights)
    x, y = network.data.train.take(batch.to(network.device, non_blocking=True))
    x = in_precision(x, network.initial.theta.dtype)
    origins = network.origins(rows)
    x, y = corruption.corrupt(
        network.corruptions, x, y, drawn.t, rows, network.seed, len(network.data.classes), origins=origins
    )
    if network.sample_weights is not None:
        held = network.sample_weights if nodes is None else network.sample_weights[rows]
        own = held.gather(1, batch.flatten(1).to(network.device)).view(batch.shape).to(network.initial.theta)
        samples = (own * samples[0],) if samples else (own,)
    return LocalInputs(x, y, rates(network, drawn, nodes), samples, starts(network, drawn, nodes))


def starts(network: Network, drawn: Draw, nodes: Nodes = None) -> tuple[Start, ...]:
    """Where the draws of each of these participants (all, unless said) begin; () where the model makes none."""
    if not network.learner.stochastic:
        return ()
    rows = list(range(network.nodes)) if nodes is None else list(nodes)
    if drawn.generators:
        return tuple(drawn.generators[k] for k in rows)
    return tuple(seeds.derive(seed, "dropout", drawn.t, k) for seed, k in network.origins(rows))


def rates(network: Network, drawn: Draw, nodes: Nodes = None) -> Float[Tensor, " rows"]:
    """The learning rate of each of these participants (all, unless said)."""
    if isinstance(drawn.lr, Tensor):
        return rows_for(network, drawn.lr, nodes)
    rows = network.nodes if nodes is None else len(nodes)
    return _rates(drawn.lr, rows, network.initial.theta.dtype, network.device)


@lru_cache(maxsize=16)
def _rates(lr: float, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((rows,), lr, dtype=dtype, device=device)


def rows_for(network: Network, values: Tensor, nodes: Nodes) -> Tensor:
    """The values of these participants, always in a new tensor: rates are cached, and `values` may be overwritten."""
    pick: Any = slice(None) if nodes is None else torch.tensor(list(nodes))
    return values[pick].to(network.initial.theta)


def draws_inside(network: Network, t: int) -> bool:
    """Whether round t draws more than batches and W on its way: corrupted data, or noise in place of updates."""
    noisy = [b for b in network.behaviours if behaviours.BEHAVIOURS[b.kind].noise]
    return any(each.applies(t, node) for each in (*network.corruptions, *noisy) for node in each.nodes)


def module_of(network: Network, participants: Participants, k: int) -> nn.Module:
    """Participant k's model as an ordinary module, in evaluation mode.

    Args:
        participants: What the participants carry, e.g. `round.after`.

    Returns:
        A copy of the model with the parameters and buffers of k.

    Example:
        >>> model = module_of(network, rounds[-1].after, 3)
    """
    module = deepcopy(network.learner.evaluating)
    values = {**dict(unflatten(module, participants.theta[k])), **{b: v[k] for b, v in participants.buffers.items()}}
    with torch.no_grad():  # not load_state_dict, which knows nothing of buffers that are not saved
        for name, own in (*trained(module).items(), *module.named_buffers()):
            own.copy_(values[name])
    return module
