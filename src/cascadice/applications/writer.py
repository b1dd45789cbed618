"""The writer that all applications share: JSON, picture and console lines, into one folder.

Torch and rich are imported when a command runs, not when its help is shown.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from torch import Tensor

    from cascadice.runs.recording import Recording

Json = dict[str, Any]


@dataclass(frozen=True)
class Writer:
    """Writes the results of one command on one run into `folder`, and prints them.

    `files` are the names of what the command writes: `<command>.json`, `<command>.png` and any others.
    """

    command: str
    recording: "Recording"
    folder: Path
    files: Sequence[str]
    console: "Console"

    def header(self, title: str, findings: Sequence[str], columns: Sequence[str], rows: Sequence[Any]) -> Json:
        """The part of the JSON that every command has and the report reads; `findings` are sentences."""
        import cascadice

        return {
            "command": self.command,
            "version": cascadice.__version__,
            "run": self.recording.fingerprint,
            "title": title,
            "findings": list(findings),
            "table": {"columns": list(columns), "rows": list(rows)},
            "figure": f"{self.command}.png",
        }

    def write(self, results: Mapping[str, Any], plot: Callable[[Mapping[str, Any], Path], None]) -> None:
        """Write the picture, then the JSON: once the JSON is there, all files are."""
        from cascadice import files

        plot(results, self.folder / f"{self.command}.png")
        files.write_json(self.folder / f"{self.command}.json", results)

    def print(self, lines: Iterable[str]) -> None:
        """Print lines as they are: no markup, no highlighting, no line breaks of ours."""
        for line in lines:
            self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def print_table(
        self, columns: Mapping[str, "JustifyMethod"], rows: Sequence[Sequence[str]], wrap: str | None = None
    ) -> None:
        """Print a table below an empty line, unless it has no rows.

        Args:
            columns: The name of each column and how it is justified.
            rows: The cells.
            wrap: The one column whose cells may break into lines where the terminal is narrow.
        """
        from rich.table import Table

        table = Table(box=None, padding=(0, 3, 0, 0))
        for column, justify in columns.items():
            table.add_column(column, justify=justify, no_wrap=column != wrap)
        for row in rows:
            table.add_row(*row)
        if rows:
            self.console.print()
            self.console.print(table)

    def print_files(self) -> None:
        """Print which files were written, and where."""
        self.print([f"{', '.join(self.files)} in {self.folder}"])


def open_writer(args: argparse.Namespace, recording: "Recording", command: str, *more: str) -> Writer:
    """The writer of a command's JSON and PNG and `more` files, once the folder for them is known to be free.

    Raises:
        ValueError: If results are there already and --overwrite was not given, or the folder cannot hold results.
    """
    from rich.console import Console

    from cascadice.runs.recording import results_folder

    files = [f"{command}.json", f"{command}.png", *more]
    folder = results_folder(recording.folder, command, args.out, files, args.overwrite)
    return Writer(command, recording, folder, files, Console(quiet=args.quiet))


def nested_lists(values: "Tensor") -> Any:
    """A tensor as nested lists, with None (null in JSON) for NaN and infinity."""
    array = values.detach().double().cpu().numpy()
    plain = array.astype(object)
    plain[~(abs(array) < float("inf"))] = None
    return plain.tolist()


def comma_separated(nodes: Iterable[int]) -> str:
    """Numbers of participants in a sentence: 1, 2, 5."""
    return ", ".join(map(str, nodes))
