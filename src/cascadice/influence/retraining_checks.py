"""Checks before networks are trained again: how many there are, and the weights that each is trained with."""

from numbers import Integral, Real

from torch import Tensor

from cascadice.engine.networks import Network
from cascadice.engine.weighting import check_size


def check_count(count: int, what: str) -> None:
    """Raise ValueError unless this is a whole number from 1."""
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise ValueError(f"{what}, at least 1; found {count if isinstance(count, Real) else type(count).__name__}.")


def check_tensor(name: str, given: Tensor) -> None:
    """Raise TypeError unless this is a tensor."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a tensor; found {type(given).__name__}. Use torch.tensor({name}).")


def count_networks(network: Network, updates: Tensor | None, samples: Tensor | None) -> int:
    """How many networks to train; raise ValueError if weights are malformed or leave one nothing to train on."""
    counts = []
    of_samples = ("samples", samples, len(network.data.train), "training samples")
    for name, weights, size, what in (("updates", updates, network.nodes, "participants"), of_samples):
        if weights is None:
            continue
        check_tensor(name, weights)
        if weights.dim() != 2 or weights.shape[1] != size:
            raise ValueError(
                f"{name} must have a row for each network and a column for each of {size} {what}; found shape "
                f"{list(weights.shape)}. Use weights[None] for one network."
            )
        counts.append(len(weights))
        check_size(name, weights)
        if idle := (~weights.any(1)).nonzero().flatten().tolist() if len(weights) else [0]:
            raise ValueError(f"every network must have something to train on; row {idle[0]} of {name} leaves nothing.")
    if not counts:
        raise ValueError("retrain needs weights: updates, samples or both; found neither.")
    if len(set(counts)) > 1:
        found = " and ".join(map(str, counts))
        raise ValueError(f"updates and samples must have a row for each network; found {found} rows.")
    return counts[0]
