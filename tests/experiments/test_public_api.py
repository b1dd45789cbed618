"""The experiments use the library as its users do: every name they import is public.

Public are the names in `__all__` of the packages below, and those that the API pages of the documentation list.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import cascadice

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").rglob("*.py"))

PACKAGES = {"cascadice", *(f"cascadice.{name}" for name in ("data", "engine", "influence", "topology", "report.page"))}
ENTRY = re.compile(r"^::: (\S+)\n(?:    options:\n      members: (?:\[(.*)\]|false)$)?", re.MULTILINE)


def documented():
    """What the API pages describe: a module with the members that they list, or with all of them (None)."""
    entries = {}
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for match in ENTRY.finditer(page.read_text()):
            members = set((match[2] or "").split(", ")) if "members" in match[0] else None
            entries[match[1]] = members
    return entries


DOCUMENTED = documented()


def private_names(source):
    """What a file takes from the library that is not public."""
    tree, aliases = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cascadice":
            for alias in node.names:
                if not is_public(node.module, alias.name):
                    yield f"from {node.module} import {alias.name}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "cascadice":
                    aliases.add(alias.asname or alias.name)
                elif alias.name.startswith("cascadice."):
                    yield f"import {alias.name}"
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    for node in attributes:
        of_library = isinstance(node.value, ast.Name) and node.value.id in aliases
        if of_library and node.attr not in (*cascadice.__all__, "__version__"):
            yield f"cascadice.{node.attr}"


def is_public(module, name):
    if name.startswith("_"):
        return False
    if f"{module}.{name}" in PACKAGES | DOCUMENTED.keys():
        return True
    if module in PACKAGES and name in import_module(module).__all__:
        return True
    if (members := DOCUMENTED.get(module, set())) is not None:
        return name in members
    home = getattr(getattr(import_module(module), name), "__module__", module)
    return home == module or not home.startswith("cascadice")  # not what the module itself imported from elsewhere


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "experiments")))
def test_experiments_import_public_names_only(path):
    assert list(private_names(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "from cascadice.engine.fast.rows import over_rows",
        "from cascadice.engine.learner import Participants",
        "from cascadice.engine import learner",
        "from cascadice.applications.forget.idea import Network",
        "from cascadice.influence.readings import _columns",
        "def later():\n    from cascadice.cli import main",
        "import cascadice.engine",
        "import cascadice as cd\ncd.files",
    ],
)
def test_private_names_are_noticed(line):
    assert len(list(private_names(line))) == 1


def test_public_names_pass():
    lines = ["import cascadice as cd", "from cascadice import seeds", "cd.network"]
    assert list(private_names("\n".join(lines))) == []
