"""Every figure by name, and which figures of the paper it reproduces."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cascadice_experiments.figures import alignment_extensions as extensions
from cascadice_experiments.figures import alignment_picture, anomaly_bars, networks, ripples
from cascadice_experiments.figures import alignment_plots as plots
from cascadice_experiments.figures import alignment_seeds as seeds
from cascadice_experiments.figures import influence_cost as cost
from cascadice_experiments.figures import mislabelled_samples as mislabelled
from cascadice_experiments.figures import network_pictures as pictures
from cascadice_experiments.figures import one_hop_cascades as one_hop
from cascadice_experiments.figures.figure import Figure

CIFARS, TINY = plots.CIFARS, ("tiny-imagenet",)
CLOSE = "DICE-E closely tracks DICE-GT: 30 points near a line; no correlation and no accuracy is given."


def _aligned(
    title: str, shows: Sequence[str], data: Sequence[str], plan: Callable[[bool], Sequence[Any]],
    seconds: tuple[int, int], claim: str = CLOSE,
) -> Figure:  # fmt: skip
    label = tuple(f"alignment-{name}" for name in shows)
    return Figure(title, label, tuple(data), plan, plots.measure, alignment_picture.draw, claim, seconds)


def _on_ring(nodes: int, batch_size: int, lr: float, seconds: tuple[int, int], *others: str) -> Figure:
    return _aligned(
        f"Alignment on a ring of {nodes}: CIFAR-10 and CIFAR-100, batch {batch_size}, learning rate {lr}",
        [f"cifar10-ring-{nodes}-{batch_size}-{lr}", *others], CIFARS,
        partial(plots.on_cifar, topology="ring", nodes=nodes, in_quick=CIFARS[:1], batch_size=batch_size, lr=lr),
        seconds,
    )  # fmt: skip


ALIGNMENTS: Mapping[str, Figure] = {
    "align-tiny-ring": _aligned(
        "Alignment on a ring of 32: Tiny ImageNet", ["tinyimagenet-32-128-0.1"], TINY, plots.tiny_ring, (90, 110),
    ),
    **{
        f"align-exponential-{nodes}": _aligned(
            f"Alignment on an exponential graph of {nodes}: CIFAR-10 and CIFAR-100",
            [f"cifar10-exponential-{nodes}-128-0.1"], CIFARS,
            partial(plots.on_cifar, topology="exponential", nodes=nodes), (50, 60),
        )
        for nodes in (16, 32)
    },
    "align-batch-16": _on_ring(32, 16, 0.1, (30, 95)),
    "align-batch-64": _on_ring(32, 64, 0.1, (30, 50), "cifar10-ring-32-64-0.1 (again)"),
    "align-batch-128": _on_ring(32, 128, 0.1, (30, 60)),
    "align-ring-16": _on_ring(16, 64, 0.1, (30, 45)),
    "align-ring-16-slow": _on_ring(16, 64, 0.01, (30, 50)),
    "align-ring-32-slow": _on_ring(32, 64, 0.01, (30, 55)),
    "align-tiny-epochs": _aligned(
        "Alignment over 10, 20 and 30 epochs: Tiny ImageNet, 8,192 samples each",
        [f"cifar10-exp-32-64-0.01-{epochs}epoch" for epochs in (10, 20, 30)], TINY, plots.tiny_epochs, (120, 400),
    ),
}  # fmt: skip

_FLIPPED = ("16-lr0.1", "64-lr0.1", "128-lr0.1", "16-lr0.01", "64-lr0.01", "128-lr0.01")
_ANOMALY = "anomaly-cifar10-exp-32"

ANOMALIES: Mapping[str, Figure] = {
    "anomalies-flip": Figure(
        "Anomalies with flipped labels, as their neighbours see them",
        (_ANOMALY, *(f"{_ANOMALY}-bs{name}" for name in _FLIPPED)), ("cifar10",),
        partial(anomaly_bars.attacks, "flip-labels"), anomaly_bars.measure, anomaly_bars.draw,
        "readily detectable: the anomaly has the highest bar of five neighbours.", (40, 130),
    ),
    "anomalies-noise": Figure(
        "Anomalies with noisy features, as their neighbours see them",
        tuple(f"{_ANOMALY}-bs{batch}-noise" for batch in (128, 64, 16)), ("cifar10",),
        partial(anomaly_bars.attacks, "noise"), anomaly_bars.measure, anomaly_bars.draw,
        "most are readily detectable: their proximal influence deviates significantly.", (20, 60),
    ),
}  # fmt: skip

_POWER = "the same batch has significantly more influence where its holder has larger outgoing weights."

CASCADES: Mapping[str, Figure] = {
    "servers": Figure(
        "With a server and without", ("topology_main", "topology"), (), networks.with_and_without_server,
        networks.measure_servers, pictures.draw_servers, "an illustration.", (2, 2),
    ),
    "cascade-network": Figure(
        "A network with one dominant participant, and its matrix",
        ("cascade-mlp-mnist-heatmap+graph",), (), networks.dominant_network,
        networks.measure_network, pictures.draw_network,
        "one dominant participant (0), two subdominant ones (7, 10), the rest common.", (2, 2), True,
    ),
    "cascade-mlp": Figure(
        "One-hop cascade of the same batch at each participant: MLP", ("cascade-mlp-combined",), ("mnist", "cifar10"),
        one_hop.of_mlp, one_hop.measure_one_hop, pictures.draw_one_hop, _POWER, (20, 50), True,
    ),
    "cascade-resnet": Figure(
        "One-hop cascade of the same batch at each participant: ResNet-18", ("cascade-resnet-combined",), CIFARS,
        one_hop.of_resnet, one_hop.measure_one_hop, pictures.draw_one_hop, _POWER, (70, 100), True,
    ),
    "ripples-network": Figure(
        "The network of the ripples, and its matrix", ("cascade-cifar10-heatmap-mainfigure",), (),
        ripples.network_of_ripples, networks.measure_network, pictures.draw_network,
        "another matrix, for better geographic representation.", (2, 2), True,
    ),
    "ripples": Figure(
        "A cascade over five hops, like ripples in water: ResNet-18 on CIFAR-10", ("influence_cascade",), ("cifar10",),
        ripples.of_ripples, ripples.measure_ripples, pictures.draw_ripples,
        "influence originates from one participant and weakens over distance.", (40, 35), True,
    ),
}  # fmt: skip


def _with_seeds(run: str, data: str, plan: Callable[[bool], Sequence[Any]], seconds: int) -> Figure:
    title = f"The paper's estimate over one hop, with five seeds: {run}"
    return Figure(title, (), (data,), plan, seeds.measure, alignment_picture.draw, "", (20, seconds))


BEYOND: Mapping[str, Figure] = {
    "beyond-hops": _aligned(
        "Alignment over one, two and three hops", [], ["cifar10"], extensions.several_hops, (45, 85), "",
    ),
    "beyond-optimizers": _aligned(
        "Alignment with momentum and Adam, over two hops", [], ["cifar10"], extensions.optimizers, (30, 30), "",
    ),
    "beyond-changing-links": _aligned(
        "Alignment where W changes from round to round", [], ["cifar10"], extensions.changing_links, (35, 30), "",
    ),
    "beyond-language": _aligned(
        "Alignment of a language model: a transformer on the documentation of Python", [], ["pydoc"],
        extensions.language, (35, 15), "",
    ),
    **{
        f"beyond-seeds-{model}": _with_seeds(
            f"{model.upper()} on CIFAR-10, ring of 32, batch 16", "cifar10", partial(seeds.on_ring, model=model), 60,
        )
        for model in plots.MODELS
    },
    **{
        f"beyond-seeds-tiny-{model}": _with_seeds(
            f"{model.upper()} on Tiny ImageNet, 30 epochs", "tiny-imagenet", partial(seeds.tiny, model=model), 250,
        )
        for model in plots.MODELS
    },
    "beyond-mislabelled": Figure(
        "Single samples with a wrong label, found by their influence", (), ("mnist", "cifar10"), mislabelled.plan,
        mislabelled.measure, mislabelled.draw, "", (12, 60),
    ),
    "beyond-cost": Figure(
        "What influence costs, against the number of hops", (), ("cifar10",), cost.plan, cost.measure, cost.draw,
        "", (20, 40),
    ),
}  # fmt: skip

FIGURES: Mapping[str, Figure] = {**CASCADES, **ALIGNMENTS, **ANOMALIES, **BEYOND}
