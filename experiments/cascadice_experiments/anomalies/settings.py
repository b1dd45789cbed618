"""Which attacks are compared, in which networks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from cascadice import models
from cascadice.data import DataSet, corruption
from cascadice.data import partition as partitions
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, Network, network


@dataclass(frozen=True)
class Plan:
    """How large the networks are, how long they train, and how many of them there are."""

    nodes: int = 32
    per_node: int | None = 512
    model: str = "mlp"
    hidden: tuple[int, ...] = (256, 256)
    epochs: float = 5.0
    seeds: int = 5
    first_seed: int = 0
    places: int = 8
    samples: int = 128
    device: str = "cpu"


QUICK: Mapping[str, Any] = {"hidden": (32,), "epochs": 2.5, "seeds": 1, "places": 2, "samples": 64}


def check(plan: Plan) -> Plan:
    """The plan; ValueError names the flag to change if it is not feasible."""
    for name, least, most in (("first_seed", 0, math.inf), ("places", 1, plan.nodes)):
        if not least <= (value := getattr(plan, name)) <= most:
            allowed = f"at least {least}" if most == math.inf else f"in {least}..{most}, the number of participants"
            raise ValueError(f"--{name.replace('_', '-')} must be {allowed}; found {value}.")
    return plan


class Setting(NamedTuple):
    """What the attacker does (nothing, if `kind` is empty), in every round or in one batch, and how everyone trains."""

    kind: str
    batch_size: int
    lr: float
    strength: float = 1.0
    once: bool = False
    partition: str = "iid"


def name_of(setting: Setting) -> str:
    """The name of a setting, such as `flip-128-0.1-once`."""
    kind = {"flip-labels": "flip", "permute-labels": "permute", "": "honest"}.get(setting.kind, setting.kind)
    strength = f"×{setting.strength:g}" if setting.kind == "sign-flipper" and setting.strength != 1 else ""
    more = ("-once" if setting.once else "") + ("" if setting.partition == "iid" else f"-{setting.partition}")
    return f"{kind}{strength}-{setting.batch_size}-{setting.lr:g}{more}"


PACES = ((128, 0.1), (64, 0.1), (16, 0.1), (128, 0.01), (64, 0.01), (16, 0.01))  # batch size, learning rate
NINE = (  # the paper's
    *(Setting("flip-labels", *pace) for pace in PACES),
    *(Setting("noise", *pace, strength=100.0) for pace in ((128, 0.1), (64, 0.01), (16, 0.1))),
)
HONEST = tuple(Setting("", *pace, partition=how) for how in ("iid", "dirichlet") for pace in PACES)
OTHERS = tuple(
    Setting(kind, *pace, strength=strength)
    for pace in ((128, 0.1), (64, 0.01))
    for kind, strength in (
        ("permute-labels", 1.0), ("sign-flipper", 1.0), ("sign-flipper", 3.0), ("free-rider", 1.0),
        ("noise-sender", 1e-8),
    )
)  # fmt: skip
UNLIKE = tuple(setting._replace(partition="dirichlet") for setting in (NINE[1], NINE[6], *OTHERS[1:4]))
ALL: Sequence[Setting] = (*NINE, *HONEST, *(setting._replace(once=True) for setting in NINE), *OTHERS, *UNLIKE)
SETTINGS = {name_of(setting): setting for setting in ALL}
FEW = ("flip-128-0.1", "noise-128-0.1", "flip-128-0.1-once", "honest-128-0.1")


def on_digits(plan: Plan, settings: Mapping[str, Setting]) -> tuple[Plan, dict[str, Setting]]:
    """Plan and settings scaled to digits, where each of 32 participants holds 44 samples: small models and batches."""
    smaller = {name: one._replace(batch_size=max(1, one.batch_size // 8)) for name, one in settings.items()}
    return replace(plan, per_node=None, hidden=(32,), epochs=4 * plan.epochs), smaller


def honest_network(setting: Setting, plan: Plan, dataset: DataSet, seed: int) -> Network:
    """The network before one participant turns into an attacker."""
    shape, classes = dataset.train.shape, len(dataset.classes)
    # the same at every batch size up to the largest
    least = min(128, len(dataset.train) // plan.nodes // 2)
    per_node = plan.per_node if setting.partition == "iid" else None
    parts = partitions.build(
        setting.partition, dataset.train.y.cpu(), plan.nodes, per_node=per_node, minimum=least, seed=seed
    )
    options = {"hidden": plan.hidden} if plan.model == "mlp" else {}
    return network(
        lambda: models.build(plan.model, shape, classes, seed=torch.initial_seed(), **options),
        dataset, nodes=plan.nodes, mixing="exponential", partition=parts, batch_size=setting.batch_size, lr=setting.lr,
        seed=seed, device=plan.device, strategy="vmap" if plan.device.startswith("cuda") else "auto",
    )  # fmt: skip


def rounds_of(setting: Setting, plan: Plan, held: int) -> int:
    """How many rounds to train with `held` samples each; an attack in one batch ends the run with that batch."""
    rounds = max(2, round(plan.epochs * (held // setting.batch_size)))
    return rounds // 2 + 1 if setting.once else rounds


def attacked(honest: Network, setting: Setting, place: int, last: int) -> Network:
    """The network with participant `place` as its attacker; `last` is the last round."""
    when = range(last, last + 1) if setting.once else None
    if not setting.kind:
        return honest
    if setting.kind in corruption.CORRUPTIONS:
        return replace(honest, corruptions=(Corruption(setting.kind, (place,), when, setting.strength),))
    return replace(honest, behaviours=(Behaviour(setting.kind, (place,), when, setting.strength),))


Fleet = tuple[tuple[int, int], ...]  # (seed, place of the attacker) of each network that trains in one fleet


def fleets_of(setting: Setting, plan: Plan) -> list[Fleet]:
    """Which networks train side by side: all places of one seed; without attackers, all seeds."""
    seeds = range(plan.first_seed, plan.first_seed + plan.seeds)
    if not setting.kind:
        return [tuple((seed, -1) for seed in seeds)]
    step = plan.nodes // plan.places
    # places shift with the seed, so that every participant of the graph attacks in some network
    return [tuple((seed, (i * step + seed) % plan.nodes) for i in range(plan.places)) for seed in seeds]
