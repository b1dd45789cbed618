"""detect on the report page: who was flagged by its neighbours, since when and why."""

from pathlib import Path
from typing import Any

from cascadice.applications.detect.idea import MAJORITY
from cascadice.applications.plain import Json
from cascadice.applications.sections import Section, build_section

LEAD = (
    "Each participant compares the updates it receives from its neighbours and flags those that stand out. Those "
    "flagged by at least half of their receivers are marked in the network. Rounds count from 0."
)


def build(results: Json, folder: Path) -> Json:
    """The section, and the participants that at least half of their receivers flag."""
    return {**build_section(results, folder, LEAD), "flagged": _flagged(results.get("votes"))}


def _flagged(votes: Any) -> list[int]:
    """Participants flagged in the last round; `votes` is the share of receivers that flag each, round by round."""
    last = votes[-1] if isinstance(votes, list) and votes else []
    return [node for node, share in enumerate(last) if share is not None and share >= MAJORITY]


SECTION = Section("Who behaves unlike the others?", "cascadice detect {run}", build)
