"""Participants that differ in optimizer, number of local steps or batch size.

Local work runs group by group, so that all rows of a group have one shape, and the results are put together again. If
somebody's batch size or learning rate changes within a round, steps run phase by phase, each with its own groups.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice import optimizers
from cascadice.data import batches
from cascadice.data.batches import PADDING
from cascadice.data.inputs import at
from cascadice.engine.learner import Alphas
from cascadice.engine.networks import Group, Network, Nodes
from cascadice.engine.rounds import Draw
from cascadice.optimizers import Optimizer, State

T = TypeVar("T")


def optimizers_of(given: Any, nodes: int) -> list[Optimizer]:
    """The optimizer of each participant; equal names share one object."""
    if isinstance(given, (str, Optimizer)) or not isinstance(given, Sequence):
        return [optimizers.resolve(given)] * nodes
    if len(given) != nodes:
        raise ValueError(
            f"there must be an optimizer for each of {nodes} participants, or one for all; found {len(given)}."
        )
    named = {name: optimizers.resolve(name) for name in given if isinstance(name, str)}
    return [named[each] if isinstance(each, str) else optimizers.resolve(each) for each in given]


def groups_of(network: Network, batch: Tensor, optimizers: Sequence[Optimizer]) -> tuple[Group, ...]:
    """Group the participants that work alike; () if all do. If the network is `uneven`, only optimizers count."""
    batch = batch.clamp(min=0) if network.uneven else batch  # ignore padding: it differs from round to round
    each = list(optimizers) or [network.learner.optimizer] * network.nodes
    kinds: dict[tuple[int, int, int], list[int]] = {}
    for k, (steps, size) in enumerate(batches.sizes(batch)):
        kinds.setdefault((id(each[k]), steps, size), []).append(k)
    if len(kinds) == 1 and PADDING not in batch:
        return ()
    learners = {id(optimizer): replace(network.learner, optimizer=optimizer) for optimizer in each}
    return tuple(
        Group(learners[key], tuple(nodes), steps, size, tuple(each[nodes[0]].init(network.initial.theta[:1])))
        for (key, steps, size), nodes in kinds.items()
    )


def phases_in(network: Network, drawn: Draw) -> list[Draw]:
    """The phases of a round: one, unless a watched participant's steps differ in batch size or learning rate."""
    steps = drawn.batch.shape[1]
    if not network.uneven or steps == 1:
        return [drawn]
    size = (drawn.batch != PADDING).sum(2)
    changes = ((size[:, 1:] != size[:, :-1]) & (size[:, 1:] > 0)).any(0)
    if isinstance(lr := drawn.lr, Tensor) and lr.dim() > 1:
        changes |= (lr[:, 1:] != lr[:, :-1]).any(0).cpu()
    cuts = [0, *(changes.nonzero().flatten() + 1).tolist(), steps]
    phases = list[Draw]()
    for first, end in pairwise(cuts):
        generators = tuple(own[first:end] for own in drawn.generators)
        rate = lr[:, first] if isinstance(lr, Tensor) and lr.dim() > 1 else lr
        phases.append(drawn._replace(batch=drawn.batch[:, first:end], generators=generators, lr=rate, first_step=first))
    return phases


def weights_in(phase: Draw, samples: Alphas) -> Alphas:
    """The samples' weights [rows, steps, batch] in the steps of a phase."""
    return (samples[0][:, phase.first_step : phase.first_step + phase.batch.shape[1]],) if samples else ()


def groups_in(network: Network, drawn: Draw) -> tuple[Group, ...]:
    """The groups of a phase: the network's, split further by batch size and number of steps if it is uneven."""
    everybody = (Group(network.learner, tuple(range(network.nodes))),)
    if not network.uneven:
        return network.groups or everybody
    sizes, parts = batches.sizes(drawn.batch), list[Group]()
    for group in network.groups or everybody:
        for steps, size in dict.fromkeys(sizes[k] for k in group.nodes):
            nodes = tuple(k for k in group.nodes if sizes[k] == (steps, size))
            parts += [group._replace(nodes=nodes, steps=steps, size=size)] if steps else []
    return tuple(parts)


def uniform_parts(network: Network, drawn: Draw) -> Iterator[tuple[Draw, Group]]:
    """A round's local work in parts of one shape: (the draw of a phase, a group in it)."""
    return ((phase, group) for phase in phases_in(network, drawn) for group in groups_in(network, phase))


def initial_state(theta: Tensor, optimizers: Sequence[Optimizer]) -> State:
    """The state of all optimizers; a participant keeps the initial value of any state its optimizer does not use."""
    state: State = {}
    for k, optimizer in enumerate(optimizers):
        for name, value in optimizer.init(theta[k : k + 1]).items():
            rows = state.setdefault(name, value.expand(len(optimizers), *value.shape[1:]).clone())
            if rows.shape[1:] != value.shape[1:]:
                raise ValueError(f"optimizers that differ must name their state differently; {name!r} has two shapes.")
            rows[k] = value[0]
    return state


def over_groups(
    network: Network, drawn: Draw, nodes: Nodes, given: tuple[Any, ...], like: T, run: Callable[[Group, Nodes, Any], T]
) -> T:
    """Call `run(group, members, rows of given)` for each group, and put the results into a copy of `like`.

    What no group returns stays as it is in `like`: the state of other groups' optimizers, and rows of participants that
    do not train in this round. If all participants work alike, it is a single call, and nothing is copied.
    """
    if not network.groups and not network.uneven:
        return run(Group(network.learner), nodes, given)
    members = list(range(network.nodes)) if nodes is None else list(nodes)
    results: T = tree_map(torch.clone, like)
    for group in groups_in(network, drawn):
        own_nodes = frozenset(group.nodes)
        places = [place for place, k in enumerate(members) if k in own_nodes]
        if places:
            index = torch.tensor(places, device=network.device)
            own = tuple(with_own_state(group, part) if hasattr(part, "state") else part for part in at(given, index))
            _put(results, index, run(group, [members[place] for place in places], own))
    return results


def _put(results: Any, index: Tensor, part: Any) -> None:
    """Write `part` into these rows of `results`; its tensors may be smaller, as a batch in a padded one is."""
    if isinstance(results, dict):
        for name in part:
            _put(results[name], index, part[name])
    elif isinstance(results, Tensor):
        where: Any = (index, *(slice(length) for length in part.shape[1:]))
        results[where] = part.to(results.dtype)
    else:
        for place, value in zip(results, part, strict=True):
            _put(place, index, value)


def with_own_state(group: Group, rows: Any) -> Any:
    """The rows with only the state of the group's own optimizer."""
    return rows if group.state is None else rows._replace(state={name: rows.state[name] for name in group.state})
