"""The page of the maths is complete: every equation names its function, its file and its tests, and these exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "cascadice"
PAGE = (ROOT / "docs" / "maths.md").read_text()
EQUATION = re.compile(r"^### \((\d+)\) (.+)$", re.MULTILINE)
SECTION = re.compile(r"^#{2,3} .*$", re.MULTILINE)
ROW = re.compile(r"^\| (?:\[\((\d+)\)\]\(#([\w-]+)\)[^|]*)?\| (`cascadice[^|]*) \|([^|]*)\|([^|]*)\|$", re.MULTILINE)


class Row(NamedTuple):
    """A row of the table; one without a number belongs to the equation above it."""

    equation: int
    anchor: str | None
    functions: list[str]
    files: list[str]
    tests: list[str]


def rows(page: str) -> Iterator[Row]:
    equation = 0
    for number, anchor, *columns in ROW.findall(page):
        equation = int(number or equation)
        yield Row(equation, anchor or None, *(re.findall(r"`([^`]+)`", column) for column in columns))


def anchors(page: str) -> dict[int, str]:
    """The link to each numbered heading."""
    slug = lambda title: re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")  # noqa: E731
    return {int(number): f"{number}-{slug(title)}" for number, title in EQUATION.findall(page)}


@cache
def names_in(path: str) -> frozenset[str]:
    file = ROOT / path
    if not path.startswith("tests/") or not file.exists():
        return frozenset()
    return frozenset(node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))


def complaints(page: str) -> Iterator[str]:
    """Everything that is wrong with the page."""
    known, table = anchors(page), list(rows(page))
    yield from of_equations(page)
    yield from (f"equation {number} has no row" for number in known.keys() - {row.equation for row in table})
    for row in table:
        if row.anchor is not None and known.get(row.equation) != row.anchor:
            yield f"row {row.equation} links to {row.anchor}"
        yield from of_row(row)


def of_equations(page: str) -> Iterator[str]:
    numbers = [int(number) for number, _ in EQUATION.findall(page)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"equations are numbered {numbers}"
    titles = ["", *SECTION.findall(page)]
    for title, below in zip(titles, SECTION.split(page), strict=True):
        if below.count("```text") != (1 if EQUATION.match(title) else 0):
            yield f"{title or 'the top'} has {below.count('```text')} equations below it"


def of_row(row: Row) -> Iterator[str]:
    if not row.tests:
        yield f"row {row.equation} has no test"
    for test in row.tests:
        path, _, name = test.partition("::")
        if not name.startswith("test_") or name not in names_in(path):
            yield f"there is no test {test}"
    named = "".join((ROOT / path).read_text() for test in row.tests if names_in(path := test.partition("::")[0]))
    for path in row.files:
        if not (SOURCE / path).exists():
            yield f"there is no file {path}"
    for function in row.functions:
        module, _, name = function.rpartition(".")
        resolved = resolved_name(module, name)
        if not callable(resolved):
            yield f"there is no function {function}"
        elif f"{resolved.__module__.removeprefix('cascadice.').replace('.', '/')}.py" not in row.files:
            yield f"{function} is in another file than {', '.join(row.files)}"
        if not re.search(rf"\b{name}\b", named):
            yield f"no file of the tests of row {row.equation} mentions {function}"


def resolved_name(module: str, name: str) -> Any:
    try:
        return resolve_name(f"{module}:{name}")
    except (ImportError, AttributeError):
        return None


def test_every_equation_has_its_function_and_its_tests():
    assert len(anchors(PAGE)) > 20
    assert list(complaints(PAGE)) == []


BREAKS = {
    "an unknown function": ("`cascadice.influence.shares`", "`cascadice.influence.chairs`", "no function .*chairs"),
    "an unknown module": ("reward.payouts.pay`", "reward.salaries.pay`", "no function .*salaries"),
    "not a function": ("`cascadice.influence.truth`", "`cascadice.influence.ESTIMATORS`", "no function .*ESTIMATORS"),
    "another function": (
        "`cascadice.influence.truth`",
        "`cascadice.influence.hops_from`",
        "no file .* mentions .*hops",
    ),
    "an unknown source file": ("`influence/shares.py`", "`influence/chairs.py`", "no file influence/chairs"),
    "another source file": ("`influence/full_horizon.py`", "`influence/truth.py`", "horizon is in another file than"),
    "an unknown test": ("::test_backwards_is_forwards", "::test_backwards_is_sideways", "no test .*sideways"),
    "an unknown file": ("tests/engine/test_engine_is_oracle", "tests/engine/test_oracle", "no test .*test_oracle"),
    "not a test": ("::test_gossip_is_products_of_w", "::some_samples", "no test .*some_samples"),
    "a row without tests": (r"`tests/influence/test_tape[^`]*`", "", "row 9 has no test"),
    "no row": (r"\| \[\(8\)\].*\n", "", "equation 8 has no row"),
    "a row without an equation": (r"### \(23\) ", "### ", "row 23 links to|0 equations"),
    "a wrong link": (r"\(#5-one-hop\)", "(#6-one-hop)", "row 5 links to 6-one-hop"),
    "a number twice": (r"### \(10\)", "### (9)", r"equations are numbered .* 9, 9, 11"),
    "no number": (r"### \(17\) Cumulative", "### Cumulative", "has 1 equations below it"),
}


@pytest.mark.parametrize(("old", "new", "said"), BREAKS.values(), ids=BREAKS)
def test_what_is_broken_is_noticed(old, new, said):
    broken = re.sub(old, new, PAGE)
    assert broken != PAGE
    assert re.search(said, "\n".join(complaints(broken)))
