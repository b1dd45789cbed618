"""Look things up by name; an unknown name gets a helpful error."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """`table[name]`, or a ValueError that lists the known names (of `what`, e.g. "optimizer") and the nearest."""
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what} {name!r}.{hint} Known: {', '.join(sorted(table)) or 'none'}.")
