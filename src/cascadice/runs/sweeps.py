"""Run the sweeps for a question about the final models, saving progress so that a stopped command can continue.

A folder of unfinished sweeps
    at-0.5.safetensors           the scores of the sweep at α = 0.5 so far; if it has not ended, its adjoint too
    at-0.5/000040.safetensors    participants before round 40 of the run at 0.5, to train it again from there
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map

from cascadice import files
from cascadice.console import Console, counting, say
from cascadice.engine.backwards import bytes_kept
from cascadice.engine.evaluation import Evaluation
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Adjoint
from cascadice.files.tensors import read_tensors, write_tensors
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.tables import NOTE, Table, concatenate, table_of_drawn, table_of_participants
from cascadice.influence.weighted_run import WeightedRun, initial_value
from cascadice.influence.whole_run import (
    KeptScores,
    RoundScores,
    Sweep,
    WholeRun,
    doubt_of_slopes,
    from_kept,
    measures_loss,
    stack_rounds,
    sweep,
)
from cascadice.influence.whole_run_shares import share_out
from cascadice.runs import store
from cascadice.runs.question import Question, evaluate_on_first, question_note
from cascadice.runs.recording import Playable

UNFINISHED = "unfinished"
SHARES = "whole-run shares"
SAVE_SECONDS = 60.0


class Swept(NamedTuple):
    """The scores of each kind; for shares, the losses f(0) and f(1) whose difference they divide; doubt of slopes."""

    scores: dict[str, WholeRun]
    losses: tuple[float, ...] = ()
    doubt: str = ""


@dataclass(frozen=True)
class Checkpoints(MutableMapping[int, Participants]):
    """Checkpoints of `engine.backwards` on disk, one file each."""

    folder: Path
    device: torch.device

    def _path(self, t: int) -> Path:
        return self.folder / f"{t:06d}.safetensors"

    def __getitem__(self, t: int) -> Participants:
        if t not in self:
            raise KeyError(t)
        tensors, _ = read_tensors(self._path(t), None)
        return store.from_tensors("", {name: tensor.to(self.device) for name, tensor in tensors.items()})

    def __setitem__(self, t: int, participants: Participants) -> None:
        write_tensors(self._path(t), store.to_tensors("", participants), {"t": str(t)})

    def __delitem__(self, t: int) -> None:
        files.remove(self._path(t))

    def __contains__(self, t: object) -> bool:
        return isinstance(t, int) and self._path(t).exists()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdecimal()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass
class SavedSweep:
    """The scores of one sweep so far, last round first, and the folder they are saved in."""

    path: Path
    device: torch.device
    latest: Sweep | None = None
    kept: list[KeptScores] = field(default_factory=list)
    saved: float = field(default_factory=monotonic)

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the run that this sweep belongs to."""
        return Checkpoints(self.path.with_suffix(""), self.device)

    def unscored(self, rounds: int) -> int:
        """How many of the run's rounds have no scores yet."""
        return rounds if self.latest is None else self.latest.t

    def add(self, scores: RoundScores) -> None:
        """Add the scores of the next round; they are saved once a minute."""
        latest = tree_map(torch.clone, scores.sweep.adjoint)  # the next round is pulled back in its place
        self.kept.append(scores.kept)
        self.latest = scores.sweep._replace(adjoint=latest)
        if monotonic() - self.saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the sweep; one that has reached round 0 no longer needs its adjoint and checkpoints."""
        if self.latest is None:
            return
        t, adjoint, value = self.latest
        tensors = dict(zip(("participants", "samples", "drawn"), stack_rounds(self.kept), strict=True))
        if t > 0:
            tensors |= {"theta": adjoint.theta, **{f"state.{name}": v for name, v in adjoint.state.items()}}
        write_tensors(self.path, tensors, {"t": str(t), "value": repr(value)})
        if t == 0:
            files.remove(self.checkpoints.folder)
        self.saved = monotonic()

    def result(self) -> WholeRun:
        """The result of a finished sweep."""
        assert self.latest is not None
        return from_kept(self.kept, self.latest)


def open_sweep(folder: Path, at: float, device: torch.device) -> SavedSweep:
    """The saved sweep at this weight; empty if it has not begun."""
    path = folder / f"at-{at!r}.safetensors"
    if not path.exists():
        return SavedSweep(path, device)
    tensors, metadata = read_tensors(path, None)
    adjoint = Adjoint(tensors.get("theta", torch.empty(0, 0)), store.starting("state.", tensors))
    adjoint = tree_map(lambda tensor: tensor.to(device), adjoint)
    kept = list(zip(*(tensors[name] for name in ("participants", "samples", "drawn")), strict=True))
    return SavedSweep(path, device, Sweep(int(metadata["t"]), adjoint, float(metadata["value"])), kept)


def sweep_run(played: Playable, question: Question, folder: Path, console: Console) -> Swept:
    """Compute everything that the question asks of a run. A stopped call continues when it is repeated.

    Sweeps are saved in a subfolder of `folder`, which `remove_sweeps` removes once the results are written; those of
    another run or another question are discarded.
    """
    _begin(folder, question_note(question, played.fingerprint, played.rounds), console)
    evaluation = evaluate_on_first(question.eval_samples, played.network)
    sweeps = _open_sweeps(played, question, folder)
    to_score = sum(scores.unscored(played.rounds) for scores in sweeps.values())
    to_play = sum(_to_play(played, at, scores) for at, scores in sweeps.items())
    if "whole-run-shares" in question.kinds:  # whose sum is compared with f(1) − f(0)
        of_the_run = played.recorded is None and 1.0 not in question.alphas
        to_play += played.rounds * (of_the_run + (question.during is not None))
    say(console, forecast(played, question, to_play, to_score))
    with counting(to_play + to_score, console, "playing and scoring rounds") as count:
        count_one = partial(count, lambda: "played and scored rounds")
        swept = {at: _sweep(played, question, evaluation, at, scores, count_one) for at, scores in sweeps.items()}
        results = {f"whole-run at {question.at:g}": swept[question.at]} if "whole-run" in question.kinds else {}
        run = _run_at(question.at, played, question, evaluation)
        doubt = "".join(_doubt(played, run, result) for result in results.values())
        if "whole-run-shares" not in question.kinds:
            return Swept(results, doubt=doubt)
        known = swept[1.0].value if 1.0 in swept else None
        untrained, trained = played.before_and_after(evaluation, question.on, known, count_one, question.rounds_counted)
    weighted = [(weight, swept[at]) for at, weight in weighted_points(question.points)]
    return Swept(results | {SHARES: share_out(weighted, trained, untrained)}, (untrained, trained), doubt)


def _open_sweeps(played: Playable, question: Question, folder: Path) -> dict[float, SavedSweep]:
    """Open the saved sweeps; if processes did not get equally far, start again."""

    def opened() -> dict[float, SavedSweep]:
        return {at: open_sweep(folder / UNFINISHED, at, played.network.device) for at in question.alphas}

    sweeps = opened()
    reached = [[scores.latest and scores.latest.t, *scores.checkpoints] for scores in sweeps.values()]
    if any(theirs != reached for theirs in played.world.tell(reached)):
        for path in (folder / UNFINISHED).glob("at-*"):
            files.remove(path)
        return opened()
    return sweeps


def _begin(folder: Path, note: Mapping[str, str], console: Console) -> None:
    """Keep existing sweeps only if they belong to this note."""
    place = folder / UNFINISHED / NOTE
    there = files.read_json(place) if place.exists() else None
    if there != note:
        remove_sweeps(folder)
    if there not in (None, note):
        say(console, f"{place.parent} held sweeps of another run or of other settings: they are computed again")
    files.write_json(place, note)


def remove_sweeps(folder: Path) -> None:
    """Remove the sweeps saved in a folder and, last, the note that identifies them."""
    place = folder / UNFINISHED
    files.remove_drafts(place)
    for path in (*place.glob("at-*"), place / NOTE):
        files.remove(path)
    if place.is_dir() and not any(place.iterdir()):
        files.remove(place)


def _run_at(
    at: float, played: Playable, question: Question, evaluation: Evaluation, count: Callable[[], None] | None = None
) -> WeightedRun:
    return WeightedRun(
        played.network, played.rounds_at(at), evaluation, at, question.rounds_counted, question.on, question.samples,
        played.length, count, played.exchange,
    )  # fmt: skip


def _doubt(played: Playable, run: WeightedRun, result: WholeRun) -> str:
    """What to say if slopes, those of all processes, are too large to believe; else ""."""
    if not measures_loss(run):
        return ""
    own = dict(zip(run.network.members or range(run.network.nodes), result.participants.tolist(), strict=True))
    slopes = {int(j): slope for part in played.world.tell(own) for j, slope in part.items()}
    before, after = played.world.total(initial_value(run), result.value)
    return doubt_of_slopes([float(run.at) * slopes[j] for j in sorted(slopes)], before, after)


def _sweep(
    played: Playable, question: Question, evaluation: Evaluation, at: float, scores: SavedSweep,
    count: Callable[[], None],
) -> WholeRun:  # fmt: skip
    """Continue the sweep at one weight from where it stopped."""
    if scores.unscored(played.rounds):
        run = _run_at(at, played, question, evaluation, count)
        try:
            for scored in sweep(run, scores.latest, scores.checkpoints):
                scores.add(scored)
        finally:
            scores.save()
    return scores.result()


def _to_play(played: Playable, at: float, scores: SavedSweep) -> int:
    """How many rounds `engine.backwards` has to train at this weight."""
    stop = scores.unscored(played.rounds)
    if stop == 0 or not isinstance(played.rounds_at(at), int):
        return 0
    starts, saved = range(0, stop, played.length), scores.checkpoints
    return starts[-1] - max((t for t in starts if t in saved), default=0) + stop


def forecast(played: Playable, question: Question, to_play: int, to_score: int) -> str:
    """A line about what will be computed and how many trainings it costs; scoring a round costs two trainings of it."""
    rounds, alphas = played.rounds, ", ".join(f"{at:.3g}" for at in question.alphas)
    cost = max(1, round((to_play + 2 * to_score) / rounds))
    kept = f"{bytes_kept(played.network, rounds, played.length) / 2**20:,.0f} MiB of rounds kept"
    source = kept if to_play else "from the recording"
    if played.lost is not None:
        source += f" (the recording lacks round {played.lost}, so the run is trained again)"
    return f"whole-run influence of {rounds} rounds at α = {alphas}: about {cost} training{'s' * (cost > 1)}, {source}"


def rows_by_round(kind: str, result: WholeRun) -> Iterator[Table]:
    """The rows of each round: of participants, and of samples if they were scored."""
    for t, (scores, samples, drawn) in enumerate(zip(result.by_round, result.samples, result.drawn, strict=True)):
        of_participants = table_of_participants(kind, result.first + t, scores)
        yield concatenate([of_participants, table_of_drawn(kind, result.first + t, drawn, samples)])
