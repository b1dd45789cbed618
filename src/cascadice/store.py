"""Runs on disk: rounds, checkpoints, metrics. Every file is written aside, then renamed: it is all there or not at all.

A run's folder
    config.json              the settings          manifest.json    versions, status, seconds
    metrics.parquet          round, node, train_loss, eval_loss, eval_accuracy, consensus
    checkpoint.safetensors   where to go on from   rounds/000012.safetensors   a recorded Round
Nothing is pickled. Tensors carry the layout of their model, so that another model's are refused, and a checksum.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Draw, Round, mix
from cascadice.engine.simulation import Evaluation

FORMAT = "cascadice-1"
CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.parquet"
Folder = str | os.PathLike[str]
Tensors = dict[str, Tensor]


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; when that went well, the file is flushed to disk and takes its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sweep(folder: Folder) -> None:
    """Remove the drafts that a killed process left."""
    for draft in (*Path(folder).glob(".tmp-*"), *Path(folder).glob("rounds/.tmp-*")):
        draft.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """An object as readable JSON."""
    with aside(path) as draft:
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). Restore it, or start again with --overwrite.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object; found {type(content).__name__}. Restore it.")
    return content


def layout(model: nn.Module) -> str:
    """Names and shapes of a model's parameters and buffers, as JSON: what recorded numbers mean."""
    named = (*model.named_parameters(), *model.named_buffers())
    return json.dumps({name: list(value.shape) for name, value in named})


def _write_tensors(path: Path, tensors: Tensors, note: Mapping[str, str]) -> None:
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors sorts tensors in a way of its own; dictionaries of state are walked side by side, so order matters
    content = {"format": FORMAT, **note, "names": list(plain), "checksum": _checksum(plain)}
    with aside(path) as draft:
        # one entry, because several are written in any order, and equal runs should make equal files
        save_file(plain, draft, metadata={"cascadice": json.dumps(content)})
        draft.chmod(0o644)  # safetensors would hide it from everybody else


def _read_tensors(path: Path, expected: str | None) -> tuple[Tensors, dict[str, Any]]:
    """Tensors in memory of their own (a mapped file may be misaligned, which can change the last bit of a product)."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path} is not there.")
    try:
        with safe_open(path, "pt") as file:
            note = json.loads((file.metadata() or {}).get("cascadice", "{}"))
            tensors = {name: file.get_tensor(name).clone() for name in note.get("names", ())}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, " ".join(str(error).split())) from None
    if note.get("format") != FORMAT:
        raise ValueError(
            f"{path} must be of format {FORMAT}; found {note.get('format')}. Use the version that wrote it."
        )
    if note.get("checksum") != _checksum(tensors):
        raise _damaged(path, "its checksum is wrong")
    _check_layout(path, note.get("layout", "{}"), expected)
    return tensors, note


def _checksum(tensors: Tensors) -> int:
    """Of the bytes of all tensors, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))
    return total


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason.rstrip('.')}. Delete it; what it held must be computed again.")


def _check_layout(path: Path, found: str, expected: str | None) -> None:
    if expected is None or found == expected:
        return
    there, here = json.loads(found), json.loads(expected)
    name = next((n for n in (*here, *there) if here.get(n) != there.get(n)), "the order of parameters")
    raise ValueError(f"{path} is of another model: {name} is {there.get(name)} there, {here.get(name)} here.")


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
    _write_tensors(Path(folder) / CHECKPOINT, _flat("", participants), note)


def load_checkpoint(folder: Folder, *, run: str | None = None, layout: str | None = None) -> Checkpoint:
    """The checkpoint in a run's folder, refused if it is of another configuration or model."""
    path = Path(folder) / CHECKPOINT
    tensors, note = _read_tensors(path, layout)
    if run is not None and note.get("run") != run:
        raise ValueError(f"{path} belongs to another configuration. Use another folder, or --overwrite.")
    return Checkpoint(int(note["t"]), _unflat("", tensors))


def record(folder: Folder, round: Round, *, layout: str = "{}") -> None:
    """Keep a round: all of it but `after`, which gossip makes again from the rest."""
    t, batch, W, lr, conduct = round.drawn
    tensors = {**_flat("before.", round.before), **_flat("half.", round.half), "loss": round.loss, "batch": batch}
    tensors |= {f"conduct.{place}": part for place, part in enumerate(conduct)}
    tensors |= _matrix_parts(W)
    note = {"t": str(t), "lr": repr(lr), "nodes": str(len(round.loss)), "layout": layout}
    _write_tensors(_round_path(folder, t), tensors, note)


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
    tensors, note = _read_tensors(path, layout)
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


class Measures(NamedTuple):
    """What was measured in round t: loss on the batch, distance from consensus and, now and then, on the test data."""

    t: int
    train_loss: Float[Tensor, " n"]
    consensus: Float[Tensor, ""]
    evaluation: Evaluation | None = None


COLUMNS = ("round", "node", "train_loss", "eval_loss", "eval_accuracy", "consensus")


def write_metrics(folder: Folder, measures: Sequence[Measures]) -> None:
    """All measures as one tidy table, a row for each round and participant; null where there was no evaluation."""
    import pyarrow as pa
    from pyarrow import parquet

    nodes = len(measures[0].train_loss) if measures else 0
    rounds = torch.tensor([m.t for m in measures], dtype=torch.int64)
    unseen = torch.tensor([m.evaluation is None for m in measures]).bool().repeat_interleave(nodes).numpy()
    blank = Evaluation(*[torch.zeros(nodes)] * 2)
    judged = [m.evaluation or blank for m in measures]
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


def read_metrics(folder: Folder) -> list[Measures]:
    """The measures of every round, as they were written."""
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(folder) / METRICS
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there.")
    try:
        table = parquet.read_table(path, columns=list(COLUMNS))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from None
    numbers = {name: table[name].to_numpy() for name in COLUMNS}
    seen = ~table["eval_loss"].is_null().to_numpy()
    nodes = int(numbers["node"].max(initial=-1)) + 1
    found = {name: torch.tensor(column).view(-1, max(nodes, 1)) for name, column in numbers.items()}
    return [
        Measures(
            int(found["round"][i, 0]),
            found["train_loss"][i],
            found["consensus"][i, 0],
            Evaluation(found["eval_loss"][i], found["eval_accuracy"][i]) if seen[i * nodes] else None,
        )
        for i in range(len(found["round"]))
    ]
