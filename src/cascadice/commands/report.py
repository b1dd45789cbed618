"""`cascadice report`: a run, reproduced figures or a study as one HTML page."""

import argparse
from pathlib import Path
from typing import Any

ACCEPTED = "Name a folder that `cascadice run`, `cascadice reproduce` or a study wrote."


def add(parser: argparse.ArgumentParser) -> None:
    text = "the folder that `cascadice run` wrote, or that of one of its processes, or `cascadice reproduce` (of "
    text += "one figure or of all), or `python -m cascadice_experiments.STUDY --out`"
    parser.add_argument("run", metavar="RUN", help=text)
    parser.add_argument("--out", metavar="FILE", help="the page (RUN/report.html); an earlier one is replaced")
    text = "compare the run with this one, of the same data, loss and number of participants"
    parser.add_argument("--compare", metavar="OTHER", help=text)
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def run(args: argparse.Namespace) -> None:
    from cascadice.console import Console, say
    from cascadice.report.page import write, write_results

    folder, out, console = Path(args.run), _checked(args.out), Console(quiet=args.quiet)
    if _has_results(folder):
        if args.compare:
            raise ValueError(f"--compare is for runs; {folder} holds results of figures or studies. Leave it out.")
        path, data = write_results(folder, out)
        texts = _by_name(data["results"])
    else:
        path, data = write(folder, out, args.compare)
        texts = [*data["findings"], *(data["sections"][0]["findings"] if args.compare else ())]
    texts += [f"note: {note}" for note in data["notes"]]
    if data.get("commands") and data["influence"] is None:
        texts.append(f"no influence yet; this adds it: {data['commands'][0]['command']}")
    for text in (*texts, f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB, one file, works offline)"):
        say(console, text)


def _by_name(results: list[dict[str, Any]]) -> list[str]:
    """The findings; if there are several figures, each under its name."""
    if len(results) == 1:
        return list(results[0]["findings"])
    return [line for result in results for line in (f"{result['name']}:", *(f"  {one}" for one in result["findings"]))]


def _has_results(folder: Path) -> bool:
    """Whether the folder holds results rather than a run; a folder with neither is a mistake."""
    from cascadice.report.page.results import MANIFEST, RESUME, result_folders, unfinished
    from cascadice.runs.distributed.gathering import places_of

    if (run := bool(places_of(folder))) or result_folders(folder):
        return not run
    if begun := unfinished(folder) or (RESUME if (folder / MANIFEST).exists() else ""):
        raise ValueError(f"{folder} has no result yet. {begun}")
    if not folder.is_dir():
        raise ValueError(f"{folder} {'is a file' if folder.exists() else 'does not exist'}. {ACCEPTED}")
    found = "neither a run (config.json) nor a result (result.json)"
    if any(path.with_suffix(".parquet").exists() for path in folder.glob("*.json")):
        found = "numbers of figures, NAME.json, but no figure's folder, NAME/result.json"
    raise ValueError(f"{folder} holds {found}. {ACCEPTED}")


def _checked(out: str | None) -> Path | None:
    if out is None:
        return None
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page must end in .html; found {out!r}.")
    if Path(out).is_dir():
        raise ValueError(f"{out} is a folder; a page is a file. Choose another name with --out.")
    return Path(out)
