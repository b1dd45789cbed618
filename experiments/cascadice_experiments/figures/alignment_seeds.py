"""The alignment of the paper's estimate with five seeds: how much its figures depend on the seed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cascadice.runs.config import Config
from cascadice.runs.recipes import paper, paper_long
from cascadice_experiments.alignment.measure import FIRST_ORDER
from cascadice_experiments.figures import alignment_plots as plots
from cascadice_experiments.figures.alignment_plots import SHARED, Panel, panel
from cascadice_experiments.figures.figure import Context, Result

SEEDS = 5


def measure(panels: Sequence[Panel], context: Context) -> Result:
    """Compare first order alone with the truth; integrals would take most of the time."""
    return plots.measure(panels, context, (FIRST_ORDER,))


def on_ring(quick: bool, model: str) -> list[Panel]:
    """A run of `align-batch-16` from shared initial parameters, with five seeds. Quick: with two."""
    return _with_seeds(replace(paper(model, "cifar10", "ring", 32), batch_size=16), quick)


def tiny(quick: bool, model: str) -> list[Panel]:
    """The run of 32 participants in `align-tiny-epochs` from shared initial parameters. Quick: two short runs."""
    if quick:
        return _with_seeds(replace(paper(model, "tiny-imagenet", "exponential", 8), epochs=1.0), quick)
    return _with_seeds(replace(paper_long(model, "exponential", 32), epochs=30.0), quick, scored=18)


def _with_seeds(config: Config, quick: bool, **changes: Any) -> list[Panel]:
    panels = [panel(replace(config, init=SHARED, seed=s), quick, **changes) for s in range(2 if quick else SEEDS)]
    return [replace(p, name=f"{p.name}, seed {p.config.seed}") for p in panels]
