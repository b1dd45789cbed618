"""Things to measure that are not the training loss: (outputs, targets) to a scalar that goes down when things improve.

Any such function will do; to be differentiated, it must be made of differentiable operations.
"""

import torch
from torch import Tensor
from torch.func import vmap

from cascadice.data.inputs import IGNORED
from cascadice.losses import Loss, class_targets, cross_entropy


def per_sample(loss: Loss) -> Loss:
    """The loss of each sample by itself: (outputs, targets) to a row of losses, whose mean `loss` is.

    Example:
        >>> per_sample(cross_entropy)(torch.zeros(3, 2), torch.tensor([0, 1, 0])).shape
        torch.Size([3])
    """
    return vmap(lambda output, target: loss(output[None], target[None]))


def negative_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """How far the right class is behind the strongest wrong one, in the mean; negative where it is ahead.

    Example:
        >>> negative_margin(torch.tensor([[2.0, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
        tensor(-0.2500)
    """
    classes = class_targets(outputs, targets)
    right = classes[..., None] == torch.arange(outputs.shape[-1], device=outputs.device)
    strongest = outputs.masked_fill(right, -float("inf")).amax(-1)
    behind, counted = strongest - outputs.masked_fill(~right, 0).sum(-1), classes != IGNORED
    return behind.masked_fill(~counted, 0).sum() / counted.sum()


def on_class(label: int, loss: Loss = cross_entropy) -> Loss:
    """The mean loss of the samples of one class.

    Example:
        >>> logits = torch.tensor([[20.0, 0.0], [20.0, 0.0]])
        >>> on_class(1)(logits, torch.tensor([0, 1])).round()
        tensor(20.)
    """

    def measure(outputs: Tensor, targets: Tensor) -> Tensor:
        return _mean(per_sample(loss)(outputs, targets), class_targets(outputs, targets) == label)

    return measure


def gap(group: Tensor, loss: Loss = cross_entropy) -> Loss:
    """The fairness gap |mean loss of a group − mean loss of the others|; `group[i]` says if evaluation sample i is in.

    It has a kink where both are equal.

    Example:
        >>> measure = gap(torch.tensor([True, False]))
        >>> measure(torch.tensor([[20.0, 0.0], [20.0, 0.0]]), torch.tensor([0, 1])).round()
        tensor(20.)
    """

    def measure(outputs: Tensor, targets: Tensor) -> Tensor:
        if group.shape != outputs.shape[:1]:
            raise ValueError(
                f"the group must say of each of {len(outputs)} evaluation samples whether it belongs; "
                f"found shape {list(group.shape)}."
            )
        each, inside = per_sample(loss)(outputs, targets), group.to(outputs.device, torch.bool)
        return (_mean(each, inside) - _mean(each, ~inside)).abs()

    return measure


def _mean(each: Tensor, chosen: Tensor) -> Tensor:
    if chosen.shape != each.shape:
        raise ValueError(f"there must be one class for each of {len(each)} samples; found shape {list(chosen.shape)}.")
    # weights, not an index: how many are chosen may differ between participants that are judged in one sweep
    weights = chosen.to(each.dtype)
    return (weights * each).sum() / weights.sum()
