"""Faults of participants in some rounds, and their text form, such as `flip-labels:3,5:0.5@10-20`."""

import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

FORM = re.compile(r"([\w-]+):(\d+(?:,\d+)*)(?::([^:@]+))?(?:@(\d+)(-?)(\d*))?")


@dataclass(frozen=True)
class Fault:
    """A fault of kind `kind` of some participants, in `rounds` (every round if None), and its strength."""

    kind: str
    nodes: tuple[int, ...]
    rounds: range | None = None
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not self.nodes or min(self.nodes) < 0:
            raise ValueError(f"{self.kind} must name participants, numbered from 0; found {self.nodes}.")

    def applies(self, t: int, node: int) -> bool:
        """Whether it applies to participant `node` in round t."""
        return node in self.nodes and (self.rounds is None or t in self.rounds)

    def __str__(self) -> str:
        """The text that `parse_fault` reads."""
        strength = "" if self.strength == 1 else f":{self.strength!r}"
        if self.rounds is None:
            return f"{self.kind}:{','.join(map(str, self.nodes))}{strength}"
        if self.rounds.step != 1 or not self.rounds:
            raise ValueError(f"rounds of {self.kind} must be consecutive; found {self.rounds}.")
        last = "" if self.rounds.stop == sys.maxsize else self.rounds.stop - 1
        return f"{self.kind}:{','.join(map(str, self.nodes))}{strength}@{self.rounds.start}-{last}"


T = TypeVar("T", bound=Fault)


def parse_fault(
    text: str, what: str, make: type[T] | Any = Fault, without_strength: Collection[str] = (),
    example: str = "noise:0,3:100@10-20",
) -> T:  # fmt: skip
    """Parse `kind:nodes[:strength][@from-to]`; both rounds are included, and `@from-` has no end.

    The result is made by `make`. Errors call the text a `what` and give `example` as one of its kind.

    Example:
        >>> parse_fault("flip-labels:3,5:0.5@10-20", "corruption")
        Fault(kind='flip-labels', nodes=(3, 5), rounds=range(10, 21), strength=0.5)
    """
    form = FORM.fullmatch(text.strip())
    if form is None or (form[6] and not form[5]):
        raise ValueError(f"a {what} must be written kind:nodes[:strength][@from-to], e.g. {example}; found {text!r}.")
    kind, nodes, strength, first, dash, last = form.groups()
    rounds = None
    if first is not None:
        rounds = range(int(first), int(last) + 1 if last else sys.maxsize if dash else int(first) + 1)
        if not rounds:
            raise ValueError(f"rounds must run from a smaller to a larger number; found {first}-{last} in {text!r}.")
    try:
        value = 1.0 if strength is None else float(strength)
    except ValueError:
        raise ValueError(f"the strength must be a number; found {strength!r} in {text!r}.") from None
    if strength is not None and kind in without_strength:
        raise ValueError(f"{kind} takes no strength; found {value:g} in {text!r}.")
    fault: T = make(kind, tuple(int(node) for node in nodes.split(",")), rounds, value)
    return fault


def check_participants(faults: Iterable[Fault], nodes: int) -> None:
    """Raise ValueError if one names a participant that does not exist."""
    for fault in faults:
        if (last := max(fault.nodes)) >= nodes:
            raise ValueError(f"{fault.kind} names participant {last}; there are {nodes}, numbered 0..{nodes - 1}.")


def kinds_by_participant(faults: Iterable[Fault]) -> dict[int, str]:
    """All faults of each participant, e.g. {3: "flip-labels, free-rider"}."""
    kinds: dict[int, list[str]] = {}
    for fault in faults:
        for node in fault.nodes:
            kinds.setdefault(node, []).append(fault.kind)
    return {node: ", ".join(names) for node, names in kinds.items()}
