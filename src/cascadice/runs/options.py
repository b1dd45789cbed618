"""Parse options `name=value`, and `nodes:name=value,…` for single participants."""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

from cascadice.files import jsonl

NODES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
EXAMPLE = "2,5:optimizer=adam,lr=0.003 or 0-3:batch_size=8,local_steps=2"
COUNTS = ("batch_size", "local_steps")
SETTINGS = ("optimizer", *COUNTS, "lr", "weight_decay", "clip")


def read_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse options: `("hidden=[64]", "activation=gelu")` becomes {"hidden": (64,), "activation": "gelu"}."""
    options = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not (name and equals):
            raise ValueError(f"an option must read name=value, e.g. hidden=[64,64]; found {text!r}.")
        value: Any = rest
        with suppress(ValueError):
            value = jsonl.parse(rest)
        options[name.strip().replace("-", "_")] = tuple(value) if isinstance(value, list) else value
    return options


def read_participants(text: str) -> tuple[tuple[int, ...], dict[str, Any], tuple[str, ...]]:
    """The participants, settings and optimizer's options in a text such as "2,5-6:optimizer=adam,beta=0.95,lr=0.01"."""
    nodes, _, rest = text.partition(":")
    if not NODES.fullmatch(nodes.strip()) or not rest.strip():
        raise ValueError(f"participants must read nodes:name=value,…, e.g. {EXAMPLE}; found {text!r}.")
    settings, options = {}, {}
    for part in (part.strip() for part in re.split(r",(?=\s*[\w-]+=)", rest)):
        ((name, value),) = read_options([part]).items()
        if name in settings or name in options:
            raise ValueError(f"participants must be given each setting once; found {name} twice in {text!r}.")
        if name in SETTINGS:
            settings[name] = _checked(name, value, text)
        else:
            options[name] = part
    return _nodes(nodes, text), settings, tuple(options.values())


def check_once(texts: Sequence[str]) -> None:
    """Refuse two values of one setting for a participant, unless the second is an exception in a larger group."""
    read = ((text, *read_participants(text)) for text in texts)
    each = [(text, set(nodes), {*settings, *read_options(options)}) for text, nodes, settings, options in read]
    for (one, first, given), (other, second, then) in combinations(each, 2):
        both, again = first & second, given & then
        if again and both and not both == second < first:
            found = f"participant {min(both)} has {min(again)} twice, in {one!r} and in {other!r}"
            raise ValueError(f"participants must be given each setting once; {found}. Leave one out.")


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
    if not (whole or isinstance(value, float)):
        raise ValueError(f"{name} must be a number; found {value!r} in {text!r}.")
    return value if name in COUNTS else float(value)
