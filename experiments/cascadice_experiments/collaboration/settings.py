"""What is wrong with which participants, and the networks they form."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import cascadice as cd
from cascadice import models, optimizers, seeds, topology
from cascadice.data import DataSet
from cascadice.engine import Network

CLIP = 5.0  # gradients are clipped, or ascent would end in NaN
ATTACKS = ("random labels", "mirrored labels", "sign flipped x3", "noise")
MIMIC, SLEEPER = "mimicry", "turncoat"
ADAPTIVE = (MIMIC, SLEEPER)  # these know the rules: how to look helpful, and that an update may be twice as large
GROUPS, NOBODY = "two groups", "nobody"


@dataclass(frozen=True)
class Setting:
    """What a fraction of the participants does, and in which network."""

    attack: str
    fraction: float = 0.25
    graph: str = "exponential"
    model: str = "mlp"
    nodes: int = 32
    per_node: int = 512
    batch_size: int = 64
    epochs: float = 20.0
    lr: float = 0.1


def settings() -> list[Setting]:
    """All settings, the most important first, because time may run out."""
    exponential = [Setting(attack, fraction) for fraction in (0.25, 0.4) for attack in ATTACKS]
    regular = [Setting(attack, 0.4, "random-regular") for attack in ATTACKS]
    first = [Setting(GROUPS, 0.5), Setting(NOBODY, 0.0)]
    adaptive = [Setting(attack, fraction) for attack in ADAPTIVE for fraction in (0.25, 0.4)]
    return [*first, *exponential, Setting(GROUPS, 0.5, "random-regular"), *regular, *adaptive]


def quick_settings() -> list[Setting]:
    """Small settings: a known attack, two groups, nobody, and the attackers that know the rules."""
    small = Setting(ATTACKS[2], 0.25, nodes=12, per_node=96, batch_size=16, epochs=6)
    others = [replace(small, attack=GROUPS, fraction=0.5), replace(small, attack=NOBODY, fraction=0.0)]
    return [small, *others, *(replace(small, attack=attack) for attack in ADAPTIVE)]


def title(setting: Setting) -> str:
    """The name of a setting, such as `noise-40-random-regular`."""
    graph = "" if setting.graph == "exponential" else f"-{setting.graph}"
    return f"{setting.attack.replace(' ', '-')}-{100 * setting.fraction:.0f}{graph}"


def strangers(setting: Setting, seed: int) -> tuple[int, ...]:
    """Who attacks, or belongs to the second group: drawn at random."""
    order = torch.randperm(setting.nodes, generator=seeds.generator(seed, "attackers"))
    return tuple(sorted(order[: round(setting.fraction * setting.nodes)].tolist()))


def make_network(setting: Setting, dataset: DataSet, seed: int, hidden: Sequence[int] | None = None) -> Network:
    """One network of the setting; senders of noise do no work here, and `rules.with_noise` adds the noise."""
    bad, corruptions, behaviours = strangers(setting, seed), [], []
    kinds = {"random labels": "permute-labels", **dict.fromkeys(("mirrored labels", GROUPS, MIMIC), "mirror-labels")}
    if setting.attack in kinds:
        corruptions = [cd.Corruption(kinds[setting.attack], bad)]
    elif setting.attack == "sign flipped x3":
        behaviours = [cd.Behaviour("sign-flipper", bad, strength=3.0)]
    elif setting.attack == "noise":
        behaviours = [cd.Behaviour("free-rider", bad)]
    elif setting.attack == SLEEPER:  # helps for half of the rounds, then undoes what two honest updates do
        half = round(setting.epochs * (setting.per_node // setting.batch_size)) // 2
        behaviours = [cd.Behaviour("sign-flipper", bad, range(half, 2**31), strength=2.0)]
    graph_options: dict[str, Any] = {"degree": 6} if setting.graph == "random-regular" else {}
    model_options: dict[str, Any] = {} if hidden is None else {"hidden": tuple(hidden)}
    return cd.network(
        models.build(setting.model, dataset.train.shape, len(dataset.classes), seed=seed, **model_options), dataset,
        mixing=topology.build(setting.graph, setting.nodes, seed=seed, **graph_options), per_node=setting.per_node,
        batch_size=setting.batch_size, lr=setting.lr, optimizer=optimizers.clip(optimizers.build("sgd"), CLIP),
        corruptions=corruptions, behaviours=behaviours, seed=seed, device=dataset.train.x.device, strategy="vmap",
    )  # fmt: skip
