"""`cascadice report`: a run, what was reproduced, or what a study measured, as one HTML page.

Torch is loaded when the command runs, not when its help is shown.
"""

import argparse
from pathlib import Path
from typing import Any

ACCEPTED = "Name the folder of a run, of what `cascadice reproduce` made, or of a study."


def add(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    text = (
        "the folder that `cascadice run` wrote, or `cascadice reproduce` (one figure's, or that of all), "
        "or `python -m cascadice_experiments.STUDY --out`"
    )
    parser.add_argument("run", metavar="RUN", help=text)
    parser.add_argument("--out", metavar="FILE", help="the page (RUN/report.html); an earlier one is replaced")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(command=_report)


def _report(args: argparse.Namespace) -> None:
    from rich.console import Console

    from cascadice.report.page import write, write_results

    folder, out = Path(args.run), None if args.out is None else _checked(Path(args.out))
    if measured := _holds_results(folder):
        path, data = write_results(folder, out)
        told = _by_name(data["results"])
    else:
        path, data = write(folder, out)
        told = data["findings"]
    console = Console(quiet=args.quiet)
    for text in (*told, *(f"note: {note}" for note in data["notes"])):
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    if not measured and data["influence"] is None and data["commands"]:
        ask = f"no influence yet; this adds it: {data['commands'][0]['command']}"
        console.print(ask, highlight=False, soft_wrap=True, markup=False)
    size = f"{path.stat().st_size / 1e6:.1f} MB, one file, no network needed"
    console.print(f"page in {path} ({size})", highlight=False, soft_wrap=True, markup=False)


def _by_name(results: list[dict[str, Any]]) -> list[str]:
    """What was found; of several figures, each under its name."""
    if len(results) == 1:
        return list(results[0]["findings"])
    return [line for result in results for line in (f"{result['name']}:", *(f"  {one}" for one in result["findings"]))]


def _holds_results(folder: Path) -> bool:
    """Whether results are in the folder, and no run; a folder with neither is a mistake."""
    from cascadice.report.page.results import result_folders
    from cascadice.runs.folder import CONFIG

    if (folder / CONFIG).exists():
        return False
    if not result_folders(folder):
        raise ValueError(_what_is_there(folder))
    return True


def _what_is_there(folder: Path) -> str:
    """Of a folder with nothing to show: why, and what to do."""
    from cascadice.report.page.results import MANIFEST, RESUME, unfinished

    if begun := unfinished(folder):
        return f"{folder} has no result yet. {begun}"
    if (folder / MANIFEST).exists():
        return f"{folder} has no result yet. {RESUME}"
    if not folder.is_dir():
        return f"{folder} {'is a file' if folder.exists() else 'does not exist'}. {ACCEPTED}"
    if any(path.with_suffix(".parquet").exists() for path in folder.glob("*.json")):
        return f"{folder} holds numbers of figures, NAME.json, but no figure's folder, NAME/result.json. {ACCEPTED}"
    return f"{folder} holds neither a run (config.json) nor a result (result.json). {ACCEPTED}"


def _checked(path: Path) -> Path:
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page must end in .html; found {str(path)!r}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a page is a file. Choose another name with --out.")
    return path
