"""Look things up by name; an unknown name gets a helpful error. Names from files are made fit to print."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

# what controls a terminal, or turns the order of the text around it, as Python would write it in a string
_CONTROLS = (*range(32), *range(127, 160), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
CONTROLS = {code: repr(chr(code))[1:-1] for code in _CONTROLS if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """The text with control characters written out, so that it cannot control the terminal it is printed on."""
    return text.translate(CONTROLS)


def lookup(table: Mapping[str, T], name: str, what: str, more: str = "") -> T:
    """`table[name]`, or a ValueError that lists the known names (of `what`, e.g. "optimizer") and the nearest.

    `more` is a sentence that says what may be given instead.
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"unknown {what} {name!r}.{hint} Known: {', '.join(sorted(table)) or 'none'}.{more and f' {more}'}"
    )
