"""Trained networks in which the influence of single batches is followed."""

from dataclasses import dataclass, replace

from cascadice.engine import Network, Participants, evaluate, simulate
from cascadice.runs.config import Config, build, length
from cascadice_experiments.data_sets import first
from cascadice_experiments.figures.alignment_plots import NAMES, NARROW
from cascadice_experiments.figures.figure import Context, spread
from cascadice_experiments.figures.networks import with_mixing

MODELS = {**NAMES, "resnet18": "ResNet-18", "mnist": "MNIST"}


@dataclass(frozen=True)
class Probe:
    """A run, and how many batches are followed after it: each at every participant in turn, or the source's next."""

    name: str
    config: Config
    batches: int
    judged_on: int
    source: int = 0
    tested_on: int | None = None


def probe_of(config: Config, quick: bool) -> Probe:
    """The probe of a run. Quick: narrow models; ResNet-18 an eighth as wide, eight rounds with batches of 32."""
    name, large = f"{MODELS[config.model]}, {MODELS[config.data]}", config.model == "resnet18"
    if quick and large:
        narrow = replace(config, model_options=("width=8",), batch_size=32, epochs=None, rounds=8)
        return Probe(f"{name}, width 8", narrow, 1, 16, tested_on=256)
    if quick:
        return Probe(name, replace(config, model_options=(NARROW[config.model],)), 4, 128, tested_on=1024)
    return Probe(name, config, 4, 128) if large else Probe(name, config, 16, 256)


def train(probe: Probe, context: Context) -> tuple[Network, int, Participants, list[float]]:
    """The network, the next round, the participants before it, and their accuracy: mean, least and greatest."""
    config = context.configure(with_mixing(probe.config, context.mixing))
    if probe.config.model == "resnet18" and context.device != "cpu":
        config = replace(config, strategy="loop")  # one batch of so large a model fills a device
    network = build(config)
    assert network.partition is not None
    rounds, last = length(config, network.partition), network.initial
    for round_ in simulate(network, rounds, window=1):
        last = round_.after
    return network, rounds, last, spread(evaluate(network, last, first(network.data.test, probe.tested_on)).accuracy)
