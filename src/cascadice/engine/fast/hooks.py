"""What a model's layers note down while it runs: their inputs, and their outputs to differentiate by."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cascadice.models import Embedding

Tape = tuple[tuple[Tensor, Tensor], ...]
"""For each call of a layer, in order: its input, and the slope of the batch's loss by its output."""

# linear in their parameters: given other parameters, they return the derivative along those
LINEAR = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.GroupNorm, nn.LayerNorm, Embedding)


@dataclass
class Reel:
    """The calls of the layers of one copy of a model, while it runs; `probes` are zeros added to the outputs."""

    running: bool = False
    probes: tuple[Tensor, ...] | None = None
    names: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def start(self, probes: tuple[Tensor, ...] | None = None) -> None:
        """From here on calls are noted."""
        self.running, self.probes, self.names, self.inputs, self.outputs = True, probes, [], [], []

    def stop(self) -> "Reel":
        """What was noted. Nothing is kept, and no further calls are noted."""
        noted = Reel(False, self.probes, self.names, self.inputs, self.outputs)
        self.running, self.probes, self.names, self.inputs, self.outputs = False, None, [], [], []
        return noted


def wire(model: nn.Module) -> bool:
    """Let the layers of this model note their calls on `model.reel`; False where a parameter is outside such layers."""
    found = dict(_linear("", model))
    reached = {id(p) for layer in found.values() for p in layer.parameters()}
    if any(id(p) not in reached for p in model.parameters()):
        return False
    model.reel = Reel()  # type: ignore[assignment]
    for name, layer in found.items():
        layer.reel, layer.name_on_reel = model.reel, name  # type: ignore[assignment]
        layer.register_forward_hook(_note)
    return True


def _linear(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, LINEAR):
        yield name, module
        return
    for child, part in module.named_children():
        yield from _linear(f"{name}.{child}" if name else child, part)


def _note(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    reel: Reel = layer.reel
    if not reel.running:
        return output
    if reel.probes is not None:
        output = output + reel.probes[len(reel.inputs)]
    elif torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()  # the first layer of a pass in which no parameter is differentiated by
    reel.names.append(layer.name_on_reel)
    reel.inputs.append(inputs[0])
    reel.outputs.append(output)
    return output
