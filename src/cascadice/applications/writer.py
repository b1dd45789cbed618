"""What all applications share: the writer of JSON, picture and console lines, and their section of the report page."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cascadice
from cascadice import files
from cascadice.applications.plain import Json
from cascadice.console import Console, say
from cascadice.pictures import charts
from cascadice.runs.processes import ONE_PROCESS, World
from cascadice.runs.recording import results_folder

if TYPE_CHECKING:
    from cascadice.runs.recording import Recording

SIGN_RULE = "Negative = the loss went down = it helped; positive = it harmed."  # of influence, wherever it is shown


def agreed(parts: Sequence[Json], *names: str) -> None:
    """Check that the results of several processes have the same entries under these names."""
    for name in names:
        if any(part.get(name) != parts[0].get(name) for part in parts):
            raise ValueError(f"{name!r} differs between processes. Ask all of them again, with --overwrite.")


def alike(parts: Sequence[Json]) -> Json:
    """The results of several processes that all wrote the same."""
    agreed(parts, "title", "findings")
    return parts[0]


class Section(NamedTuple):
    """A part of the report page.

    `question` and `command` are offered while its results are missing; "{run}" in the command is the run's folder.
    `lead` says what the numbers mean: their units, their signs, and the terms used. `audit` compares the results in a
    folder with what they were made from: it returns what it checked, in words, and raises ValueError if they disagree.
    `charts` draws the results, as `applications.charts` says, for the page and for the picture; of results that lack
    what it needs, the page shows the picture.
    `everybody` puts together the results of several processes, in their order. `kept` names what it needs for charts
    alone: processes do not tell one another as much. `table` gives the table as the page shows it. `length` says, of
    results about the final models, how many rounds the run had then; None of others. `again` is what the command needs
    to replace results of a run that went on.
    """

    question: str
    command: str
    lead: str = ""
    audit: Callable[[Json, Path], list[str]] = lambda results, folder: []
    charts: Callable[[Json], list[Json]] = lambda results: []
    everybody: Callable[[Sequence[Json]], Json] = alike
    kept: tuple[str, ...] = ()
    table: Callable[[Json], Json] = lambda table: table
    length: Callable[[Json], int | None] = lambda results: None
    again: str = "--overwrite"


@dataclass(frozen=True)
class Writer:
    """Writes the results of one command on one run as `files` into `folder`, and prints them."""

    command: str
    recording: "Recording"
    folder: Path
    files: Sequence[str]
    console: Console

    def header(self, title: str, findings: Sequence[str], columns: Sequence[str], rows: Sequence[Any]) -> Json:
        """The part of the JSON that every command has and the report reads; `findings` are sentences."""
        return {
            "command": self.command,
            "version": cascadice.__version__,
            "run": self.recording.fingerprint,
            "title": title,
            "findings": list(findings),
            "table": {"columns": list(columns), "rows": list(rows)},
            "figure": f"{self.command}.png",
        }

    def write(self, results: Json, section: Section, world: World = ONE_PROCESS) -> Json:
        """Write a picture of the section's charts, then the JSON (once it is there, all files are); print the findings.

        In a `world` of several processes, each writes what it found, and prints and returns what all of them found.
        """
        charts.plot(section.charts(results), self.folder / f"{self.command}.png", results["title"])
        files.write_json(self.folder / f"{self.command}.json", results)
        if not world.alone:
            told = {name: entry for name, entry in results.items() if name not in section.kept}
            results = section.everybody(world.tell(told))
        self.print(*results["findings"])
        return results

    def print(self, *lines: str) -> None:
        """Print lines as they are: no markup, no highlighting, no line breaks of ours."""
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


def open_writer(args: argparse.Namespace, recording: "Recording", command: str, *more: str) -> Writer:
    """The writer of a command's JSON and PNG and `more` files; ValueError unless its folder is free for them."""
    written = [f"{command}.json", f"{command}.png", *more]
    folder = results_folder(recording.folder, command, args.out, written, args.overwrite)
    return Writer(command, recording, folder, written, Console(quiet=args.quiet))


def plus_minus(value: float, half: float | None, digits: int) -> str:
    """A number with half of its 95 % interval, for the console; without, if there is none."""
    return f"{value + 0.0:+.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None and half == half else "")


def comma_separated(nodes: Iterable[int]) -> str:
    """Numbers of participants in a sentence: 1, 2, 5."""
    return ", ".join(map(str, nodes))
