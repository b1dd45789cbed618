"""A network in which some updates, or some samples, count less, or not at all.

    α_j multiplies j's learning rate in every step          α_i multiplies sample i's term in the gradients

With one local step, j sends θ_j^t + α_j Δ_j, where Δ_j is its full step from the same parameters and optimizer state;
the state itself (momentum) is not scaled. With several steps this does not hold, because each starts where the scaled
step before it ended.

α_j = 0 is a participant that does not train and passes on what it receives; α_i = 0 is a sample left out. Running
statistics (BatchNorm) have no learning rate, and are updated all the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.behaviours import BEHAVIOURS, Behaviour
from cascadice.engine.networks import Network
from cascadice.engine.optimizer_checks import check_proportional
from cascadice.engine.rounds import Draw, Round


def with_weights(
    network: Network, updates: float | Float[Tensor, " n"] = 1.0, samples: Float[Tensor, " size"] | None = None, *,
    during: range | None = None,
) -> Network:  # fmt: skip
    """The network with weights on participants' updates and on training samples.

    Args:
        network: The network to weight.
        updates: α, one number or one for each participant.
        samples: A weight for each training sample; by default 1.
        during: The rounds in which `updates` applies; by default all.

    Returns:
        A network to train like any other.

    Raises:
        ValueError: If weights are negative, not finite or of the wrong number, or the optimizer's step is not
            proportional to its learning rate.

    Example:
        >>> without_third = with_weights(network, 1 - torch.eye(network.nodes)[3])
        >>> *_, last = simulate(without_third, 100)
    """
    try:
        weights = torch.as_tensor(updates, dtype=torch.float64)  # a list will do, too
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"weights of updates must be a number, or one per participant; found {updates!r}.") from None
    alpha: float | Tensor = weights if weights.dim() else float(weights)
    _check("updates", alpha, network.nodes, "participant")
    if samples is not None:
        _check("samples", samples, size := len(network.data.train), "training sample")
        samples = samples.to(network.initial.theta).expand(network.nodes, size)
        samples = samples if network.sample_weights is None else samples * network.sample_weights
    if isinstance(alpha, float) and alpha == 1:
        return network if samples is None else replace(network, sample_weights=samples)
    for learner in network.learners:
        check_proportional(learner.optimizer)

    def lr(t: int) -> Any:
        rate = network.lr(t)
        return rate if during is not None and t not in during else _scaled(rate, alpha)

    return replace(
        network,
        lr=lr,
        behaviours=_with_noise(network, alpha, during),
        sample_weights=network.sample_weights if samples is None else samples,
    )


def _check(name: str, weights: float | Tensor, count: int, each: str) -> None:
    if isinstance(weights, Tensor) and weights.shape != (count,):
        raise ValueError(f"{name} must be one number or {count}, one per {each}; found shape {list(weights.shape)}.")
    check_size(name, torch.as_tensor(weights))


def check_size(name: str, weights: Tensor) -> None:
    """Raise ValueError unless all of these weights are at least 0 and finite."""
    if (wrong := weights[~(weights.isfinite() & (weights >= 0))]).numel():
        raise ValueError(f"weights of {name} must be at least 0 and finite; found {float(wrong[0]):g}.")


def _scaled(rate: Any, alpha: float | Tensor) -> float | Tensor:
    if isinstance(rate, float) and isinstance(alpha, float):
        return rate * alpha
    rates = torch.as_tensor(rate, dtype=torch.float64).cpu()
    each = alpha[:, None] if isinstance(alpha, Tensor) and rates.dim() > 1 else alpha  # a rate for each step
    return rates * each


def _with_noise(network: Network, alpha: float | Tensor, during: range | None) -> tuple[Behaviour, ...]:
    """Noise senders send noise as their update, so it is scaled too; their strength is a variance, hence α²."""
    if not any(BEHAVIOURS[b.kind].noise for b in network.behaviours):
        return network.behaviours
    if during is not None:
        raise ValueError("weights during some rounds only cannot be combined with noise senders. Leave out `during`.")
    each = torch.as_tensor(alpha).expand(network.nodes)
    noisy = [b for b in network.behaviours if BEHAVIOURS[b.kind].noise]
    apart = (replace(b, nodes=(k,), strength=b.strength * float(each[k]) ** 2) for b in noisy for k in b.nodes)
    return (*(b for b in network.behaviours if b not in noisy), *apart)


def as_recorded(network: Network, rounds: Sequence[Round]) -> Network:
    """The network that draws what these consecutive rounds drew, and starts where they started."""
    first = rounds[0]

    @lru_cache(1)  # rounds may be read from disk, and three functions ask for each
    def drawn(t: int) -> Draw:
        return rounds[t - first.t].draw

    return replace(
        network, initial=first.before, batches=lambda t: drawn(t).batch, mixing=lambda t: drawn(t).W,
        lr=lambda t: drawn(t).lr,
    )  # fmt: skip
