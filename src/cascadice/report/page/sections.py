"""The applications' sections of a run's page, and the commands for what has not been asked yet.

A new application needs one entry in `SECTIONS`. Results of other commands (`NAME/NAME.json` of this run) are shown too,
after those listed.
"""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from cascadice import files
from cascadice.applications.choose.section import SECTION as CHOOSE
from cascadice.applications.detect.section import SECTION as DETECT
from cascadice.applications.forget.section import SECTION as FORGET
from cascadice.applications.plain import Json
from cascadice.applications.reward.section import SECTION as REWARD
from cascadice.applications.sections import Section, build_section
from cascadice.runs.folder import INFLUENCE

SECTIONS = {"detect": DETECT, "choose": CHOOSE, "reward": REWARD, "forget": FORGET}
OTHER = Section("", "", build_section)

# what only the page itself shows: question, command
INFLUENCES = {
    "influence": (
        "Whose data helped whom?",
        "cascadice influence {run} --hops 2 --kind truth,path-integrated --every 20",
    ),
    "samples": (
        "Which samples helped and harmed?",
        "cascadice influence {run} --kind shares --samples --every 20 --out {samples}",
    ),
}
NOT_RECORDED = "Its rounds were not recorded: train it again with --record all, then ask whose data helped whom"


def read_sections(folder: Path, run: str, notes: list[str]) -> list[Json]:
    """The sections of the run with fingerprint `run`; what cannot be shown is named in `notes`."""
    sections = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: _rank(path.stem)):
        if path.stem != path.parent.name or path.stem == INFLUENCE:
            continue
        try:
            results = files.read_json(path)
            if results.get("run") != run:
                raise ValueError("it belongs to another run.")
            sections.append(SECTIONS.get(path.stem, OTHER).build(results, path.parent))
        except (ValueError, TypeError, OSError) as error:
            notes.append(f"The results of `cascadice {path.stem}` are not shown: {error}")
    return sections


def _rank(name: str) -> tuple[int, str]:
    order = list(SECTIONS)
    return (order.index(name) if name in order else len(order)), name


def flagged(sections: Sequence[Json]) -> list[int]:
    """All participants that any of the sections flags."""
    return sorted({node for section in sections for node in section["flagged"] or ()})


def commands(folder: Path, recorded: bool, shown: Collection[str]) -> list[Json]:
    """Commands that would add what the page does not show yet; a run without recorded rounds must be trained again."""
    run, samples = shlex.quote(str(folder)), shlex.quote(str(folder / "samples"))
    if not recorded:
        again = shlex.quote(f"{folder}-recorded")
        text = f"cascadice run {run} --record all --out {again} && {INFLUENCES['influence'][1].format(run=again)}"
        return [] if "influence" in shown else [{"name": "influence", "what": NOT_RECORDED, "command": text}]
    offers = INFLUENCES | {name: (section.question, section.command) for name, section in SECTIONS.items()}
    return [
        {"name": name, "what": question, "command": command.format(run=run, samples=samples)}
        for name, (question, command) in offers.items()
        if name not in shown
    ]
