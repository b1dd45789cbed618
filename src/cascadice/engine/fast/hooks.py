"""Forward hooks that record the input and output of each layer of a model, for `tape`.

Only layers that are linear in their parameters are hooked, and only if they hold all trainable parameters between them.

Trap: torch.func cannot differentiate with respect to an intermediate output. It can with respect to a zero that is
added to it, a *probe*; plain autograd needs none, but the first output must require a gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cascadice.models import Embedding

Tape = tuple[tuple[Tensor, Tensor], ...]
"""For each call of a layer, in order: its input, and the gradient of the batch's loss with respect to its output."""

# linear in their parameters: called with a direction as parameters, they return the derivative along it
LINEAR = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.GroupNorm, nn.LayerNorm, Embedding)


class Call(NamedTuple):
    """One call of a layer."""

    name: str
    input: Tensor
    output: Tensor


@dataclass
class LayerCalls:
    """The layer calls of one copy of a model while it runs; `probes` are zeros to add to the outputs."""

    made: list[Call] | None = None
    probes: tuple[Tensor, ...] | None = None

    def start(self, probes: tuple[Tensor, ...] | None = None) -> None:
        """Start recording calls."""
        self.made, self.probes = [], probes

    def stop(self) -> list[Call]:
        """Stop recording, and return the calls."""
        made, self.made, self.probes = self.made or [], None, None
        return made


def hook_layers(model: nn.Module) -> bool:
    """Record the layers of this model in `model.calls`; False if a trainable parameter is outside the known layers."""
    layers = {name: layer for name, layer in _linear("", model) if any(p.requires_grad for p in layer.parameters())}
    reached = {id(p) for layer in layers.values() for p in layer.parameters()}
    if reached != {id(p) for p in model.parameters() if p.requires_grad}:  # every trainable one, no frozen one
        return False
    model.calls = LayerCalls()  # type: ignore[assignment]
    for name, layer in layers.items():
        layer.calls, layer.call_name = model.calls, name  # type: ignore[assignment]
        layer.register_forward_hook(record_call)
    return True


def _linear(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, LINEAR):
        yield name, module
        return
    for child, part in module.named_children():
        yield from _linear(f"{name}.{child}" if name else child, part)


def record_call(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The forward hook: note the call, if recording, and add its probe."""
    calls: LayerCalls = layer.calls
    if calls.made is None:
        return output
    if calls.probes is not None:
        output = output + calls.probes[len(calls.made)]
    elif torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()  # the first layer of a pass whose parameters need no gradient
    calls.made.append(Call(layer.call_name, inputs[0], output))
    return output
