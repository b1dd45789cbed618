"""Ask a recording whose data helped whom: the same question, tables and numbers as while it trained."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascadice import files
from cascadice.engine.networks import Network
from cascadice.influence import parts
from cascadice.influence.estimators import RoundInfluence
from cascadice.runs import store
from cascadice.runs.config import build, override
from cascadice.runs.folder import CONFIG, INFLUENCE, read_config
from cascadice.runs.questions import Question, answers, check_fits, check_folder, clear, conclude, keep, note_of
from cascadice.runs.summary import InfluenceSummary

if TYPE_CHECKING:
    from rich.console import Console

LINES = 10  # of progress where no bar can be drawn


def ask(
    run: files.Folder,
    question: Question,
    out: files.Folder | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> InfluenceSummary:
    """Ask the recorded run in a folder; answers are added to the folder `out` (the run's own `influence`).

    Stopped at any moment, it goes on where it was. `settings` are those of the run that may differ: device, data_root.
    """
    from rich.console import Console

    console, folder = Console(quiet=quiet), Path(run)
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} holds no run: {CONFIG} is not there. Name the folder that `cascadice run` wrote.")
    config = read_config(folder)
    place, note = Path(out) if out is not None else folder / INFLUENCE, note_of(question, config)
    asked = starts(store.recorded(folder), question, folder)
    check_folder(place, note, overwrite)
    network = build(override(config, settings or {}), quiet=quiet)
    check_fits(question, network)
    if overwrite:
        clear(place)
    remaining = [t for t in asked if t not in parts(place)]
    for found in _shown(_found(folder, network, question, remaining), len(remaining), console):
        keep(place, found, note)
    return conclude(console, network, folder, place)


def starts(recorded: Sequence[int], question: Question, folder: files.Folder) -> list[int]:
    """The recorded rounds to ask about: those whose hops are all there."""
    if not recorded:
        raise ValueError(
            f"{folder} has no recorded rounds. Train it with --record all, or ask while it trains: cascadice run "
            f"--kind {','.join(question.kinds)}."
        )
    there = set(recorded)
    whole = [t for t in recorded if there.issuperset(range(t, t + question.rounds))]
    if not whole:
        span = f"{recorded[0]} to {recorded[-1]}" if len(recorded) > 1 else f"only {recorded[0]}"
        raise ValueError(
            f"{question.hops} hops need {question.rounds} recorded rounds in a row; {folder} has {len(recorded)}, "
            f"{span}. Ask for fewer hops, or record more rounds."
        )
    return whole[:: question.every]


def stretches(remaining: Sequence[int], hops: int) -> list[range]:
    """The rounds to read: each round to ask about with its hops, in one piece where they overlap."""
    found: list[range] = []
    for t in remaining:
        if found and t < found[-1].stop:
            found[-1] = range(found[-1].start, t + hops)
        else:
            found.append(range(t, t + hops))
    return found


def _found(run: Path, network: Network, question: Question, remaining: Sequence[int]) -> Iterator[RoundInfluence]:
    layout = store.layout(network.learner.training)
    for stretch in stretches(remaining, question.rounds):
        rounds = (store.load_round(run, t, layout=layout, device=network.device) for t in stretch)
        yield from answers(network, rounds, question)


def _shown(found: Iterator[RoundInfluence], total: int, console: "Console") -> Iterator[RoundInfluence]:
    """Progress: a bar; where there is no terminal, a plain line now and then."""
    if console.is_terminal:
        from rich.progress import track

        yield from track(found, "scoring rounds", total=total, console=console, transient=True)
        return
    every = max(1, -(-total // LINES))
    for count, done in enumerate(found, start=1):
        yield done
        if count % every == 0 or count == total:
            console.print(f"scored round {done.round.t}, {count}/{total}", highlight=False)
