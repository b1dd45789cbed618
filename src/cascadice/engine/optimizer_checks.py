"""Check on a few numbers that an optimizer has what derivatives, and weights on updates, need."""

from functools import lru_cache

import torch
from torch import Tensor

from cascadice import seeds
from cascadice.optimizers import Optimizer


@lru_cache(maxsize=64)
def check_differentiable(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose steps respond to the gradient but have a zero derivative (sign, rounding).

    Gradients of several sizes are tried, because clipping by value flattens only the large ones.
    """
    generator = seeds.generator(0, "optimizer", "probe")
    theta, one, other, direction = torch.randn(4, 2, optimizer.size or 8, generator=generator, dtype=torch.float64)
    responds = False
    for size in (1.0, 1e-3, 1e-6):
        gradient = (size * one).requires_grad_()
        moved = _three_steps(optimizer, theta, gradient)
        if moved.requires_grad:
            (derivative,) = torch.autograd.grad(moved, gradient, direction, allow_unused=True)
            if derivative is not None and bool(derivative.any()):
                return
        responds |= not torch.equal(moved.detach(), _three_steps(optimizer, theta, size * other).detach())
    if responds:
        raise ValueError(
            "the optimizer's update must have a derivative by the gradient; it is zero everywhere, as for updates that "
            "take signs or round, so every estimate would be 0. Use the truth, which needs no derivative, or an "
            "optimizer such as 'adam'."
        )


def _three_steps(optimizer: Optimizer, theta: Tensor, gradient: Tensor) -> Tensor:
    """Parameters after three steps with this gradient; one step would miss effects through the state."""
    state, lr = optimizer.init(theta), theta.new_full(theta.shape[:-1], 0.1)
    for _ in range(3):
        delta, state = optimizer.update(gradient, state, theta, lr)
        theta = theta + delta
    return theta


def check_proportional(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose step is not proportional to its learning rate."""
    draw = torch.Generator().manual_seed(0)
    theta, gradient = torch.randn(2, 1, optimizer.size or 8, generator=draw, dtype=torch.float64)
    state = optimizer.init(theta)
    once, twice = (optimizer.update(gradient, state, theta, theta.new_tensor([rate]))[0] for rate in (0.01, 0.02))
    if not torch.allclose(twice, 2 * once, rtol=1e-9, atol=0) or not bool(once.any()):
        raise ValueError(
            "weights on updates need an optimizer whose step is proportional to its learning rate; this one's is not. "
            "Multiply the step by lr in its `update`."
        )
