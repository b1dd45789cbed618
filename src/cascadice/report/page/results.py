"""The files that `cascadice reproduce` and the studies write, and the plain data of the page that shows them.

OUT/reproduction.json       the version that made the figures, and their order
OUT/NAME/result.json        one figure: title, findings, summary, settings; written last
OUT/NAME/points.parquet     every point measured           OUT/NAME/figure.png, figure.svg
OUT/NAME/parts/*.json       what was measured so far of an unfinished figure; error.txt: why it failed
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cascadice
from cascadice import files
from cascadice.applications.plain import Json, data_uri, evenly, in_order, short

MANIFEST, RESULT, POINTS, PARTS, ERROR = "reproduction.json", "result.json", "points.parquet", "parts", "error.txt"
PICTURES = ("figure.png", "figure.svg")
ORDER = "figures"  # in the manifest: the names of all figures, in the order of the page
RESUME = "Run the same `cascadice reproduce` command again to continue."
REQUIRED = ("title", "findings", "summary", "settings", "seconds", "device", "version")
PICTURE_BYTES = 5_500_000  # all pictures together
CELLS = 200_000  # all tables of points together


def collect_results(folder: files.Folder) -> Json:
    """Collect what a page shows of one reproduced figure, or of all figures in a folder.

    `folder` is that of one figure, or the `--out` of `cascadice reproduce`. At least one result.json is required;
    `notes` names whatever else is missing or cannot be read.
    """
    home, notes = Path(folder), list[str]()
    results = {place: result for place in result_folders(home) if (result := read_result(place, notes))}
    if not results:
        absent = f"{home} has no {RESULT}, and neither has a folder in it."
        raise ValueError(notes[0] if notes else f"{absent} Name a folder that `cascadice reproduce` wrote.")
    notes += [text] if (text := unfinished(home)) else []
    pictures = _pictures(list(results), notes)
    sections = [_section(place, result, len(results), notes) for place, result in results.items()]
    title = sections[0]["title"] if len(sections) == 1 else f"The paper, reproduced: {len(sections)} results"
    about = {"version": cascadice.__version__, "title": title, "folder": home.absolute().name, "path": str(home)}
    return {**about, "results": [{**one, "picture": pictures.get(one["name"])} for one in sections], "notes": notes}


def result_folders(folder: Path) -> list[Path]:
    """Find the results of `cascadice reproduce`.

    Args:
        folder: The folder of one figure, or of several.

    Returns:
        The folder itself if it holds a result; otherwise the folders in it that do, in the order of the manifest.

    Example:
        >>> result_folders(Path("out/reproduce"))  # doctest: +SKIP
    """
    if (folder / RESULT).exists():
        return [folder]
    try:
        order = list(files.read_json(folder / MANIFEST).get(ORDER, ()))
    except (OSError, ValueError):
        order = []
    return in_order((path.parent for path in folder.glob(f"*/{RESULT}")), order, lambda path: path.name)


def unfinished(folder: Path) -> str:
    """Name the figures in a folder that were started and have no result; empty if there are none."""
    named = []
    for path in (folder, *sorted(folder.glob("*/"))):
        failed = (path / ERROR).exists()
        if not (path / RESULT).exists() and (failed or (path / PARTS).is_dir()):
            named.append(path.absolute().name + (f" (failed, see {path / ERROR})" if failed else ""))
    return f"Not finished: {', '.join(named)}. {RESUME}" if named else ""


def read_result(folder: Path, notes: list[str]) -> Json | None:
    """Read the result in a folder.

    Args:
        folder: The folder of a figure.
        notes: Receives the reason if it cannot be read.

    Returns:
        What result.json holds, or None.

    Example:
        >>> read_result(Path("out/reproduce/ripples"), notes := [])  # doctest: +SKIP
    """
    try:
        result = files.read_json(folder / RESULT)
        if absent := [name for name in REQUIRED if name not in result]:
            raise ValueError(f"{RESULT} lacks {', '.join(absent)}; was it written by another program or version?")
    except (ValueError, OSError) as error:
        notes.append(f"The result in {folder.name} is not shown: {error}")
        return None
    return result


def command_line(name: str, result: Mapping[str, Any]) -> str:
    """The command that made this result.

    Args:
        name: The figure's name.
        result: What `read_result` returned.

    Returns:
        The command, as typed in a shell.

    Example:
        >>> command_line("ripples", {"settings": {"quick": True, "mixing": None}})
        'cascadice reproduce ripples --quick'
    """
    if "command" in result:  # of a study
        return str(result["command"])
    quick, mixing = (bool(result["settings"][name]) for name in ("quick", "mixing"))
    return f"cascadice reproduce {name}{' --quick' * quick}{' --mixing FILE.csv' * mixing}"


def provenance(result: Mapping[str, Any]) -> str:
    """Where a result comes from: its scale, how long it took, the device and the version.

    Args:
        result: What `read_result` returned.

    Returns:
        One sentence.

    Example:
        >>> provenance({"settings": {"quick": False}, "seconds": 61.2, "device": "cpu", "version": "0.2.0"})
        "the paper's settings; 61 s on cpu, cascadice 0.2.0"
    """
    scale = "quick: fewer participants, rounds and points than the paper; "
    if not (quick := result["settings"].get("quick")):
        scale = "" if quick is None else "the paper's settings; "  # a study's settings are its own
    return f"{scale}{result['seconds']:.0f} s on {result['device']}, cascadice {result['version']}"


def text_table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The summary of a result as text.

    Args:
        rows: The rows, all with the same names.

    Returns:
        A header and the rows; columns without any value are left out.

    Example:
        >>> text_table([{"test_accuracy": 0.41256, "note": None}])
        [['test accuracy'], ['0.4126']]
    """
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else []
    return [[name.replace("_", " ") for name in names], *([_cell(row[name]) for name in names] for row in rows)]


def _cell(value: Any) -> str:
    """Four significant digits; a list of three is a value with the ends of its interval."""
    if isinstance(value, list):
        middle, *ends = (_cell(entry) for entry in value)
        return middle if {*ends} == {middle} else f"{middle} ({' to '.join(ends)})"
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else _word_of(value)


def _section(folder: Path, result: Json, among: int, notes: list[str]) -> Json:
    columns, *rows = text_table(result["summary"])
    name = folder.absolute().name
    return {
        "name": name,
        "title": str(result["title"]),
        "claim": str(result.get("claim", "")),
        "findings": [str(sentence) for sentence in result["findings"]],
        "columns": columns,
        "rows": rows,
        "count": len(rows),
        "command": command_line(name, result),
        "made": provenance(result),
        "points": _points(folder, CELLS // among, notes),
    }


def _pictures(folders: Sequence[Path], notes: list[str]) -> dict[str, str]:
    """Each result's figure, as PNG or SVG, whichever is smaller, until the page is full."""
    pictures, space = dict[str, str](), PICTURE_BYTES
    for folder in folders:
        name, paths = folder.absolute().name, [path for picture in PICTURES if (path := folder / picture).exists()]
        picture = min(paths, key=lambda path: path.stat().st_size, default=None)
        if picture is None:
            notes.append(f"The figure of {name} is missing.")
        elif picture.stat().st_size > space:
            notes.append(f"The figure of {name} is too large for the page; see {picture}.")
        else:
            space -= picture.stat().st_size
            pictures[name] = data_uri(picture.read_bytes(), "svg+xml" if picture.suffix == ".svg" else "png")
    return pictures


def _points(folder: Path, cells: int, notes: list[str]) -> Json | None:
    """Every point, column by column; if there are too many, evenly spaced ones."""
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / POINTS
    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = f"{POINTS} is missing" if not path.exists() else str(error).splitlines()[0]
        notes.append(f"The points of {folder.absolute().name} are not shown: {reason.rstrip('.')}.")
        return None
    if not table.num_rows or not table.num_columns:
        return None
    kept = evenly(table.num_rows, max(1, cells // table.num_columns))
    note = "" if len(kept) == table.num_rows else f"{len(kept):,} of {table.num_rows:,} rows; all are in {path}."
    return _searchable({name: table[name].take(pa.array(kept)).to_pylist() for name in table.column_names}, note)


def _searchable(columns: Mapping[str, Sequence[Any]], note: str) -> Json:
    """The page's searchable table: numbers as they are (None: empty), others as an index into sorted words."""
    values, words = list[Sequence[Any]](), dict[str, list[str]]()
    for name, column in columns.items():
        present = [value for value in column if value is not None]
        if all(isinstance(value, int) and not isinstance(value, bool) for value in present):
            values.append(column)
        elif all(isinstance(value, float) for value in present):
            values.append(short([float("nan") if value is None else value for value in column]))
        else:
            words[name] = sorted({_word_of(value) for value in present})
            index = {word: place for place, word in enumerate(words[name])}
            values.append([None if value is None else index[_word_of(value)] for value in column])
    return {"columns": list(columns), "values": values, "words": words, "sums": [], "note": note}


def _word_of(value: Any) -> str:
    """A value as text; yes or no instead of True or False."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
