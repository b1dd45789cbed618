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
from cascadice.data.inputs import at, in_precision
from cascadice.data.partition import Partition
from cascadice.engine import behaviours
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.compression import Compression
from cascadice.engine.dropout import DropoutStart, GeneratorState, state_from
from cascadice.engine.learner import Alphas, Learner, Participants, trainable, unflatten
from cascadice.engine.rounds import Draw

Nodes = Sequence[int] | None
"""The participants that rows stand for, in order; None for all."""


class Group(NamedTuple):
    """Participants that work alike; with the defaults, it is everybody, with unpadded batches."""

    learner: Learner
    nodes: tuple[int, ...] = ()
    steps: int | None = None
    size: int | None = None
    state: tuple[str, ...] | None = None  # the names of their optimizer's state


class Weights(NamedTuple):
    """How much each row's update, and each sample in it, counts; () means fully."""

    updates: Alphas = ()  # α_j [rows]: the row sends (θ, state)^t + α_j Δ_j
    samples: Alphas = ()  # α_i [rows, steps, batch]: the weight of a sample's term in the gradient


UNWEIGHTED = Weights()


class LocalInputs(NamedTuple):
    """The inputs of the local work of some rows in one round."""

    x: Any  # Inputs
    y: Tensor
    lr: Float[Tensor, " rows"]
    samples: Alphas
    starts: tuple[DropoutStart, ...]


@dataclass(frozen=True, eq=False)
class Network:
    """Everything that determines a run; `network` builds one. Training is then a pure function of it.

    Attributes:
        learner: The model, loss and optimizer.
        initial: What the participants carry before round 0.
        data: Training and test samples.
        batches: t -> the indices of the training samples of round t.
        mixing: t -> W of round t.
        lr: t -> the learning rate of round t.
        q: The participants' weights in what is measured.
        seed: What all randomness is derived from.
        strategy: How many participants run at once: "loop", "vmap" or "compile".
        partition: Who holds which training samples; None if only batches were given.
        corruptions: Faults in participants' data.
        behaviours: Participants that do not follow the protocol, or are absent.
        compression: How updates are compressed before they are sent; None if they are not.
        groups: Participants that work alike; empty if all do, with `learner`.
        sample_weights: How much each training sample counts in each participant's gradients; None if fully.
        seeds: In a fleet, the seeds of its networks.
        members: In one process's part of a network, its participants' numbers in the whole network.
        holdings: In one process's part of a network, how many training samples each participant of the whole holds.
        generators: In a watched loop, round -> the generator states that dropout started from, for each participant a
            list with one per step.
        uneven: Whether batch sizes, learning rates or numbers of steps vary, or somebody sits out, as in a watched loop
            or with batches given by a function.
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
    holdings: tuple[int, ...] = ()
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
        """How a notebook shows it."""
        what, _, rest = repr(self).removesuffix(")").partition("(")
        return f"<b>{what}</b>: {escape(rest)}; data: {escape(self.data.name)}"

    @property
    def nodes(self) -> int:
        """The number of participants."""
        return len(self.initial.theta)

    @property
    def whole(self) -> int:
        """The number of participants in the whole network, of which this may be a part."""
        return self.mixing(0).shape[0] if self.members else self.nodes

    @cached_property
    def weights(self) -> Float[Tensor, " n"]:
        """q on the participants' device, in their precision."""
        return self.q.to(self.initial.theta)

    @property
    def blocks(self) -> int:
        """The number of networks in a fleet; 1 otherwise."""
        return max(1, len(self.seeds))

    def origins(self, nodes: Sequence[int]) -> list[tuple[int, int]]:
        """The (seed, number) that each of these participants draws with: the same as in its own network."""
        if self.members:
            return [(self.seed, self.members[k]) for k in nodes]
        size, own = self.nodes // self.blocks, self.seeds or (self.seed,)
        return [(own[k // size], k % size) for k in nodes]

    @property
    def device(self) -> torch.device:
        """The device of the participants' parameters."""
        return self.initial.theta.device

    @property
    def learners(self) -> tuple[Learner, ...]:
        """One learner for each group; one if all participants work alike."""
        return tuple(group.learner for group in self.groups) or (self.learner,)


def draw(network: Network, t: int) -> Draw:
    """Draw round t: its batches, mixing matrix, learning rates and conduct.

    Batches and rates are copied, because the functions that make them may reuse a buffer.

    Raises:
        ValueError: If a learning rate is negative, too large for the parameters' dtype, or not one per participant.

    Example:
        >>> draw(network, 0).batch.shape
    """
    conduct: Any = behaviours.conduct(network.behaviours, t, range(network.nodes))
    states = network.generators(t) if network.generators else ()
    return Draw(t, network.batches(t).clone(), network.mixing(t), _drawn_rate(network, t), conduct, states)


def _drawn_rate(network: Network, t: int) -> float | Float[Tensor, "n *steps"]:
    lr, nodes, dtype = network.lr(t), network.nodes, network.initial.theta.dtype
    rates = torch.as_tensor(lr)
    if not rates.dim():
        if abs(rate := float(lr)) > (most := torch.finfo(dtype).max):
            raise ValueError(f"lr must be at most {most:.3g}, the largest {dtype}; round {t} has {rate:g}.")
        if rate < 0:
            raise ValueError(f"lr must be at least 0; round {t} has {rate:g}. To ascend, negate the loss.")
        return rate
    by_step = network.uneven and rates.dim() == 2 and len(rates) == nodes  # in a watched loop
    if rates.shape != (nodes,) and not by_step:
        raise ValueError(f"lr must be one number or {nodes}, one a participant; round {t} has {list(rates.shape)}.")
    # on CUDA only the first round's rates are checked, because reading them waits for the device
    if (t == 0 or not rates.is_cuda) and bool((rates < 0).any()):
        found = f"participant {int(rates.reshape(nodes, -1).amin(1).argmin())} has {float(rates.min()):g} in round {t}"
        raise ValueError(f"lr must be at least 0; {found}. To ascend, negate the loss.")
    return rates.clone()


def load(
    network: Network, drawn: Draw, nodes: Nodes = None, samples: Alphas = (), group: Group | None = None
) -> LocalInputs:
    """Load the inputs of local work in the round that was drawn, a row for each of these participants.

    Weights of `samples` multiply the network's own. Padding beyond the steps and batch size of the `group` is cut off.
    """
    rows = list(range(network.nodes)) if nodes is None else list(nodes)
    batch = drawn.batch if nodes is None else drawn.batch[torch.tensor(rows)]
    if group is not None:
        batch, *weights = (part[:, : group.steps, : group.size] for part in (batch, *samples))
        samples = tuple(weights)
    x, y = network.data.train.take(batch)
    x = in_precision(x, network.initial.theta.dtype)
    origins = network.origins(rows)
    x, y = corruption.corrupt(
        network.corruptions, x, y, drawn.t, rows, network.seed, len(network.data.classes), origins=origins,
        first_step=drawn.first_step if network.uneven else None,
    )  # fmt: skip
    if network.sample_weights is not None:
        held = network.sample_weights if nodes is None else network.sample_weights[rows]
        own = held.gather(1, batch.flatten(1).to(network.device)).view(batch.shape).to(network.initial.theta)
        samples = (own * samples[0],) if samples else (own,)
    return LocalInputs(x, y, rates(network, drawn, nodes), samples, dropout_starts(network, drawn, nodes))


def dropout_starts(network: Network, drawn: Draw, nodes: Nodes = None) -> tuple[DropoutStart, ...]:
    """Where the dropout of each of these participants starts; () if the model draws nothing."""
    if not network.learner.stochastic:
        return ()
    rows = range(network.nodes) if nodes is None else nodes
    if drawn.generators:
        return tuple(drawn.generators[k] for k in rows)
    origins = network.origins(rows)
    if not network.uneven:
        return tuple(seeds.derive(seed, "dropout", drawn.t, k) for seed, k in origins)
    # not one seed for all steps, because others' batch sizes determine which steps run together
    steps = range(drawn.first_step, drawn.first_step + drawn.batch.shape[1])
    return tuple(
        tuple(state_from(seeds.derive(seed, "dropout", drawn.t, k, *seeds.of_step(i)), network.device) for i in steps)
        for seed, k in origins
    )


def rates(network: Network, drawn: Draw, nodes: Nodes = None) -> Float[Tensor, " rows"]:
    """The learning rate of each of these participants."""
    if isinstance(drawn.lr, Tensor):
        return values_for(network, drawn.lr, nodes)
    rows = network.nodes if nodes is None else len(nodes)
    return _rates(drawn.lr, rows, network.initial.theta.dtype, network.device)


@lru_cache(maxsize=16)
def _rates(lr: float, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((rows,), lr, dtype=dtype, device=device)


def values_for(network: Network, values: Tensor, nodes: Nodes) -> Tensor:
    """These participants' entries of `values`, always as a new tensor, because `values` may be overwritten."""
    pick: Any = slice(None) if nodes is None else torch.tensor(list(nodes))
    return values[pick].to(network.initial.theta)


def draws_within_round(network: Network, t: int) -> bool:
    """Whether round t draws more than `draw` does: corrupted data, or noise in place of updates."""
    noisy = [b for b in network.behaviours if behaviours.BEHAVIOURS[b.kind].noise]
    return any(each.applies(t, node) for each in (*network.corruptions, *noisy) for node in each.nodes)


def module_of(network: Network, participants: Participants, k: int) -> nn.Module:
    """Participant k's model as an ordinary module, in evaluation mode.

    Args:
        network: The network of the participant.
        participants: What the participants carry, e.g. `round.after`.
        k: The participant.

    Returns:
        A copy of the model with the parameters and buffers of k.

    Example:
        >>> model = module_of(network, rounds[-1].after, 3)
    """
    module = deepcopy(network.learner.evaluating)
    values = {**dict(unflatten(module, participants.theta[k])), **at(participants.buffers, k)}
    with torch.no_grad():  # not load_state_dict, which leaves out non-persistent buffers
        for name, own in (*trainable(module).items(), *module.named_buffers()):
            own.copy_(values[name])
    return module
