"""Find a run's data, model and loss by name, or by reference to a user's function, `package.module:name`."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from cascadice import data, losses, models, references
from cascadice.data.samples import DataSet
from cascadice.losses import Loss
from cascadice.names import lookup

OWN = "For one of your own, write package.module:function."


def load_data(name: str, root: str | None = None, download: bool = False, quiet: bool = True) -> DataSet:
    """The data set of this name, or whatever the referenced function returns that `cd.network` accepts as data."""
    if not references.is_reference(name):
        lookup(data.DATASETS, name, "data set", OWN)
        return data.load(name, root, download, quiet)
    returned = references.call(name, "data")
    try:
        return data.resolve(returned)
    except TypeError as error:
        raise ValueError(f"the data {name} cannot be used: {error}") from None


def make_model(name: str, shape: Sequence[int], classes: int, options: Mapping[str, Any]) -> nn.Module:
    """The model of this name, or the one that the referenced function makes, with parameters from torch's seed."""
    if not references.is_reference(name):
        lookup(models.MODELS, name, "model", OWN)
        return fitting(models.build, name, shape, classes, seed=torch.initial_seed(), **options)  # type: ignore[no-any-return]
    if options:
        raise ValueError(f"options are for named models; {name} is a function of your own. Set them in it.")
    made = references.call(name, "model", *((tuple(shape), classes) if _takes_shape(name) else ()))
    if not isinstance(made, nn.Module):
        raise ValueError(f"the model {name} must return an nn.Module; it returned {type(made).__name__}.")
    if models.made_by(made) is None:
        setattr(made, models.MADE, models.Made(name))
    return made


def _takes_shape(name: str) -> bool:
    """Whether the referenced function takes a shape and a number of classes rather than no arguments."""
    try:
        parameters = signature(references.resolve(name, "model")).parameters.values()
    except ValueError:  # a function in C
        return False
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.default is Parameter.empty and p.kind in positional]
    if len(needed) not in (0, 2):
        told = f"it needs {', '.join(needed)}"
        raise ValueError(f"the model {name} must take nothing, or (shape, classes); {told}. Give the rest defaults.")
    return bool(needed)


def count_parameters(name: str, shape: Sequence[int], classes: int, options: Mapping[str, Any]) -> int:
    """The number of parameters of a model; a named model is not made for that."""
    if not references.is_reference(name):
        lookup(models.MODELS, name, "model", OWN)
        return fitting(models.count_parameters, name, shape, classes, **options)  # type: ignore[no-any-return]
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in make_model(name, shape, classes, options).parameters())


def training_loss(name: str) -> Loss:
    """The loss of this name, or the referenced function: (outputs, targets) -> a scalar."""
    if references.is_reference(name):
        return references.resolve(name, "loss")
    return lookup(losses.LOSSES, name, "loss", OWN)[0]


def fitting(build: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
    """Call `build(name, …)`; report an option of the wrong type as a mistake in the settings."""
    try:
        return build(name, *arguments, **options)
    except TypeError as error:
        raise ValueError(f"the options of {name} do not fit: {error}.") from error
