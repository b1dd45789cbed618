"""Text such as `flip-labels:3,5:0.5@10-20`, which says who does what when: `kind:nodes[:strength][@from-to]`."""

import re
import sys
from typing import NamedTuple

FORM = re.compile(r"([\w-]+):(\d+(?:,\d+)*)(?::([^:@]+))?(?:@(\d+)(-?)(\d*))?")


class Interval(NamedTuple):
    """What some participants do in some rounds (every round if None), and how strongly (the default if None)."""

    kind: str
    nodes: tuple[int, ...]
    strength: float | None
    rounds: range | None


def parse_interval(text: str, what: str) -> Interval:
    """The interval written as `text`; both rounds are included, and `@from-` never ends.

    Args:
        text: E.g. "noise:0,3:100@10-20".
        what: What the text describes, for errors.

    Example:
        >>> parse_interval("flip-labels:3,5:0.5@10-20", "corruption")
        Interval(kind='flip-labels', nodes=(3, 5), strength=0.5, rounds=range(10, 21))
    """
    form = FORM.fullmatch(text.strip())
    if form is None or (form[6] and not form[5]):
        raise ValueError(
            f"a {what} must be written kind:nodes[:strength][@from-to], e.g. noise:0,3:100@10-20; found {text!r}."
        )
    kind, nodes, strength, first, dash, last = form.groups()
    rounds = None
    if first is not None:
        rounds = range(int(first), int(last) + 1 if last else sys.maxsize if dash else int(first) + 1)
        if not rounds:
            raise ValueError(f"rounds must run from a smaller to a larger number; found {first}-{last} in {text!r}.")
    return Interval(kind, tuple(int(node) for node in nodes.split(",")), _number(strength, text), rounds)


def _number(strength: str | None, text: str) -> float | None:
    try:
        return None if strength is None else float(strength)
    except ValueError:
        raise ValueError(f"the strength must be a number; found {strength!r} in {text!r}.") from None
