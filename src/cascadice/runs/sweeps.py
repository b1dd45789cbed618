"""Run the sweeps for a question about the final models, saving progress so that a stopped command can continue."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cascadice import files
from cascadice.console import Console, counting, say
from cascadice.engine.backwards import bytes_kept, segment
from cascadice.engine.evaluation import Evaluation
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.tables import NOTE, Table, concatenate, table_of_drawn, table_of_participants
from cascadice.influence.weighted_run import WeightedRun
from cascadice.influence.whole_run import WholeRun, sweep
from cascadice.influence.whole_run_shares import share_out
from cascadice.runs.folder import run_fingerprint
from cascadice.runs.playing import Playable
from cascadice.runs.question import Question, question_note
from cascadice.runs.unfinished import SavedSweep, open_sweep

UNFINISHED = "unfinished"
SHARES = "whole-run shares"


class Swept(NamedTuple):
    """The scores of each kind and, if shares were requested, the losses f(0) and f(1) whose difference they divide."""

    scores: dict[str, WholeRun]
    losses: tuple[float, ...] = ()


def sweep_run(played: Playable, question: Question, folder: Path, console: Console) -> Swept:
    """Compute everything that the question asks of a run. A stopped call continues when it is repeated.

    Args:
        folder: The folder for the results. Sweeps are saved in a subfolder, which `remove_sweeps` removes once the
            results are written; sweeps of another run or another question are discarded.

    Example:
        >>> run, question = playable(open_recording("runs/demo")), Question(("whole-run-shares",))  # doctest: +SKIP
        >>> swept = sweep_run(run, question, Path("out"), Console())  # doctest: +SKIP
        >>> swept.scores["whole-run shares"].participants  # doctest: +SKIP
    """
    run = run_fingerprint(played.folder, played.config)
    _begin(folder, question_note(question, run, played.rounds), console)
    evaluation, sweeps = played.evaluation(question.eval_samples), _open_sweeps(played, question, folder)
    to_score = sum(_to_score(played, scores) for scores in sweeps.values())
    to_play = sum(_to_play(played, at, scores) for at, scores in sweeps.items())
    if "whole-run-shares" in question.kinds:  # whose sum is compared with f(1) − f(0)
        of_the_run = played.recorded is None and 1.0 not in question.alphas
        to_play += played.rounds * (of_the_run + (question.during is not None))
    say(console, forecast(played, question, to_play, to_score))
    with counting(to_play + to_score, console, "playing and scoring rounds") as count:
        count_one = partial(count, lambda: "played and scored rounds")
        swept = {at: _sweep(played, question, evaluation, at, scores, count_one) for at, scores in sweeps.items()}
        results = {f"whole-run at {question.at:g}": swept[question.at]} if "whole-run" in question.kinds else {}
        if "whole-run-shares" not in question.kinds:
            return Swept(results)
        known = swept[1.0].value if 1.0 in swept else None
        untrained, trained = played.before_and_after(evaluation, question.on, known, count_one, question.rounds_counted)
    weighted = [(weight, swept[at]) for at, weight in weighted_points(question.points)]
    return Swept(results | {SHARES: share_out(weighted, trained, untrained)}, (untrained, trained))


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


def _sweep(
    played: Playable, question: Question, evaluation: Evaluation, at: float, scores: SavedSweep,
    count: Callable[[], None],
) -> WholeRun:  # fmt: skip
    """Continue the sweep at one weight from where it stopped."""
    if scores.latest is None or scores.latest.t > 0:
        run = WeightedRun(
            played.network, played.rounds_at(at), evaluation, at, question.rounds_counted, question.on,
            question.samples, _length(played), count, played.exchange,
        )  # fmt: skip
        try:
            for scored in sweep(run, scores.latest, scores.checkpoints):
                scores.add(scored)
        finally:
            scores.save()
    return scores.result()


def _length(played: Playable) -> int:
    """How many rounds to keep at a time; the same after a restart, so that the checkpoints fit."""
    return played.length or segment(played.network, played.rounds)


def _to_score(played: Playable, scores: SavedSweep) -> int:
    return played.rounds if scores.latest is None else scores.latest.t


def _to_play(played: Playable, at: float, scores: SavedSweep) -> int:
    """How many rounds `engine.backwards` has to train at this weight."""
    stop = _to_score(played, scores)
    if stop == 0 or not isinstance(played.rounds_at(at), int):
        return 0
    starts, saved = range(0, stop, _length(played)), scores.checkpoints
    return starts[-1] - max((t for t in starts if t in saved), default=0) + stop


def forecast(played: Playable, question: Question, to_play: int, to_score: int) -> str:
    """A line about what will be computed and how many trainings it costs; scoring a round costs two trainings of it."""
    rounds, alphas = played.rounds, ", ".join(f"{at:.3g}" for at in question.alphas)
    cost = max(1, round((to_play + 2 * to_score) / rounds))
    kept = f"{bytes_kept(played.network, rounds, _length(played)) / 2**20:,.0f} MiB of rounds kept"
    source = kept if to_play else "from the recording"
    return f"whole-run influence of {rounds} rounds at α = {alphas}: about {cost} training{'s' * (cost > 1)}, {source}"


def rows_by_round(kind: str, result: WholeRun) -> Iterator[Table]:
    """The rows of each round: of participants, and of samples if they were scored."""
    for t, (scores, samples, drawn) in enumerate(zip(result.by_round, result.samples, result.drawn, strict=True)):
        of_participants = table_of_participants(kind, result.first + t, scores)
        yield concatenate([of_participants, table_of_drawn(kind, result.first + t, drawn, samples)])
