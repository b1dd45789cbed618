"""Ask a run who helped its final models; what was computed is kept, so a stopped command goes on where it was."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cascadice import files
from cascadice.console import Console
from cascadice.influence import tables
from cascadice.influence.tables import NOTE, Table, concatenate, table_of_drawn, table_of_participants
from cascadice.influence.whole_run import WholeRun, focused
from cascadice.runs import memory, together
from cascadice.runs.ask import FORMAT, check_note, clear, conclude, protect
from cascadice.runs.eval_samples import check_eval_samples
from cascadice.runs.folder import WHOLE_RUN, writing
from cascadice.runs.forecast import of_whole_run
from cascadice.runs.playing import open_playable
from cascadice.runs.processes import ONE_PROCESS, World
from cascadice.runs.summary import LOSSES, InfluenceSummary
from cascadice.runs.sweeps import UNFINISHED, WholeRunQuestion, check_during, remove_sweeps, sweep_run, whole_run_note

__all__ = ["WholeRunQuestion", "ask_whole_run"]


def ask_whole_run(
    run: files.Folder,
    question: WholeRunQuestion,
    out: files.Folder | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    world: World = ONE_PROCESS,
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
    console = Console(quiet=quiet or world.rank > 0)
    folder, place = together.places(world, run, out, WHOLE_RUN)
    together.agree(world, question, settings, overwrite)
    played = together.in_step(world, open_playable(folder, settings, quiet=quiet, world=world))
    check_eval_samples(question.eval_samples, played.network)
    focused(played.network, question.on)
    check_during(question, played.rounds)
    parts = of_whole_run(played.network, played.rounds, question)
    memory.check("whole-run influence", parts, played.network.device)
    with writing(place), world.exchange(played.network) as exchange:
        played = replace(played, exchange=exchange)
        note = check_note(place, whole_run_note(question, played), overwrite, WholeRunQuestion)
        if overwrite:
            clear(place)
            remove_sweeps(place)
        protect(place)
        done = not (place / UNFINISHED / NOTE).exists() and set(tables.parts(place)).issuperset(range(played.rounds))
        if not all(played.world.tell(done)):
            files.write_json(place / NOTE, note)
            swept = sweep_run(played, question, place, console)
            if swept.losses:
                untrained, trained = swept.losses
                files.write_json(place / LOSSES, {"format": FORMAT, "trained": trained, "untrained": untrained})
            each = [rows_by_round(kind, result) for kind, result in swept.scores.items()]
            for t, rows in enumerate(zip(*each, strict=True)):
                tables.write_part(place, tables.renumbered(concatenate(rows), played.network.members), t, note)
            files.flush(place, tables.parts(place).values())
            remove_sweeps(place)
        return conclude(console, played.network, played.folder, place, world)


def rows_by_round(kind: str, result: WholeRun) -> Iterator[Table]:
    """The rows of each round: of participants, and of samples if they were scored."""
    for t, (scores, samples, drawn) in enumerate(zip(result.by_round, result.samples, result.drawn, strict=True)):
        of_participants = table_of_participants(kind, result.first + t, scores)
        yield concatenate([of_participants, table_of_drawn(kind, result.first + t, drawn, samples)])
