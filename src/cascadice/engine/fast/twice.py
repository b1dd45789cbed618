"""Passes that are to be differentiated twice, or by torch.func: without the kernels and savings that cannot be."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from cascadice.engine.fast.hooks import record_call

CALLED = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")  # by `checkpoint`, one or the other
_usual = {name: getattr(checkpointing, name) for name in CALLED}
_lock, _inside = Lock(), {"plain": 0, "again": 0}


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Fused attention has no second derivative, torch's plain one has; checkpointed layers keep what they computed."""
    with sdpa_kernel(SDPBackend.MATH), plain_checkpoints():
        yield


@contextmanager
def plain_checkpoints() -> Iterator[None]:
    """Within, `torch.utils.checkpoint` just calls the function: the same numbers, in more memory.

    torch.func refuses the hooks by which it computes layers again. Models hold references to `checkpoint` itself, so
    what it calls is replaced, for all threads.
    """
    with _replaced("plain"):
        yield


def computed_again() -> AbstractContextManager[None]:
    """Within, reentrant checkpoints are made as the others: torch.autograd.grad does not take reentrant ones."""
    return _replaced("again")


@contextmanager
def _replaced(how: str) -> Iterator[None]:
    _enter(how, 1)
    try:
        yield
    finally:
        _enter(how, -1)


def _enter(how: str, change: int) -> None:
    with _lock:
        _inside[how] += change
        again = (_usual[CALLED[0]], _Again if _inside["again"] else _usual[CALLED[1]])
        for name, called in zip(CALLED, (_nothing, _Plain) if _inside["plain"] else again, strict=True):
            setattr(checkpointing, name, called)


def tolerating_hooks(model: nn.Module) -> AbstractContextManager[Any]:
    """Within, hooks of the user's may ask torch.func for gradients by outputs, which it refuses and does not need."""
    hooks = (hook for module in model.modules() for hook in module._forward_hooks.values())
    return nullcontext() if all(hook is record_call for hook in hooks) else _Tolerating()


class _Tolerating(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        functorch = torch._C._functorch
        inside = func is Tensor.requires_grad_ and functorch.peek_interpreter_stack() is not None
        if inside and not functorch.get_inplace_requires_grad_allowed():  # it is, where torch.func itself asks
            return args[0]
        return func(*args, **(kwargs or {}))


def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


class _Plain:
    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)


class _Again:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return checkpointing.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)
