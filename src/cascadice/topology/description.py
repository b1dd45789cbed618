"""Properties of W or of a schedule: how fast it mixes, the weight of each participant, whether it is connected."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import seeds
from cascadice.topology.matrices import ROW_TOLERANCE, SPARSE_FROM, checked_links, disconnection, links, sums
from cascadice.topology.mixing import gossip
from cascadice.topology.schedules import Cycle, Schedule, average

RANDOM_ROUNDS = 100
TABLE_ROWS = 32
KRYLOV_STEPS, RESTARTS = 50, 100


@dataclass(frozen=True, eq=False)
class Description:
    """Properties of W, or of the mean W of several rounds, without self-loops.

    Attributes:
        nodes: The number of participants.
        rounds: The number of rounds.
        links: The number of links used in any of them.
        spectral_gap: 1 − |λ₂|, where |λ₂| is the factor by which disagreement shrinks per round in the long run: the
            second largest absolute eigenvalue of W, or the `rounds`-th root of that of the rounds' product. 1 means
            exact consensus, 0 none ever, NaN that rows do not sum to 1.
        row_stochastic: Whether rows sum to 1.
        doubly_stochastic: Whether rows and columns sum to 1.
        strongly_connected: Whether everyone hears from everyone in the end.
        in_weight: The weight that each participant gives to others.
        out_weight: The weight that others give to each participant.
    """

    nodes: int
    rounds: int
    links: int
    spectral_gap: float
    row_stochastic: bool
    doubly_stochastic: bool
    strongly_connected: bool
    in_weight: Float[Tensor, " n"]
    out_weight: Float[Tensor, " n"]

    def __str__(self) -> str:
        over = f" over {self.rounds} rounds" if self.rounds > 1 else ""
        sums = "rows and columns" if self.doubly_stochastic else "rows" if self.row_stochastic else "not the rows"
        lines = [
            f"participants        {self.nodes}",
            f"links               {self.links}{over}",
            f"spectral gap        {self.spectral_gap:.4g}{' per round' if over else ''}",
            f"sums to 1           {sums}",
            f"strongly connected  {'yes' if self.strongly_connected else 'no'}",
            "",
            "participant  in-weight  out-weight",
        ]
        # all participants, or, if there are many, those with the most out-weight
        order = self.out_weight.argsort(descending=True, stable=True).tolist()
        shown = sorted(order) if self.nodes <= TABLE_ROWS else order[:TABLE_ROWS]
        lines += [f"{k:>11}  {self.in_weight[k]:>9.4f}  {self.out_weight[k]:>10.4f}" for k in shown]
        if self.nodes > len(shown):
            lines.append(f"… and {self.nodes - len(shown)} with less out-weight")
        return "\n".join(lines)


def describe(W: Float[Tensor, "n n"]) -> Description:
    """Describe one W; warn if it is not strongly connected. Cost: that of `describe_schedule` with one round.

    Args:
        W: A square matrix with finite, non-negative entries.

    Returns:
        Its properties; print it for a table.

    Raises:
        ValueError: If W is not such a matrix.

    Example:
        >>> describe(torch.full((4, 4), 0.25, dtype=torch.float64)).spectral_gap
        1.0
    """
    checked_links(W)
    return describe_schedule(Cycle((W,)))


def period(schedule: Schedule) -> int:
    """The number of rounds after which a schedule repeats; 100 if it is not a Cycle.

    Args:
        schedule: The schedule.

    Returns:
        Its number of rounds.

    Example:
        >>> from cascadice.topology import one_peer_exponential
        >>> period(one_peer_exponential(8))
        3
    """
    return len(schedule.matrices) if isinstance(schedule, Cycle) else RANDOM_ROUNDS


def describe_schedule(schedule: Schedule, rounds: int | None = None) -> Description:
    """Describe the first rounds of a schedule; warn if they are not strongly connected.

    Cost: below 512 participants n³ per round; above, restarted Arnoldi with at most 5,000 products with each W, which
    stops early and so overstates gaps: by 0.15 % for `dominant` with 512, by more if they are very small (a ring of
    4,096: 1.1e-6 instead of 0.8e-6).

    Args:
        schedule: The schedule.
        rounds: How many rounds; defaults to one period.

    Returns:
        The properties of the rounds together; print it for a table.

    Example:
        >>> from cascadice.topology import one_peer_exponential
        >>> describe_schedule(one_peer_exponential(8)).doubly_stochastic
        True
    """
    rounds = period(schedule) if rounds is None else rounds
    W = average(schedule, rounds)
    if gap := disconnection(W):
        over = f" over {rounds} rounds" if rounds > 1 else ""
        warnings.warn(f"the network is not strongly connected{over}: {gap}.", stacklevel=2)
    nodes, (receivers, sources, weights) = W.shape[0], links(W)
    between = weights * (receivers != sources)
    row_stochastic, column_stochastic = (
        bool(((sums(nodes, side, weights) - 1).abs() <= ROW_TOLERANCE).all()) for side in (receivers, sources)
    )
    return Description(
        nodes=nodes,
        rounds=rounds,
        links=int(between.count_nonzero()),
        spectral_gap=_spectral_gap([schedule(t) for t in range(rounds)]) if row_stochastic else math.nan,
        row_stochastic=row_stochastic,
        doubly_stochastic=row_stochastic and column_stochastic,
        strongly_connected=gap is None,
        in_weight=sums(nodes, receivers, between),
        out_weight=sums(nodes, sources, between),
    )


def _spectral_gap(matrices: Sequence[Tensor]) -> float:
    nodes = matrices[0].shape[0]
    if nodes < SPARSE_FROM:
        product = _disagreement(matrices, torch.eye(nodes, dtype=torch.float64))
        largest = float(torch.linalg.eigvals(product).abs().max())
    else:
        largest = _largest_eigenvalue(lambda x: _disagreement(matrices, x[:, None])[:, 0], nodes)
    return max(0.0, 1.0 - math.pow(largest, 1 / len(matrices)))


def _disagreement(matrices: Sequence[Tensor], theta: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The deviations from the mean that remain after these rounds.

    Subtracting the mean replaces the product's eigenvalue 1 (of the eigenvector 1) by 0 and keeps the others. It is
    subtracted in each round, so that deviations smaller than the mean's rounding error keep their digits.
    """
    for W in matrices:
        before = theta.norm()
        theta = gossip(W, theta)
        theta = theta - theta.mean(0)
        if theta.norm() <= 1e-13 * before * math.sqrt(theta.shape[0]):
            return torch.zeros_like(theta)
    return theta


def _largest_eigenvalue(apply: Callable[[Tensor], Tensor], nodes: int) -> float:
    """The largest |eigenvalue| of a linear map, by Arnoldi's method, restarted from the leading Ritz vector."""
    x = torch.randn(nodes, dtype=torch.float64, generator=seeds.generator(0, "topology", "arnoldi"))
    largest = 0.0
    for _ in range(RESTARTS):
        basis, hessenberg = _arnoldi(apply, x - x.mean())
        values, vectors = torch.linalg.eig(hessenberg)
        leading = int(values.abs().argmax())
        previous, largest = largest, float(values[leading].abs())
        if abs(largest - previous) <= 1e-5 * max(1e-9, 1 - largest):
            break
        ritz = torch.view_as_real(vectors[:, leading])
        x = basis @ ritz[:, ritz.norm(dim=0).argmax()]
    return largest


def _arnoldi(apply: Callable[[Tensor], Tensor], x: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of x, Ax, A²x, … and A in that basis; shorter if the space is invariant."""
    basis = [x / x.norm()]
    hessenberg = torch.zeros(KRYLOV_STEPS + 1, KRYLOV_STEPS, dtype=torch.float64)
    for step in range(KRYLOV_STEPS):
        x, known = apply(basis[-1]), torch.stack(basis)
        scale = x.norm()
        for _ in range(2):  # the second pass removes the rounding errors of the first
            overlap = known @ x
            x = x - overlap @ known
            hessenberg[: step + 1, step] += overlap
        if x.norm() <= 1e-12 * scale:
            break
        hessenberg[step + 1, step] = x.norm()
        basis.append(x / x.norm())
    size = min(len(basis), KRYLOV_STEPS)
    return torch.stack(basis[:size], dim=1), hessenberg[:size, :size]
