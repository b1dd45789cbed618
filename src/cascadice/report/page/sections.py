"""The applications' sections of a run's page, and the commands that would add what is not there yet.

Results of other commands (`NAME/NAME.json` in the run's folder) follow those listed in `SECTIONS`.
"""

import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice.applications.choose.by_contribution import SECTION as CONTRIBUTION
from cascadice.applications.choose.findings import SECTION as CHOOSE
from cascadice.applications.detect.findings import SECTION as DETECT
from cascadice.applications.detect.idea import MAJORITY
from cascadice.applications.forget.findings import SECTION as FORGET
from cascadice.applications.plain import Json, data_uri, evenly, in_order, plain
from cascadice.applications.reward.findings import SECTION as REWARD
from cascadice.applications.validate.findings import SECTION as VALIDATE
from cascadice.applications.writer import Section, merge_same
from cascadice.engine.parts import numbered
from cascadice.runs.folder import INFLUENCE, check_length, launcher
from cascadice.runs.summary import measured_models

SECTIONS = {"detect": DETECT, "choose": CHOOSE, "reward": REWARD, "forget": FORGET, "validate": VALIDATE}
SHOWN = {**SECTIONS, "contribution": CONTRIBUTION}  # `choose --by contribution` has a folder of its own
ROWS = 500  # at most, in a section's table
PLAIN = int | float | str | None  # cells that are shown as they are
PICTURE_BYTES = 800_000

COMMAND = "cascadice influence {run} --hops 2 --kind truth,path-integrated --every 20"
OF_SAMPLES = "cascadice influence {run} --kind shares --samples --every 20 --out {samples}"
OF_PROCESSES = "cascadice influence {run} --hops 2 --kind shares --samples --every 20"
OF_FINAL_MODELS = "cascadice influence {run} --kind whole-run-shares --samples"
INFLUENCES = {  # what only the page itself shows
    "whole-run": Section("Who helped the final models?", OF_FINAL_MODELS),
    "influence": Section("Whose data helped whom?", COMMAND),
    "samples": Section("Which samples helped and harmed?", OF_SAMPLES),
}
NOT_RECORDED = Section(
    "Its rounds were not recorded: train it again with --record all, then ask whose data helped whom",
    "cascadice run {run} --record all --out {again} && " + COMMAND.replace("{run}", "{again}"),
)


def read_sections(folders: Sequence[Path], run: str, notes: list[str]) -> list[Json]:
    """The sections of a run, of what all its processes wrote; `notes` names what cannot be shown."""
    paths = [path for folder in folders for path in sorted(folder.glob("*/*.json")) if path.stem == path.parent.name]
    names = in_order({path.stem for path in paths} - {INFLUENCE}, list(SECTIONS), str)
    read = (_read_section(name, [path for path in paths if path.stem == name], run, notes) for name in names)
    return [section for section in read if section]


def _read_section(name: str, paths: Sequence[Path], run: str, notes: list[str]) -> Json | None:
    """The section of one command, from the results that each process wrote."""
    parts, checked = list[Json](), dict[str, None]()
    for path in paths:
        try:
            results = files.read_json(path)
            if results.get("run") != run:
                raise ValueError("it belongs to another run.")
            checked |= dict.fromkeys(audited(results, path.parent))
            parts.append(results)
        except (ValueError, TypeError, OSError) as error:
            where = f" of {path.parent.parent.name}" if len(paths) > 1 else ""
            notes.append(f"The results in {path.parent.name}{where} are not shown: {error}")
    if not parts:
        return None
    try:
        section = build_section(together(name, parts), paths[0].parent)
    except (ValueError, TypeError, OSError) as error:
        notes.append(f"The results in {name} are not shown: {error}")
        return None
    return {**section, "findings": [*section["findings"], *checked]}


def together(name: str, parts: Sequence[Json]) -> Json:
    """One result from those of several processes; ValueError if they do not fit together."""
    if len(parts) == 1:
        return parts[0]
    try:
        whole = SHOWN[name].merge(parts) if name in SHOWN else merge_same(parts)
    except (KeyError, IndexError, AttributeError) as error:
        wrong = f"those of all processes cannot be put together: {type(error).__name__} {error}"
        raise ValueError(f"{wrong}. Ask them again, with --overwrite.") from None
    return {**whole, "figure": None}  # it is of one process


def audited(results: Json, folder: Path) -> list[str]:
    """Sentences about what was checked in these results; ValueError if they contradict what they were made from."""
    section = SHOWN.get(folder.name)
    if section is None:
        return []
    length = None
    with suppress(KeyError, TypeError, AttributeError):  # written by another version
        length = section.run_length(results)
    try:
        check_length(folder.parent, length if isinstance(length, int) else None, section.redo)
        return section.audit(results, folder)
    except (KeyError, IndexError, AttributeError, OSError) as error:
        raise ValueError(f"it cannot be checked: {type(error).__name__} {error}.") from None


def build_section(results: Json, folder: Path) -> Json:
    """Make a section from the JSON that a command wrote into this folder, beside its figure."""
    section = SHOWN.get(folder.name)
    columns, rows = _table(results, section)
    shown, drawn = [rows[place] for place in evenly(len(rows), ROWS)], None
    with suppress(KeyError, IndexError, ValueError, TypeError, AttributeError):  # of another version
        drawn = section.charts(results) if section else None
    return {
        "name": folder.name,
        "title": str(results.get("title", folder.name)),
        "lead": section.lead if section else "",
        "findings": [str(sentence) for sentence in results.get("findings", ())],
        "columns": [str(column) for column in columns],
        "rows": [[plain(cell) if isinstance(cell, PLAIN) else str(cell) for cell in row] for row in shown],
        "count": len(rows),
        "flagged": _flagged(results.get("votes")) if folder.name == "detect" else None,  # to be marked
        "charts": drawn or [],
        "picture": _picture(folder, results.get("figure")) if drawn is None else None,
        "points": str(results.get("points") or ""),
    }


def _table(results: Json, section: Section | None) -> tuple[list[Any], list[list[Any]]]:
    """The columns and rows that the page shows."""
    table = results.get("table")
    if not isinstance(table, dict):
        return [], []
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("its table must have a list of columns and a list of rows.")
    shown = section.table(table) if section else table
    return shown["columns"], shown["rows"]


def explain_disagreement(sections: Sequence[Json], final: Json | None) -> None:
    """In `choose`, name those it would expel although they clearly helped the final models of all."""
    of_all = final is not None and final["models"] == measured_models("all")
    helped = {row[0] for row in final["rows"] if "helped" in row} if final and of_all else set()
    for section in sections:
        if section["name"] == "choose" and "advice" in section["columns"]:
            place = section["columns"].index("advice")
            if both := [row[0] for row in section["rows"] if row[place] == "expel" and row[0] in helped]:
                section["findings"].append(
                    f"By cosine, {numbered(both)} would be expelled, but clearly helped the final models. The two "
                    "disagree: follow the final models, which the test data judge."
                )


def explain_points(sections: Sequence[Json]) -> None:
    """If sections computed shares with different numbers of points, say in the first why their sums differ."""
    used = [section for section in sections if section["points"]]
    if len({section["points"] for section in used}) > 1:
        each = ", ".join(f"{section['name']} with {section['points']}" for section in used)
        used[0]["findings"].append(
            f"The sums of shares on this page differ, because they were computed with different --points: {each}. More "
            "points usually bring them closer to each other and to what training changed."
        )


def _flagged(votes: Any) -> list[int]:
    """Participants flagged in the last round; `votes` is the share of receivers that flag each, round by round."""
    last = votes[-1] if isinstance(votes, list) and votes else []
    return [node for node, share in enumerate(last) if share is not None and share >= MAJORITY]


def _picture(folder: Path, name: Any) -> str | None:
    """The figure as a data URI, if it is a PNG in this folder and small enough for the page."""
    path = folder / Path(name).name if isinstance(name, str) else folder
    if not path.is_file() or path.stat().st_size > PICTURE_BYTES:
        return None
    content = path.read_bytes()
    return data_uri(content) if content.startswith(b"\x89PNG") else None


def commands(
    folder: Path, recorded: bool, shown: Collection[str], playable: bool, own: Sequence[str], processes: int
) -> list[Json]:
    """Commands that would add what the page does not show yet; a run without recorded rounds must be trained again.

    Without them, only what trains again can be computed, and only if the run can be played again (`playable`). `own`
    names what other processes cannot rebuild from the saved settings: "model", "loss".
    """
    again = ("whole-run", "reward") if processes == 1 else ("whole-run",)
    offers = {name: (INFLUENCES | SECTIONS)[name] for name in again if playable}
    if processes > 1 and recorded:
        offers |= {"influence": Section(INFLUENCES["influence"].question, OF_PROCESSES), "detect": SECTIONS["detect"]}
    elif processes == 1:
        offers = INFLUENCES | SECTIONS if recorded else offers | {"influence": NOT_RECORDED}
    places = {"run": folder, "samples": folder / "samples", "again": f"{folder}-recorded"}
    quoted = {name: shlex.quote(str(place)) for name, place in places.items()}
    flags = "".join(f" --{what} package.module:name" for what in own if recorded)
    texts = {name: offer.command.format(**quoted) + flags for name, offer in offers.items() if name not in shown}
    start = launcher(processes)
    return [
        {"name": name, "what": offers[name].question, "command": text.replace("cascadice", start, 1)}
        for name, text in texts.items()
    ]
