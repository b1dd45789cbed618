"""A run on disk: its rounds, checkpoints and metrics.

The folder of a run
    config.json              the settings          manifest.json    format, versions, status, seconds
    metrics.parquet          round, node, train_loss, eval_loss, eval_accuracy, consensus
    checkpoint.safetensors   where to resume       rounds/000012.safetensors   one recorded Round
Every file is written atomically. Tensor files carry a checksum and the layout of their model, so that damaged files and
those of another model are refused.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from cascadice.engine.dropout import GeneratorState
from cascadice.engine.exchange.stacked import mix
from cascadice.engine.learner import Participants, trainable
from cascadice.engine.rounds import Draw, Round, unrecorded_rule
from cascadice.files import Folder, checksums, damaged, flush, remove
from cascadice.files.tensors import Tensors, content_of, read_tensors, write_tensors
from cascadice.runs.round_metrics import METRICS, RoundMetrics, metrics_so_far, read_metrics, write_metrics
from cascadice.topology.matrices import from_links

__all__ = [
    "CHECKPOINT", "EARLIER", "METRICS", "Checkpoint", "RoundMetrics", "RoundsToKeep", "check_rounds",
    "delete_rounds", "flush_rounds", "from_tensors", "layout", "load_checkpoint", "load_draw", "load_round",
    "load_rounds", "metrics_so_far", "read_metrics", "rounds_to_keep", "save_checkpoint", "save_round",
    "saved_rounds", "to_tensors", "write_metrics",
]  # fmt: skip

CHECKPOINT = "checkpoint.safetensors"
EARLIER = "checkpoint-earlier.safetensors"  # where several processes train: not all may have the latest one
DRAWN = ("batch", "W", "lr", "conduct", "generators")  # names of tensors, up to the first dot


def layout(model: nn.Module) -> str:
    """The names and shapes of a model's buffers and trainable parameters, as JSON."""
    named = (*trainable(model).items(), *model.named_buffers())
    return json.dumps({name: list(value.shape) for name, value in named})


def to_tensors(prefix: str, participants: Participants) -> Tensors:
    """The participants' parameters, state and buffers as named tensors, each name with this prefix."""
    state = {f"{prefix}state.{name}": value for name, value in participants.state.items()}
    buffers = {f"{prefix}buffers.{name}": value for name, value in participants.buffers.items()}
    return {f"{prefix}theta": participants.theta, **state, **buffers}


def from_tensors(prefix: str, tensors: Tensors) -> Participants:
    """The participants from tensors that `to_tensors` named."""
    state, buffers = (starting(f"{prefix}{group}.", tensors) for group in ("state", "buffers"))
    return Participants(tensors[f"{prefix}theta"], state, buffers)


def starting(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names start with this prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


class Checkpoint(NamedTuple):
    """Where to resume: the number of the next round, and the participants before it."""

    t: int
    participants: Participants


def save_checkpoint(
    folder: Folder, t: int, participants: Participants, *, run: str = "", layout: str = "{}", name: str = CHECKPOINT
) -> None:
    """Save the participants before round `t`, from which a run can resume.

    Args:
        folder: The folder of the run.
        t: The number of the next round.
        participants: The participants before it.
        run: The fingerprint of the run's settings.
        layout: The layout of the model; see `layout`.
        name: The name of the file.

    Example:
        >>> save_checkpoint("runs/mine", 10, rounds[-1].after)  # doctest: +SKIP
    """
    metadata = {"t": str(t), "run": run, "layout": layout}
    write_tensors(Path(folder) / name, to_tensors("", participants), metadata)


def load_checkpoint(
    folder: Folder, *, run: str | None = None, layout: str | None = None, name: str = CHECKPOINT
) -> Checkpoint:
    """Load the checkpoint of a run.

    Args:
        folder: The folder of the run.
        run: The fingerprint that the checkpoint must have; None accepts any.
        layout: The layout of the model that it must belong to; None accepts any.
        name: The name of the file.

    Returns:
        The number of the next round, and the participants before it.

    Raises:
        ValueError: If the file is damaged, or belongs to another run or model.

    Example:
        >>> t, participants = load_checkpoint("runs/mine")  # doctest: +SKIP
    """
    path = Path(folder) / name
    tensors, metadata = read_tensors(path, layout)
    if run is not None and metadata.get("run") != run:
        raise ValueError(f"{path} belongs to another configuration. Use another folder, or --overwrite.")
    with _complete(path):
        return Checkpoint(int(metadata["t"]), from_tensors("", tensors))


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    """Report missing entries, and entries that are not numbers, as damage to the file."""
    try:
        yield
    except KeyError as missing:
        raise damaged(path, f"it lacks {missing}") from None
    except (ValueError, TypeError) as error:
        raise damaged(path, str(error).splitlines()[0]) from None


def save_round(folder: Folder, round: Round, *, run: str = "", layout: str = "{}") -> None:
    """Save a round of the run with this fingerprint; call `flush_rounds` to make it survive a loss of power.

    `after` is left out if gossip by W recomputes it from the rest, bit for bit.
    """
    t, batch, W, lr, conduct, generators, _ = round.draw
    tensors = {**to_tensors("before.", round.before), **to_tensors("half.", round.half)}
    tensors |= {"loss": round.loss, "batch": batch}
    tensors |= {f"conduct.{place}": part for place, part in enumerate(conduct)}
    for node, steps in enumerate(generators):
        for step, own in enumerate(steps):
            tensors |= {f"generators.{node}.{step}.{device}": state for device, state in enumerate(own)}
    if W.layout == torch.strided:
        tensors["W"] = W
    else:
        tensors |= {"W.starts": W.crow_indices(), "W.sources": W.col_indices(), "W.weights": W.values()}
    metadata = {"t": str(t), "lr": repr(lr), "nodes": str(W.shape[0]), "layout": layout}
    metadata |= {"run": run} if run else {}
    if isinstance(lr, Tensor):  # a learning rate for each participant
        metadata["lr"], tensors["lr"] = "tensor", lr
    if (how := _after(round)) is not None:
        metadata["after"] = how
        tensors |= to_tensors("after.", round.after)
    write_tensors(_round_path(folder, t), tensors, metadata, durable=False)


def _after(round: Round) -> str | None:
    """Why `after` must be stored: gossip by W would not give the same bits; None if it would."""
    if round.W.shape[0] != len(round.loss):
        return "heard"  # a part of a network, mixed with what came from others
    again = mix(round.W, round.half)
    (leaves, structure), (others, same) = tree_flatten(again), tree_flatten(round.after)
    if structure == same and all(map(_same_bits, leaves, others)):
        return None
    gap, size = (again.theta - round.after.theta).abs().max(), round.half.theta.abs().max()
    rounding = bool(gap <= 100 * torch.finfo(gap.dtype).eps * size)
    return "averaged" if round.rule is None and rounding else "stored"  # in another order of sums; or by a rule


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one is other or one.device.type != "cpu" or (one.dtype, one.shape) != (other.dtype, other.shape):
        return one is other or torch.equal(one, other)
    # NumPy compares bytes five times as fast as torch.equal compares numbers
    return np.array_equal(np.asarray(content_of(one)), np.asarray(content_of(other)))


def saved_rounds(folder: Folder) -> list[int]:
    """The numbers of the rounds on disk, in order.

    Args:
        folder: The folder of the run.

    Returns:
        The numbers; empty if no round was recorded.

    Example:
        >>> saved_rounds("runs/no-such-run")
        []
    """
    return _numbers((Path(folder) / "rounds").glob("*.safetensors"))


def _numbers(paths: Iterable[Path]) -> list[int]:
    return sorted(int(path.stem) for path in paths if path.stem.isdecimal())


def check_rounds(folder: Folder) -> None:
    """Raise ValueError if a round that was recorded is missing."""
    checksums.verify_none_missing(Path(folder) / "rounds")


def missing_rounds(folder: Folder) -> list[int]:
    """The numbers of the rounds that were recorded and are missing."""
    return _numbers(path for path in checksums.listed(Path(folder) / "rounds") if not path.exists())


def load_round(
    folder: Folder, t: int, *, run: str | None = None, layout: str | None = None, device: str | torch.device = "cpu"
) -> Round:
    """Load round `t`: the same bits, on the device that computed it.

    Args:
        folder: The folder of the run.
        t: The number of the round.
        run: The fingerprint of the run that it must belong to; None accepts any.
        layout: The layout of the model that it must belong to; None accepts any.
        device: Where parameters, optimizer state and buffers go.

    Returns:
        The round, without a tape.

    Raises:
        FileNotFoundError: If the round was not recorded.
        ValueError: If the file is damaged, or belongs to another run or model.

    Example:
        >>> load_round("runs/mine", 12).update.norm(dim=1)  # doctest: +SKIP
    """
    path = _round_path(folder, t)
    if not path.exists():
        saved = saved_rounds(folder)
        span = f"{saved[0]} to {saved[-1]}" if saved else "no round"
        raise FileNotFoundError(f"round {t} was not recorded in {folder}; found {span}. Train with --record all.")
    tensors, metadata = read_tensors(path, layout)
    _check_place(path, metadata, t)
    if run is not None and metadata.get("run", run) != run:  # rounds of version 0.1.0 do not say
        raise ValueError(f"{path} belongs to another run: its fingerprint is {metadata['run']}, not {run}. Restore it.")
    with _complete(path):
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
        draw, half = _draw_from(metadata, tensors), from_tensors("half.", moved)
        draw = draw._replace(lr=moved["lr"]) if "lr" in moved else draw
        after = from_tensors("after.", moved) if "after" in metadata else mix(draw.W, half)
        rule = unrecorded_rule if metadata.get("after") == "stored" else None
        return Round(draw, from_tensors("before.", moved), half, after, moved["loss"], (), rule)


def _check_place(path: Path, metadata: Mapping[str, Any], t: int) -> None:
    if str(metadata.get("t")) != str(t):
        raise ValueError(f"{path} must be round {t}; it is round {metadata.get('t')}. Restore it.")


def load_rounds(folder: Folder, *, layout: str | None = None, device: str | torch.device = "cpu") -> Iterator[Round]:
    """Load all recorded rounds in order, one at a time.

    Args:
        folder: The folder of the run.
        layout: The layout of the model that they must belong to; None accepts any.
        device: Where parameters, optimizer state and buffers go.

    Returns:
        An iterator over the rounds.

    Example:
        >>> [round.t for round in load_rounds("runs/mine")]  # doctest: +SKIP
    """
    return (load_round(folder, t, layout=layout, device=device) for t in saved_rounds(folder))


def load_draw(folder: Folder, t: int) -> Draw:
    """Load the draw of round `t` without its parameters, which may be a thousand times as large."""
    path = _round_path(folder, t)
    tensors, metadata = read_tensors(path, None, DRAWN)
    _check_place(path, metadata, t)
    with _complete(path):
        return _draw_from(metadata, tensors)


def first_by_rule(folder: Folder) -> int | None:
    """The first recorded round that was mixed by a rule that does not average; None if W mixed all of them."""
    read = ((t, read_tensors(_round_path(folder, t), None, ("loss",))[1]) for t in saved_rounds(folder))
    return next((t for t, metadata in read if metadata.get("after") == "stored"), None)


def _draw_from(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Draw:
    conduct: Any = tuple(tensors[name] for name in ("conduct.0", "conduct.1") if name in tensors)
    lr = tensors["lr"] if "lr" in tensors else float(metadata["lr"])
    nodes, W = int(metadata["nodes"]), tensors.get("W")
    if W is None:
        receivers = torch.arange(nodes).repeat_interleave(tensors["W.starts"].diff())
        W = from_links(nodes, receivers, tensors["W.sources"], tensors["W.weights"])
    return Draw(int(metadata["t"]), tensors["batch"], W, lr, conduct, _generators_from(tensors))


def _generators_from(tensors: Mapping[str, Tensor]) -> tuple[tuple[GeneratorState, ...], ...]:
    """The generator states from which a recorded loop drew its dropout, by participant, step and device."""
    places = sorted(tuple(map(int, name.split(".")[1:])) for name in tensors if name.startswith("generators."))
    states: dict[int, dict[int, list[Tensor]]] = {node: {} for node in range(len(tensors["batch"]) if places else 0)}
    for node, step, device in places:  # those that did not train have none
        states[node].setdefault(step, []).append(tensors[f"generators.{node}.{step}.{device}"])
    return tuple(tuple(map(tuple, steps.values())) for steps in states.values())


def flush_rounds(folder: Folder, rounds: Sequence[int]) -> None:
    """Wait until these recorded rounds would survive a loss of power; numbers that were not recorded are skipped."""
    flush(Path(folder) / "rounds", (_round_path(folder, t) for t in rounds))


def unlisted_rounds(folder: Folder) -> list[int]:
    """The numbers of rounds on disk that no list contains: deleted rounds that a loss of power brought back."""
    return [t for t in saved_rounds(folder) if checksums.is_unlisted(_round_path(folder, t))]


def delete_rounds(folder: Folder, rounds: Sequence[int]) -> None:
    """Delete these recorded rounds; numbers that were not recorded are skipped."""
    for t in rounds:
        remove(_round_path(folder, t), durable=False)


class RoundsToKeep(NamedTuple):
    """Which rounds to record, and how many of them to keep at most (None: all)."""

    rounds: range
    most: int | None = None


def rounds_to_keep(text: str) -> RoundsToKeep:
    """Parse the setting `record`: `none`, `all`, `last:N` or `FROM-TO`, both ends included."""
    if text in ("none", "all"):
        return RoundsToKeep(range(2**62 if text == "all" else 0))
    if (last := re.fullmatch(r"last:(\d+)", text)) and int(last[1]):
        return RoundsToKeep(range(2**62), int(last[1]))
    if (span := re.fullmatch(r"(\d+)-(\d+)", text)) and int(span[1]) <= int(span[2]):
        return RoundsToKeep(range(int(span[1]), int(span[2]) + 1))
    raise ValueError(f"record must be none, all, last:N or FROM-TO, e.g. last:10 or 0-99; found {text!r}.")


def _round_path(folder: Folder, t: int) -> Path:
    return Path(folder) / "rounds" / f"{t:06d}.safetensors"
