"""Ask a run whose data helped whom, while it trains or later from its recording: same tables, same numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice.console import Console, say, track
from cascadice.engine import Network, Round
from cascadice.engine.operator import Exchange
from cascadice.engine.parts import numbered
from cascadice.files import checksums, locks
from cascadice.influence.estimators import ESTIMATORS, RoundInfluence, check_part, score_rounds, table
from cascadice.influence.tables import NOTE, parts, read_note, renumbered, write_part
from cascadice.names import lookup
from cascadice.runs import forecast, memory, store, together
from cascadice.runs.binding import build_recorded, check_process
from cascadice.runs.eval_samples import check_eval_samples, evaluate_on_first
from cascadice.runs.folder import CHAIN, CONFIG, INFLUENCE, check_writable, read_run_config, run_fingerprint, writing
from cascadice.runs.processes import ONE_PROCESS, World
from cascadice.runs.recording import Recording, spans
from cascadice.runs.summary import LOSSES, InfluenceSummary, read_summary
from cascadice.runs.words import PLANNED, in_words, print_summary

FIGURE = "influence.png"
FORMAT = "cascadice-influence-2"  # 1 was that of version 0.1.0, whose notes do not say so


@dataclass(frozen=True)
class Question:
    """Which influence to compute.

    Attributes:
        kinds: Estimators, names of `cascadice list kinds`.
        hops: How many rounds an update is followed after the one that made it.
        samples: Whether to score single training samples too.
        points: Points of path integrals.
        sources: The participants whose updates are scored (None: all).
        every: Score the updates of every N-th round.
        eval_samples: How many of the first test samples the loss is evaluated on (None: all).
    """

    kinds: tuple[str, ...] = ("first-order",)
    hops: int = 1
    samples: bool = False
    points: int = 2
    sources: tuple[int, ...] | None = None
    every: int = 1
    eval_samples: int | None = None

    @property
    def rounds_needed(self) -> int:
        """How many rounds it takes to answer for one: its own, and those in which its updates travel on."""
        return max(1, self.hops)

    def __post_init__(self) -> None:
        check_question(self, ESTIMATORS, hops=0, points=1, every=1, eval_samples=1)
        if not self.hops and (self.samples or "shares" in self.kinds):
            raise ValueError("samples and shares need at least 1 hop; found 0. Ask for 1 or more.")


def check_question(question: Any, kinds: Mapping[str, Any], **least: int) -> None:
    """Check that a question asks for known kinds and for somebody, and that its numbers are at least these."""
    for kind in question.kinds:
        lookup(kinds, kind, "kind")
    for name, given in (("kinds", question.kinds), ("sources", getattr(question, "sources", None))):
        if given is not None and (not given or len(set(given)) < len(given)):
            raise ValueError(f"{name} must hold at least one entry, each once; found {list(given)}.")
    for name, smallest in least.items():
        if (value := getattr(question, name)) is not None and value < smallest:
            raise ValueError(f"{name.replace('_', '-')} must be at least {smallest}; found {value}.")


def question_note(question: Question, run: str) -> dict[str, str]:
    """What all parts of a folder of influence have in common; `every` may differ, as rounds may be added later.

    Settings at their defaults are left out, so that a later version may add some.
    """
    note = {"format": FORMAT, "run": run, "kinds": ", ".join(question.kinds), "hops": str(question.hops)}
    return note | changed_settings(question, without=("kinds", "hops", "every"))


def changed_settings(question: Any, without: Sequence[str] = ()) -> dict[str, str]:
    """The settings of a question that differ from their defaults, in the words of a note."""
    values = {f.name: getattr(question, f.name) for f in fields(question) if f.name not in without}
    changed = {f.name: values[f.name] for f in fields(question) if f.name in values and values[f.name] != f.default}
    return {name.replace("_", "-"): _text(value) for name, value in changed.items()}


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "all" if value is None else str(value).lower()


def check_note(out: Path, note: dict[str, str], overwrite: bool, question: Any = Question) -> dict[str, str]:
    """Check that the folder holds influence of the same settings, or none; return the note to use there.

    `question` is a kind of question: settings that a note leaves out have its defaults.
    """
    check_writable(out, "influence")
    if (out / CONFIG).exists():
        raise ValueError(f"{out} is the folder of a run; influence needs its own. Choose another with --out.")
    if (out / CHAIN).exists() or (parts(out) and not (out / NOTE).exists()):
        raise ValueError(f"{out} holds other tables, such as a ledger; influence needs its own. Choose another --out.")
    if overwrite or not (out / NOTE).exists():
        return note
    existing = {name: value for name, value in read_note(out).items() if name != PLANNED}
    files.check_format(out / NOTE, existing.get("format", FORMAT), FORMAT)
    defaults = {f.name.replace("_", "-"): _text(f.default) for f in fields(question)} | {"format": FORMAT}
    for name in (*note, *existing):
        there, here = (given.get(name, defaults.get(name)) for given in (existing, note))
        if there != here:
            raise ValueError(
                f"{out} holds influence of other settings: {name} is {there!r} there, {here!r} here. Choose another "
                "folder with --out, or replace it with --overwrite."
            )
    return existing


def check_fits(question: Question, network: Network) -> None:
    """Check that the sources are participants, and that there are as many test samples as asked for."""
    for source in question.sources or ():
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    check_eval_samples(question.eval_samples, network)


def answers(
    network: Network, rounds: Iterable[Round], question: Question, exchange: Exchange | None = None
) -> Iterator[RoundInfluence]:
    """The influence of each round's updates, as the rounds come by."""
    evaluation = evaluate_on_first(question.eval_samples, network)
    settings = {name: value for name, value in vars(question).items() if name != "eval_samples"}
    return score_rounds(network, rounds, evaluation, **settings, exchange=exchange)


def save_answer(
    folder: files.Folder, answer: RoundInfluence, note: dict[str, str], members: Sequence[int] = ()
) -> None:
    """Add the influence of a round's updates to the table in a folder; `members` are the sources, if not everybody."""
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
    """Ask a recorded run whose data helped whom. An interrupted call continues where it stopped when it is repeated.

    Args:
        run: The folder of the run.
        out: The folder for the table and the figure (None: `influence` in the run's folder).
        settings: Settings that may differ from those it was trained with: `device`, `data_root`.
        overwrite: Whether to replace influence of other settings.
        world: The processes that trained the run together: each reads its own folder in `run`, and writes the scores
            of its own participants there.

    Returns:
        Sums and means over all rounds in the table. Negative influence lowered the loss: the data helped.

    Example:
        >>> summary = ask("runs/demo", Question(("truth", "first-order"), hops=2))  # doctest: +SKIP
    """
    folder, place = together.places(world, run, out, INFLUENCE)
    together.agree(world, question, settings, overwrite)
    if not world.alone:
        check_part(question.kinds, question.hops, question.sources)
    console, config = Console(quiet=quiet or world.rank > 0), read_run_config(folder)
    check_process(folder, None, world)
    with writing(place):
        numbers = world.common(store.saved_rounds(folder))
        starts = start_rounds(numbers, question, folder)
        note = check_note(place, question_note(question, run_fingerprint(folder, config)), overwrite)
        network = build_recorded(folder, config, settings, quiet=quiet, world=world)
        check_fits(question, network)
        memory.check("this question", forecast.of_question(network, question), network.device)
        if overwrite:
            clear(place)
        protect(place)
        there = world.common(list(parts(place)))
        remaining = [t for t in starts if t not in there]
        recording = Recording(folder, config, network, tuple(numbers))
        loaded = (recording.load_rounds(span) for span in spans(remaining, question.rounds_needed))
        begun = note | {PLANNED: str(len({*parts(place), *starts}))}
        files.write_json(place / NOTE, begun)
        with world.exchange(network) as exchange:
            computed = (answer for rounds in loaded for answer in answers(network, rounds, question, exchange))
            shown = track(computed, len(remaining), console, "scoring rounds", lambda a: f"scored round {a.round.t}")
            for answer in shown:
                locks.check_held(place)
                save_answer(place, answer, begun, network.members)
        files.flush(place, parts(place).values())
        files.write_json(place / NOTE, note)
        return conclude(console, network, folder, place, world)


def start_rounds(numbers: Sequence[int], question: Question, folder: files.Folder) -> list[int]:
    """The recorded rounds whose updates can be scored: those for which all needed rounds were recorded."""
    if not numbers:
        raise ValueError(
            f"{folder} has no recorded rounds. Train it with --record all, or compute influence during training: "
            f"cascadice run --kind {','.join(question.kinds)}."
        )
    store.check_rounds(folder)
    recorded = set(numbers)
    complete = [t for t in numbers if recorded.issuperset(range(t, t + question.rounds_needed))]
    if not complete:
        span = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"only {numbers[0]}"
        raise ValueError(
            f"{question.hops} hops need {question.rounds_needed} consecutive recorded rounds; {folder} has "
            f"{len(numbers)}, {span}. Ask for fewer hops, or record more rounds."
        )
    return complete[:: question.every]


def protect(out: Path) -> None:
    """Keep checksums of the table in a folder, in the run's list or one of its own; of a new table nothing is kept."""
    if not (out / NOTE).exists() and not parts(out):
        with checksums.announced(out, None):
            pass  # a table that was here was removed by hand
    if checksums.list_for(out / NOTE) is None:
        files.keep_checksums(out, [path for path in (out / NOTE, *parts(out).values()) if path.exists()])
    for path in parts(out).values():
        if checksums.is_unlisted(path):  # the power failed before its line was on disk, or somebody else put it there
            path.unlink()


def clear(out: Path) -> None:
    """Remove the table, its figure and the losses beside it, and nothing else.

    Its note says that it is not finished before the first part goes, so that nobody takes what is left for the whole.
    """
    if parts(out) and (out / NOTE).exists():
        with suppress(ValueError):  # a damaged one says nothing at all
            files.write_json(out / NOTE, {PLANNED: str(len(parts(out))), **read_note(out)})
    for path in (*parts(out).values(), out / NOTE, out / FIGURE, out / LOSSES):
        files.remove(path)


def conclude(
    console: Console, network: Network, run: files.Folder, out: Path, world: World = ONE_PROCESS
) -> InfluenceSummary:
    """Read back everything in the folder, plot it and print a summary; of several processes, that of all."""
    from cascadice.pictures.influence import plot

    files.flush(out, parts(out).values())
    summary, data = read_summary(out, run, network), network.data
    of_all = together.influence_of_everybody(world, summary, network.members)
    tests = of_all.test_results
    plot(
        out / FIGURE, updates=summary.updates, by_hop=summary.by_hop, matrix=summary.matrix,
        agreements=summary.agreements, injected=summary.injected,
        test_results=f"{tests[0].metric} {in_words(tests)}" if tests else "",
        title=f"influence among {network.whole} participants on {data.name}",
    )  # fmt: skip
    labels = data.train.y if data.train.y.dim() == 1 else None
    where = f": the table in {out} has all of them" if world.alone else ": the tables of all processes have them"
    all_told = world.alone or world.tells_samples
    whose = "" if all_told else f"; only of {numbered(network.members)}, --tell-samples shows those of all"
    print_summary(console, of_all, data.classes, labels, where, whose)
    count = len(summary.rounds)
    say(console, f"wrote {FIGURE} and the influence of {count} round{'s' * (count != 1)} to {out}")
    return summary
