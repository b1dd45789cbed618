"""From what a user has at hand, a model and data or as much more as they like, to a network."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cascadice import learning_rates, optimizers, seeds, topology
from cascadice.data import DataSet, corruption
from cascadice.data import batches as batch_plans
from cascadice.data import partition as partitions
from cascadice.data.batches import Batches
from cascadice.data.corruption import Corruption
from cascadice.data.partition import Partition
from cascadice.engine import behaviours as behaviour
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.fast.rows import STRATEGIES, Local, choose, seeded
from cascadice.engine.learner import Learner, Participants, flatten, forward, learner, unflatten
from cascadice.engine.networks import Network, draw, load
from cascadice.losses import Loss, cross_entropy
from cascadice.names import lookup
from cascadice.optimizers import Optimizer

Model = nn.Module | Callable[[], nn.Module]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def network(
    model: Model,
    data: DataSet,
    *,
    nodes: int | None = None,
    mixing: Any = "exponential",
    partition: Sequence[Any] | str = "iid",
    per_node: int | None = None,
    batch_size: int = 32,
    local_steps: int = 1,
    batches: Batches | Tensor | None = None,
    optimizer: Optimizer | str = "sgd",
    lr: float | learning_rates.Schedule = 0.1,
    loss: Loss = cross_entropy,
    init: str | Tensor | Sequence[nn.Module] = "shared",
    q: Tensor | Sequence[float] | None = None,
    corruptions: Sequence[Corruption] = (),
    behaviours: Sequence[Behaviour] = (),
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    strategy: str = "auto",
) -> Network:
    """Participants that each hold part of `data`, train copies of `model` on it and gossip by `mixing`.

    Whatever is drawn can be given instead: `mixing` is a topology's name, a graph, a W or a schedule t -> W; `batches`
    indices [rounds, n, steps, batch] or a function of t; `init` "shared", "own", parameters [n, d] or one model each;
    `partition` a scheme's name or index lists; `lr` a number or a function of t; `q` the participants' weights.
    `model` is a module, or a function that makes one (needed for "own" where modules have no reset_parameters).
    """
    device, dtype = _device(device), lookup(DTYPES, str(dtype).removeprefix("torch."), "dtype")
    parameters, compute = (torch.float32, dtype) if dtype == torch.bfloat16 else (dtype, None)
    schedule, nodes = _schedule(mixing, nodes, seed)
    behaviour.check(behaviours, nodes)
    corruption.check(corruptions, nodes)
    if away := behaviour.absent(behaviours):
        schedule = topology.presence(schedule, topology.absences(away, nodes))
    shares = None if batches is not None else _partition(partition, data, nodes, per_node, seed)
    plan = _batches(batches, shares, batch_size, local_steps, seed, len(data.train))
    rate = lr if callable(lr) else learning_rates.constant(_number(lr))
    made = model if isinstance(model, nn.Module) else _made(model, seed, 0)
    rule = optimizers.build(optimizer) if isinstance(optimizer, str) else optimizer
    template = learner(deepcopy(made).to(device, parameters), loss, rule, compute)
    initial = _initial(model, made, init, nodes, seed, template)
    found = Network(
        template, initial, data.to(device), plan, schedule, rate, weights(q, nodes), seed, strategy,
        shares, tuple(corruptions), tuple(behaviours),
    )  # fmt: skip
    return settled(found)


def settled(network: Network) -> Network:
    """The network with what must be seen on a first batch: that the model runs, whether it draws, how to run it."""
    drawn = draw(network, 0)
    if drawn.batch.dim() != 3:
        shape = list(drawn.batch.shape)
        raise ValueError(f"the batches of a round must be [participants, steps, batch]; found {shape}.")
    inputs = load(network, drawn)
    if inputs.y.shape[0] != network.nodes or drawn.W.shape[0] != network.nodes:
        found = f"{drawn.W.shape[0]} in W and {inputs.y.shape[0]} in the batches"
        raise ValueError(f"there must be {network.nodes} participants everywhere; found {found}.")
    template = replace(network.learner, stochastic=_draws(network, inputs))
    network = replace(network, learner=template)
    if network.strategy == "auto":
        return replace(network, strategy=choose(template, network.initial, load(network, drawn)))
    lookup(STRATEGIES, network.strategy, "strategy")
    if template.stochastic and network.strategy != "loop":
        raise ValueError(
            f"a model that draws at random (dropout) must run as a loop, each participant from its own seed; "
            f"found strategy {network.strategy!r}. Use 'loop' or 'auto'."
        )
    return network


def _draws(network: Network, inputs: Local) -> bool:
    """Whether the model's training output depends on chance: two seeds, one batch."""
    first: Participants = tree_map(lambda tensor: tensor[0], network.initial)
    template, labels, outputs = network.learner, len(network.data.classes), []
    try:
        for seed in (1, 2):
            with torch.no_grad(), seeded(seed, network.device):
                parameters = dict(unflatten(template.training, first.theta))
                buffers = {name: buffer.clone() for name, buffer in first.buffers.items()}
                outputs.append(forward(template.training, {**parameters, **buffers}, inputs.x[0, 0], template.compute))
                value = template.loss(outputs[-1], inputs.y[0, 0])
                if labels:  # one that few batches hold would otherwise be out of bounds in the middle of the run
                    template.loss(outputs[-1], torch.full_like(inputs.y[0, 0], labels - 1))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        below = f" below {labels}" if labels else ""
        shapes = f"inputs {list(inputs.x.shape[2:])} and targets {list(inputs.y.shape[2:])}{below}"
        raise ValueError(f"model and loss must take a batch of {shapes}; they said: {_first_line(error)}") from error
    if value.dim() != 0:
        raise ValueError(f"the loss must be a scalar; found shape {list(value.shape)}. Use e.g. .mean().")
    return not torch.equal(*outputs)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _number(lr: Any) -> float:
    if isinstance(lr, bool) or not isinstance(lr, (int, float)):
        raise TypeError(f"lr must be a number or a function of the round; found {lr!r}.")
    return float(lr)


def _device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}. Use 'cpu' or 'cuda'.") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"participants live on 'cpu' or 'cuda'; found device {str(name)!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("CUDA was asked for but torch finds no CUDA device here. Use the device 'cpu'.")
    return device


def _schedule(mixing: Any, nodes: int | None, seed: int) -> tuple[topology.Schedule, int]:
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int)):
        raise TypeError(f"nodes must be a whole number; found {nodes!r}.")
    if isinstance(mixing, str):
        if nodes is None:
            raise ValueError(f"topology {mixing!r} needs a number of participants: give nodes=.")
        return topology.build(mixing, nodes, seed=seed), nodes
    if isinstance(mixing, nx.Graph):
        weighted = nx.get_edge_attributes(mixing, "weight")
        mixing = topology.from_graph(mixing) if weighted else topology.uniform(mixing)
    if not callable(mixing):
        mixing = topology.constant(topology.matrix(mixing))
    schedule = mixing if isinstance(mixing, topology.Cycle) else _Checked(mixing)
    found = schedule(0).shape[0]
    if nodes not in (None, found):
        raise ValueError(
            f"the mixing matrix has {found} participants, nodes is {nodes}. Leave nodes out, or change one."
        )
    return schedule, found


class _Checked:
    """A schedule of whose W we know nothing: each new one is checked, and must be of the first one's size."""

    def __init__(self, schedule: Callable[[int], Any]) -> None:
        self.schedule, self.nodes = schedule, 0
        self.seen: Any = None

    def __call__(self, t: int) -> Tensor:
        given = self.schedule(t)
        if given is not self.seen:
            try:
                self.W = topology.matrix(given)
            except (ValueError, TypeError) as error:
                raise type(error)(f"in round {t}, {error}") from None
            self.seen, self.nodes = given, self.nodes or self.W.shape[0]
            if self.W.shape[0] != self.nodes:
                raise ValueError(f"W must keep its {self.nodes} participants; in round {t} it has {self.W.shape[0]}.")
        return self.W


def _partition(given: Sequence[Any] | str, data: DataSet, nodes: int, per_node: int | None, seed: int) -> Partition:
    if isinstance(given, str):
        return partitions.build(given, data.train.y, nodes, per_node=per_node, seed=seed)
    if len(given) != nodes:
        raise ValueError(f"the partition must have one part per participant; found {len(given)} parts for {nodes}.")
    parts = [torch.as_tensor(part, dtype=torch.int64) for part in given]
    for node, part in enumerate(parts):
        if len(part) and not 0 <= int(part.min()) <= int(part.max()) < len(data.train):
            limit = f"0..{len(data.train) - 1}, the training samples"
            raise ValueError(f"a partition must hold indices in {limit}; participant {node} has others.")
    return parts


def _batches(
    given: Batches | Tensor | None,
    shares: Partition | None,
    batch_size: int,
    steps: int,
    seed: int,
    samples: int,
) -> Batches:
    if shares is not None:
        return batch_plans.epochs(shares, batch_size, steps=steps, seed=seed)
    if isinstance(given, Tensor):
        return batch_plans.given(given, n_samples=samples)
    assert given is not None
    return partial(_within, given, samples)


def _within(batches: Batches, samples: int, t: int) -> Tensor:
    batch = batches(t)
    if batch.numel() and not 0 <= int(batch.min()) <= int(batch.max()) < samples:
        found = f"{int(batch.min())}..{int(batch.max())}"
        raise ValueError(f"batch indices must lie in 0..{samples - 1}, the training samples; round {t} has {found}.")
    return batch


def weights(q: Tensor | Sequence[float] | None, nodes: int) -> Tensor:
    """The participants' weights, checked; uniform unless given."""
    found = torch.as_tensor([1 / nodes] * nodes if q is None else q, dtype=torch.float64)
    if found.shape != (nodes,) or not bool((found >= 0).all()) or abs(float(found.sum()) - 1) > 1e-6:
        raise ValueError(
            f"q must be {nodes} weights, at least 0, that sum to 1; found shape {tuple(found.shape)}, "
            f"sum {float(found.sum()):.6g}."
        )
    return found


def _initial(
    model: Model, made: nn.Module, init: str | Tensor | Sequence[nn.Module], nodes: int, seed: int, template: Learner
) -> Participants:
    like = next(template.training.parameters())
    if isinstance(init, str):
        owners = lookup({"shared": 1, "own": nodes}, init, "initialisation")
        rows = [flatten(made)] if owners == 1 else [flatten(_made(model, seed, k)) for k in range(nodes)]
        theta = torch.stack(rows).expand(nodes, -1)
    else:
        theta = init if isinstance(init, Tensor) else _stacked([flatten(module) for module in init])
    if theta.shape != (nodes, template.size):
        needed = f"[{nodes}, {template.size}], a row for each participant"
        raise ValueError(f"initial parameters must be {needed}; found {list(theta.shape)}.")
    theta = theta.to(like).clone(memory_format=torch.contiguous_format)
    holders = [template.training] * nodes if isinstance(init, (str, Tensor)) else list(init)
    buffers = {
        name: torch.stack([holder.get_buffer(name).detach() for holder in holders]).to(b)
        for name, b in template.training.named_buffers()
    }
    return Participants(theta, template.optimizer.init(theta), buffers)


def _stacked(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows) if rows else torch.empty(0, 0)


def _made(model: Model, seed: int, node: int) -> nn.Module:
    """A freshly initialised model, drawn from (seed, node) alone; a module is copied and told to reset itself."""
    with seeds.initialisation(seed, "parameters", node):
        if not isinstance(model, nn.Module):
            return model()
        fresh = deepcopy(model).to("cpu", torch.float32)
        before = flatten(fresh)
        for module in fresh.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        if torch.equal(before, flatten(fresh)):
            raise ValueError(
                "init='own' must draw new parameters; this model has no reset_parameters. Give a function making one."
            )
        return fresh
