"""Every figure by name, and which of the paper's it is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascadice.experiments.figures import alignments, scatter
from cascadice.experiments.figures.results import Figure

CIFARS, TINY = ("cifar10", "cifar100"), ("tiny-imagenet",)
CLOSE = "DICE-E closely tracks DICE-GT: 30 points near a line; no correlation and no accuracy is given."


def _aligned(
    title: str, shows: Sequence[str], data: Sequence[str], plan: Callable[[bool], Sequence[Any]],
    seconds: tuple[float, float], claim: str = CLOSE,
) -> Figure:  # fmt: skip
    label = tuple(f"alignment-{name}" for name in shows)
    return Figure(title, label, tuple(data), plan, alignments.measure, scatter.draw, claim, seconds)


def _on_ring(nodes: int, batch_size: int, lr: float, seconds: tuple[float, float], *others: str) -> Figure:
    return _aligned(
        f"Alignment on a ring of {nodes}: CIFAR-10 and CIFAR-100, batch {batch_size}, learning rate {lr}",
        [f"cifar10-ring-{nodes}-{batch_size}-{lr}", *others], CIFARS,
        alignments.sensitivity("ring", nodes, batch_size=batch_size, lr=lr), seconds,
    )  # fmt: skip


ALIGNMENTS: Mapping[str, Figure] = {
    "align-tiny-ring": _aligned(
        "Alignment on a ring of 32: Tiny ImageNet", ["tinyimagenet-32-128-0.1"], TINY, alignments.tiny_ring, (60, 120),
    ),
    **{
        f"align-exponential-{nodes}": _aligned(
            f"Alignment on an exponential graph of {nodes}: CIFAR-10 and CIFAR-100",
            [f"cifar10-exponential-{nodes}-128-0.1"], CIFARS, alignments.cifar("exponential", nodes), (60, 60),
        )
        for nodes in (16, 32)
    },
    "align-batch-16": _on_ring(32, 16, 0.1, (40, 60)),
    "align-batch-64": _on_ring(32, 64, 0.1, (30, 40), "cifar10-ring-32-64-0.1 (again)"),
    "align-batch-128": _on_ring(32, 128, 0.1, (30, 40)),
    "align-ring-16": _on_ring(16, 64, 0.1, (30, 30)),
    "align-ring-16-slow": _on_ring(16, 64, 0.01, (30, 30)),
    "align-ring-32-slow": _on_ring(32, 64, 0.01, (30, 40)),
    "align-tiny-epochs": _aligned(
        "Alignment over 10, 20 and 30 epochs: Tiny ImageNet, 8,192 samples each",
        [f"cifar10-exp-32-64-0.01-{epochs}epoch" for epochs in (10, 20, 30)], TINY, alignments.tiny_epochs, (100, 500),
    ),
}  # fmt: skip

FIGURES: Mapping[str, Figure] = {**ALIGNMENTS}
