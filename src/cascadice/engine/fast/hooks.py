"""Forward hooks that record what goes into each layer of a model, and its outputs to differentiate by."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cascadice.models import Embedding

Tape = tuple[tuple[Tensor, Tensor], ...]
"""For each call of a layer, in order: its input, and the gradient of the batch's loss by its output."""

# linear in their parameters: given other parameters, they return the derivative along those
LINEAR = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.GroupNorm, nn.LayerNorm, Embedding)


@dataclass
class LayerCalls:
    """The calls of the layers of one copy of a model, while it runs; `probes` are zeros added to the outputs."""

    running: bool = False
    probes: tuple[Tensor, ...] | None = None
    names: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def start(self, probes: tuple[Tensor, ...] | None = None) -> None:
        """Record calls from here on."""
        self.running, self.probes, self.names, self.inputs, self.outputs = True, probes, [], [], []

    def stop(self) -> "LayerCalls":
        """Stop recording; returns the calls and keeps none."""
        recorded = LayerCalls(False, self.probes, self.names, self.inputs, self.outputs)
        self.running, self.probes, self.names, self.inputs, self.outputs = False, None, [], [], []
        return recorded


def hook_layers(model: nn.Module) -> bool:
    """Hook the layers of this model to `model.calls`; False where a parameter lies outside of what can be hooked."""
    layers = dict(_linear("", model))
    reached = {id(p) for layer in layers.values() for p in layer.parameters()}
    if any(id(p) not in reached for p in model.parameters()):
        return False
    model.calls = LayerCalls()  # type: ignore[assignment]
    for name, layer in layers.items():
        layer.calls, layer.call_name = model.calls, name  # type: ignore[assignment]
        layer.register_forward_hook(_record_call)
    return True


def _linear(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, LINEAR):
        yield name, module
        return
    for child, part in module.named_children():
        yield from _linear(f"{name}.{child}" if name else child, part)


def _record_call(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    calls: LayerCalls = layer.calls
    if not calls.running:
        return output
    if calls.probes is not None:
        output = output + calls.probes[len(calls.inputs)]
    elif torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()  # the first layer of a pass in which no parameter is differentiated by
    calls.names.append(layer.call_name)
    calls.inputs.append(inputs[0])
    calls.outputs.append(output)
    return output
