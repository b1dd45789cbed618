"""Compute whose data helped whom, during training or later from a recording: same tables, same numbers."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice.console import Console, say, track
from cascadice.engine import Network, Round
from cascadice.engine.operator import Exchange
from cascadice.engine.parts import numbered
from cascadice.files import checksums, locks
from cascadice.influence.estimators import RoundInfluence, check_part, score_rounds, table
from cascadice.influence.tables import NOTE, concatenate, parts, read_note, renumbered, write_part
from cascadice.runs import forecast, memory, store
from cascadice.runs.distributed import together
from cascadice.runs.distributed.processes import ONE_PROCESS, World
from cascadice.runs.distributed.shared_facts import facts_of_question
from cascadice.runs.folder import INFLUENCE, WHOLE_RUN, locked_for_writing
from cascadice.runs.question import FORMAT, Question, check_fits, check_note, evaluate_on_first, question_note
from cascadice.runs.recording import Recording, open_recording, playable, spans
from cascadice.runs.summary import DOUBT, LOSSES, InfluenceSummary, read_summary
from cascadice.runs.sweeps import UNFINISHED, remove_sweeps, rows_by_round, sweep_run
from cascadice.runs.words import PLANNED, in_words, print_summary

FIGURE = "influence.png"


Writer = Callable[[Path, dict[str, str], Exchange | None, Console], None]
"""Writes a table into a folder, with the note that belongs to it"""


def answers(
    network: Network, rounds: Iterable[Round], question: Question, exchange: Exchange | None = None
) -> Iterator[RoundInfluence]:
    """Yield the influence of each round's updates as the rounds arrive."""
    evaluation = evaluate_on_first(question.eval_samples, network)
    settings = {name: getattr(question, name) for name in ("hops", "kinds", "samples", "points", "sources", "every")}
    return score_rounds(network, rounds, evaluation, **settings, exchange=exchange)


def save_answer(
    folder: files.Folder, answer: RoundInfluence, note: dict[str, str], members: Sequence[int] = ()
) -> None:
    """Add the influence of a round's updates to the table in a folder; `members` are the sources, if not all."""
    write_part(folder, renumbered(table(answer), members), answer.round.t, note)


def ask(
    run: files.Folder,
    question: Question,
    out: files.Folder | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    world: World = ONE_PROCESS,
) -> InfluenceSummary:
    """Ask a run whose data helped whom. An interrupted call continues where it stopped when it is repeated.

    Questions about rounds need recorded rounds. For questions about the final models the run is trained again from its
    settings; if it was recorded completely, the recording is used at weight 1.

    Args:
        run: The folder of the run.
        out: The folder for the table and the figure (None: `influence` or `whole-run` in the run's folder).
        settings: Settings that may differ from those it was trained with: `device`, `data_root`.
        overwrite: Whether to replace influence with other settings.
        world: The processes that trained the run together: each reads its own folder in `run`, and writes the scores
            of its own participants there.

    Returns:
        Sums and means over all rounds in the table. Negative influence lowered the loss: the data helped.

    Raises:
        ValueError: If the run cannot be read or trained again, or the folder holds influence with other settings.
        DivergedError: If the run diverges at one of the weights of its updates.

    Example:
        >>> summary = ask("runs/demo", Question(("truth", "first-order"), hops=2))  # doctest: +SKIP
        >>> summary = ask("runs/demo", Question(("whole-run",), samples=True))  # doctest: +SKIP
    """
    if "pairs" in question.kinds:
        raise ValueError("ask scores participants; found the kind 'pairs'. Use ask_pairs.")
    folder, place = together.places(world, run, out, WHOLE_RUN if question.final else INFLUENCE)
    together.agree(world, "influence", facts_of_question(question) | dict(settings or {}), overwrite)
    if not world.alone and not question.final:
        check_part(question.kinds, question.hops, question.sources)
    console = Console(quiet=quiet or world.rank > 0)
    with locked_for_writing(place):
        recording = open_recording(folder, settings, quiet=quiet, world=world, recorded=False)
        network = recording.network
        length, needs, write = (_of_final_models if question.final else _of_rounds)(recording, question, world)
        memory.check("whole-run influence" if question.final else "this question", needs, network.device)
        with world.exchange(network) as exchange:
            note = check_note(place, question_note(question, recording.fingerprint, length), overwrite)
            if overwrite:
                clear(place)
            protect(place)
            write(place, note, exchange, console)
            return conclude(console, network, folder, place, world)


def _of_rounds(recording: Recording, question: Question, world: World) -> tuple[None, list[memory.Need], Writer]:
    """How to answer what updates did in the rounds that followed them: the memory it needs, and its writer."""
    network = recording.network
    starts = start_rounds(recording.round_numbers, question, recording.folder)
    check_fits(question, network)

    def write(place: Path, note: dict[str, str], exchange: Exchange | None, console: Console) -> None:
        there = world.common(list(parts(place)))
        remaining = [t for t in starts if t not in there]
        loaded = (recording.load_rounds(span) for span in spans(remaining, question.rounds_needed))
        begun = note | {PLANNED: str(len({*parts(place), *starts}))}
        files.write_json(place / NOTE, begun)
        computed = (answer for rounds in loaded for answer in answers(network, rounds, question, exchange))
        shown = track(computed, len(remaining), console, "scoring rounds", lambda a: f"scored round {a.round.t}")
        for answer in shown:
            locks.check_held(place)
            save_answer(place, answer, begun, network.members)
        files.flush(place, parts(place).values())
        files.write_json(place / NOTE, note)

    return None, forecast.of_question(network, question), write


def _of_final_models(recording: Recording, question: Question, world: World) -> tuple[int, list[memory.Need], Writer]:
    """How to answer who helped the final models, and after how many rounds; sweeps are saved as they are computed."""
    played = together.in_step(world, playable(recording))
    network, rounds = played.network, played.rounds
    check_fits(question, network, rounds)

    def write(place: Path, note: dict[str, str], exchange: Exchange | None, console: Console) -> None:
        done = not (place / UNFINISHED / NOTE).exists() and set(parts(place)).issuperset(range(rounds))
        if all(world.tell(done)):
            return
        files.write_json(place / NOTE, note)
        scores, losses, doubt = sweep_run(replace(played, exchange=exchange), question, place, console)
        known = {"trained": losses[1], "untrained": losses[0]} if losses else {}
        if known or doubt:
            files.write_json(place / LOSSES, {"format": FORMAT, **known, **({DOUBT: doubt} if doubt else {})})
        each = [rows_by_round(kind, result) for kind, result in scores.items()]
        for t, rows in enumerate(zip(*each, strict=True)):
            write_part(place, renumbered(concatenate(rows), network.members), t, note)
        files.flush(place, parts(place).values())
        remove_sweeps(place)

    return rounds, forecast.of_whole_run(network, rounds, question), write


def start_rounds(numbers: Sequence[int], question: Question, folder: files.Folder) -> list[int]:
    """The recorded rounds whose updates can be scored: those for which all needed rounds were recorded."""
    if not numbers:
        how = f"or compute influence during training: cascadice run --kind {','.join(question.kinds)}"
        raise ValueError(f"{folder} has no recorded rounds. Train it with --record all, {how}.")
    store.check_rounds(folder)
    recorded = set(numbers)
    complete = [t for t in numbers if recorded.issuperset(range(t, t + question.rounds_needed))]
    if not complete:
        span = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"only {numbers[0]}"
        found = f"{folder} has {len(numbers)}, {span}. Ask for fewer hops, or record more rounds"
        raise ValueError(f"{question.hops} hops need {question.rounds_needed} consecutive recorded rounds; {found}.")
    return complete[:: question.every]


def protect(out: Path) -> None:
    """Keep checksums of the table in a folder, in the run's list or a separate one; a new table starts empty."""
    if not (out / NOTE).exists() and not parts(out):
        with checksums.announced(out, None):
            pass  # a table that was here was removed by hand
    if checksums.list_for(out / NOTE) is None:
        files.keep_checksums(out, [path for path in (out / NOTE, *parts(out).values()) if path.exists()])
    for path in parts(out).values():
        if checksums.is_unlisted(path):  # the power failed before its line was on disk, or somebody else put it there
            path.unlink()


def clear(out: Path) -> None:
    """Remove the table, its figure, the losses beside it and unfinished sweeps, and nothing else."""
    # marked unfinished first, so that the rest is never mistaken for the whole
    if parts(out) and (out / NOTE).exists():
        with suppress(ValueError):  # a damaged one says nothing at all
            files.write_json(out / NOTE, {PLANNED: str(len(parts(out))), **read_note(out)})
    for path in (*parts(out).values(), out / NOTE, out / FIGURE, out / LOSSES):
        files.remove(path)
    remove_sweeps(out)


def conclude(
    console: Console, network: Network, run: files.Folder, out: Path, world: World = ONE_PROCESS
) -> InfluenceSummary:
    """Read back everything in the folder, plot it and print a summary, with several processes that of all of them."""
    from cascadice.pictures.influence import plot

    files.flush(out, parts(out).values())
    summary, data = read_summary(out, run, network), network.data
    if summary.doubt and world.rank == 0:
        warnings.warn(summary.doubt, RuntimeWarning, stacklevel=3)
    of_all = together.influence_of_everybody(world, summary, network.members)
    tests = of_all.test_results
    plot(
        out / FIGURE, updates=summary.updates, by_hop=summary.by_hop, matrix=summary.matrix,
        agreements=summary.agreements, injected=summary.injected,
        test_results=f"{tests[0].metric} {in_words(tests)}" if tests else "",
        title=f"influence among {network.whole} participants on {data.name}",
    )  # fmt: skip
    labels = together.labels_of_shown(world, summary, data.train)
    where = f": the table in {out} has all of them" if world.alone else ": the tables of all processes have them"
    all_told = world.alone or world.tells_samples
    whose = "" if all_told else f"; only of {numbered(network.members)}, --tell-samples shows those of all"
    print_summary(console, of_all, data.classes, labels, where, whose)
    count = len(summary.rounds)
    say(console, f"wrote {FIGURE} and the influence of {count} round{'s' * (count != 1)} to {out}")
    return summary
