"""The metrics of each round, in memory and as one Parquet table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import loggers
from cascadice.engine.metrics import Metrics
from cascadice.files import Folder, checksums, damaged, intact, replacing

METRICS = "metrics.parquet"


class RoundMetrics(NamedTuple):
    """The metrics of round t: batch losses, consensus distance and, in some rounds, test loss and accuracy.

    `traffic` are the bytes that this process sent and received, if several processes train together.
    """

    t: int
    train_loss: Float[Tensor, " n"]
    consensus: Float[Tensor, ""]
    test: Metrics | None = None
    traffic: tuple[int, int] | None = None


def quality(test: Metrics) -> tuple[str, Float[Tensor, " n"]]:
    """The measure of quality and its name: accuracy, or the loss if there is no accuracy."""
    return ("loss", test.loss) if test.accuracy.isnan().all() else ("accuracy", test.accuracy)


def logged(metrics: RoundMetrics, members: Sequence[int] = ()) -> dict[str, float]:
    """The metrics of a round as loggers take them, of `members` if they are part of a network."""
    columns = {"train_loss": metrics.train_loss}
    if metrics.test is not None:
        columns |= {"test_loss": metrics.test.loss, "test_accuracy": metrics.test.accuracy}
    known = {name: values.tolist() for name, values in columns.items() if not bool(values.isnan().any())}
    each = (loggers.of_participants(name, values, members) for name, values in known.items())
    of_all = {"consensus": float(metrics.consensus)}
    if metrics.traffic is not None:
        of_all |= dict(zip(TRAFFIC, map(float, metrics.traffic), strict=True))
    return {name: value for part in (*each, of_all) for name, value in part.items()}


COLUMNS = ("round", "node", "train_loss", "eval_loss", "eval_accuracy", "consensus")
TRAFFIC = ("bytes_sent", "bytes_received")  # of a process in a round, the same in the rows of all its participants


def write_metrics(folder: Folder, metrics: Sequence[RoundMetrics], members: Sequence[int] = ()) -> None:
    """Write all metrics as one table, a row for each round and participant; null where nothing was evaluated."""
    import pyarrow as pa
    from pyarrow import parquet

    nodes = len(metrics[0].train_loss) if metrics else 0
    rounds = torch.tensor([m.t for m in metrics], dtype=torch.int64)
    missing = torch.tensor([m.test is None for m in metrics]).bool().repeat_interleave(nodes).numpy()
    tests = [m.test or Metrics(*[torch.zeros(nodes)] * 2) for m in metrics]
    values = [
        pa.array(rounds.repeat_interleave(nodes).numpy()),
        pa.array(torch.tensor(members or range(nodes)).repeat(len(metrics)).numpy()),
        pa.array(_column([m.train_loss for m in metrics])),
        pa.array(_column([test.loss for test in tests]), mask=missing),
        pa.array(_column([test.accuracy for test in tests]), mask=missing),
        pa.array(_column([m.consensus.expand(nodes) for m in metrics])),
    ]
    columns = dict(zip(COLUMNS, values, strict=True))
    if any(m.traffic is not None for m in metrics):
        for place, name in enumerate(TRAFFIC):
            each = [None if m.traffic is None else m.traffic[place] for m in metrics]
            columns[name] = pa.array([value for value in each for _ in range(nodes)], pa.int64())
    with replacing(Path(folder) / METRICS) as draft:
        parquet.write_table(pa.table(columns), draft)


def _column(rows: list[Tensor]) -> Any:
    return torch.cat(rows).double().numpy() if rows else torch.zeros(0, dtype=torch.float64).numpy()


def read_metrics(folder: Folder) -> list[RoundMetrics]:
    """Read the metrics of every round; columns that this version does not know are ignored."""
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(folder) / METRICS
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    checksums.verify(path)
    with intact(path, pa.ArrowException):
        table = parquet.read_table(path)
        numbers = {name: table.select(COLUMNS)[name].to_numpy() for name in COLUMNS}
    evaluated = ~table["eval_loss"].is_null().to_numpy()
    rounds, node = numbers["round"], numbers["node"]
    first = int(node[0]) if len(node) else 0  # not 0 where they are part of a network
    nodes = int(node.max(initial=-1)) + 1 - first
    width = max(nodes, 1)
    complete = len(node) % width == 0 and np.array_equal(node, first + np.arange(len(node)) % width)
    if not complete or not (rounds.reshape(-1, width) == rounds[::width, None]).all():
        raise damaged(path, f"rows are missing: every round must have one for each of {nodes} participants")
    rows = {name: torch.tensor(column).view(-1, width) for name, column in numbers.items()}
    tests = zip(evaluated[::width], rows["eval_loss"], rows["eval_accuracy"], strict=True)
    traffic: list[Any] = [(None, None)] * len(rows["round"])
    if set(TRAFFIC) <= set(table.column_names):
        traffic = [*zip(*(table[name].to_pylist()[::width] for name in TRAFFIC), strict=True)]
    each = zip(rounds[::width], rows["train_loss"], rows["consensus"][:, 0], tests, traffic, strict=True)
    return [
        RoundMetrics(int(t), loss, gap, Metrics(*test) if tested else None, None if None in sent else sent)
        for t, loss, gap, (tested, *test), sent in each
    ]


def metrics_so_far(folder: Folder) -> list[RoundMetrics]:
    """Read the metrics written so far, perhaps none; it is an error if they were written and are missing."""
    checksums.verify(Path(folder) / METRICS)
    return read_metrics(folder) if (Path(folder) / METRICS).exists() else []
