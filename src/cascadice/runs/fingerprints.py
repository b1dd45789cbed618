"""Which run a file belongs to: a digest of the settings that determine its rounds."""

import json
from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cascadice.runs.config import Config, to_json

# What may change when a run is resumed: where its files are, how long it runs, what it keeps.
INCIDENTAL = ("data_root", "mixing", "rounds", "epochs", "checkpoint_every", "record")

# The settings that version 0.1.0 put into its fingerprints, whatever their value.
SETTINGS_OF_0_1_0 = (
    "data", "nodes", "topology", "topology_options", "weights", "normalize", "connected", "link_loss", "partition",
    "per_node", "alpha", "classes_per_node", "model", "model_options", "loss", "init", "batch_size", "local_steps",
    "optimizer", "optimizer_options", "weight_decay", "clip", "lr", "lr_schedule", "rounds", "epochs", "corruptions",
    "behaviours", "seed", "device", "dtype", "strategy", "eval_every",
)  # fmt: skip


def determining(config: Config) -> dict[str, Any]:
    """The settings that determine the rounds of a run; its length is one of them under a cosine schedule."""
    free = INCIDENTAL if "cosine" not in config.lr_schedule else set(INCIDENTAL) - {"rounds", "epochs"}
    return {name: value for name, value in to_json(config).items() if name not in free}


def fingerprint(config: Config, always: Sequence[str] = ()) -> str:
    """A digest of the settings that determine the rounds, and of the content of the mixing file.

    A setting at its default does not enter the digest, so a later version may add settings and still recognise the run.

    Args:
        always: Settings that enter even at their defaults: `SETTINGS_OF_0_1_0` gives the fingerprint of version 0.1.0.
    """
    defaults = {f.name: f.default for f in fields(config)}
    entering = {
        name: value
        for name, value in determining(config).items()
        if name in always or getattr(config, name) != defaults[name]
    }
    content = Path(config.mixing).read_bytes() if config.mixing else b""
    return blake2b(json.dumps(entering, sort_keys=True).encode() + content, digest_size=8).hexdigest()
