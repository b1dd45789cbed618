"""One tidy table of influence, a row for each number: in memory as columns, on disk as one Parquet part per round.

A folder of influence
    influence.json           the settings: hops, kinds, points, evaluation
    part-00000007.parquet    the rows of round 7, written completely or not at all
    NAME.safetensors         an array, if a table would be too big
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from cascadice import files
from cascadice.engine.rounds import Round
from cascadice.files import Folder, checksums, jsonl
from cascadice.files.tensors import read_tensors, write_tensors
from cascadice.influence.cascade import Cascade
from cascadice.influence.readings import samples_of
from cascadice.names import lookup

if TYPE_CHECKING:
    import pandas
    import pyarrow

ALL = -1  # in sample, hop and receiver: summed over
NOTE = "influence.json"
PART = re.compile(r"part-(\d{8,})\.parquet")
TYPES: dict[str, type[np.generic]] = {
    "round": np.int32,
    "source": np.int32,
    "sample": np.int64,
    "hop": np.int16,
    "receiver": np.int32,
    "kind": np.object_,  # strings that rows share: 8 bytes a row
    "value": np.float64,
}


@dataclass(frozen=True, eq=False)
class Table:
    """Influence as columns of equal length. -1 in `sample`, `hop` or `receiver` means: summed over all of them."""

    round: NDArray[np.int32]
    source: NDArray[np.int32]
    sample: NDArray[np.int64]
    hop: NDArray[np.int16]
    receiver: NDArray[np.int32]
    kind: NDArray[np.object_]
    value: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if column.dtype != TYPES[name] or column.shape != (len(self),):
                raise ValueError(
                    f"column {name!r} must be {np.dtype(TYPES[name])} of shape ({len(self)},); found {column.dtype} of "
                    f"shape {column.shape}. Use table_of, table_of_participants or table_of_samples."
                )

    def __len__(self) -> int:
        return self.value.size

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def select(self, **wanted: Any) -> "Table":
        """The rows whose columns have one of the wanted values: `select(kind="truth", hop=[0, 1])`."""
        keep = np.ones(len(self), dtype=bool)
        for name, values in wanted.items():
            allowed = np.atleast_1d(list(values) if isinstance(values, Set) else values)
            keep &= np.isin(lookup(self.columns, name, "column"), allowed)
        return self.where(keep)

    def where(self, keep: NDArray[np.bool_]) -> "Table":
        """The rows where `keep` is true."""
        return Table(**{name: column[keep] for name, column in self.columns.items()})

    def to_arrow(self) -> "pyarrow.Table":
        """As an Arrow table, `kind` dictionary-encoded."""
        import pyarrow as pa

        kind = pa.array(self.kind, pa.string()).dictionary_encode()
        return pa.table({**self.columns, "kind": kind}, schema=_schema())

    def to_pandas(self) -> "pandas.DataFrame":
        """As a data frame."""
        return as_frame(self.columns)


def as_frame(columns: Mapping[str, NDArray[Any]]) -> "pandas.DataFrame":
    """Columns of equal length as a data frame."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("to_pandas needs pandas, which is not installed: pip install pandas.") from None
    return pd.DataFrame(columns)


def _table(kind: str, **numbers: Any) -> Table:
    """A table from columns or single numbers; raise ValueError if a number does not fit its column's type."""
    rows = np.size(numbers["value"])
    columns: dict[str, NDArray[Any]] = {"kind": np.empty(rows, dtype=np.object_)}
    columns["kind"].fill(kind)  # not np.full, which gives each row a string of its own
    for name, given in numbers.items():
        column = np.broadcast_to(np.asarray(given), rows)
        columns[name] = column.astype(TYPES[name])
        if name != "value" and not np.array_equal(columns[name], column):
            raise ValueError(f"column {name!r} must fit in {np.dtype(TYPES[name])}; found {np.max(given)}.")
    return Table(**columns)


def table_of(cascade: Cascade, sample: int | Sequence[int] = ALL) -> Table:
    """A table of a cascade: a row for each entry that is not exactly 0, and for each source's direct effect at hop 0.

    Args:
        cascade: What `truth`, `first_order` or `path_integrated` returned.
        sample: The index of the training sample of each case, if cases are samples. A cascade has only their positions
            in the batch: use `round.draw.batch[source, 0, list(cascade.samples)].tolist()`.

    Returns:
        A table with one kind and one round.

    Raises:
        ValueError: If the cascade is of samples and `sample` is missing, or has the wrong length.

    Example:
        >>> import torch
        >>> cascade = Cascade("truth", 7, (1,), torch.tensor([[[0.0, -3.0]], [[-1.0, 0.0]]]))
        >>> table_of(cascade).value
        array([-3., -1.])
    """
    if cascade.samples is not None and sample == ALL:
        raise ValueError(
            "name the samples of the cascade: sample=round.draw.batch[source, 0, list(cascade.samples)].tolist()."
        )
    value = cascade.value.detach().cpu().double().numpy().transpose(1, 0, 2)
    sources = np.array(cascade.sources, dtype=np.int64)
    samples = np.array(sample, dtype=np.int64)
    if samples.ndim and samples.shape != sources.shape:
        raise ValueError(f"sample must be one number, or one for each of {len(sources)} cases; found {samples.size}.")
    present = value != 0
    present[np.arange(len(sources)), 0, sources] = True
    s, hop, receiver = present.nonzero()
    sample_of = np.broadcast_to(samples, sources.shape)[s]
    columns = {"source": sources[s], "sample": sample_of, "hop": hop, "receiver": receiver, "value": value[present]}
    return _table(cascade.kind, round=cascade.t, **columns)


def table_of_participants(kind: str, t: int, scores: Float[Tensor, " n"]) -> Table:
    """A table of participants' scores in round t, summed over hops and receivers.

    Args:
        kind: The estimator's name.
        t: The round.
        scores: A score for each participant; NaN gets no row.

    Returns:
        A table with one row per participant.

    Example:
        >>> import torch
        >>> table_of_participants("shares", 7, torch.tensor([-0.5, torch.nan])).columns["source"]
        array([0], dtype=int32)
    """
    value = scores.detach().cpu().double().numpy()
    (source,) = (~np.isnan(value)).nonzero()
    return _table(kind, round=t, source=source, sample=ALL, hop=ALL, receiver=ALL, value=value[source])


def table_of_samples(kind: str, round: Round, scores: Float[Tensor, "n samples"]) -> Table:
    """A table of samples' scores in a round, by their indices in the training data.

    Args:
        kind: The estimator's name.
        round: The round that drew the samples.
        scores: `[n, samples]`, from `by_sample`; NaN gets no row.

    Returns:
        A table with one row per participant and sample.

    Example:
        >>> table_of_samples("first order", round, by_sample(network, round, adjoint))  # doctest: +SKIP
    """
    return table_of_drawn(kind, round.t, samples_of(round, scores), scores)


def table_of_drawn(kind: str, t: int, drawn: Int[Tensor, "n samples"], scores: Float[Tensor, "n samples"]) -> Table:
    """`table_of_samples`, given the indices of the samples drawn in round t; -1 is padding."""
    value, sample = scores.detach().cpu().double().numpy(), drawn.cpu().numpy()
    rows = ~np.isnan(value) & (sample >= 0)
    columns = {"source": rows.nonzero()[0], "sample": sample[rows], "value": value[rows]}
    return _table(kind, round=t, hop=ALL, receiver=ALL, **columns)


def renumbered(table: Table, members: Sequence[int]) -> Table:
    """The table of one process's `members`, if there are any, with their numbers in the whole network."""
    if not members:
        return table
    if not (table.receiver == ALL).all():
        raise ValueError("no single process knows what an update did to each receiver.")
    return replace(table, source=np.array(members, dtype=TYPES["source"])[table.source])


def concatenate(tables: Iterable[Table]) -> Table:
    """Join tables into one.

    Args:
        tables: The tables; there may be none.

    Returns:
        Their rows, in order.

    Example:
        >>> import torch
        >>> rounds = [table_of_participants("shares", t, torch.tensor([-0.5, 0.25])) for t in (0, 1)]
        >>> concatenate(rounds).round
        array([0, 0, 1, 1], dtype=int32)
    """
    columns = [table.columns for table in tables]
    empty = {name: np.empty(0, dtype=kind) for name, kind in TYPES.items()}
    return Table(**{name: np.concatenate([empty[name], *(each[name] for each in columns)]) for name in TYPES})


def write_part(folder: Folder, table: Table, number: int, note: Mapping[str, str]) -> None:
    """Write the rows of round `number` into a folder, replacing earlier ones.

    Only one process may write to a folder; drafts of a killed one are removed. `files.flush` makes parts survive a loss
    of power.

    Args:
        folder: The folder, made if it does not exist.
        table: The rows.
        number: Their round.
        note: The settings that all parts of the folder share.

    Raises:
        ValueError: If the number is negative, or the folder holds influence of other settings.

    Example:
        >>> write_part("influence", table, 7, {"hops": "1"})  # doctest: +SKIP
    """
    from pyarrow import parquet

    if number < 0:
        raise ValueError(f"parts are numbered from 0, by round; found {number}.")
    files.remove_drafts(Path(folder))
    if not (path := Path(folder) / NOTE).exists():
        files.write_json(path, note)
    elif differs := difference(read_note(folder), note):
        raise ValueError(f"{folder} holds influence with other settings: {differs}. Use another folder.")
    with files.replacing(Path(folder) / f"part-{number:08d}.parquet", durable=False) as draft:
        parquet.write_table(table.to_arrow(), draft)


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first setting in which two notes differ, `hops is '1' there, '2' here`; "" if none does."""
    names = (name for name in (*here, *there) if there.get(name) != here.get(name))
    return next((f"{name} is {there.get(name)!r} there, {here.get(name)!r} here" for name in names), "")


def parts(folder: Folder) -> dict[int, Path]:
    """The parts in a folder, by number, in order."""
    named = ((PART.fullmatch(path.name), path) for path in Path(folder).glob("part-*"))
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def read_note(folder: Folder) -> dict[str, Any]:
    """The settings that the influence in a folder was computed with."""
    path = Path(folder) / NOTE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    return files.read_json(path)


def read_table(folder: Folder) -> Table:
    """All parts in a folder as one table, in the order of their rounds.

    Args:
        folder: A folder of influence.

    Returns:
        One table with the rows of all rounds.

    Raises:
        FileNotFoundError: If there are no parts.
        ValueError: If a part is damaged, missing or of another format.

    Example:
        >>> read_table("runs/demo/influence").select(kind="truth", source=3)  # doctest: +SKIP
    """
    paths = parts(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} must hold parts of a table, part-00000000.parquet and on; found none.")
    checksums.verify_none_missing(Path(folder))
    return concatenate(_read_part(path, number) for number, path in paths.items())


def _read_part(path: Path, number: int) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    checksums.verify(path)
    with files.intact(path, pa.ArrowException):
        part = parquet.read_table(path)
    if not set(TYPES) <= set(part.column_names) or not part.select(list(TYPES)).schema.equals(_schema()):
        columns = ", ".join(f"{field.name} ({field.type})" for field in part.schema)
        raise ValueError(f"{path} must have the columns {', '.join(TYPES)} of an influence table; found {columns}.")
    table = Table(**{name: part[name].to_numpy() for name in TYPES})
    if (table.round != number).any():
        raise ValueError(f"{path} must hold round {number}; found round {table.round[table.round != number][0]}.")
    return table


def _schema() -> "pyarrow.Schema":
    import pyarrow as pa

    kind = pa.dictionary(pa.int32(), pa.string())
    types = {name: pa.from_numpy_dtype(of) for name, of in TYPES.items() if name != "kind"} | {"kind": kind}
    return pa.schema([pa.field(name, types[name], nullable=False) for name in TYPES])


def save_array(folder: Folder, name: str, tensor: Tensor, note: Mapping[str, str]) -> None:
    """Save a tensor to NAME.safetensors in a folder, completely or not at all, with a checksum.

    Args:
        folder: The folder to save to.
        name: The name of the array: letters, digits, "_", "-" and ".".
        tensor: The array.
        note: A description, saved with it.

    Example:
        >>> save_array("influence", "proximal", given, {"rounds": "0-19"})  # doctest: +SKIP
    """
    write_tensors(_array_path(folder, name), {name: tensor}, {"note": json.dumps(dict(note))})


def load_array(folder: Folder, name: str) -> tuple[Tensor, dict[str, str]]:
    """Load an array that `save_array` saved.

    Args:
        folder: The folder.
        name: The array's name.

    Returns:
        The tensor, bit for bit, and its note.

    Raises:
        ValueError: If the file is damaged or holds something else.

    Example:
        >>> tensor, note = load_array("influence", "proximal")  # doctest: +SKIP
    """
    path = _array_path(folder, name)
    tensors, content = read_tensors(path, None)
    if name not in tensors or "note" not in content:
        raise ValueError(f"{path} must hold an array saved as {name!r}; found {', '.join(tensors)}.")
    with files.intact(path, ValueError):
        return tensors[name], jsonl.parse(content["note"])


def _array_path(folder: Folder, name: str) -> Path:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"an array's name must be made of letters, digits, '_', '-' and '.'; found {name!r}.")
    return Path(folder) / f"{name}.safetensors"
