"""The parts of a ledger: one Parquet file for each round, with a row for each update and each sample."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cascadice import files
from cascadice.applications.reward.contributions import Entry

ALL = -1  # the "sample" of a row about a whole update
DTYPES = {"round": np.int32, "participant": np.int32, "sample": np.int64, "value": np.float64}
Columns = dict[str, NDArray[Any]]


def columns_of(entry: Entry) -> Columns:
    """A row for each participant's whole update, then one for each sample drawn."""
    values = entry.participants.detach().cpu().double().numpy()
    nodes, samples = np.array(entry.nodes or range(len(values))), np.full(len(values), ALL)
    if entry.samples is not None and entry.draw is not None:
        drawn = entry.draw.reshape(-1).numpy()
        used = drawn >= 0  # smaller batches are padded
        nodes = np.concatenate([nodes, np.repeat(nodes, entry.draw.shape[1])[used]])
        samples = np.concatenate([samples, drawn[used]])
        values = np.concatenate([values, entry.samples.detach().cpu().double().reshape(-1).numpy()[used]])
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise ValueError(f"contributions must be finite to enter a ledger; found {wrong} in round {entry.round}.")
    columns = {"round": np.full(len(values), entry.round), "participant": nodes, "sample": samples, "value": values}
    return {name: column.astype(DTYPES[name]) for name, column in columns.items()}


def write_part(path: Path, columns: Columns) -> None:
    """Write the rows of a round, whole or not at all."""
    import pyarrow as pa
    from pyarrow import parquet

    with files.replacing(path) as draft:
        parquet.write_table(pa.table(columns), draft)


def read_part(content: bytes) -> Columns:
    """The rows of a round, from the content of its file."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(content))
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return {"sample": np.full(table.num_rows, ALL, dtype=np.int64), **columns}  # a part may lack that column
