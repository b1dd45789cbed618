"""Numbers as a page needs them: short, and null where there is none."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Json = dict[str, Any]
DIGITS = 5  # significant ones: a page is to be looked at


def short(values: Iterable[Any]) -> list[float | None]:
    """To five significant digits; NaN and infinities as null, which JSON has no other word for."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in np.asarray(values).tolist()]


def plain(content: Any) -> Any:
    """As JSON knows it: numbers that are none as null."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    return None if isinstance(content, float) and not np.isfinite(content) else content


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of `count` places, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()}) if count else []
