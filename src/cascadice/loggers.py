"""Callbacks that follow training round by round; TensorBoard, Weights & Biases and MLflow come with it.

The package of a logger is imported when the logger is made.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cascadice.files import flock
from cascadice.names import lookup

NAMED = 64  # up to so many participants, each has a curve; beyond, there are only the mean, minimum and maximum
MOST_PARAMETERS, MOST_METRICS = 100, 1000  # in one request to MLflow


@runtime_checkable
class Callback(Protocol):
    """Follows training. If a callback raises, it is dropped, one warning says so, and training goes on."""

    def start(self, about: Mapping[str, Any]) -> None:
        """Training begins; `about` are the settings."""

    def round(self, t: int, metrics: Mapping[str, float]) -> None:
        """Round t is done. If influence is computed too, a later call for the same t has only its influence."""

    def end(self, status: str) -> None:
        """Training is over: "finished", "stopped" (no more rounds were taken), "interrupted" or "failed"."""


Report = Callable[[int, Callable[[], Mapping[str, float]]], None]


_warn: Callable[[str], None] = partial(warnings.warn, category=RuntimeWarning)


@contextmanager
def telling(
    callbacks: Sequence[Callback], about: Mapping[str, Any], say: Callable[[str], None] = _warn
) -> Iterator[Report]:
    """Tell callbacks when training starts and how it ends; the function it yields is to be called after each round.

    That function takes the round's number and a function that returns its metrics, which is called only if a callback
    is left. `say` reports a callback that raised.
    """
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks must be a list; found {type(callbacks).__name__}. Use callbacks=[…].")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"a callback must have the methods start, round and end; {callback!r} does not. See loggers.Callback."
            )
    listening = list(callbacks)

    def tell(event: str, *what: Any) -> None:
        for callback in tuple(listening):
            try:
                getattr(callback, event)(*what)
            except Exception as error:
                listening.remove(callback)
                reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
                say(f"the callback {type(callback).__name__} is disabled, because its {event} raised {reason}")

    status = "failed"
    tell("start", about)
    try:
        yield lambda t, metrics: tell("round", t, metrics()) if listening else None
        status = "finished"
    except (GeneratorExit, KeyboardInterrupt) as stop:
        status = "stopped" if isinstance(stop, GeneratorExit) else "interrupted"
        raise
    finally:
        tell("end", status)


def of_participants(name: str, values: Sequence[float], members: Sequence[int] = ()) -> dict[str, float]:
    """A metric of all participants: `name/mean` and `name/k` for each k; for many, `name/min` and `name/max`.

    >>> of_participants("train_loss", [0.5, 1.5])
    {'train_loss/mean': 1.0, 'train_loss/0': 0.5, 'train_loss/1': 1.5}
    """
    if not values:
        return {}
    mean = {f"{name}/mean": sum(values) / len(values)}
    if len(values) > NAMED:
        return {**mean, f"{name}/min": min(values), f"{name}/max": max(values)}
    return {**mean, **{f"{name}/{k}": value for k, value in zip(members or range(len(values)), values, strict=True)}}


def _needed(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{package} is not installed ({error}). Use: pip install {package}, or pip install 'cascadice[loggers]'."
        ) from None


class TensorBoard:
    """Writes scalars for TensorBoard: `tensorboard --logdir FOLDER`.

    Args:
        folder: Where to write; with a name, into a folder of that name in it.
        name: What the run is called.

    Example:
        >>> for round in cd.simulate(network, 100, callbacks=[TensorBoard("logs/tensorboard", "first")]):
        ...     pass
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "") -> None:
        self._writing = _needed("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder = Path(folder, name)

    def start(self, about: Mapping[str, Any]) -> None:
        """Open a file of events, and write the settings as a text."""
        self._writer = self._writing(str(self._folder))
        settings = json.dumps(dict(about), indent=2, ensure_ascii=False, default=str)
        self._writer.add_text("settings", f"```json\n{settings}\n```")

    def round(self, t: int, metrics: Mapping[str, float]) -> None:
        """Write a scalar for each metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, t)

    def end(self, status: str) -> None:
        """Write how it ended, and close the file."""
        self._writer.add_text("status", status)
        self._writer.close()


class WandB:
    """Writes a run of Weights & Biases, offline unless told otherwise: `wandb sync FOLDER/wandb/offline-run-*`.

    Args:
        folder: Where to write.
        name: What the run is called.
        **options: Of `wandb.init`: `project`, `mode`, `tags` and the like.

    Example:
        >>> simulate(network, 100, callbacks=[WandB("logs", "first", project="mine", mode="online")])
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "", **options: Any) -> None:
        self._wandb, self._folder = _needed("wandb", "wandb"), Path(folder)
        self._options: dict[str, Any] = {"project": "cascadice", "mode": "offline", "name": name or None, **options}

    def start(self, about: Mapping[str, Any]) -> None:
        """Open a run with the settings as its configuration."""
        self._folder.mkdir(parents=True, exist_ok=True)
        quiet = self._wandb.Settings(silent=True, console="off")
        options = {"settings": quiet, "dir": str(self._folder), "config": dict(about), **self._options}
        self._run = self._wandb.init(**options)
        # influence of a round is known some rounds later; W&B's own steps may not go back
        self._run.define_metric("*", step_metric="round")

    def round(self, t: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics, with the round as their step."""
        self._run.log({"round": t, **metrics})

    def end(self, status: str) -> None:
        """Note how it ended, and finish the run."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)


class MLflow:
    """Writes a run of MLflow into a folder: `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri FOLDER`.

    Args:
        folder: Where to write, if `uri` does not say it.
        name: What the run is called.
        experiment: The experiment that it is part of.
        uri: Another tracking store, e.g. `sqlite:///mlflow.db` or the address of a server.

    Example:
        >>> simulate(network, 100, callbacks=[MLflow("logs/mlflow", "first")])
    """

    def __init__(
        self, folder: str | os.PathLike[str], name: str = "", *, experiment: str = "cascadice", uri: str | None = None
    ) -> None:
        self._mlflow, self._entities = _needed("mlflow.tracking", "mlflow-skinny"), import_module("mlflow.entities")
        self._uri, self._experiment, self._name = uri or Path(folder).absolute().as_uri(), experiment, name or None
        self._folder = None if uri else Path(folder)

    def start(self, about: Mapping[str, Any]) -> None:
        """Create the run, with the settings as its parameters."""
        turn = nullcontext() if self._folder is None else _taking_turns(self._folder)
        with _local_folders(), turn:
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            known = self._client.get_experiment_by_name(self._experiment)
            number = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        self._id = self._client.create_run(number, run_name=self._name).info.run_id
        settings = [self._entities.Param(name, str(value)[:500]) for name, value in about.items()]
        for first in range(0, len(settings), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=settings[first : first + MOST_PARAMETERS])

    def round(self, t: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at step t."""
        now = int(time.time() * 1000)
        values = [self._entities.Metric(name, value, now, t) for name, value in metrics.items()]
        for first in range(0, len(values), MOST_METRICS):
            self._client.log_batch(self._id, metrics=values[first : first + MOST_METRICS])

    def end(self, status: str) -> None:
        """Say how it ended."""
        ends = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._id, ends.get(status, "FAILED"))


@contextmanager
def _taking_turns(folder: Path) -> Iterator[None]:
    """Let one process at a time create what is missing in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (place := folder / ".turn").touch()
    with flock.turn(place):
        yield


@contextmanager
def _local_folders() -> Iterator[None]:
    """Set the variable without which MLflow refuses to use a plain folder."""
    given = (name := "MLFLOW_ALLOW_FILE_STORE") in os.environ
    os.environ.setdefault(name, "true")
    try:
        yield
    finally:
        if not given:
            del os.environ[name]


LOGGERS: dict[str, Callable[[Path, str], Callback]] = {
    "tensorboard": lambda logs, name: TensorBoard(logs / "tensorboard", f"{name}/{time.strftime('%Y-%m-%dT%H-%M-%S')}"),
    "wandb": WandB,
    "mlflow": lambda logs, name: MLflow(logs / "mlflow", name),
}


def build(names: Sequence[str], logs: Path, name: str) -> list[Callback]:
    """Make loggers by name.

    Args:
        names: Names in `LOGGERS`.
        logs: The folder in which each logger has its own subfolder.
        name: The name of the run.

    Returns:
        The loggers, to pass as `callbacks`.

    Example:
        >>> build(["tensorboard"], Path("runs/logs"), "demo")  # doctest: +SKIP
    """
    return [lookup(LOGGERS, each, "logger")(logs, name) for each in names]
