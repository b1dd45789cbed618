"""Passes that are differentiated twice, or by torch.func: switch off what does not allow it, speed up convolutions.

Strategy: `twice_differentiable` surrounds every push and pull; `without_checkpoints` and `non_reentrant_checkpoints`
surround the training and evaluation passes that need them; `FastConvDoubleBackward` is for Hessian-vector products in
loops (`tape.eager_directional`), in full precision.

Traps: fused attention has no second derivative; torch.func refuses the hooks of activation checkpointing; and
torch.autograd.grad refuses reentrant checkpoints. Models hold their own references to `checkpoint`, so what it calls is
replaced, for all threads at once, and counted so that the last one to leave puts it back. In the first of the two
backward passes nobody asks for gradients of kernels, and `FastConvDoubleBackward` computes none. A kernel that was
itself computed would need one, so only calls as `nn.Conv2d` makes them are replaced.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from cascadice.engine.fast.hooks import record_call

# `checkpoint` calls one of these two
NON_REENTRANT, REENTRANT = "_checkpoint_without_reentrant_generator", "CheckpointFunction"
_original = {name: getattr(checkpointing, name) for name in (NON_REENTRANT, REENTRANT)}
_lock, _active = Lock(), {"none": 0, "non-reentrant": 0}  # how many are inside each context


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Use torch's plain attention, which has a second derivative, and no activation checkpointing."""
    with sdpa_kernel(SDPBackend.MATH), without_checkpoints():
        yield


@contextmanager
def _replacing(checkpoints: str) -> Iterator[None]:
    _count(checkpoints, 1)
    try:
        yield
    finally:
        _count(checkpoints, -1)


without_checkpoints = partial(_replacing, "none")
"""Within, `torch.utils.checkpoint` just calls the function: the same numbers, in more memory."""

non_reentrant_checkpoints = partial(_replacing, "non-reentrant")
"""Within, reentrant checkpoints become non-reentrant ones, which torch.autograd.grad accepts."""


def _count(checkpoints: str, change: int) -> None:
    with _lock:
        _active[checkpoints] += change
        called: dict[str, Any] = dict(_original)
        if _active["none"]:
            called = {NON_REENTRANT: _no_hooks, REENTRANT: _JustCall}
        elif _active["non-reentrant"]:
            called[REENTRANT] = _CallNonReentrant
        for name, replacement in called.items():
            setattr(checkpointing, name, replacement)


def tolerate_user_hooks(model: nn.Module) -> AbstractContextManager[Any]:
    """Within, `requires_grad_()` in a user's forward hooks does nothing under torch.func, which would refuse it."""
    hooks = (hook for module in model.modules() for hook in module._forward_hooks.values())
    return nullcontext() if all(hook is record_call for hook in hooks) else _IgnoreRequiresGrad()


class _IgnoreRequiresGrad(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        functorch = torch._C._functorch
        inside = func is Tensor.requires_grad_ and functorch.peek_interpreter_stack() is not None
        if inside and not functorch.get_inplace_requires_grad_allowed():  # torch.func's own calls are allowed
            return args[0]
        return func(*args, **(kwargs or {}))


def _no_hooks(*_: Any, **__: Any) -> Iterator[None]:
    yield


class _JustCall:
    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)


class _CallNonReentrant:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return checkpointing.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


Form = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Stride, padding, dilation, groups."""


class FastConvDoubleBackward(TorchFunctionMode):
    """Within, `conv2d` has a cheaper double backward, for passes whose activation gradients are differentiated.

    For the second derivative with respect to a kernel, torch convolves with kernels as large as images. The gradient of
    a transposed convolution is the same, several times faster.
    """

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
