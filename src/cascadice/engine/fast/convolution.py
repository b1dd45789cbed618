"""A cheaper double backward of conv2d, for Hessian-vector products in loops.

For the second derivative with respect to a kernel, torch convolves with kernels as large as images. The gradient of a
transposed convolution is the same, several times faster. Used by `tape.eager_directional` for passes in full precision.

Trap: in the first of the two backward passes nobody asks for gradients of kernels, and none are computed. A kernel that
was itself computed would need one, so only calls as `nn.Conv2d` makes them are replaced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Form = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Stride, padding, dilation, groups."""


class FastConvDoubleBackward(TorchFunctionMode):
    """Within, `conv2d` has the cheaper double backward, for passes whose activation gradients are differentiated."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.conv2d and not kwargs and torch.is_grad_enabled() and _called_by_layer(*args):
            return _Convolution.apply(*args[:3], args[3:])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _called_by_layer(*args: Any) -> bool:
    """Whether conv2d is called as `nn.Conv2d` calls it."""
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
            bias_size, wanted = [len(kernel)] if ctx.needs_input_grad[2] else None, ctx.needs_input_grad[:3]
            gradients = torch.ops.aten.convolution_backward(
                by_output, x, kernel, bias_size, stride, padding, dilation, False, (0, 0), groups, wanted
            )
            return *gradients, None
        # the first of the two backward passes
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
