"""Replay what the folders of processes say, in the simulator, with the W that really happened."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice.engine import evaluate
from cascadice.engine.exchange.messages import EARLY
from cascadice.engine.exchange.routes import renormalised
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network, draw
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Round
from cascadice.runs import store
from cascadice.runs.config import build
from cascadice.runs.distributed.departures import read_departures, really
from cascadice.runs.distributed.processes import folder_name
from chaos.launched import Kill, config
from chaos.verify import AFTER, CLOSE, LATER, Fault, where
from chaos.worker import NODES, PARTS, RANKS

LAUNCHED = "killed under torchrun"


class Verdict(NamedTuple):
    """What was found: each kill with what it cost, and what is wrong beside."""

    faults: list[Fault]
    problems: list[str]


def judge(folder: Path, kills: Sequence[Kill]) -> Verdict:
    """Compare the folders of a run with the simulator, round by round."""
    settings = config(len(kills))
    places, network = [folder / "run" / folder_name(rank) for rank in range(RANKS)], build(settings)
    rounds = settings.rounds or 0
    gaps, problems = replay(network, places, kills, rounds)
    absent = [sorted(set(range(rounds)) - set(store.saved_rounds(place))) for place in places]
    for place, away in zip(places, absent, strict=True):
        problems += _wrong_departures(network, place, away)
    gone = {kill.rank: _gone(kill, absent[kill.rank]) for kill in kills}
    lost = [(rank, t) for rank, away in enumerate(absent) for t in away if t not in gone.get(rank, ())]
    problems += [f"process {rank}, started by torchrun, lost round {t}" for rank, t in lost]
    faults, starts = [], [min(gone[kill.rank]) for kill in kills]
    for kill, t, until in zip(kills, starts, [*starts[1:], rounds], strict=True):
        missed = sum(t <= when < until for rank, when in lost if rank != kill.rank)
        good = max(gaps[t:until], default=0.0) < CLOSE
        faults.append(Fault(LAUNCHED, kill.rank, t, missed, _seconds(places, kill), good))
    if max(gaps[: starts[0]], default=0.0) >= CLOSE:
        problems.append("before anybody was killed, processes that torchrun started are not the simulator")
    return Verdict(faults, problems)


def _gone(kill: Kill, absent: Sequence[int]) -> set[int]:
    """The rounds that a process which was killed has no record of, until it is in step again."""
    first = absent[0] if absent else max(store.saved_rounds(kill.rounds)) + 1
    back = next((t for t, after in pairwise([*absent, 10**9]) if after > t + LATER), first)
    return set(range(first, back + 1))


def replay(
    network: Network, places: Sequence[Path], kills: Sequence[Kill], rounds: int
) -> tuple[list[float], list[str]]:
    """How far parameters and metrics are from the simulator's in each round; and who came back with a wrong model."""
    operator, here, gaps, problems = Operator(network), network.initial, list[float](), list[str]()
    found = [_recorded(place, [kill.rounds for kill in kills if kill.rank == r]) for r, place in enumerate(places)]
    metrics = [{one.t: one for one in store.read_metrics(place)} for place in places]
    halves: dict[int, Participants] = {}
    for t in range(rounds):
        W, took_part = torch.eye(NODES, dtype=torch.float64), torch.zeros(NODES, dtype=torch.bool)
        there = {rank: store.load_round(own[t], t) for rank, own in enumerate(found) if t in own}
        for rank, round_ in there.items():
            part = list(PARTS[rank])
            if t and t - 1 not in found[rank] and t - EARLY in halves and not _same(round_, here, part):
                if not _heard(network, halves[t - EARLY], t - EARLY, rank, round_):
                    problems.append(f"process {rank} came back in round {t} with models that nobody sent")
                _put(here, round_.before, part)
            W[part], took_part[part] = round_.W.to_dense()[part].to(W), True
        again = operator.apply(draw(network, t)._replace(W=W), here)
        here, halves[t] = where(took_part, again.after, here), again.half
        halves.pop(t - EARLY - 1, None)
        again = again._replace(after=here)
        there_now = ((list(PARTS[rank]), round_, metrics[rank].get(t)) for rank, round_ in there.items())
        gaps.append(max((_gap(network, again, *each) for each in there_now), default=0.0))
    return gaps, problems


def _gap(network: Network, again: Round, part: list[int], round_: Round, measured: store.RoundMetrics | None) -> float:
    """How far what a process recorded and measured in a round is from the simulator's."""
    pairs = [(again.half.theta, round_.half.theta), (again.after.theta, round_.after.theta)]
    if measured is not None:
        pairs.append((again.loss, measured.train_loss))
        if measured.test is not None:
            pairs.append((evaluate(network, again.after).loss, measured.test.loss))
    return max(float((all_[part] - own).abs().max()) for all_, own in pairs)


def _recorded(place: Path, lost: Sequence[Path]) -> dict[int, Path]:
    """Where each round of a process is recorded: in its folder, or in what was there before it was killed."""
    return {t: where for where in (*lost, place) for t in store.saved_rounds(where)}


def _same(round_: Round, here: Participants, part: list[int]) -> bool:
    return bool((round_.before.theta - here.theta[part]).abs().max() < CLOSE)


def _put(here: Participants, before: Participants, part: list[int]) -> None:
    """What a process that came back began with: new optimizer state, too."""
    here.theta[part] = before.theta
    for name, value in here.state.items():
        value[part] = before.state[name]


def _heard(network: Network, half: Participants, t: int, rank: int, round_: Round) -> bool:
    """Whether a process came back with the average of what some of the others sent in round t."""
    own = torch.tensor(PARTS[rank])
    for came in _some(rank):
        expected = renormalised(network.mixing(t).to_dense()[own], came, own).to(half.theta) @ half.theta
        if float((expected - round_.before.theta).abs().max()) < CLOSE:
            return True
    return False


def _some(rank: int) -> Iterator[Tensor]:
    """Flags of the participants of all others, of all but one of them, and so on."""
    others = [other for other in range(RANKS) if other != rank]
    for count in range(len(others), 0, -1):
        for chosen in combinations(others, count):
            came = torch.zeros(NODES, dtype=torch.bool)
            came[[k for other in chosen for k in PARTS[other]]] = True
            yield came


def _wrong_departures(network: Network, place: Path, away: list[int]) -> list[str]:
    """What departures.json says otherwise than the recorded rounds."""
    said, own = read_departures(place), list(PARTS[int(place.name[5:])])
    mixing = really(network.mixing, [said.rows])
    wrong = [
        f"{place.name} departs from its plan in round {t} otherwise than it recorded"
        for t in store.saved_rounds(place)
        if not torch.equal(mixing(t).to_dense()[own].double(), store.load_draw(place, t).W.to_dense()[own].double())
    ]
    listed = sorted(set(said.away))
    return wrong + ([f"{place.name} was away in {away}; it says {listed}"] if listed != away else [])


def _seconds(places: Sequence[Path], kill: Kill) -> float:
    """By how much the slowest of the rounds that the others finished next was slower than usual."""
    slowest = []
    for rank, place in enumerate(places):
        if rank != kill.rank:
            times = sorted(path.stat().st_mtime for path in (place / "rounds").glob("*.safetensors"))
            steps = [(end, end - start) for start, end in pairwise(times)]
            usual = median(took for end, took in [s for s in steps if s[0] < kill.at][-10:])
            slowest += [took - usual for end, took in steps if end >= kill.at][:AFTER]
    return max(0.0, *slowest)
