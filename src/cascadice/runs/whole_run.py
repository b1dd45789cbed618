"""Ask a run who helped its final models; what was computed is kept, so a stopped command goes on where it was."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cascadice import files
from cascadice.engine.backwards import bytes_kept, segment
from cascadice.engine.evaluation import Evaluation, evaluate_on
from cascadice.engine.networks import Network
from cascadice.influence import tables
from cascadice.influence.estimators import WHOLE_RUN as KINDS
from cascadice.influence.quadrature import gauss_legendre
from cascadice.influence.tables import NOTE, Table, concatenate, table_of_drawn, table_of_participants
from cascadice.influence.whole_run import WholeRun, focused, sweep
from cascadice.influence.whole_run_shares import measured_at, share_out
from cascadice.names import lookup
from cascadice.runs import memory, together
from cascadice.runs.ask import FORMAT, changed_settings, check_eval_samples, check_note, clear, conclude, protect
from cascadice.runs.folder import WHOLE_RUN, run_fingerprint, writing
from cascadice.runs.forecast import of_whole_run
from cascadice.runs.playing import Playable, open_playable
from cascadice.runs.processes import World
from cascadice.runs.progress import Console, counting, say
from cascadice.runs.summary import LOSSES, InfluenceSummary
from cascadice.runs.unfinished import Scores, open_scores

UNFINISHED = "unfinished"


@dataclass(frozen=True)
class WholeRunQuestion:
    """What to ask about the final models.

    Attributes:
        kinds: "whole-run", "whole-run-shares" or both.
        at: The weight of all updates in the run at which "whole-run" takes the derivative.
        points: At how many weights shares are integrated.
        samples: Whether to score single training samples too.
        on: Whose final models: "all", "average" or the number of a participant.
        eval_samples: How many of the first test samples the loss is evaluated on (None: all).
    """

    kinds: tuple[str, ...] = ("whole-run-shares",)
    at: float = 1.0
    points: int = 3
    samples: bool = False
    on: str | int = "all"
    eval_samples: int | None = None

    @property
    def weights(self) -> list[float]:
        """The weights of the updates at which the run is swept, each once."""
        of_shares = [at for at, _ in gauss_legendre(self.points)] if "whole-run-shares" in self.kinds else []
        return list(dict.fromkeys([*([self.at] if "whole-run" in self.kinds else []), *of_shares]))

    def __post_init__(self) -> None:
        for kind in self.kinds:
            lookup(KINDS, kind, "kind")
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds must hold at least one entry, each once; found {list(self.kinds)}.")
        if not 0 < self.at <= 1:
            raise ValueError(f"at must be above 0 and at most 1; found {self.at:g}.")
        for name in ("points", "eval_samples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name.replace('_', '-')} must be at least 1; found {value}.")


def ask_whole_run(
    run: files.Folder,
    question: WholeRunQuestion,
    out: files.Folder | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    world: World | None = None,
) -> InfluenceSummary:
    """Ask a run who helped its final models. An interrupted call continues where it stopped when it is repeated.

    The run is played again from its settings; where it was recorded completely, the recording is read at weight 1.

    Args:
        run: The folder of the run.
        out: The folder for the table and the figure (None: `whole-run` in the run's folder).
        settings: Settings that may differ from those it was trained with: `device`, `data_root`.
        overwrite: Whether to replace influence of other settings.
        world: The processes that trained the run together: each plays its part again, and keeps its participants'
            scores in its own folder.

    Returns:
        Sums over all rounds. Negative influence lowered the final models' loss: the data helped.

    Raises:
        ValueError: Where the run cannot be played again, or the folder holds influence of other settings.
        DivergedError: Where the run diverges at one of the weights.

    Example:
        >>> summary = ask_whole_run("runs/demo", WholeRunQuestion(samples=True))  # doctest: +SKIP
    """
    console = Console(quiet=quiet or not together.speaks(world))
    folder, place = together.places(world, run, out, WHOLE_RUN)
    together.agree(world, question, settings, overwrite)
    played = together.in_step(world, open_playable(folder, settings, quiet=quiet, world=world))
    check_eval_samples(question.eval_samples, played.network)
    focused(played.network, question.on)
    parts = of_whole_run(played.network, played.rounds, question)
    memory.check("whole-run influence", parts, played.network.device)
    with writing(place), together.exchange(world, played.network) as exchange:
        return _ask(replace(played, exchange=exchange), question, place, console, overwrite, world)


def _ask(
    played: Playable, question: WholeRunQuestion, out: Path, console: Console, overwrite: bool, world: World | None
) -> InfluenceSummary:
    note = check_note(out, note_of(question, played), overwrite, WholeRunQuestion)
    if overwrite:
        clear(out)
        files.remove(out / UNFINISHED)
    protect(out)
    done = not (out / UNFINISHED).exists() and set(tables.parts(out)).issuperset(range(played.rounds))
    if not all(together.tell(world, done)):
        files.write_json(out / NOTE, note)
        for t, rows in enumerate(_compute(played, question, out, console, world)):
            tables.write_part(out, tables.renumbered(rows, played.network.members), t, note)
        files.sync(out)
        files.remove(out / UNFINISHED)
    summary = conclude(console, played.network, played.folder, out)
    if question.samples and not all(learner.optimizer.linear for learner in played.network.learners):
        say(
            console,
            "Adam and clipping do not see the scale of gradients: scores of samples predict little (see the docs).",
        )
    return summary


def note_of(question: WholeRunQuestion, played: Playable) -> dict[str, str]:
    """What was asked of which run, after how many rounds; settings at their defaults are left out."""
    run = run_fingerprint(played.folder, played.config)
    note = {"format": FORMAT, "run": run, "kinds": ", ".join(question.kinds), "rounds": str(played.rounds)}
    return note | changed_settings(question, without=("kinds",))


def _compute(
    played: Playable, question: WholeRunQuestion, out: Path, console: Console, world: World | None
) -> list[Table]:
    """The rows of each round."""
    network, test = played.network, played.network.data.test
    evaluation = evaluate_on(network, test.subset(torch.arange(question.eval_samples or len(test))))
    sweeps = _open_sweeps(out, question, network, world)
    to_score = sum(_to_score(played, scores) for scores in sweeps.values())
    to_play = sum(_to_play(played, at, scores) for at, scores in sweeps.items()) + _to_train(played, question)
    say(console, forecast(played, question, to_play, to_score))
    with counting(to_play + to_score, console, "playing and scoring rounds") as count:
        count_one = partial(count, lambda: "played and scored rounds")
        swept = {at: _sweep(played, question, evaluation, at, scores, count_one) for at, scores in sweeps.items()}
        results = {}
        if "whole-run" in question.kinds:
            results[f"whole-run at {question.at:g}"] = swept[question.at]
        if "whole-run-shares" in question.kinds:
            trained, untrained = together.total(world, *_ends(played, question, evaluation, swept, count_one))
            files.write_json(out / LOSSES, {"format": FORMAT, "trained": trained, "untrained": untrained})
            weighted = [(weight, swept[at]) for at, weight in gauss_legendre(question.points)]
            results["whole-run shares"] = share_out(weighted, trained, untrained)
    return [concatenate(_rows(kind, result, t) for kind, result in results.items()) for t in range(played.rounds)]


def _open_sweeps(out: Path, question: WholeRunQuestion, network: Network, world: World | None) -> dict[float, Scores]:
    """The sweeps as far as they went; processes that did not get equally far begin again."""
    places = out / UNFINISHED, network.device
    sweeps = {at: open_scores(places[0], at, places[1]) for at in question.weights}
    reached = [[scores.latest and scores.latest.t, *scores.checkpoints] for scores in sweeps.values()]
    if any(theirs != reached for theirs in together.tell(world, reached)):
        files.remove(places[0])
        sweeps = {at: open_scores(places[0], at, places[1]) for at in question.weights}
    return sweeps


def _rows(kind: str, result: WholeRun, t: int) -> Table:
    of_participants = table_of_participants(kind, t, result.by_round[t])
    return concatenate([of_participants, table_of_drawn(kind, t, result.drawn[t], result.samples[t])])


def _sweep(
    played: Playable, question: WholeRunQuestion, evaluation: Evaluation, at: float, scores: Scores,
    count: Callable[[], None],
) -> WholeRun:  # fmt: skip
    """The sweep at one weight, from where it was."""
    if scores.latest is None or scores.latest.t > 0:
        rounds = sweep(
            played.network, played.rounds_at(at), evaluation, at=at, on=question.on, samples=question.samples,
            length=_length(played), resume=scores.latest, saved=scores.checkpoints, played=count,
            exchange=played.exchange,
        )  # fmt: skip
        try:
            for scored in rounds:
                scores.add(scored)
        finally:
            scores.save()
    return scores.collect()


def _ends(
    played: Playable, question: WholeRunQuestion, evaluation: Evaluation, swept: Mapping[float, WholeRun],
    count: Callable[[], None],
) -> tuple[float, float]:  # fmt: skip
    """f(1) and f(0): the loss of the final models, and of models that were never trained."""
    how: dict[str, Any] = {"on": question.on, "exchange": played.exchange}
    untrained = measured_at(played.network, played.rounds, evaluation, 0.0, **how)
    if 1.0 in swept:
        return swept[1.0].value, untrained
    there = played.rounds_at(1.0)
    return measured_at(played.network, there, evaluation, 1.0, **how, played=count), untrained


def _to_train(played: Playable, question: WholeRunQuestion) -> int:
    """How many rounds to play for the loss of the final models of the run itself, which shares need."""
    known = "whole-run-shares" not in question.kinds or played.recorded is not None or 1.0 in question.weights
    return 0 if known else played.rounds


def _length(played: Playable) -> int:
    """How many rounds to keep at a time; the same when a stopped command goes on, so that checkpoints fit."""
    return played.length or segment(played.network, played.rounds)


def _to_score(played: Playable, scores: Scores) -> int:
    return played.rounds if scores.latest is None else scores.latest.t


def _to_play(played: Playable, at: float, scores: Scores) -> int:
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
