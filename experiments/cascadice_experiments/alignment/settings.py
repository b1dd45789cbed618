"""The runs that are compared, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from cascadice.runs.config import Config
from cascadice.runs.recipes import paper


@dataclass(frozen=True)
class Setting:
    """A run of the paper's setting; influence is measured over 1 to `hops` hops, every `every` rounds."""

    model: str = "mlp"
    batch_size: int = 128
    activation: str = "relu"
    pool: str = "max"
    epochs: float = 5.0
    nodes: int = 16
    hops: int = 1
    every: int = 4
    dtype: str = "float32"
    device: str = "cpu"


# at least 80 points each; measuring four hops also measures one, two and three
_RUNS = (Setting(hops=4), Setting(batch_size=16, hops=4, every=16), Setting("cnn", epochs=30.0, hops=4, every=24))
_NAMED = {
    f"{run.model}-{run.batch_size}-{activation}": replace(run, activation=activation)
    for run, activation in product(_RUNS, ("relu", "gelu"))
}
# max pooling has kinks, as ReLU has: only this CNN is smooth
SETTINGS: Mapping[str, Setting] = {**_NAMED, "cnn-128-smooth": replace(_NAMED["cnn-128-gelu"], pool="average")}


def config_of(setting: Setting, source: str, root: str | None) -> Config:
    """The configuration of the setting's run; digits are too few for batches of more than 16."""
    small = {} if source == "cifar10" else {"per_node": None, "batch_size": min(16, setting.batch_size)}
    changes: dict[str, Any] = {"batch_size": setting.batch_size, "epochs": setting.epochs, **small}
    # compiling for each of several short runs takes longer than the runs
    strategy = "vmap" if setting.device.startswith("cuda") else "auto"
    pool = (f"pool={setting.pool}",) if setting.model == "cnn" else ()
    options = (f"activation={setting.activation}", *pool)
    changes |= {"data_root": root, "model_options": options, "device": setting.device, "dtype": setting.dtype}
    return replace(paper(setting.model, source, "exponential", setting.nodes), strategy=strategy, **changes)


def check(setting: Setting, rounds: int) -> None:
    """Raise ValueError unless at least one of the run's rounds is scored."""
    for name in ("hops", "every"):
        if (value := getattr(setting, name)) < 1:
            raise ValueError(f"{name} must be at least 1; found {value}.")
    first = -(-setting.hops // setting.every) * setting.every
    if first > rounds:
        raise ValueError(
            f"with hops {setting.hops} and every {setting.every}, the first scored round would be round {first}; "
            f"the run has {rounds}. Use a smaller --every, or more --epochs."
        )
