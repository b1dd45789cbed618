"""Runs on disk: rounds, checkpoints, metrics. Every file is written aside, then renamed: it is all there or not at all.

A run's folder
    config.json              the settings          manifest.json    versions, status, seconds
    metrics.parquet          round, node, train_loss, eval_loss, eval_accuracy, consensus
    checkpoint.safetensors   where to go on from   rounds/000012.safetensors   a recorded Round
Nothing is pickled. Tensors carry the layout of their model, so that another model's are refused, and a checksum.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Draw, Round, mix
from cascadice.engine.simulation import Metrics
from cascadice.files import Folder, Tensors, aside, damaged, read_tensors, write_tensors

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.parquet"


def layout(model: nn.Module) -> str:
    """Names and shapes of a model's parameters and buffers, as JSON: what recorded numbers mean."""
    named = (*model.named_parameters(), *model.named_buffers())
    return json.dumps({name: list(value.shape) for name, value in named})


def _flat(prefix: str, participants: Participants) -> Tensors:
    """Participants as named tensors."""
    theta, state, buffers = participants
    named = {f"{prefix}state.{name}": value for name, value in state.items()}
    named |= {f"{prefix}buffers.{name}": value for name, value in buffers.items()}
    return {f"{prefix}theta": theta, **named}


def _unflat(prefix: str, tensors: Tensors) -> Participants:
    def of(kind: str) -> Tensors:
        start = f"{prefix}{kind}."
        return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}

    return Participants(tensors[f"{prefix}theta"], of("state"), of("buffers"))


class Checkpoint(NamedTuple):
    """Where to go on from: the next round, and the participants before it."""

    t: int
    participants: Participants


def save_checkpoint(folder: Folder, t: int, participants: Participants, *, run: str = "", layout: str = "{}") -> None:
    """Round t is the next one; `run` is the fingerprint of its configuration."""
    note = {"t": str(t), "run": run, "layout": layout}
    write_tensors(Path(folder) / CHECKPOINT, _flat("", participants), note)


def load_checkpoint(folder: Folder, *, run: str | None = None, layout: str | None = None) -> Checkpoint:
    """The checkpoint in a run's folder, refused if it is of another configuration or model."""
    path = Path(folder) / CHECKPOINT
    tensors, note = read_tensors(path, layout)
    if run is not None and note.get("run") != run:
        raise ValueError(f"{path} belongs to another configuration. Use another folder, or --overwrite.")
    return Checkpoint(int(note["t"]), _unflat("", tensors))


def record(folder: Folder, round: Round, *, layout: str = "{}") -> None:
    """Keep a round: all of it but `after`, which gossip makes again from the rest."""
    t, batch, W, lr, conduct = round.draw
    tensors = {**_flat("before.", round.before), **_flat("half.", round.half), "loss": round.loss, "batch": batch}
    tensors |= {f"conduct.{place}": part for place, part in enumerate(conduct)}
    tensors |= _matrix_parts(W)
    note = {"t": str(t), "lr": repr(lr), "nodes": str(len(round.loss)), "layout": layout}
    write_tensors(_round_path(folder, t), tensors, note)


def recorded(folder: Folder) -> list[int]:
    """The numbers of the rounds that were kept, in order."""
    names = (path.stem for path in (Path(folder) / "rounds").glob("*.safetensors"))
    return sorted(int(name) for name in names if name.isdecimal())


def load_round(folder: Folder, t: int, *, layout: str | None = None, device: str | torch.device = "cpu") -> Round:
    """Round t as it was, bit for bit on the device that computed it; `layout` is that of the model expected."""
    path = _round_path(folder, t)
    if not path.exists():
        kept = recorded(folder)
        found = f"{kept[0]} to {kept[-1]}" if kept else "no round"
        raise FileNotFoundError(f"round {t} was not recorded in {folder}; found {found}. Train with --record all.")
    tensors, note = read_tensors(path, layout)
    conduct = tuple(tensors[name] for name in ("conduct.0", "conduct.1") if name in tensors)
    drawn = Draw(int(note["t"]), tensors["batch"], _matrix(tensors, int(note["nodes"])), float(note["lr"]), conduct)
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    half = _unflat("half.", moved)
    return Round(drawn, _unflat("before.", moved), half, mix(drawn.W, half), moved["loss"])


def read(folder: Folder, *, layout: str | None = None, device: str | torch.device = "cpu") -> Iterator[Round]:
    """All recorded rounds, in order, one at a time."""
    return (load_round(folder, t, layout=layout, device=device) for t in recorded(folder))


def forget(folder: Folder, rounds: Sequence[int]) -> None:
    """Remove these recorded rounds."""
    for t in rounds:
        _round_path(folder, t).unlink(missing_ok=True)


class Recording(NamedTuple):
    """Which rounds are kept, and how many at most."""

    rounds: range
    most: int | None = None


def recording(text: str) -> Recording:
    """The recording written as `none`, `all`, `last:N` or `FROM-TO`, both ends included."""
    if text in ("none", "all"):
        return Recording(range(2**62 if text == "all" else 0))
    if (last := re.fullmatch(r"last:(\d+)", text)) and int(last[1]):
        return Recording(range(2**62), int(last[1]))
    if (span := re.fullmatch(r"(\d+)-(\d+)", text)) and int(span[1]) <= int(span[2]):
        return Recording(range(int(span[1]), int(span[2]) + 1))
    raise ValueError(f"record must be none, all, last:N or FROM-TO, e.g. last:10 or 0-99; found {text!r}.")


def _round_path(folder: Folder, t: int) -> Path:
    return Path(folder) / "rounds" / f"{t:06d}.safetensors"


def _matrix_parts(W: Tensor) -> Tensors:
    if W.layout == torch.strided:
        return {"W": W}
    return {"W.starts": W.crow_indices(), "W.sources": W.col_indices(), "W.weights": W.values()}


def _matrix(tensors: Tensors, nodes: int) -> Tensor:
    from cascadice.topology.matrices import from_links

    if "W" in tensors:
        return tensors["W"]
    receivers = torch.arange(nodes).repeat_interleave(tensors["W.starts"].diff())
    return from_links(nodes, receivers, tensors["W.sources"], tensors["W.weights"])


class RoundMetrics(NamedTuple):
    """What was measured in round t: loss on the batch, distance from consensus and, now and then, on the test data."""

    t: int
    train_loss: Float[Tensor, " n"]
    consensus: Float[Tensor, ""]
    test: Metrics | None = None


COLUMNS = ("round", "node", "train_loss", "eval_loss", "eval_accuracy", "consensus")


def write_metrics(folder: Folder, measures: Sequence[RoundMetrics]) -> None:
    """All measures as one tidy table, a row for each round and participant; null where there was no evaluation."""
    import pyarrow as pa
    from pyarrow import parquet

    nodes = len(measures[0].train_loss) if measures else 0
    rounds = torch.tensor([m.t for m in measures], dtype=torch.int64)
    unseen = torch.tensor([m.test is None for m in measures]).bool().repeat_interleave(nodes).numpy()
    blank = Metrics(*[torch.zeros(nodes)] * 2)
    judged = [m.test or blank for m in measures]
    values = [
        pa.array(rounds.repeat_interleave(nodes).numpy()),
        pa.array(torch.arange(nodes).repeat(len(measures)).numpy()),
        pa.array(_column([m.train_loss for m in measures])),
        pa.array(_column([e.loss for e in judged]), mask=unseen),
        pa.array(_column([e.accuracy for e in judged]), mask=unseen),
        pa.array(_column([m.consensus.expand(nodes) for m in measures])),
    ]
    with aside(Path(folder) / METRICS) as draft:
        parquet.write_table(pa.table(dict(zip(COLUMNS, values, strict=True))), draft)


def _column(rows: list[Tensor]) -> Any:
    return torch.cat(rows).double().numpy() if rows else torch.zeros(0, dtype=torch.float64).numpy()


def read_metrics(folder: Folder) -> list[RoundMetrics]:
    """The measures of every round, as they were written."""
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(folder) / METRICS
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there.")
    try:
        table = parquet.read_table(path, columns=list(COLUMNS))
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, str(error).splitlines()[0]) from None
    numbers = {name: table[name].to_numpy() for name in COLUMNS}
    seen = ~table["eval_loss"].is_null().to_numpy()
    nodes = int(numbers["node"].max(initial=-1)) + 1
    found = {name: torch.tensor(column).view(-1, max(nodes, 1)) for name, column in numbers.items()}
    return [
        RoundMetrics(
            int(found["round"][i, 0]),
            found["train_loss"][i],
            found["consensus"][i, 0],
            Metrics(found["eval_loss"][i], found["eval_accuracy"][i]) if seen[i * nodes] else None,
        )
        for i in range(len(found["round"]))
    ]
