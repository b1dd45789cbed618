"""Replay what processes wrote down, in the simulator, with the W that really happened."""

from itertools import groupby, pairwise, permutations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import networkx as nx
import torch

from cascadice.engine.learner import Participants
from cascadice.engine.networks import draw
from cascadice.engine.operator import Operator
from chaos.worker import NODES, PARTS, PATIENCE, PROCESS_FAULTS, RANKS, lines, tensor, whole

Logs = list[list[dict[str, Any]]]
CLOSE = 1e-10
LATER = 9  # rounds in which a process notices that it was held up, or comes into step on its return
AFTER = 3  # rounds in which a fault can cost time


class Fault(NamedTuple):
    """What happened to a process in a round, and what it cost the others.

    Attributes:
        lost: Rounds that others missed.
        seconds: By how much the slowest of the next rounds of the others was slower than usual.
        verified: Whether all rounds until the next fault are those of the simulator.
    """

    kind: str
    rank: int
    t: int
    lost: int
    seconds: float
    verified: bool


def read(folder: Path) -> Logs:
    """The log of every process."""
    return [list(lines(folder / f"{rank}.jsonl")) for rank in range(RANKS)]


def verified(logs: Logs, rounds: int, graph: str) -> list[float]:
    """How far processes were from the simulator in each round, at most."""
    net, operator = whole(graph), Operator(whole(graph))
    here, gaps = net.initial, []
    by_round = [{line["t"]: line for line in log if "rows" in line} for log in logs]
    for t in range(rounds):
        W, took_part = torch.eye(NODES, dtype=torch.float64), torch.zeros(NODES, dtype=torch.bool)
        entries = [(list(part), own[t]) for part, own in zip(PARTS, by_round, strict=True) if t in own]
        for part, entry in entries:
            W[part], took_part[part] = tensor(entry["rows"]), True
        after = operator.apply(draw(net, t)._replace(W=W), here).after
        after = where(took_part, after, here)
        gap = 0.0
        for part, entry in entries:
            if entry.get("joined"):
                _renew(after, net.initial, part, W)
            gap = max(gap, float((after.theta[part] - tensor(entry["theta"])).abs().max()))
        gaps.append(gap)
        here = after
    return gaps


def where(chosen: torch.Tensor, these: Participants, those: Participants) -> Participants:
    def pick(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.where(chosen.view(-1, *[1] * (one.dim() - 1)), one, other)

    state = {name: pick(value, those.state[name]) for name, value in these.state.items()}
    return Participants(pick(these.theta, those.theta), state, these.buffers)


def _renew(after: Participants, initial: Participants, part: list[int], W: torch.Tensor) -> None:
    """A newcomer has no optimizer state, and initial parameters where it heard nobody."""
    for name, value in after.state.items():
        value[part] = initial.state[name][part]
    for k in part:
        if float(W[k, k]):
            after.theta[k] = initial.theta[k]


def faults(logs: Logs, rounds: int, graph: str) -> list[Fault]:
    """Every fault that happened, with what it cost."""
    gaps, lost, spent = verified(logs, rounds, graph), left_out(logs, rounds, graph).lost, _seconds(logs)
    events = sorted(
        {(line["t"], rank, line["fault"]) for rank, log in enumerate(logs) for line in log if "fault" in line}
    )
    usual = median(seconds for own in spent for seconds in own.values())
    found = []
    for number, (t, rank, kind) in enumerate(events):
        others = [own.get(t + later, 0.0) for q, own in enumerate(spent) if q != rank for later in range(AFTER)]
        until = events[number + 1][0] if number + 1 < len(events) else rounds
        missed = sum(q != rank and t <= start < max(until, t + 1) for q, start in lost)
        good = max(gaps[t : until + 1], default=0.0) < CLOSE
        found.append(Fault(kind, rank, t, missed, max(0.0, max(others) - usual), good))
    return found


class Unheard(NamedTuple):
    """Rounds in a row in which a process did not hear another.

    Attributes:
        waited: Whether the receiver had waited in the first of them until its patience ended.
    """

    receiver: int
    source: int
    rounds: tuple[int, ...]
    waited: bool


def unheard(logs: Logs, rounds: int, graph: str) -> list[Unheard]:
    """Where a process did not hear another, though nothing had happened to either."""
    there = [{line["t"]: tensor(line["rows"]) for line in log if "rows" in line} for log in logs]
    unwell = _excused(logs, rounds, graph)[1]
    wrong = [{line["t"] + later for line in log if "fault" in line for later in (0, 1)} for log in logs]
    found, spent = [], _seconds(logs)
    for source, receiver in _links(graph).edges:
        excused = unwell[source] | unwell[receiver] | wrong[source]
        both = [t for t in there[receiver] if t in there[source] and t not in excused]
        missing = [t for t in both if not bool(there[receiver][t][:, list(PARTS[source])].any())]
        in_a_row = groupby(enumerate(missing), key=lambda each: each[1] - each[0])
        for ts in (tuple(t for _, t in group) for _, group in in_a_row):
            found.append(Unheard(receiver, source, ts, spent[receiver].get(ts[0], 0.0) > 0.9 * PATIENCE))
    return found


class LeftOut(NamedTuple):
    """Rounds, as (process, round), that processes left out although they were running.

    Attributes:
        own: After something had happened to that process itself: a fault, its return, or no processor for long.
        cut_off: After all ways from it to most others had led through processes of the first kind. Those who
            do not hear of one another go on at their own speed, and whoever is behind catches up when they do.
        lost: For no such reason: there must be none.
    """

    own: list[tuple[int, int]]
    cut_off: list[tuple[int, int]]
    lost: list[tuple[int, int]]


def left_out(logs: Logs, rounds: int, graph: str) -> LeftOut:
    """The rounds that processes left out, by why they may have."""
    unwell, excused = _excused(logs, rounds, graph)
    there = [{line["t"] for line in log if "rows" in line} for log in logs]
    absent = [(rank, t) for t in range(rounds) for rank in range(RANKS) if t not in there[rank]]
    own = [(rank, t) for rank, t in absent if t in unwell[rank]]
    cut_off = [(rank, t) for rank, t in absent if t in excused[rank] and t not in unwell[rank]]
    return LeftOut(own, cut_off, [(rank, t) for rank, t in absent if t not in excused[rank]])


def _excused(logs: Logs, rounds: int, graph: str) -> tuple[list[set[int]], list[set[int]]]:
    """For each process, the rounds in which something had just happened to it; those, and when it was cut off."""
    happened = [
        {line["t"] for line in log if line.get("fault") in PROCESS_FAULTS or line.get("joined") or "held" in line}
        for log in logs
    ]
    there = [{line["t"] for line in log if "rows" in line} for log in logs]
    unwell = [_since(*each, rounds) for each in zip(happened, there, strict=True)]
    linked = _links(graph)
    for t in range(rounds):
        for rank in _apart(linked.subgraph(rank for rank in range(RANKS) if t not in unwell[rank])):
            happened[rank].add(t)
    return unwell, [_since(*each, rounds) for each in zip(happened, there, strict=True)]


def _since(happened: set[int], there: set[int], rounds: int) -> set[int]:
    """The rounds from one in which something happened to a process until it has taken part in `LATER` more in a row."""
    found, since = set(), LATER + 1
    for t in range(rounds):
        since = 0 if t in happened or (t not in there and since <= LATER) else since + (t in there)
        if since <= LATER:
            found.add(t)
    return found


def _links(graph: str) -> "nx.DiGraph[int]":
    """Which process hears which."""
    W, found = whole(graph).mixing(0).to_dense(), nx.DiGraph()
    for (receiver, own), (source, part) in permutations(enumerate(PARTS), 2):
        if bool(W[list(own)][:, list(part)].any()):
            found.add_edge(source, receiver)
    return found


def _apart(linked: "nx.DiGraph[int]") -> list[int]:
    """Processes that do not hear of most others: all but the largest group, or all where no group is the largest."""
    groups = sorted(nx.strongly_connected_components(linked), key=len, reverse=True)
    largest = [groups[0]] if groups and (len(groups) == 1 or len(groups[0]) > len(groups[1])) else []
    return [rank for group in groups if group not in largest for rank in group]


def held_up(logs: Logs) -> list[float]:
    """The seconds for which processes got no processor, each time."""
    return [line["held"] for log in logs for line in log if "held" in line]


def _seconds(logs: Logs) -> list[dict[int, float]]:
    """How long each round of each process took; those after a gap are left out."""
    spent = []
    for log in logs:
        at = [(line["t"], line["at"]) for line in log if "rows" in line]
        spent.append({t: end - start for (before, start), (t, end) in pairwise(at) if t == before + 1})
    return spent
