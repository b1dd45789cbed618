"""Convolutions that are to be differentiated twice.

For the second derivative by kernels of convolutions, torch convolves with kernels as large as images. That takes
several times as long as the gradient of a transposed convolution, which is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Form = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Stride, padding, dilation, groups."""


class TwiceDifferentiated(TorchFunctionMode):
    """Within, `conv2d` is one of these: for a pass whose gradients by inputs and outputs are differentiated again."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.conv2d and not kwargs and torch.is_grad_enabled() and _of_layer(*args):
            return _Convolution.apply(*args[:3], args[3:])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _of_layer(*args: Any) -> bool:
    """Whether conv2d is called as nn.Conv2d does: a kernel that was computed needs a gradient of its own."""
    return len(args) == 7 and isinstance(args[1], nn.Parameter) and all(isinstance(form, tuple) for form in args[3:6])


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, form: Form) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.form = form
        return F.conv2d(x, kernel, bias, *form)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        (x, kernel), (stride, padding, dilation, groups) = ctx.saved_tensors, ctx.form
        if not torch.is_grad_enabled():
            by_bias, asked = [len(kernel)] if ctx.needs_input_grad[2] else None, ctx.needs_input_grad[:3]
            gradients = torch.ops.aten.convolution_backward(
                by_output, x, kernel, by_bias, stride, padding, dilation, False, (0, 0), groups, asked
            )
            return *gradients, None
        # the first of two passes, in which nobody asks for gradients of kernels
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        output_padding = [
            size - (out - 1) * step + 2 * pad - wide * (taps - 1) - 1
            for size, out, step, pad, wide, taps in zip(
                x.shape[2:], by_output.shape[2:], stride, padding, dilation, kernel.shape[2:], strict=True
            )
        ]
        by_input = F.conv_transpose2d(by_output, kernel, None, stride, padding, output_padding, groups, dilation)
        return by_input, None, None, None
