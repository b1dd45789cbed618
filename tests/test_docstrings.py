"""The examples in the docstrings of topologies, data, models and what trains them."""

import doctest
import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from cascadice import data, intervals, learning_rates, losses, models, names, optimizers, seeds, topology
from cascadice.influence import uncertainty
from cascadice.pictures import figures

MODULES = [intervals, names, uncertainty, seeds, losses, models, optimizers, learning_rates, figures]
MODULES += [
    import_module(f"{package.__name__}.{module.name}")
    for package in (topology, data)
    for module in iter_modules(package.__path__)
]
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
    assert len(inspect.getdoc(public) or "") > 20
