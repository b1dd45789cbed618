"""The layers of the library: a file imports from its own layer or a lower one, and nothing imports in a circle.

Imports inside functions count. Only `if TYPE_CHECKING:` blocks are exempt.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "cascadice"

# From the lowest layer to the highest; CONTRIBUTING.md has the same list.
LAYERS = [
    "cascadice names references console seeds faults interrupts files",
    "topology",
    "data",
    "models optimizers losses learning_rates loggers",
    "engine",
    "influence",
    "pictures adapters",
    "runs",
    "applications",
    "report",
    "commands cli __main__",
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names.split()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, `package.name` for each name of a `from` import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    exempt = {id(node) for guard in guards for statement in guard.body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) in exempt:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str:
    """The module that holds a dotted name."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def edges() -> set[tuple[str, str]]:
    pairs = ((module, module_of(name)) for module, path in MODULES.items() for name in imported(path))
    return {(module, other) for module, other in pairs if other and other != module}


EDGES = edges()


def layer(module: str) -> int:
    parts = module.split(".")
    return LAYER[parts[1] if len(parts) > 1 else parts[0]]


def complaints(bad: set[tuple[str, str]]) -> list[str]:
    return sorted(f"{module} imports {other}" for module, other in bad)


def test_every_module_has_a_layer():
    assert {module.split(".")[1] for module in MODULES if "." in module} == set(LAYER) - {"cascadice"}


def test_no_module_imports_from_a_higher_layer():
    assert complaints({(module, other) for module, other in EDGES if layer(module) < layer(other)}) == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_in_a_circle():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, other in EDGES:
        graph[module].add(other)
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def test_only_the_operator_imports_the_fast_engine():
    fast = "cascadice.engine.fast"
    allowed = ("cascadice.engine.operator", fast)
    bad = {(module, other) for module, other in EDGES if other.startswith(fast) and not module.startswith(allowed)}
    assert complaints(bad) == []


def test_no_application_imports_another():
    inside = re.compile(r"cascadice\.applications\.(\w+)\.\w+")
    found = {(a, b, inside.match(a), inside.match(b)) for a, b in EDGES}
    assert complaints({(a, b) for a, b, one, other in found if one and other and one[1] != other[1]}) == []


def test_the_library_does_not_import_its_experiments():
    users = [module for module, path in MODULES.items() if any("cascadice_experiments" in n for n in imported(path))]
    assert users == []


def test_contributing_lists_the_same_layers():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = [re.findall(r"`(\w+)", line) for line in re.findall(r"^  \d+\. (.*)$", text, re.MULTILINE)]
    assert [set(names) for names in listed] == [set(names.split()) - {"cascadice", "__main__"} for names in LAYERS]
