"""The examples in the docstrings of topologies, data, models and what trains them."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import cascadice
from cascadice import data, faults, influence, learning_rates, losses, models, names, optimizers, seeds, topology
from cascadice.applications.choose import balance, groups
from cascadice.applications.detect import evidence
from cascadice.applications.reward import payouts
from cascadice.influence import measures, noise, quadrature, readings, tables, uncertainty
from cascadice.pictures import figures
from cascadice.report.page import results

MODULES = [faults, names, noise, uncertainty, seeds, losses, models, optimizers, learning_rates, figures]
MODULES += [measures, quadrature, readings, tables, balance, groups, evidence, payouts, results]
MODULES += [
    import_module(f"{package.__name__}.{module.name}")
    for package in (topology, data)
    for module in iter_modules(package.__path__)
]
MODULES += [import_module("cascadice.influence.agreement")]  # its function has the same name in the package
PUBLIC = [
    getattr(package, name)
    for package in (topology, data)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name)) or inspect.isclass(getattr(package, name))
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_print_what_they_say(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.__qualname__)
def test_public_names_have_docstrings(public):
    text = inspect.getdoc(public) or ""
    assert len(text) > 20
    assert not inspect.isfunction(public) or "Example:\n" in text


MAIN = [
    value
    for package in (cascadice, influence)
    for name in package.__all__
    if inspect.isfunction(value := getattr(package, name))
]


@pytest.mark.parametrize("function", MAIN, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_main_functions_say_what_they_take_and_return_with_an_example(function):
    assert missing_sections(function) == []


def missing_sections(function):
    signature = inspect.signature(function)
    sections = ["Example", *["Args"] * bool(signature.parameters)]
    sections += [] if signature.return_annotation in (None, "None") else ["Returns|Yields"]
    text = inspect.getdoc(function) or ""
    return [section for section in sections if not re.search(rf"^({section}):$", text, re.MULTILINE)]


API = Path(__file__).parents[1] / "docs" / "api"
RECIPES = "cascadice.runs.recipes"  # a recipe's docstring is its line in `cascadice list`
ALONE = re.compile(r"^::: (\S+)$(?!\n    options)", re.MULTILINE)  # a function, a class, or a whole module
LISTED = re.compile(r"^::: (\S+)\n    options:\n      members: \[(.*)\]$", re.MULTILINE)


@pytest.mark.parametrize("page", sorted(path.name for path in API.glob("*.md")))
def test_names_on_the_pages_of_the_api_exist(page):
    for module, members in LISTED.findall((API / page).read_text()):
        assert [name for name in members.split(", ") if not hasattr(import_module(module), name)] == [], module


@pytest.mark.parametrize("page", sorted(path.name for path in API.glob("*.md") if path.name != "index.md"))
def test_functions_on_the_pages_of_the_api_are_fully_described(page):
    text = (API / page).read_text()
    listed = [(module, names.split(", ")) for module, names in LISTED.findall(text) if module != RECIPES]
    whole = [name.rpartition(".") for name in ALONE.findall(text)]
    listed += [(module, [name]) for module, _, name in whole if hasattr(import_module(module), name)]
    entries = [getattr(import_module(module), name) for module, names in listed for name in names]
    functions = [entry for entry in entries if inspect.isfunction(entry)]
    modules = [entry for entry in entries if inspect.ismodule(entry)]
    functions += [
        one for each in modules for _, one in inspect.getmembers(each, inspect.isfunction) if is_own(each, one)
    ]
    assert functions
    assert {
        f"{one.__module__}.{one.__name__}": missing for one in functions if (missing := missing_sections(one))
    } == {}


def is_own(module, function):
    if hasattr(module, "__all__"):
        return function.__name__ in module.__all__
    return function.__module__ == module.__name__ and not function.__name__.startswith("_")
