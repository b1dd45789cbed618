"""The experiments use the library as its users do: every name they import is public.

Public are the names in `__all__` of the packages below, and what the plain modules below define. The application
packages and `cascadice.runs` export nothing themselves, so that `cascadice --help` does not load torch: their plain
modules are public instead.
"""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import cascadice

ROOT = Path(__file__).parents[2] / "experiments"
FILES = sorted(ROOT.rglob("*.py"))

PACKAGES = {"cascadice", *(f"cascadice.{name}" for name in ("data", "engine", "influence", "topology", "report.page"))}
PLAIN = {
    f"cascadice.{name}"
    for names in (
        "files locks names seeds models optimizers losses learning_rates",
        "data.batches data.corruption data.partition",
        "engine.exchange.geometry engine.exchange.cosine_trust engine.exchange.robust",
        "influence.cascade influence.measures influence.proximity influence.readings influence.retraining",
        "influence.estimators influence.reverse_gossip influence.tables influence.uncertainty influence.whole_run",
        "influence.agreement influence.by_class influence.whole_run_shares",
        "engine.backwards influence.trust",
        "runs.config runs.folder runs.recipes runs.train",
        "applications.neighbours applications.detect.evidence applications.detect.signals applications.choose.groups",
        "applications.reward.contributions applications.reward.payouts",
        "applications.forget.idea applications.forget.removals applications.forget.traces",
        "pictures.topology report.page.results",
    )
    for name in names.split()
}


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
    if f"{module}.{name}" in PLAIN | PACKAGES:
        return True
    if module in PACKAGES:
        return name in import_module(module).__all__
    if module not in PLAIN:
        return False
    home = getattr(getattr(import_module(module), name), "__module__", module)
    return home == module or not home.startswith("cascadice")  # not what the module itself imported from elsewhere


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_experiments_import_public_names_only(path):
    assert list(private_names(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "from cascadice.engine.fast.rows import over_rows",
        "from cascadice.engine.learner import Participants",
        "from cascadice.engine import operator",
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
