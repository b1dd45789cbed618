"""What came of an attempt, and the table of all of them."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """Held, or the way in which an attempt succeeded; `TRACEBACK` is also a crash and a command that never ends."""

    HELD = "held"
    TRACEBACK = "tracebacks"
    SILENT = "silent wrong"
    LOST = "lost"


class Attempt(NamedTuple):
    """One attempt: what was done, in words that allow to do it again, and what came of it."""

    what: str
    outcome: Outcome
    said: str = ""


FAILURES = (Outcome.TRACEBACK, Outcome.SILENT, Outcome.LOST)


class Tally:
    """Attempts counted by kind; those that succeeded are kept."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[Outcome]] = {}
        self.skipped: dict[str, str] = {}
        self.failures: list[tuple[str, Attempt]] = []

    def add(self, kind: str, attempt: Attempt) -> None:
        """Count an attempt."""
        self.counts.setdefault(kind, Counter())[attempt.outcome] += 1
        if attempt.outcome != Outcome.HELD:
            self.failures.append((kind, attempt))

    @property
    def attempts(self) -> int:
        """How many attempts there were."""
        return sum(count.total() for count in self.counts.values())

    def rows(self) -> Iterable[tuple[str, ...]]:
        """The table: a row a kind, then the sums."""
        yield "kind", "attempts", *FAILURES
        for kind, count in self.counts.items():
            yield kind, f"{count.total():,}", *(str(count[failure]) for failure in FAILURES)
        for kind, why in self.skipped.items():
            yield kind, f"skipped: {why}"
        sums = (sum(count[failure] for count in self.counts.values()) for failure in FAILURES)
        yield "all", f"{self.attempts:,}", *map(str, sums)

    def __str__(self) -> str:
        lines = [f"{row[0]:<20}{row[1]:>10}" + "".join(f"{cell:>14}" for cell in row[2:]) for row in self.rows()]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
