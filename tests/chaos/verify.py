"""Replay what processes wrote down, in the simulator, with the W that really happened."""

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from cascadice.engine.learner import Participants
from cascadice.engine.networks import draw
from cascadice.engine.operator import Operator
from chaos.worker import NODES, PARTS, PROCESS_FAULTS, RANKS, lines, tensor, whole

CLOSE = 1e-10
LATER = 9  # rounds until a process notices that it was held up
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


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """The log of every process."""
    return [list(lines(folder / f"{rank}.jsonl")) for rank in range(RANKS)]


def verified(logs: list[list[dict[str, Any]]], rounds: int, graph: str) -> list[float]:
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
        after = _where(took_part, after, here)
        gap = 0.0
        for part, entry in entries:
            if entry.get("joined"):
                _renew(after, net.initial, part, W)
            gap = max(gap, float((after.theta[part] - tensor(entry["theta"])).abs().max()))
        gaps.append(gap)
        here = after
    return gaps


def _where(chosen: torch.Tensor, these: Participants, those: Participants) -> Participants:
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


def faults(logs: list[list[dict[str, Any]]], rounds: int, graph: str) -> list[Fault]:
    """Every fault that happened, with what it cost."""
    gaps, lost, spent = verified(logs, rounds, graph), lost_rounds(logs, rounds), _seconds(logs)
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


def lost_rounds(logs: list[list[dict[str, Any]]], rounds: int) -> list[tuple[int, int]]:
    """(process, round) of rounds missed by a process that nothing had happened to."""
    missed = []
    for rank, log in enumerate(logs):
        there = {line["t"] for line in log if "rows" in line}
        own = {line["t"] for line in log if line.get("fault") in PROCESS_FAULTS or line.get("joined")}
        since = LATER + 1  # rounds since something happened to it, or it was away for that reason
        for t in range(rounds):
            since = 0 if t in own else since + (t in there)
            if t not in there and since > LATER:
                missed.append((rank, t))
            elif t not in there:
                since = 0
    return missed


def _seconds(logs: list[list[dict[str, Any]]]) -> list[dict[int, float]]:
    """How long each round of each process took; those after a gap are left out."""
    spent = []
    for log in logs:
        at = [(line["t"], line["at"]) for line in log if "rows" in line]
        spent.append({t: end - start for (before, start), (t, end) in pairwise(at) if t == before + 1})
    return spent
