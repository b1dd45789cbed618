"""What a manifest says about the network of a run, and about the machine that trained it."""

import platform
from typing import Any

import numpy as np
import torch

import cascadice
from cascadice.engine.networks import Network
from cascadice.runs.binding import DATA, process_of
from cascadice.runs.config import Config
from cascadice.runs.processes import World


def circumstances(network: Network, config: Config, data: str, world: World | None) -> dict[str, Any]:
    """What stays the same as long as a run trains; `data` is the digest of the data set."""
    cuda = network.device.type == "cuda"
    versions = {"cascadice": cascadice.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "strategy": network.strategy,
        "nodes": network.whole,
        "parameters": network.learner.size,
        DATA: data,
        "seed": config.seed,
        "device": torch.cuda.get_device_name(network.device) if cuda else platform.processor() or platform.machine(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "versions": {**versions, "python": platform.python_version()},
        **({} if world is None else {"process": process_of(network, world)}),
    }
