"""The sweeps that a question about the final models needs. They are kept as they go: a stopped command continues."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cascadice import files
from cascadice.console import Console, counting, say
from cascadice.engine.backwards import bytes_kept, segment
from cascadice.engine.evaluation import Evaluation
from cascadice.influence.estimators import WHOLE_RUN_KINDS
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.tables import NOTE
from cascadice.influence.whole_run import WholeRun, sweep
from cascadice.influence.whole_run_shares import POINTS, share_out
from cascadice.runs.ask import FORMAT, changed_settings, check_question
from cascadice.runs.folder import run_fingerprint
from cascadice.runs.playing import Playable
from cascadice.runs.unfinished import SavedSweep, open_sweep

UNFINISHED = "unfinished"
SHARES = "whole-run shares"


@dataclass(frozen=True)
class WholeRunQuestion:
    """What to ask about the final models.

    Attributes:
        kinds: "whole-run", "whole-run-shares" or both.
        at: The weight of all updates in the run at which "whole-run" takes the derivative.
        during: The first round whose updates count in "whole-run", and the one after the last (None: all rounds).
        points: At how many weights shares are integrated.
        samples: Whether to score single training samples too.
        on: Whose final models: "all", "average" or the number of a participant.
        eval_samples: How many of the first test samples the loss is evaluated on (None: all).
    """

    kinds: tuple[str, ...] = ("whole-run-shares",)
    at: float = 1.0
    during: tuple[int, int] | None = None
    points: int = POINTS
    samples: bool = False
    on: str | int = "all"
    eval_samples: int | None = None

    @property
    def weights(self) -> list[float]:
        """The weights of the updates at which the run is swept, each once."""
        of_shares = [at for at, _ in weighted_points(self.points)] if "whole-run-shares" in self.kinds else []
        return list(dict.fromkeys([*([self.at] if "whole-run" in self.kinds else []), *of_shares]))

    def __post_init__(self) -> None:
        check_question(self, WHOLE_RUN_KINDS, points=1, eval_samples=1)
        if not 0 < self.at <= 1:
            raise ValueError(f"at must be above 0 and at most 1; found {self.at:g}.")
        if self.during is not None and "whole-run-shares" in self.kinds:
            raise ValueError("shares are of all rounds; found some (during). Ask for whole-run alone.")


def check_during(question: WholeRunQuestion, rounds: int) -> None:
    """Raise ValueError unless the rounds that were asked about are some of the run's."""
    start, stop = question.during or (0, rounds)
    if not 0 <= start < stop <= rounds:
        raise ValueError(f"during must be within rounds 0:{rounds}, the first below the second; found {start}:{stop}.")


class Swept(NamedTuple):
    """The scores of each kind and, if shares were asked for, the losses between which they lie: f(0) and f(1)."""

    scores: dict[str, WholeRun]
    losses: tuple[float, ...] = ()


def whole_run_note(question: WholeRunQuestion, played: Playable) -> dict[str, str]:
    """What was asked of which run, after how many rounds; settings at their defaults are left out."""
    run = run_fingerprint(played.folder, played.config)
    note = {"format": FORMAT, "run": run, "kinds": ", ".join(question.kinds), "rounds": str(played.rounds)}
    return note | changed_settings(question, without=("kinds",))


def length_in(note: Mapping[str, object]) -> int | None:
    """How many rounds the run had when it was asked about its final models; None if the note is of another question."""
    return int(str(note["rounds"])) if "rounds" in note else None


def sweep_run(played: Playable, question: WholeRunQuestion, folder: Path, console: Console) -> Swept:
    """Everything that the question asks of a run. A call that was stopped continues when it is repeated.

    Args:
        folder: Where results will be written. Sweeps are kept in a folder in it, for `remove_sweeps` to remove once
            results are there; those of another run or of another question are thrown away.

    Example:
        >>> swept = sweep_run(open_playable("runs/demo"), WholeRunQuestion(), Path("out"), Console())  # doctest: +SKIP
        >>> swept.scores["whole-run shares"].participants  # doctest: +SKIP
    """
    _begin(folder, whole_run_note(question, played), console)
    evaluation, sweeps = played.evaluation(question.eval_samples), _open_sweeps(played, question, folder)
    to_score = sum(_to_score(played, scores) for scores in sweeps.values())
    to_play = sum(_to_play(played, at, scores) for at, scores in sweeps.items())
    if "whole-run-shares" in question.kinds and played.recorded is None and 1.0 not in question.weights:
        to_play += played.rounds  # for the loss of the final models of the run itself
    say(console, forecast(played, question, to_play, to_score))
    with counting(to_play + to_score, console, "playing and scoring rounds") as count:
        count_one = partial(count, lambda: "played and scored rounds")
        swept = {at: _sweep(played, question, evaluation, at, scores, count_one) for at, scores in sweeps.items()}
        results = {f"whole-run at {question.at:g}": swept[question.at]} if "whole-run" in question.kinds else {}
        if "whole-run-shares" not in question.kinds:
            return Swept(results)
        known = swept[1.0].value if 1.0 in swept else None
        untrained, trained = played.before_and_after(evaluation, question.on, known, count_one)
    weighted = [(weight, swept[at]) for at, weight in weighted_points(question.points)]
    return Swept(results | {SHARES: share_out(weighted, trained, untrained)}, (untrained, trained))


def _open_sweeps(played: Playable, question: WholeRunQuestion, folder: Path) -> dict[float, SavedSweep]:
    """The sweeps as far as they went; processes that did not get equally far begin again."""

    def opened() -> dict[float, SavedSweep]:
        return {at: open_sweep(folder / UNFINISHED, at, played.network.device) for at in question.weights}

    sweeps = opened()
    reached = [[scores.latest and scores.latest.t, *scores.checkpoints] for scores in sweeps.values()]
    if any(theirs != reached for theirs in played.world.tell(reached)):
        for path in (folder / UNFINISHED).glob("at-*"):
            files.remove(path)
        return opened()
    return sweeps


def _begin(folder: Path, note: Mapping[str, str], console: Console) -> None:
    """Keep sweeps that are there only if they are of this note."""
    place = folder / UNFINISHED / NOTE
    there = files.read_json(place) if place.exists() else None
    if there != note:
        remove_sweeps(folder)
    if there not in (None, note):
        say(console, f"{place.parent} held sweeps of another run or of other settings: they are computed again")
    files.write_json(place, note)


def remove_sweeps(folder: Path) -> None:
    """Remove the sweeps that were kept in a folder, and last of all the note that says what they are of."""
    place = folder / UNFINISHED
    files.remove_drafts(place)
    for path in (*place.glob("at-*"), place / NOTE):
        files.remove(path)
    if place.is_dir() and not any(place.iterdir()):
        files.remove(place)


def _sweep(
    played: Playable, question: WholeRunQuestion, evaluation: Evaluation, at: float, scores: SavedSweep,
    count: Callable[[], None],
) -> WholeRun:  # fmt: skip
    """The sweep at one weight, from where it was."""
    during = None if question.during is None else range(*question.during)
    if scores.latest is None or scores.latest.t > 0:
        rounds = sweep(
            played.network, played.rounds_at(at), evaluation, at=at, during=during, on=question.on,
            samples=question.samples, length=_length(played), resume=scores.latest, saved=scores.checkpoints,
            played=count, exchange=played.exchange,
        )  # fmt: skip
        try:
            for scored in rounds:
                scores.add(scored)
        finally:
            scores.save()
    return scores.result()


def _length(played: Playable) -> int:
    """How many rounds to keep at a time; the same when a stopped command goes on, so that checkpoints fit."""
    return played.length or segment(played.network, played.rounds)


def _to_score(played: Playable, scores: SavedSweep) -> int:
    return played.rounds if scores.latest is None else scores.latest.t


def _to_play(played: Playable, at: float, scores: SavedSweep) -> int:
    """How many rounds `engine.backwards` has to play at this weight."""
    stop = _to_score(played, scores)
    if stop == 0 or not isinstance(played.rounds_at(at), int):
        return 0
    starts, saved = range(0, stop, _length(played)), scores.checkpoints
    return starts[-1] - max((t for t in starts if t in saved), default=0) + stop


def forecast(played: Playable, question: WholeRunQuestion, to_play: int, to_score: int) -> str:
    """What is about to be computed, and about how many trainings it costs; scoring a round costs two of training."""
    rounds, weights = played.rounds, ", ".join(f"{at:.3g}" for at in question.weights)
    cost = max(1, round((to_play + 2 * to_score) / rounds))
    kept = f"{bytes_kept(played.network, rounds, _length(played)) / 2**20:,.0f} MiB of rounds kept"
    source = kept if to_play else "from the recording"
    return f"whole-run influence of {rounds} rounds at α = {weights}: about {cost} training{'s' * (cost > 1)}, {source}"
