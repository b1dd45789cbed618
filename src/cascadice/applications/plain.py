"""Plain data for JSON and pages: what JSON can hold, rounded and thinned to what a reader can see."""

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

Json = dict[str, Any]
Item = TypeVar("Item")
DIGITS = 5  # significant digits


def short(values: Iterable[Any]) -> list[float | None]:
    """Round to five significant digits; NaN and infinities become None, which JSON calls null."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in np.asarray(values).tolist()]


def plain(content: Any) -> Any:
    """Replace tuples by lists, and NaN and infinities by None, at any depth."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def evenly(count: int, most: int) -> list[int]:
    """At most `most` evenly spaced indices into `count` things, always with the first and the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()}) if count else []


def in_order(items: Iterable[Item], order: Sequence[str], name: Callable[[Item], str]) -> list[Item]:
    """The items in the order in which their names are listed, then the others by name."""
    return sorted(items, key=lambda item: (order.index(name(item)) if name(item) in order else len(order), name(item)))


def data_uri(picture: bytes, kind: str = "png") -> str:
    """A picture as a data URI, so that a page needs no other file."""
    return f"data:image/{kind};base64," + base64.b64encode(picture).decode("ascii")
