"""What every application shares: running in one or several processes, writing and printing results, page sections."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cascadice
from cascadice import files
from cascadice.applications.plain import Json, plain
from cascadice.console import Console, say
from cascadice.pictures import charts
from cascadice.runs.distributed import together
from cascadice.runs.distributed.processes import ONE_PROCESS, World, joined
from cascadice.runs.folder import locked_for_writing, read_run_config
from cascadice.runs.recording import Recording, results_folder

SIGN_RULE = "Negative = the loss went down = it helped; positive = it harmed."  # of influence, wherever it is shown
MAY_DIFFER = (
    "run", "out", "overwrite", "quiet", "device", "data_root", "interface", "timeout", "parser", "command", "seal",
    "ledger",
)  # fmt: skip
"""Flags that may differ between processes, or that are compared elsewhere."""


def run_in_processes(args: argparse.Namespace, name: str, command: Callable[[argparse.Namespace, World], None]) -> None:
    """Run a command on a recorded run: in this process, or under torchrun in all processes that trained the run.

    Each process reads and writes its own folder of the run. All must have been given the same flags.
    """
    with joined(args.interface, args.timeout) as world:
        folder, out = together.places(world, args.run, args.out, name)
        flags: dict[str, Any] = {flag: value for flag, value in vars(args).items() if flag not in MAY_DIFFER}
        together.agree(world, name, flags, args.overwrite)
        given, args.out, args.quiet = args.out, out, args.quiet or world.rank > 0
        read_run_config(folder)
        with locked_for_writing(out):
            command(args, world)
        together.point_to_all(world, args.run, given, args.quiet)


@contextmanager
def resumable(
    message: str = "stopped. What was computed so far is kept; the same command continues.",
) -> Iterator[None]:
    """Tell a user who stops this block how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message) from None


def check_same(parts: Sequence[Json], *names: str) -> None:
    """Raise ValueError unless the results of all processes have the same entries under these names."""
    for name in names:
        if any(part.get(name) != parts[0].get(name) for part in parts):
            raise ValueError(f"{name!r} differs between processes. Ask all of them again, with --overwrite.")


def merge_same(parts: Sequence[Json]) -> Json:
    """Merge results of several processes that all wrote the same."""
    check_same(parts, "title", "findings")
    return parts[0]


def concatenate(parts: Sequence[Json], *names: str) -> Json:
    """The lists of all processes under each of these names, one after the other."""
    return {name: [value for part in parts for value in part[name]] for name in names}


class Section(NamedTuple):
    """An application's section of the report page.

    Attributes:
        question: What the section answers; offered with `command` while there are no results.
        command: The command that answers it; "{run}" stands for the run's folder.
        lead: What the numbers mean: their units, their signs and the terms used.
        audit: Compares the results in a folder with what they were computed from. Returns sentences about what it
            checked; raises ValueError if they disagree.
        charts: Draws the results, for the page and for the picture, as data that `applications.charts` describes. If
            results lack what it needs, the page shows the picture.
        merge: Merges the results of several processes, in the order of their ranks.
        charts_only: Entries that only charts use; processes do not send them to one another.
        table: The table as the page shows it.
        run_length: For results about the final models, how many rounds the run had then; None for others.
        redo: The flags that replace results after the run was continued.
    """

    question: str
    command: str
    lead: str = ""
    audit: Callable[[Json, Path], list[str]] = lambda results, folder: []
    charts: Callable[[Json], list[Json]] = lambda results: []
    merge: Callable[[Sequence[Json]], Json] = merge_same
    charts_only: tuple[str, ...] = ()
    table: Callable[[Json], Json] = lambda table: table
    run_length: Callable[[Json], int | None] = lambda results: None
    redo: str = "--overwrite"


@dataclass(frozen=True)
class Writer:
    """Writes the results of one command on one run as `files` into `folder`, and prints them."""

    command: str
    recording: Recording
    folder: Path
    files: Sequence[str]
    console: Console

    def header(self, title: str, columns: Sequence[str], rows: Sequence[Any]) -> Json:
        """The entries that every command writes and the report reads; the command adds `findings`, in sentences."""
        return {
            "command": self.command,
            "version": cascadice.__version__,
            "run": self.recording.fingerprint,
            "title": title,
            "findings": [],
            "table": {"columns": list(columns), "rows": list(rows)},
            "figure": f"{self.command}.png",
        }

    def members(self) -> Json:
        """The entry that names the participants of this process; empty if it has all of them."""
        members = self.recording.network.members
        return {"members": list(members)} if members else {}

    def write(self, results: Json, section: Section, world: World = ONE_PROCESS) -> Json:
        """Write a picture of the section's charts, then the JSON (once it exists, all files do); print the findings.

        Each of several processes writes its own results, then prints and returns the merged results of all.
        """
        results = plain(results)
        charts.plot(section.charts(results), self.folder / f"{self.command}.png", results["title"])
        files.write_json(self.folder / f"{self.command}.json", results)
        if not world.alone:
            shared = {name: entry for name, entry in results.items() if name not in section.charts_only}
            results = section.merge(world.tell(shared))
        self.print(*results["findings"])
        return results

    def print(self, *lines: str) -> None:
        """Print lines as they are: no markup, no highlighting, no added line breaks."""
        for line in lines:
            say(self.console, line)

    def print_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], right: int, wrap: str = "", padding: int = 3
    ) -> None:
        """Print rows, if there are any, as `Console.print_table` does."""
        if rows:
            self.console.print()
            self.console.print_table(columns, rows, right, wrap, padding)

    def print_files(self, more: str = "") -> None:
        """Print which files were written, and where."""
        self.print(f"{', '.join(self.files)} in {self.folder}{more}")


def open_writer(args: argparse.Namespace, recording: Recording, command: str, *more: str) -> Writer:
    """The writer of a command's JSON, PNG and `more` files; ValueError if results would be replaced unasked."""
    written = [f"{command}.json", f"{command}.png", *more]
    folder = results_folder(recording.folder, command, args.out, written, args.overwrite)
    return Writer(command, recording, folder, written, Console(quiet=args.quiet))


def comma_separated(nodes: Iterable[int]) -> str:
    """Numbers of participants in a sentence: 1, 2, 5."""
    return ", ".join(map(str, nodes))
