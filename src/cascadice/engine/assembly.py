"""Build a network from a model, data and options."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cascadice import data as data_sets
from cascadice import learning_rates, models, seeds, topology
from cascadice.data import batches as batch_plans
from cascadice.data.corruption import Corruption
from cascadice.data.inputs import at, described
from cascadice.engine import groups
from cascadice.engine.behaviours import Behaviour, absent
from cascadice.engine.compression import COMPRESSIONS, Compression
from cascadice.engine.data_plan import plan_data
from cascadice.engine.dropout import seeded, state_of
from cascadice.engine.learner import (
    Learner,
    Participants,
    check_same_frozen,
    flatten,
    forward,
    learner,
    outputs_of,
    unflatten,
)  # fmt: skip
from cascadice.engine.networks import Group, LocalInputs, Network, draw, load
from cascadice.engine.operator import STRATEGIES, choose
from cascadice.engine.parts import check_members, restricted
from cascadice.engine.rounds import rows_of
from cascadice.faults import check_participants
from cascadice.losses import Loss, cross_entropy
from cascadice.names import lookup
from cascadice.optimizers import Optimizer

Model = nn.Module | Callable[[], nn.Module]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def network(
    model: Model, data: Any, *, nodes: int | None = None, mixing: Any = "exponential",
    partition: Any = None, per_node: int | None = None,
    batch_size: int | Sequence[int] | None = None, local_steps: int | Sequence[int] | None = None,
    batches: Callable[[int], Any] | Tensor | None = None,
    optimizer: Optimizer | str | Sequence[Optimizer | str] = "sgd", lr: Any = 0.1, loss: Loss = cross_entropy,
    init: str | Tensor | Sequence[nn.Module] = "shared", q: Tensor | Sequence[float] | None = None,
    corruptions: Sequence[Corruption] = (), behaviours: Sequence[Behaviour] = (),
    compression: Compression | str | None = None, seed: int = 0,
    device: str | torch.device = "cpu", dtype: str | torch.dtype = "float32", strategy: str = "auto",
    members: Sequence[int] = (), **of_partition: Any,
) -> Network:  # fmt: skip
    """Build a network: participants that each hold part of the data, train copies of a model on it and gossip.

    Everything that is drawn by default can be given instead. Participants may differ: `optimizer`, `lr`, `batch_size`
    and `local_steps` also take a sequence with an entry for each of them.

    Args:
        model: A module, or a function that makes one (needed for init="own" where modules have no reset_parameters).
        data: A `DataSet`, a pair (train, test) of torch Datasets, or one torch Dataset.
        nodes: The number of participants; not needed if `mixing` is a graph, a matrix or a schedule.
        mixing: A topology's name, a networkx graph, a mixing matrix W, or a schedule t -> W.
        partition: Who holds which training samples: the name of a scheme, a scheme, or index lists; default "iid".
        per_node: Samples per participant; by default an equal share.
        batch_size: Samples in a batch; default 32.
        local_steps: Optimizer steps per round, each on its own batch; default 1.
        batches: What each round draws, in place of passes over the partition: indices [rounds, n, steps, batch], or a
            function of the round t that returns [n, steps, batch], padded with -1, or a list with the indices of each
            participant (of one batch, or of each of its steps). Batch sizes and numbers of steps may change from round
            to round, and a participant with an empty entry sits the round out. If a partition is given too,
            participants must draw from their own part. Rounds of a function are not captured as CUDA graphs, because
            their sizes are not known in advance.
        optimizer: A name in `optimizers.OPTIMIZERS`, an `Optimizer`, or one for each participant.
        lr: The learning rate: a number, a function of the round, or one for each participant.
        loss: The training loss, a function of (outputs, targets).
        init: "shared", "own" (each participant draws its own), parameters [n, d], or one module each.
        q: The participants' weights in what is measured, which sum to 1; by default equal.
        corruptions: Faults in participants' data.
        behaviours: Participants that do not follow the protocol.
        compression: How updates are compressed before they are sent: a name in `COMPRESSIONS`; by default not at all.
        seed: What all randomness is derived from.
        device: "cpu" or "cuda".
        dtype: float32, float64, or bfloat16 for passes in bfloat16 over float32 parameters.
        strategy: How to run many participants at once: "auto", "loop", "vmap" or "compile".
        members: The participants of this process, if other processes have the rest; see `engine.parts`. Only their
            models are built, and only their training samples kept.
        **of_partition: Options of a named partition: `alpha` and `minimum` of "dirichlet", `classes_per_node` of
            "by-class". "dirichlet" gives everybody at least a batch, unless `minimum` says otherwise.

    Returns:
        The network, checked on a first batch; `simulate` trains it.

    Raises:
        ValueError: If options do not fit together; the message says which, and what to do.
        TypeError: If an option has the wrong type, or would have no effect.

    Example:
        >>> net = network(models.mlp((64,), 10), data.load("digits"), nodes=8, mixing="ring")
        >>> mixed = network(model, digits, nodes=2, mixing="ring", optimizer=["sgd", "adam"], lr=[0.1, 0.003])
    """
    device, dtype = _device(device), lookup(DTYPES, str(dtype).removeprefix("torch."), "dtype")
    parameters, compute = (torch.float32, dtype) if dtype == torch.bfloat16 else (dtype, None)
    data = data_sets.resolve(data)
    schedule, nodes = topology.resolve(mixing, nodes, seed)
    check_participants((*behaviours, *corruptions), nodes)
    if away := absent(behaviours):
        schedule = topology.presence(schedule, topology.absences(away, nodes))
    of_data = (partition, per_node, batch_size, local_steps, batches, of_partition)
    holdings, drawn_batches, uneven = plan_data(data.train.y, nodes, seed, *of_data)
    made = model if isinstance(model, nn.Module) else _fresh_model(model, seed, 0)
    rows, every_optimizer = check_members(members, nodes) or range(nodes), groups.optimizers_of(optimizer, nodes)
    optimizers = [every_optimizer[k] for k in rows]
    template = learner(deepcopy(made).to(device, parameters), loss, optimizers[0], compute)
    if isinstance(compression, str):
        compression = lookup(COMPRESSIONS, compression, "compression")
    elif compression is not None and not isinstance(compression, Compression):
        raise TypeError(f"compression must be a name in COMPRESSIONS or a Compression; found {compression!r}.")
    built = Network(
        template, _initial(model, made, init, nodes, rows, seed, template, optimizers), data, drawn_batches, schedule,
        learning_rates.resolve(lr, nodes), weights(q, nodes), seed, strategy, holdings, tuple(corruptions),
        tuple(behaviours), compression, uneven=uneven,
    )  # fmt: skip
    built = restricted(built, tuple(members)) if members else built
    return completed(replace(built, data=built.data.to(device)), optimizers)


def completed(network: Network, optimizers: Sequence[Optimizer] = ()) -> Network:
    """Complete a network from a first batch: does the model run, does it draw at random, which strategy is best."""
    drawn = draw(network, 0)
    batch_plans.check_round(drawn.batch, len(network.data.train), 0)
    if drawn.batch.shape[0] != network.nodes or drawn.W.shape[0] != network.whole:
        counts = f"{drawn.W.shape[0]} in W and {drawn.batch.shape[0]} in the batches"
        raise ValueError(f"W and the batches must have {network.nodes} participants; found {counts}.")
    if network.members and bool((drawn.batch == batch_plans.PADDING).all()):
        # others train in round 0: take samples that this process keeps, two, because BatchNorm refuses one
        train = network.data.train
        kept = torch.arange(len(train)) if train.numbers is None else train.numbers
        drawn = drawn._replace(batch=kept[:2].cpu().expand(network.nodes, 1, -1))
    phase = groups.phases_in(network, drawn)[0]
    k, size = next(((k, size) for k, (steps, size) in enumerate(batch_plans.sizes(drawn.batch)) if steps), (0, 0))
    if not size:
        raise ValueError("someone must train in round 0, on which the model is checked; its batches are all empty.")
    inputs = load(network, phase, [k], group=Group(network.learner, (k,), 1, size))
    stochastic = _draws_at_random(network, inputs)
    _check_evaluation_is_not_random(network, inputs)
    network = replace(network, learner=replace(network.learner, stochastic=stochastic))
    network = replace(network, groups=groups.groups_of(network, drawn.batch, optimizers))
    if network.strategy == "auto":
        best = set[str]()
        for phase, group in groups.uniform_parts(network, drawn):
            rows = groups.with_own_state(group, rows_of(network.initial, list(group.nodes)))
            best.add(choose(group.learner, rows, load(network, phase, group.nodes, group=group)))
        return replace(network, strategy="loop" if "loop" in best else best.pop())
    lookup(STRATEGIES, network.strategy, "strategy")
    if stochastic and network.strategy != "loop":
        raise ValueError(
            f"a model that draws random numbers (dropout) must run in a loop, which seeds each participant separately; "
            f"found strategy {network.strategy!r}. Use 'loop' or 'auto'."
        )
    return network


def _draws_at_random(network: Network, inputs: LocalInputs) -> bool:
    """Whether the model draws at random in training: two seeds give different outputs, or the generator advances."""
    first, x, y = rows_of(network.initial, 0), at(inputs.x, (0, 0)), inputs.y[0, 0]
    template, labels, outputs, moved = network.learner, len(network.data.classes), [], False
    parameters = dict(unflatten(template.training, first.theta))
    try:
        for seed in (1, 2):
            with torch.no_grad(), seeded(seed, network.device):
                before = state_of(network.device)
                outputs.append(outputs_of(parameters, template, first.buffers, x)[0])
                # the draws may have no effect at first: adapters (LoRA) start at zero
                moved |= not all(map(torch.equal, before, state_of(network.device)))
                value = template.loss(outputs[-1], y)
                if labels:  # else a rare label that is out of bounds would only fail in the middle of the run
                    template.loss(outputs[-1], torch.full_like(y, labels - 1))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        below = f" below {labels}" if labels else ""
        inputs_of = list(x.shape) if isinstance(x, Tensor) else described(x)
        shapes = f"inputs {inputs_of} and targets {list(y.shape)}{below}"
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        raise ValueError(f"model and loss must take a batch of {shapes}; they raised: {reason}") from error
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(f"the loss must return a tensor; found {kind}. Remove .item(), float() and the like.")
    if value.dim() != 0:
        raise ValueError(f"the loss must be a scalar; found shape {list(value.shape)}. Use e.g. .mean().")
    return moved or not torch.equal(*outputs)


def _check_evaluation_is_not_random(network: Network, inputs: LocalInputs) -> None:
    """Only training draws from seeds of each participant; what is measured must be the same each time."""
    learner, first = network.learner, rows_of(network.initial, 0)
    tensors = {**dict(unflatten(learner.evaluating, first.theta)), **first.buffers}
    with torch.no_grad(), seeded(1, network.device):
        before = state_of(network.device)
        forward(learner.evaluating, tensors, at(inputs.x, (0, 0)), learner.compute)
        if not all(map(torch.equal, before, state_of(network.device))):
            raise ValueError(
                "the model draws random numbers in evaluation mode, too, so nothing measured could be repeated. Let "
                "it draw in training only, e.g. by F.dropout(x, p, training=self.training)."
            )


def _device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}. Use 'cpu' or 'cuda'.") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"the device must be 'cpu' or 'cuda'; found {str(name)!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("CUDA was requested, but torch finds no CUDA device. Use the device 'cpu'.")
    return device


def weights(q: Tensor | Sequence[float] | None, nodes: int) -> Tensor:
    """The participants' weights, checked; equal by default."""
    q = torch.as_tensor([1 / nodes] * nodes if q is None else q, dtype=torch.float64)
    if q.shape != (nodes,) or not bool((q >= 0).all()) or abs(float(q.sum()) - 1) > 1e-6:
        raise ValueError(
            f"q must be {nodes} weights, at least 0, that sum to 1; found shape {tuple(q.shape)}, "
            f"sum {float(q.sum()):.6g}."
        )
    return q


def _initial(
    model: Model, made: nn.Module, init: str | Tensor | Sequence[nn.Module], nodes: int, rows: Sequence[int], seed: int,
    template: Learner, optimizers: Sequence[Optimizer],
) -> Participants:  # fmt: skip
    """What the participants in `rows` carry before the first round."""
    if isinstance(init, str):
        shared = lookup({"shared": True, "own": False}, init, "initialisation")
        each = [flatten(made)] if shared else [flatten(_fresh_model(model, seed, k)) for k in rows]
        theta = torch.stack(each).expand(len(rows), -1)
    else:
        theta = init if isinstance(init, Tensor) else torch.empty(0, 0)
        if not isinstance(init, Tensor) and init:
            check_same_frozen(init)
            theta = torch.stack([flatten(module) for module in init])
        if theta.shape != (nodes, template.size):
            needed = f"[{nodes}, {template.size}], a row for each participant"
            raise ValueError(f"initial parameters must be {needed}; found {list(theta.shape)}.")
        theta = theta[list(rows)]
    theta = theta.to(flatten(template.training)).clone(memory_format=torch.contiguous_format)
    holders = [template.training] * len(rows) if isinstance(init, (str, Tensor)) else [init[k] for k in rows]
    buffers = {
        name: torch.stack([holder.get_buffer(name).detach() for holder in holders]).to(b)
        for name, b in template.training.named_buffers()
    }
    return Participants(theta, groups.initial_state(theta, optimizers), buffers)


def _fresh_model(model: Model, seed: int, node: int) -> nn.Module:
    """A newly initialised model, drawn from (seed, node) alone; a module is copied and its parameters reset."""
    with seeds.initialisation(seed, "parameters", node):
        if not isinstance(model, nn.Module):
            return models.make(model)
        fresh = deepcopy(model).to("cpu", torch.float32)
        before = flatten(fresh)
        for module in fresh.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        if torch.equal(before, flatten(fresh)):
            raise ValueError(
                "init='own' must draw new parameters; this model has no reset_parameters. Pass a function making it."
            )
        return fresh
