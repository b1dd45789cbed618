"""A network: everything that determines a run. From it, training is a pure replay."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cascadice import learning_rates, seeds, topology
from cascadice.data import DataSet, corruption
from cascadice.data.batches import Batches
from cascadice.data.corruption import Corruption
from cascadice.data.partition import Partition
from cascadice.engine import behaviours as behaviour
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.fast.rows import Local
from cascadice.engine.fast.tape import Layers, layered
from cascadice.engine.learner import Conduct, Learner, Participants, unflatten
from cascadice.engine.rounds import Draw


@dataclass(frozen=True, eq=False)
class Network:
    """Participants, their data and how they talk. `draw` and `load` are pure functions of (network, round)."""

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


def draw(network: Network, t: int) -> Draw:
    """What chance and schedules say for round t."""
    nodes = range(network.nodes)
    return Draw(
        t,
        network.batches(t),
        network.mixing(t),
        network.lr(t),
        behaviour.conduct(network.behaviours, t, nodes),
    )


def load(network: Network, drawn: Draw, nodes: Sequence[int] | None = None) -> Local:
    """The inputs of the local work of these participants (all, unless said) in the round that was drawn."""
    rows = list(range(network.nodes)) if nodes is None else list(nodes)
    device, dtype = network.device, network.initial.theta.dtype
    pick: Any = slice(None) if nodes is None else torch.tensor(rows)
    index = drawn.batch[pick].to(device, non_blocking=True)
    x, y = network.data.train.take(index)
    x = x.to(dtype) if x.is_floating_point() else x
    x, y = corruption.corrupt(network.corruptions, x, y, drawn.t, rows, network.seed, len(network.data.classes))
    lr, conduct = terms(network, drawn, nodes)
    stochastic = network.learner.stochastic
    dropout = tuple(seeds.derive(network.seed, "dropout", drawn.t, k) for k in rows) if stochastic else ()
    return Local(x, y, lr, conduct, dropout)


def terms(network: Network, drawn: Draw, nodes: Sequence[int] | None = None) -> tuple[Tensor, Conduct]:
    """The learning rate and the conduct of each of these participants (all, unless said)."""
    device, dtype = network.device, network.initial.theta.dtype
    pick: Any = slice(None) if nodes is None else torch.tensor(list(nodes))
    rows = network.nodes if nodes is None else len(nodes)
    lr = drawn.lr[pick] if isinstance(drawn.lr, Tensor) else _rates(drawn.lr, rows, dtype, device)
    return lr, tuple(part[pick].to(device, dtype) for part in drawn.conduct)


def known_layers(network: Network, drawn: Draw) -> Layers | None:
    """The model's layers for batches like the one drawn, where they can be used to score samples."""

    def example() -> tuple[Participants, Tensor, Tensor]:
        x, y, *_ = load(network, drawn, [0])
        mine: Participants = tree_map(lambda tensor: tensor[0], network.initial)
        return mine, x[0, 0], y[0, 0]

    return layered(network.learner, network.strategy, drawn.batch.shape[-1], example)


def draws_inside(network: Network, t: int) -> bool:
    """Whether round t draws more than batches and W on its way: corrupted data, or noise in place of updates."""
    noisy = (b for b in network.behaviours if b.kind == "noise-sender")
    spoilers: tuple[Corruption | Behaviour, ...] = (*network.corruptions, *noisy)
    return any(spoiler.applies(t, node) for spoiler in spoilers for node in spoiler.nodes)


@lru_cache(maxsize=16)
def _rates(lr: float, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((rows,), lr, dtype=dtype, device=device)


def module_of(network: Network, participants: Participants, k: int) -> nn.Module:
    """Participant k's model as an ordinary module, in evaluation mode."""
    module = deepcopy(network.learner.evaluating)
    values = {**dict(unflatten(module, participants.theta[k])), **{b: v[k] for b, v in participants.buffers.items()}}
    with torch.no_grad():  # not load_state_dict, which knows nothing of buffers that are not saved
        for name, own in (*module.named_parameters(), *module.named_buffers()):
            own.copy_(values[name])
    return module
