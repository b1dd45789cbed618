"""Mixing matrices: `W[k, j]` is the weight that participant k gives to what it receives from j; rows sum to 1."""

import warnings
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.files import replacing
from cascadice.files.digests import check_ordinary
from cascadice.topology.graphs import DiGraph

SPARSE_FROM = 512  # participants; W is dense below, CSR from here on
DENSE_FROM = 1 / 16  # density above which a dense product is faster than a sparse one, however large W is
ROW_TOLERANCE = 1e-6


class Links(NamedTuple):
    """The non-zero entries of W: receivers[i] gives weights[i] to sources[i]. Self-loops count as links."""

    receivers: Int[Tensor, " links"]
    sources: Int[Tensor, " links"]
    weights: Float[Tensor, " links"]


def links(W: Float[Tensor, "n n"]) -> Links:
    """The non-zero entries of W in row-major order, whatever its layout.

    Args:
        W: The mixing matrix, dense or sparse.

    Returns:
        Receivers, sources and weights of its links.

    Example:
        >>> links(torch.tensor([[0.5, 0.5], [0.0, 1.0]])).sources.tolist()
        [0, 1, 1]
    """
    if W.layout == torch.strided:
        receivers, sources = W.nonzero(as_tuple=True)
        return Links(receivers, sources, W[receivers, sources])
    if W.layout == torch.sparse_csr:
        receivers = torch.arange(W.shape[0], device=W.device).repeat_interleave(W.crow_indices().diff())
        sources, weights = W.col_indices(), W.values()
    else:
        entries = W.to_sparse().coalesce()
        (receivers, sources), weights = entries.indices(), entries.values()
    present = weights != 0
    return Links(receivers[present], sources[present], weights[present])


def from_links(
    nodes: int, receivers: Int[Tensor, " links"], sources: Int[Tensor, " links"], weights: Float[Tensor, " links"]
) -> Float[Tensor, "n n"]:
    """W from its links: dense if there are few participants or many links, otherwise CSR.

    Args:
        nodes: How many participants.
        receivers: The receiver of each link.
        sources: The source of each link.
        weights: The weight of each link; those with the same receiver and source are added up.

    Returns:
        W in float64.

    Example:
        >>> from_links(2, torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.5, 0.5])).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    weights = weights.double()
    if nodes < SPARSE_FROM or len(weights) >= DENSE_FROM * nodes**2:
        return torch.zeros(nodes, nodes, dtype=torch.float64).index_put_((receivers, sources), weights, accumulate=True)
    cell, slot = torch.unique(receivers * nodes + sources, return_inverse=True)
    values = torch.zeros(len(cell), dtype=torch.float64).index_add_(0, slot, weights)
    starts = torch.zeros(nodes + 1, dtype=torch.int64)
    starts[1:] = (cell // nodes).bincount(minlength=nodes).cumsum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # torch warns once that CSR is in beta
        return torch.sparse_csr_tensor(starts, cell % nodes, values, (nodes, nodes), check_invariants=False)


def identity(nodes: int) -> Float[Tensor, "n n"]:
    """W of a round without any exchange.

    Args:
        nodes: How many participants.

    Returns:
        The identity matrix in float64.

    Example:
        >>> identity(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    everyone = torch.arange(nodes)
    return from_links(nodes, everyone, everyone, torch.ones(nodes, dtype=torch.float64))


def sums(nodes: int, of: Int[Tensor, " links"], weights: Float[Tensor, " links"]) -> Float[Tensor, " n"]:
    """Sums of weights by participant: row sums of W if `of` are receivers, column sums if they are sources."""
    return torch.zeros(nodes, dtype=torch.float64).index_add_(0, of, weights.double())


def matrix(array: Any, *, normalize: bool = False) -> Float[Tensor, "n n"]:
    """W from a tensor, a NumPy array or nested lists.

    Args:
        array: Row k holds the weights that participant k gives.
        normalize: Whether to divide each row by its sum.

    Returns:
        W in float64.

    Raises:
        ValueError: If it is not a mixing matrix, with the reason.

    Example:
        >>> matrix([[1, 1], [0, 3]], normalize=True)
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]], dtype=torch.float64)
    """
    try:
        array = array.detach() if isinstance(array, Tensor) else torch.from_numpy(np.array(array, dtype=np.float64))
    except (TypeError, ValueError):
        raise ValueError("W must be a matrix of numbers, with rows of equal length; check its rows.") from None
    W = array.to("cpu", torch.float64)
    nodes, entries = W.shape[0], checked_links(W)
    if normalize:
        rows = sums(nodes, entries.receivers, entries.weights)
        if not rows.all():
            row = int((rows == 0).nonzero()[0])
            raise ValueError(
                f"W cannot be normalised: row {row} is all zero. Set W[{row}, {row}] = 1 to keep it alone."
            )
        entries = entries._replace(weights=entries.weights / rows[entries.receivers])
    _check_rows(nodes, entries)
    return from_links(nodes, *entries)


def check(W: Tensor, *, connected: bool = False) -> None:
    """Raise ValueError unless W is a mixing matrix: square, finite, not negative, with rows that sum to 1.

    Args:
        W: The matrix.
        connected: Whether it must also be strongly connected.

    Raises:
        ValueError: If it is not, with the reason.

    Example:
        >>> check(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), connected=True)
        >>> check(torch.tensor([[0.5, 0.4], [0.25, 0.75]]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: W must have rows summing to 1; row 0 sums to 0.9...
    """
    _check_rows(W.shape[0], checked_links(W))
    if connected and (gap := disconnection(W)):
        raise ValueError(f"W must be strongly connected, but {gap}. Add links both ways, or do not require connection.")


def to_graph(W: Float[Tensor, "n n"]) -> DiGraph:
    """W as a directed graph with weights, edges from source to receiver, without self-loops.

    Args:
        W: The mixing matrix, dense or sparse.

    Returns:
        The directed graph; an edge (u, v) means that u sends to v.

    Example:
        >>> sorted(to_graph(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).edges)
        [(0, 1)]
    """
    entries = links(W)
    graph: DiGraph = nx.DiGraph()
    graph.add_nodes_from(range(W.shape[0]))
    triples = zip(entries.sources.tolist(), entries.receivers.tolist(), entries.weights.tolist(), strict=True)
    graph.add_weighted_edges_from((j, k, weight) for j, k, weight in triples if j != k)
    return graph


def disconnection(W: Float[Tensor, "n n"]) -> str | None:
    """Explain which participant never hears from which; None if W is strongly connected."""
    graph, everyone = to_graph(W), set(range(W.shape[0]))
    if deaf := everyone - nx.descendants(graph, 0) - {0}:
        return f"participant {min(deaf)} never hears from participant 0"
    if unheard := everyone - nx.ancestors(graph, 0) - {0}:
        return f"participant 0 never hears from participant {min(unheard)}"
    return None


def checked_links(W: Tensor) -> Links:
    """The links of W; raise a ValueError unless it is square and its entries are finite and not negative."""
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not W.shape[0]:
        shape = " x ".join(map(str, W.shape)) or "a single number"
        raise ValueError(f"W must be square, one row and one column per participant; found {shape}.")
    entries = links(W)
    for wrong, must in (
        (~entries.weights.isfinite(), "must hold finite numbers"),
        (entries.weights < 0, "must not be negative"),
    ):
        if wrong.any():
            k, j, weight = (column[wrong][0].item() for column in entries)
            raise ValueError(f"W {must}; W[{k}, {j}] is {weight:.4g}. Correct the weight that {k} gives to {j}.")
    return entries


def _check_rows(nodes: int, entries: Links) -> None:
    rows = sums(nodes, entries.receivers, entries.weights)
    for row in ((rows - 1).abs() > ROW_TOLERANCE).nonzero().ravel().tolist():
        # 4 digits read well, but would hide a small deviation
        value = f"{rows[row]:.4g}" if abs(rows[row] - 1) > 1e-3 else f"{rows[row]:.8f}"
        raise ValueError(
            f"W must have rows summing to 1; row {row} sums to {value}. "
            "Use topology.metropolis(graph), or divide rows by their sums: topology.matrix(W, normalize=True), "
            "topology.from_graph(graph, normalize=True), or --normalize for a CSV file."
        )


def read_csv(path: str | PathLike[str], *, normalize: bool = False) -> Float[Tensor, "n n"]:
    """Read W from a CSV file.

    Args:
        path: The file; row k holds the weights that participant k gives, without a header.
        normalize: Whether to divide each row by its sum.

    Returns:
        W in float64.

    Raises:
        ValueError: If it is not a mixing matrix; the message names the line or row.

    Example:
        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("1, 1\\n1, 3\\n"), file.flush()
        ...     read_csv(file.name, normalize=True)
        tensor([[0.5000, 0.5000],
                [0.2500, 0.7500]], dtype=torch.float64)
    """
    rows = []
    check_ordinary(Path(path))
    for line, text in enumerate(Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n"), start=1):
        if not text.strip():
            continue
        try:
            rows.append(np.array(text.strip().split(","), dtype=np.float64))
        except ValueError:
            must = f"line {line} must be numbers between commas; remove headers and labels"
            raise ValueError(f"{path}: {must}.") from None
        if len(rows[-1]) != len(rows[0]):
            found = f"row 0 has {len(rows[0])} entries, row {len(rows) - 1} has {len(rows[-1])}"
            raise ValueError(f"{path}: rows must be equally long; {found}. Complete the file.")
    if not rows:
        raise ValueError(f"{path}: the file must hold a row of weights for each participant; it is empty.")
    try:
        return matrix(np.stack(rows), normalize=normalize)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_csv(W: Float[Tensor, "n n"], path: str | PathLike[str]) -> None:
    """Write W as CSV, which `read_csv` reads back bit for bit. The file is replaced atomically.

    Args:
        W: The mixing matrix.
        path: The file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_csv(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), f"{folder}/W.csv")
        ...     read_csv(f"{folder}/W.csv")
        tensor([[0.5000, 0.5000],
                [0.2500, 0.7500]], dtype=torch.float64)
    """
    dense = W if W.layout == torch.strided else W.to_dense()
    lines = (",".join(f"{weight!r}" if weight else "0" for weight in row) for row in dense.tolist())
    with replacing(Path(path)) as draft:
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
