"""Measures other than the training loss: functions of (outputs, targets) to a scalar that goes down as models improve.

Any such function will do. The estimators, but not the truth, need it to be differentiable.
"""

import torch
from torch import Tensor
from torch.func import vmap

from cascadice.data.inputs import IGNORED
from cascadice.losses import Loss, class_targets, cross_entropy


def per_sample(loss: Loss) -> Loss:
    """The loss of each sample separately.

    Args:
        loss: A mean over samples, as a function of (outputs, targets).

    Returns:
        A function of (outputs, targets) to one loss per sample.

    Example:
        >>> per_sample(cross_entropy)(torch.zeros(3, 2), torch.tensor([0, 1, 0])).shape
        torch.Size([3])
    """
    return vmap(lambda output, target: loss(output[None], target[None]))


def negative_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of the strongest wrong class's output minus the right class's; negative if the right class is ahead.

    Args:
        outputs: Logits, with the classes last.
        targets: The right classes.

    Returns:
        The mean over samples (or tokens) whose target is not ignored.

    Example:
        >>> negative_margin(torch.tensor([[2.0, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
        tensor(-0.2500)
    """
    classes = class_targets(outputs, targets)
    right = classes[..., None] == torch.arange(outputs.shape[-1], device=outputs.device)
    strongest = outputs.masked_fill(right, -float("inf")).amax(-1)
    margin, counted = strongest - outputs.masked_fill(~right, 0).sum(-1), classes != IGNORED
    return margin.masked_fill(~counted, 0).sum() / counted.sum()


def on_class(label: int, loss: Loss = cross_entropy) -> Loss:
    """The mean loss of the samples of one class.

    Args:
        label: The class.
        loss: The loss to average.

    Returns:
        A measure for `evaluate_on`.

    Example:
        >>> logits = torch.tensor([[20.0, 0.0], [20.0, 0.0]])
        >>> on_class(1)(logits, torch.tensor([0, 1])).round()
        tensor(20.)
    """

    def measure(outputs: Tensor, targets: Tensor) -> Tensor:
        return _mean(per_sample(loss)(outputs, targets), class_targets(outputs, targets) == label)

    return measure


def gap(group: Tensor, loss: Loss = cross_entropy) -> Loss:
    """The fairness gap |mean loss of a group − mean loss of the others|, which has a kink where both are equal.

    Args:
        group: For each evaluation sample, whether it is in the group.
        loss: The loss to average.

    Returns:
        A measure for `evaluate_on`; it raises ValueError on any other number of samples.

    Example:
        >>> measure = gap(torch.tensor([True, False]))
        >>> measure(torch.tensor([[20.0, 0.0], [20.0, 0.0]]), torch.tensor([0, 1])).round()
        tensor(20.)
    """

    def measure(outputs: Tensor, targets: Tensor) -> Tensor:
        if group.shape != outputs.shape[:1]:
            raise ValueError(
                f"group must have one entry for each of {len(outputs)} evaluation samples; "
                f"found shape {list(group.shape)}."
            )
        each, inside = per_sample(loss)(outputs, targets), group.to(outputs.device, torch.bool)
        return (_mean(each, inside) - _mean(each, ~inside)).abs()

    return measure


def _mean(each: Tensor, chosen: Tensor) -> Tensor:
    if chosen.shape != each.shape:
        raise ValueError(f"there must be one class for each of {len(each)} samples; found shape {list(chosen.shape)}.")
    # weights, not an index: under vmap the number of chosen samples may differ between participants
    weights = chosen.to(each.dtype)
    return (weights * each).sum() / weights.sum()
