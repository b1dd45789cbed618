"""Find groups of participants that help one another, from the matrix of influence alone."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

ALONE = -1  # the group number of participants that help nobody and are helped by nobody


def affinity(given: Float[Tensor, "n n"], share: float = 0.5) -> Float[Tensor, "n n"]:
    """How much two participants help each other, relative to what helps the receiver most; symmetric.

        A = (R + Rᵀ) / 2,   R[k, j] = max(0, given[j, k] / min_i given[i, k] − share)

    Each receiver has its own scale, because losses may differ in size.

    Args:
        given: `[j, k]`: the accumulated influence of j on k; negative helped.
        share: In [0, 1): harm, and help below this share of the greatest help, count as no tie.

    Returns:
        A matrix of ties, from 0 to 1 − share.

    Example:
        >>> affinity(torch.tensor([[0.0, -1.0, 0.1], [-1.0, 0.0, 0.2], [0.1, 0.2, 0.0]]))[0]
        tensor([0.0000, 0.5000, 0.0000])
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1; found {share}.")
    others = given - given.diag().diag()
    most = others.amin(0)  # negative helped
    relative = torch.where(most < 0, others / most.clamp(max=-1e-300), 0.0)
    ties = (relative - share).clamp(min=0)
    ties.fill_diagonal_(0)
    return (ties + ties.T) / 2


def find_groups(
    given: Float[Tensor, "n n"], count: int | None = None, *, share: float = 0.5, most: int = 8
) -> Int[Tensor, " n"]:
    """Find groups that help one another, by normalised spectral clustering (Ng, Jordan & Weiss 2001) of `affinity`.

    Cost: the eigenvectors of an n × n matrix.

    Args:
        given: `[j, k]`: the accumulated influence of j on k; negative helped.
        count: How many groups to find; by default, as many as there are eigenvalues before the greatest gap.
        share: See `affinity`.
        most: The most groups to find by default.

    Returns:
        The group of each participant, numbered by their first members; `ALONE` for those tied to nobody.

    Example:
        >>> find_groups(torch.tensor([[0.0, -1.0, 0.1], [-1.0, 0.0, 0.2], [0.1, 0.2, 0.0]]))
        tensor([ 0,  0, -1])
    """
    if given.dim() != 2 or given.shape[0] != given.shape[1] or not bool(given.isfinite().all()):
        raise ValueError(f"influence must be a square matrix of finite numbers; found {list(given.shape)}.")
    if count is not None and not 1 <= count <= len(given):
        raise ValueError(f"the number of groups must be in 1..{len(given)}, the participants; found {count}.")
    ties, groups = affinity(given.double().cpu(), share), torch.full((len(given),), ALONE)
    tied = ties.sum(1) > 0
    if bool(tied.any()):
        groups[tied] = _clustered(ties[tied][:, tied], count, most)
    return groups


def _clustered(ties: Float[Tensor, "n n"], count: int | None, most: int) -> Int[Tensor, " n"]:
    scale = ties.sum(1).rsqrt()
    laplacian = torch.eye(len(ties), dtype=ties.dtype) - scale[:, None] * ties * scale
    values, vectors = torch.linalg.eigh(laplacian)
    before_gap = int(values[: most + 1].diff().argmax()) + 1 if min(len(values), most + 1) > 2 else 1
    groups = before_gap if count is None else min(count, len(ties))
    rows = torch.nn.functional.normalize(vectors[:, :groups], dim=1)
    labels = _k_means(rows, groups).tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}  # by first members
    return torch.tensor([numbers[label] for label in labels])


def _k_means(points: Float[Tensor, "n q"], groups: int, steps: int = 50) -> Int[Tensor, " n"]:
    """Lloyd's algorithm, started from points that lie far apart. Nothing is random, so groups are reproducible."""
    centres = points[:1]
    for _ in range(1, groups):
        centres = torch.cat([centres, points[torch.cdist(points, centres).amin(1).argmax()][None]])
    for _ in range(steps):
        nearest = torch.cdist(points, centres).argmin(1)
        members = torch.nn.functional.one_hot(nearest, groups).to(points)
        centres = (members.T @ points) / members.sum(0).clamp(min=1)[:, None]
    return nearest
