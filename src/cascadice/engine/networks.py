"""A network: everything that determines a run. From it, training is a pure replay."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cascadice import learning_rates, seeds, topology
from cascadice.data import DataSet, corruption
from cascadice.data.batches import Batches
from cascadice.data.corruption import Corruption
from cascadice.data.partition import Partition
from cascadice.engine import behaviours
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.compression import Compression
from cascadice.engine.learner import Learner, Optional, Participants, unflatten
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

    updates: Optional = ()
    samples: Optional = ()


ALL = Weights()


class LocalInputs(NamedTuple):
    """The inputs of the local work of some rows in one round."""

    x: Tensor
    y: Tensor
    lr: Float[Tensor, " rows"]
    alpha: Optional
    samples: Optional
    seeds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Network:
    """Participants, their data and how they talk. `draw` and `load` are pure functions of (network, round).

    `groups` is empty where all participants work alike, by `learner`. `sample_weights` says how much the term of each
    training sample counts in each participant's gradients. `blocks` is the number of networks that stand side by side.
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
    blocks: int = 1

    @property
    def nodes(self) -> int:
        """How many participants there are."""
        return len(self.initial.theta)

    @cached_property
    def weights(self) -> Float[Tensor, " n"]:
        """q where the participants live, in their precision."""
        return self.q.to(self.initial.theta)

    @property
    def device(self) -> torch.device:
        """Where the participants live."""
        return self.initial.theta.device

    @property
    def learners(self) -> tuple[Learner, ...]:
        """The different ways in which participants work."""
        return tuple(group.learner for group in self.groups) or (self.learner,)


def draw(network: Network, t: int) -> Draw:
    """What chance and schedules say for round t."""
    conduct: Any = behaviours.conduct(network.behaviours, t, range(network.nodes))
    return Draw(t, network.batches(t), network.mixing(t), _checked_rate(network.lr(t), network.nodes, t), conduct)


def _checked_rate(lr: Any, nodes: int, t: int) -> float | Tensor:
    """A schedule may give a number or one for each participant."""
    if isinstance(lr, float):
        return lr
    rates = torch.as_tensor(lr)
    if rates.dim() == 0:
        return float(rates)
    if rates.shape != (nodes,):
        raise ValueError(f"lr must be one number or {nodes}, one a participant; round {t} has {list(rates.shape)}.")
    return rates


def load(
    network: Network, drawn: Draw, nodes: Nodes = None, samples: Optional = (), group: Group | None = None
) -> LocalInputs:
    """The inputs of the local work of these participants (all, unless said), one row each, in the round that was drawn.

    Rows of a `group` have its number of steps and its batch size; the rest of a padded batch, and of the weights of
    `samples`, is cut off.
    """
    rows = list(range(network.nodes)) if nodes is None else list(nodes)
    device, dtype = network.device, network.initial.theta.dtype
    pick: Any = slice(None) if nodes is None else torch.tensor(rows)
    batch = drawn.batch[pick] if group is None else drawn.batch[pick][:, : group.steps, : group.size]
    x, y = network.data.train.take(batch.to(device, non_blocking=True))
    x = x.to(dtype) if x.is_floating_point() else x
    x, y = corruption.corrupt(network.corruptions, x, y, drawn.t, rows, network.seed, len(network.data.classes))
    if samples and group is not None:
        samples = (samples[0][:, : group.steps, : group.size],)
    if network.sample_weights is not None:
        own = network.sample_weights[torch.tensor(rows, device=device)[:, None, None], batch.to(device)].to(dtype)
        samples = (own * samples[0],) if samples else (own,)
    stochastic = network.learner.stochastic
    dropout = tuple(seeds.derive(network.seed, "dropout", drawn.t, k) for k in rows) if stochastic else ()
    return LocalInputs(x, y, rates(network, drawn, nodes), taken(network, drawn, nodes), samples, dropout)


def rates(network: Network, drawn: Draw, nodes: Nodes = None) -> Float[Tensor, " rows"]:
    """The learning rate of each of these participants (all, unless said)."""
    device, dtype = network.device, network.initial.theta.dtype
    if isinstance(drawn.lr, Tensor):
        pick: Any = slice(None) if nodes is None else torch.tensor(list(nodes))
        return drawn.lr[pick].to(device, dtype)
    return _rates(drawn.lr, network.nodes if nodes is None else len(nodes), dtype, device)


@lru_cache(maxsize=16)
def _rates(lr: float, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((rows,), lr, dtype=dtype, device=device)


def taken(network: Network, drawn: Draw, nodes: Nodes = None) -> Optional:
    """The part of its local work that each row does, by its behaviour; () where all do all of it."""
    if not drawn.conduct:
        return ()
    pick: Any = slice(None) if nodes is None else torch.tensor(list(nodes))
    return (drawn.conduct[0][pick].to(network.device, network.initial.theta.dtype),)


def draws_inside(network: Network, t: int) -> bool:
    """Whether round t draws more than batches and W on its way: corrupted data, or noise in place of updates."""
    noisy = (b for b in network.behaviours if b.kind == "noise-sender")
    spoilers: tuple[Corruption | Behaviour, ...] = (*network.corruptions, *noisy)
    return any(spoiler.applies(t, node) for spoiler in spoilers for node in spoiler.nodes)


def module_of(network: Network, participants: Participants, k: int) -> nn.Module:
    """Participant k's model as an ordinary module, in evaluation mode.

    Args:
        participants: What the participants carry, e.g. `round.after`.
        k: The participant.

    Returns:
        A copy of the model with the parameters and buffers of k.

    Example:
        >>> model = module_of(network, rounds[-1].after, 3)
    """
    module = deepcopy(network.learner.evaluating)
    values = {**dict(unflatten(module, participants.theta[k])), **{b: v[k] for b, v in participants.buffers.items()}}
    with torch.no_grad():  # not load_state_dict, which knows nothing of buffers that are not saved
        for name, own in (*module.named_parameters(), *module.named_buffers()):
            own.copy_(values[name])
    return module
