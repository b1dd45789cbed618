"""Perturbations on their way through the network: who has been reached, and what the rounds do to what arrived."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import jvp
from torch.utils._pytree import tree_map

from cascadice.engine import behaviours as behaviour
from cascadice.engine.fast.rows import Local, local_work, over_rows, seeded
from cascadice.engine.fast.tape import twice_differentiable
from cascadice.engine.learner import Learner, Participants, forward, local_steps, unflatten
from cascadice.engine.networks import Network, load
from cascadice.engine.rounds import Round
from cascadice.influence.measures import per_sample
from cascadice.optimizers import State
from cascadice.topology import links
from cascadice.topology.mixing import product


class Carried(NamedTuple):
    """A change of (parameters, optimizer state) for every (receiver, source) pair inside the sources' light cones."""

    nodes: Int[Tensor, " p"]
    sources: Int[Tensor, " p"]
    theta: Float[Tensor, "p d"]
    state: State


def spread(W: Float[Tensor, "n n"], half: Carried) -> Carried:
    """Gossip: δ_k = Σ_l W[k, l] δ_l for everyone whom a source has now reached; state stays. Cost: links × d."""
    n, device = W.shape[0], half.theta.device
    nodes, sources = half.nodes.cpu(), half.sources.cpu()
    row, weights, receivers = _outgoing(W, nodes)
    had = sources * n + nodes
    hears = sources[row] * n + receivers
    # whose state changed stays in the cone, even where nothing of its parameters comes back to it
    reached = torch.unique(torch.cat([hears, had]) if half.state else hears)
    to = torch.searchsorted(reached, hears)
    where, size = torch.stack([to, row]), (len(reached), len(nodes))
    mixing = torch.sparse_coo_tensor(where, weights.to(half.theta.dtype), size, check_invariants=False).to(device)
    state = {name: _kept(value, had, reached) for name, value in half.state.items()}
    theta = product(mixing, half.theta)
    return Carried((reached % n).to(device), (reached // n).to(device), theta, state)


def _outgoing(W: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every link that leaves one of `nodes`: which entry of `nodes` it leaves, its weight, whom it reaches."""
    receivers, senders, weights = (column.cpu() for column in links(W))
    order = senders.argsort(stable=True)
    degree = senders.bincount(minlength=W.shape[0])
    row = torch.arange(len(nodes)).repeat_interleave(degree[nodes])
    within = torch.arange(len(row)) - (degree[nodes].cumsum(0) - degree[nodes])[row]
    link = order[(degree.cumsum(0) - degree)[nodes][row] + within]
    return row, weights[link], receivers[link]


def _kept(value: Tensor, had: Tensor, reached: Tensor) -> Tensor:
    """State does not travel: a pair has what it had, and one just reached has none."""
    fresh = value.new_zeros(len(reached), *value.shape[1:])
    place = torch.searchsorted(reached, had).clamp(max=len(reached) - 1)
    still = reached[place] == had
    fresh[place[still].to(value.device)] = value[still.to(value.device)]
    return fresh


def moved(done: Round, change: Carried) -> Participants:
    """The participants before this round with the change added, a row for each pair."""
    here: Participants = tree_map(lambda tensor: tensor[change.nodes], done.before)
    state = {name: value + change.state[name] for name, value in here.state.items()}
    return Participants(here.theta + change.theta, state, here.buffers)


def replay(network: Network, done: Round, change: Carried) -> Carried:
    """What the local work of the round makes of the change: exactly, by doing it again. Cost: a step a pair."""
    fetch = _fetch(network, done, change.nodes.tolist())
    again, _, _ = local_work(row_strategy(network, len(change.nodes)), network.learner)(
        moved(done, change), fetch, None
    )
    return _difference(network, done, change._replace(theta=again.theta, state=again.state))


def _difference(network: Network, done: Round, again: Carried) -> Carried:
    """From what the recorded local work made of everyone to what it is `again`."""
    once: Participants = tree_map(lambda tensor: tensor[again.nodes], done.half)
    theta, nodes = again.theta - once.theta, again.nodes.tolist()
    noise = behaviour.noise(network.behaviours, done.t, nodes, once.theta, network.seed) if network.behaviours else {}
    for row, added in noise.items():  # it is added to both, after the step
        theta[row] += added
    return again._replace(theta=theta, state={name: again.state[name] - value for name, value in once.state.items()})


def without_samples(network: Network, first: Round, source: int, places: Sequence[int]) -> Carried:
    """What the source's local step would leave changed if one sample's term had weight 0 in the batch mean, a row each.

    Cost: a step for each sample.
    """
    mine, inputs = tree_map(lambda tensor: tensor[source], first.before), load(network, first.draw, [source])
    x, y, lr, conduct = tree_map(lambda tensor: tensor[0], inputs[:4])
    size = y.shape[1]
    chosen = torch.tensor(places, device=x.device)
    weights = (chosen[:, None] != torch.arange(size, device=x.device)).to(mine.theta.dtype) / size
    seed = inputs.seeds[0] if inputs.seeds else None
    # torch's generator, which dropout draws from, is one for all threads
    workers = None if seed is None else 1
    shared = (mine, x, y, lr, conduct, seed)
    rows = over_rows(_weighted_steps, network.strategy, network.learner, *shared, workers=workers)
    theta, state = rows(weights)
    nodes = torch.full_like(chosen, source)
    return _difference(network, first, Carried(nodes, torch.arange(len(places), device=x.device), theta, state))


def _weighted_steps(
    learner: Learner,
    weights: Tensor,
    mine: Participants,
    x: Tensor,
    y: Tensor,
    lr: Tensor,
    conduct: Any,
    seed: int | None,
) -> tuple[Tensor, State]:
    """Local work with these weights of the samples in the loss, in place of its mean."""
    each = per_sample(learner.loss)
    weighted = replace(learner, loss=lambda outputs, targets: (weights * each(outputs, targets)).sum())
    with seeded(seed, weights.device):
        done, _ = local_steps(weighted, mine, x, y, lr, conduct)
    return done.theta, done.state


def push(network: Network, done: Round, at: Carried, tangent: Carried) -> Carried:
    """What the local work makes of an infinitesimal change: the derivative of the whole step at (before + at), applied.

        δ^{t+½} = (I − η H) δ^t       for SGD; for optimizers with state, of the pair (θ, state)

    Cost: a Hessian-vector product a pair.
    """
    check_differentiable(network)
    inputs = _fetch(network, done, at.nodes.tolist())(None)
    rows = over_rows(_pushed, network.strategy, network.learner, workers=1)
    given = (moved(done, at), tangent.theta, tangent.state, inputs.x, inputs.y, inputs.lr, inputs.conduct)
    with twice_differentiable():
        theta, state = rows(*given)
    return tangent._replace(theta=theta, state=state)


def _pushed(
    learner: Learner, mine: Participants, theta: Tensor, state: State, x: Tensor, y: Tensor, lr: Tensor, conduct: Any
) -> Any:
    step = step_of(learner, mine, x, y, lr, conduct)
    there, change = jvp(step, (mine.theta, mine.state), (theta, state))
    # forward mode makes float64 of a float32 scalar (a count of steps) times a number
    return tree_map(lambda tangent, like: tangent.to(like.dtype), change, there)


def step_of(learner: Learner, mine: Participants, x: Tensor, y: Tensor, lr: Tensor, conduct: Any) -> Callable[..., Any]:
    """(θ, state) -> (θ, state): one participant's local work as a function of what it carries."""

    def step(theta, state):  # type: ignore[no-untyped-def]
        done, _ = local_steps(learner, Participants(theta, state, mine.buffers), x, y, lr, conduct)
        return done.theta, done.state

    return step


def check_differentiable(network: Network) -> None:
    """Derivatives need the same masks twice in one pass; a model that draws inside its passes has none."""
    if network.learner.stochastic:
        raise ValueError(
            "derivatives of a model that draws at random (dropout) are not defined; use the ground truth, "
            "which replays the recorded seeds, or a model without dropout."
        )


def check_samples_are_apart(network: Network) -> None:
    """A sample has a part of its own in an update in which no other sample's output depends on it."""
    for name, module in network.learner.training.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{name!r} is a BatchNorm: in training it makes every sample's output depend on the whole batch, so a "
                "sample has no score of its own. Score participants, or use GroupNorm."
            )
    _check_mean(network)


_means: MutableMapping[Learner, bool] = WeakKeyDictionary()


def _check_mean(network: Network) -> None:
    """A sample has a part in a loss that is the mean of its samples' losses. Looked at once."""
    learner = network.learner
    if learner not in _means:
        _means[learner] = _is_mean(network)
    if not _means[learner]:
        raise ValueError(
            "scores of samples are parts of a loss that is the mean of its samples' losses; this one is not. Leave out "
            'class weights and use reduction="mean", or score participants.'
        )


@torch.no_grad()
def _is_mean(network: Network) -> bool:
    learner, train = network.learner, network.data.train
    x, y = train.take(torch.arange(min(8, len(train)), device=network.device))
    x = x.to(network.initial.theta.dtype) if x.is_floating_point() else x
    theta, _, buffers = tree_map(lambda tensor: tensor[0], network.initial)
    outputs = forward(learner.evaluating, {**dict(unflatten(learner.evaluating, theta)), **buffers}, x, learner.compute)
    # no two alike, as those of a model that has not learnt may be
    outputs = outputs + torch.arange(outputs.numel(), device=outputs.device).cos().view(outputs.shape).to(outputs)
    whole, each = learner.loss(outputs, y), per_sample(learner.loss)(outputs, y)
    return bool((whole - each.mean()).abs() <= torch.finfo(outputs.dtype).eps ** 0.5 * each.abs().max())


AGAIN = 0.1  # relative to the update, what rounding may change in a step made again: bfloat16 has three digits
SOME = 4  # participants whose work is made again
OTHER = "Build the network that was recorded: the same model, data, loss, optimizer and seed."


def check_replays(network: Network, done: Round, many: int = SOME) -> None:
    """The local work of some participants, made again, must end where it did. Cost: a step of each."""
    taken = done.draw.conduct[0] if done.draw.conduct else torch.ones(network.nodes)
    worked = (taken == taken.max()).nonzero().flatten()
    nodes = worked[torch.linspace(0, len(worked) - 1, min(many, len(worked))).round().long()].to(done.loss.device)
    last, held = int(done.draw.batch.max()), len(network.data.train)
    if last >= held:
        raise ValueError(f"round {done.t} drew sample {last}; the network has {held}. {OTHER}")
    still: Participants = tree_map(lambda tensor: torch.zeros_like(tensor[nodes]), done.before)
    nothing = Carried(nodes, torch.zeros_like(nodes), still.theta, still.state)
    before, half = done.before.theta[nodes], done.half.theta[nodes]
    allowed = AGAIN * (half - before).norm(dim=1) + 4 * torch.finfo(before.dtype).eps * before.norm(dim=1)
    missed = replay(network, done, nothing).theta
    astray = ~(missed.norm(dim=1) <= allowed)  # what is no number is astray, too
    if not bool(astray.any()):
        return
    steady = bool(((missed - replay(network, done, nothing).theta).norm(dim=1) <= allowed).all())
    restless = "The model draws at random, and not from torch's generator: let it draw from there, or not at all."
    raise ValueError(
        f"the local work of participant {int(nodes[astray][0])} in round {done.t}, made again, must end where it did; "
        f"it does not. {OTHER if steady else restless}"
    )


def row_strategy(network: Network, rows: int | None = None) -> str:
    """How to replay: the number of pairs changes from hop to hop, and would be compiled for again and again."""
    return "loop" if network.strategy == "loop" or rows == 1 else "vmap"


def _fetch(network: Network, done: Round, nodes: Sequence[int]) -> Callable[[list[int] | None], Local]:
    return lambda rows: load(network, done.draw, nodes if rows is None else [nodes[row] for row in rows])
