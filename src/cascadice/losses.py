"""Losses: functions from (outputs, targets) to a scalar mean, for training and evaluation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.data.inputs import IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Float[Tensor, "*batch classes"], targets: Int[Tensor, "..."]) -> Float[Tensor, ""]:
    """Mean of −log softmax(logits)[target]: over samples, or over samples and positions for next-token prediction.

    Args:
        logits: Outputs, with the classes last.
        targets: The classes; −100 is ignored.

    Returns:
        The mean.

    Raises:
        ValueError: If the shapes do not match.

    Example:
        >>> round(float(cross_entropy(torch.zeros(5, 10), torch.arange(5))), 4)  # log 10
        2.3026
    """
    return F.cross_entropy(_precise(logits).flatten(0, -2), class_targets(logits, targets).flatten())


def mse(
    outputs: Float[Tensor, "*batch d"], targets: Float[Tensor, "*batch d"] | Int[Tensor, "..."]
) -> Float[Tensor, ""]:
    """Mean of (output − target)² over all entries.

    Args:
        outputs: The outputs.
        targets: Values of the same shape, or classes, which stand for one-hot vectors.

    Returns:
        The mean.

    Raises:
        ValueError: If the shapes do not match.

    Example:
        >>> mse(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
        tensor(1.)
    """
    if not targets.is_floating_point():
        targets = class_targets(outputs, targets)
        targets = (targets[..., None] == torch.arange(outputs.shape[-1], device=targets.device)).to(outputs.dtype)
    if outputs.shape != targets.shape:
        raise ValueError(
            f"mse needs outputs and targets of one shape; found {tuple(outputs.shape)} and {tuple(targets.shape)}. "
            "Reshape the targets, or give class numbers as integers."
        )
    return (_precise(outputs) - targets).square().mean()


def accuracy(logits: Float[Tensor, "*batch classes"], targets: Int[Tensor, "..."]) -> Float[Tensor, ""]:
    """The fraction of targets that have the largest logit.

    Args:
        logits: Outputs, with the classes last.
        targets: The classes; −100 is ignored.

    Returns:
        The fraction.

    Raises:
        ValueError: If the shapes do not match.

    Example:
        >>> accuracy(torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([1, 1]))
        tensor(0.5000)
    """
    classes = class_targets(logits, targets)
    return (logits.argmax(-1) == classes).float().sum() / (classes != IGNORED).sum()


def class_targets(logits: Float[Tensor, "*batch classes"], targets: Tensor) -> Int[Tensor, "*batch"]:
    """The targets, one class for each row of logits; a column of classes [samples, 1] loses its last axis.

    Any other shape is an error, because torch would broadcast it against the logits to a wrong result.

    Args:
        logits: Outputs, with the classes last.
        targets: The classes.

    Returns:
        One class for each row of logits.

    Raises:
        ValueError: If the shapes do not match.

    Example:
        >>> class_targets(torch.zeros(5, 10), torch.zeros(5, 1, dtype=torch.int64)).shape
        torch.Size([5])
    """
    if targets.shape == (*logits.shape[:-1], 1):
        return targets.squeeze(-1)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"there must be one class for each row of logits; logits are {list(logits.shape)}, targets "
            f"{list(targets.shape)}. Reshape the targets to {list(logits.shape[:-1])}."
        )
    return targets


def _precise(outputs: Tensor) -> Tensor:
    """In float32 or better: influence is a small difference of losses, which bfloat16 would round away."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


LOSSES: dict[str, tuple[Loss, str]] = {
    "cross-entropy": (cross_entropy, "mean −log softmax of the target, for classes and next tokens"),
    "mse": (mse, "mean squared error, to the one-hot vector if targets are classes"),
}
