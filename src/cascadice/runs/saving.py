"""Save a network that was built in Python, and its rounds, as `cascadice run --record all` would."""

import json
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from cascadice import files, models, references
from cascadice.console import Console, track
from cascadice.data import DATASETS
from cascadice.data.batches import sizes
from cascadice.engine import Network, Round
from cascadice.files import locks
from cascadice.influence.checks import check_form, check_many, check_rounds
from cascadice.losses import LOSSES
from cascadice.names import lookup
from cascadice.optimizers import OPTIMIZERS
from cascadice.runs import saved
from cascadice.runs.config import UNNAMED, Config, to_json
from cascadice.runs.folder import CONFIG, check_folder, check_writable, clear
from cascadice.runs.journal import begin, ending, enter
from cascadice.runs.resume import open_journal

Source = str | Callable[..., Any] | None
"""A name, a reference `package.module:name`, or a function that other processes can import; None: what is known"""
NAMED = ("optimizer", "clip", "batch_size", "local_steps")  # what each participant has as a setting of its own
GIVEN = "given"  # topology, partition and learning rates: as recorded


def save(
    network: Network,
    rounds: Iterable[Round],
    folder: files.Folder,
    *,
    model: Source = None,
    data: Source = None,
    loss: Source = None,
    eval_every: int = 10,
    overwrite: bool = False,
    progress: bool = False,
) -> Path:
    """Save a network and its rounds as a run folder that every command can read.

    Commands in this process use the network itself. Other processes rebuild its model: they find named models and
    module-level functions automatically, and others by what you pass here. Nothing is pickled.

    Args:
        network: The network, from `cd.network` or a `Recorder`.
        rounds: Its rounds in order, as a list or directly from `cd.simulate`; influence on the final models needs all
            of them, from round 0 on.
        folder: The folder of the run.
        model: The function that makes the model, if `cd.network` was not given one: itself, or "package.module:make".
        data: The same for the data, or a name such as "mnist". By default the data are saved in the folder.
        loss: The loss function, if it cannot be found automatically.
        eval_every: Rounds between evaluations on the test data.
        overwrite: Replace the run in the folder.
        progress: Show a bar.

    Returns:
        The folder.

    Raises:
        ValueError: If the rounds are not this network's, or do not follow one another; if the folder holds something.

    Example:
        >>> cd.save(network, cd.simulate(network, 100), "runs/mine", model="mymodels:make")  # doctest: +SKIP
        >>> # then: cascadice report runs/mine
    """
    check_many(rounds)
    coming = iter(rounds)
    if (first := next(coming, None)) is None:
        raise ValueError("there must be at least one round to save; found none. Train first.")
    check_form(network, first)
    known = first.t or all(map(torch.equal, tree_leaves(network.initial), tree_leaves(first.before)))
    started = network if known else replace(network, initial=first.before)
    kept = saved.kept_of(started, with_data=data is None)
    total = len(rounds) if isinstance(rounds, Sized) else 0
    config = describe(started, first, model=model, data=data, loss=loss)
    config = replace(config, eval_every=eval_every, saved=kept.digest, rounds=total or 1, epochs=None)
    every, console = _marked(started, chain([first], coming)), Console(quiet=not (progress and total))
    shown = track(every, total, console, "saving", lambda one: f"saved round {one[0].t}")
    place = Path(folder)
    check_writable(place, "a run")
    with locks.locked(place):
        check_folder(place, config, resume=False, overwrite=overwrite)
        journal = open_journal(place, config, started, total or 1, resume=False)
        journal.timed = False  # how long training took is not known
        if overwrite:
            clear(place)
        begin(journal)
        saved.write(place, kept)
        with ending(journal):
            for round, last in shown:
                enter(journal, round, last)
        files.write_json(place / CONFIG, to_json(replace(config, rounds=journal.t)))
    if started is network:
        saved.remember(kept.digest, network)
    return place


def _marked(network: Network, rounds: Iterable[Round]) -> Iterator[tuple[Round, bool]]:
    """Yield each round, and whether it is the last; the first has been checked."""
    rounds = iter(rounds)
    round = next(rounds)
    for following in rounds:
        check_form(network, following)
        check_rounds([round, following])
        yield round, False
        round = following
    yield round, True


def describe(
    network: Network, first: Round, *, model: Source = None, data: Source = None, loss: Source = None
) -> Config:
    """The settings of a network that was built in Python, as far as settings can express it."""
    of_model, of_data, of_loss = (named(*one) for one in (("model", model), ("data", data), ("loss", loss)))
    known = ((of_model, models.MODELS, "model"), (of_data, DATASETS, "data set"), (of_loss, LOSSES, "loss"))
    for name, table, what in known:
        if name is not None and not references.is_reference(name):
            lookup(table, name, what)
    own_loss = network.learner.loss
    of_loss = of_loss or next((name for name, (function, _) in LOSSES.items() if function is own_loss), None)
    of_loss = of_loss or references.reference_to(own_loss) or str(getattr(own_loss, "__name__", "own"))
    training = network.learner.training
    made = models.made_by(training) or models.Made(type(training).__name__)
    each = [_settings(network, first, *one) for one in enumerate(saved.optimizers_of(network))]
    unnamed = [one for one in each if ("optimizer", UNNAMED) in one]
    each = unnamed[:1] or each  # one that has no name cannot be one of several
    usual = next((one for one in each if "clip" not in dict(one)), each[0])
    own, rate = dict(usual), float(torch.as_tensor(first.draw.lr, dtype=torch.float64).flatten()[0])
    texts = [_option(name, value) for name, value in own.items() if name not in NAMED]
    return Config(
        data=of_data or network.data.name or GIVEN, nodes=network.nodes, topology=GIVEN, partition=GIVEN,
        model=of_model or made.name, model_options=() if of_model else tuple(_option(*one) for one in made.options),
        loss=of_loss, optimizer=own["optimizer"], optimizer_options=tuple(texts),
        clip=own.get("clip"), batch_size=own["batch_size"], local_steps=own["local_steps"],
        participants=tuple(_differences(usual, each)), lr=rate, lr_schedule=GIVEN,
        corruptions=tuple(map(str, network.corruptions)), behaviours=tuple(map(str, network.behaviours)),
        seed=network.seed, device=str(network.device), strategy=network.strategy, record="all",
        dtype=str(network.learner.compute or network.initial.theta.dtype).removeprefix("torch."),
    )  # fmt: skip


def named(what: str, given: Source) -> str | None:
    """The name or reference that was given, or the reference to the function that was given."""
    if given is None or isinstance(given, str):
        return given
    reference = references.reference_to(given)
    if reference is None:
        wanted = "a function that other processes can import, or its name package.module:name"
        found = getattr(given, "__qualname__", given)
        raise ValueError(f"{what} must be {wanted}; found {found!r}. Put it into a module.")
    return reference


def _option(name: str, value: Any) -> str:
    return f"{name}={json.dumps(value)}"


def _settings(network: Network, first: Round, k: int, named: saved.Settings) -> saved.Settings:
    """The settings of participant k: optimizer with options, batch size and local steps."""
    steps, size = sizes(first.draw.batch[k : k + 1])[0]
    if dict(named).get("optimizer") not in OPTIMIZERS:
        linear = all(learner.optimizer.linear for learner in network.learners)
        named = (("optimizer", UNNAMED), *([("linear", True)] if linear else []))
    return (*named, ("batch_size", max(1, size)), ("local_steps", max(1, steps)))


def _differences(usual: saved.Settings, each: list[saved.Settings]) -> Iterator[str]:
    """The differences between participants, in the syntax of the setting `participants`."""
    for settings in dict.fromkeys(each):
        if settings != usual:
            nodes = ",".join(str(k) for k, other in enumerate(each) if other == settings)
            yield f"{nodes}:{','.join(_option(*one) for one in settings)}"
