"""Look things up by name, with a helpful error for unknown names; make names from files safe to print."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

# characters that control a terminal or reverse text, escaped as in a Python string
_CONTROLS = (*range(32), *range(127, 160), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
CONTROLS = {code: repr(chr(code))[1:-1] for code in _CONTROLS if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """The text with control characters escaped, so that it cannot control the terminal."""
    return text.translate(CONTROLS)


def lookup(table: Mapping[str, T], name: str, what: str, more: str = "") -> T:
    """Look a name up in a table.

    Args:
        table: What is known, by name.
        name: The name to look up.
        what: What the name stands for, e.g. "optimizer"; part of the error.
        more: A sentence to add to the error.

    Returns:
        `table[name]`.

    Raises:
        ValueError: If the name is unknown; the message lists the known names and suggests the nearest.

    Example:
        >>> lookup({"sgd": 1, "adam": 2}, "adm", "optimizer")
        Traceback (most recent call last):
        ValueError: unknown optimizer 'adm'. Did you mean 'adam'? Known: adam, sgd.
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"unknown {what} {name!r}.{hint} Known: {', '.join(sorted(table)) or 'none'}.{more and f' {more}'}"
    )
