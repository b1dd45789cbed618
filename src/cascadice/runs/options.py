"""Options and exceptions as people write them: `name=value`, and `nodes:name=value,…` for single participants."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

NODES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
EXAMPLE = "2,5:optimizer=adam,lr=0.003 or 0-3:batch_size=8,local_steps=2"
COUNTS = ("batch_size", "local_steps")
NUMBERS = ("lr", "weight_decay", "clip")


def read_options(texts: Sequence[str]) -> dict[str, Any]:
    """Read options: `("hidden=[64]", "activation=gelu")` is {"hidden": (64,), "activation": "gelu"}."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"an option must read name=value, e.g. hidden=[64,64]; found {text!r}.")
        options[name.strip().replace("-", "_")] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


class Different(NamedTuple):
    """What some participants do differently: settings of the run, and options of their optimizer (`name=value`)."""

    nodes: tuple[int, ...]
    settings: dict[str, Any]
    optimizer_options: tuple[str, ...]


def read_participants(text: str) -> Different:
    """Read what some participants do differently.

    >>> read_participants("2,5-6:optimizer=momentum,beta=0.95,lr=0.01")
    Different(nodes=(2, 5, 6), settings={'optimizer': 'momentum', 'lr': 0.01}, optimizer_options=('beta=0.95',))
    """
    nodes, _, rest = text.partition(":")
    if not NODES.fullmatch(nodes.strip()) or not rest.strip():
        raise ValueError(f"participants must read nodes:name=value,…, e.g. {EXAMPLE}; found {text!r}.")
    parts = [part.strip() for part in re.split(r",(?=\s*[\w-]+=)", rest)]
    settings, options = {}, []
    for part in parts:
        ((name, value),) = read_options([part]).items()
        if name in ("optimizer", *COUNTS, *NUMBERS):
            settings[name] = _checked(name, value, text)
        else:
            options.append(part)
    return Different(_nodes(nodes, text), settings, tuple(options))


def _nodes(text: str, whole: str) -> tuple[int, ...]:
    nodes: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ValueError(f"participants must run from a smaller to a larger number; found {part} in {whole!r}.")
        nodes += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(nodes))


def _checked(name: str, value: Any, text: str) -> Any:
    if name == "optimizer":
        return str(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in COUNTS and not (whole and value >= 1):
        raise ValueError(f"{name} must be a whole number of at least 1; found {value!r} in {text!r}.")
    if name in NUMBERS and not (whole or isinstance(value, float)):
        raise ValueError(f"{name} must be a number; found {value!r} in {text!r}.")
    return value if name in COUNTS else float(value)
