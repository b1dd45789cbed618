"""The networks, the levels of forgetting, and what is forgotten."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice import models, seeds
from cascadice.applications.forget.removals import Removal
from cascadice.data import DataSet
from cascadice.engine import Network, Round, network


@dataclass(frozen=True)
class Setting:
    """Networks of 16 on the exponential graph.

    On CIFAR-10 everyone has so few samples that models memorise them. `short` is how many rounds a short removal
    covers, `repairs` how many rounds of further training repair the models.
    """

    data: str = "digits"
    activation: str = "relu"
    lr: float = 0.1
    rounds: int = 60
    batch_size: int = 16
    nodes: int = 16
    seeds: int = 5
    first_seed: int = 0
    short: int = 10
    repairs: int = 10
    device: str = "cpu"
    data_root: str | None = None


SETTINGS = tuple(Setting(activation=a, lr=lr) for lr in (0.1, 0.02) for a in ("relu", "gelu"))
LEVELS: Mapping[str, tuple[str, int]] = {  # level and number of quadrature points
    "replay": ("replay", 1),
    "gossip": ("gossip", 1),
    "first-order": ("first-order", 1),
    "path-integrated, 1 point": ("path-integrated", 1),
    "path-integrated, 2 points": ("path-integrated", 2),
}
REPAIRED = ("replay", "gossip", "first-order")
TRAINED = "as trained"


def make_network(setting: Setting, data: DataSet, seed: int) -> Network:
    """One network of the fleet."""
    hidden, per_node = ((256, 256), 64) if setting.data == "cifar10" else ((64, 64), None)
    options = {"hidden": hidden, "activation": setting.activation}
    return network(
        lambda: models.build("mlp", data.train.shape, len(data.classes), seed=torch.initial_seed(), **options), data,
        nodes=setting.nodes, mixing="exponential", per_node=per_node, batch_size=setting.batch_size, lr=setting.lr,
        seed=seed, device=setting.device, strategy="vmap",
    )  # fmt: skip


class Case(NamedTuple):
    """What each network of a fleet forgets, and the rounds from the first affected one on."""

    kind: str
    span: str
    removal: Removal
    rounds: Sequence[Round]


def cases(networks: Sequence[Network], rounds: Sequence[Round], setting: Setting) -> Iterator[Case]:
    """A sample, a batch and a participant of each network, over a short and a long range of rounds."""
    end, late = setting.rounds, setting.rounds - setting.short
    chosen = [seeds.derive(one.seed, "forgotten") % setting.nodes for one in networks]
    nodes = tuple(i * setting.nodes + k for i, k in enumerate(chosen))
    held = [one.partition[k].cpu() for one, k in zip(networks, chosen, strict=True) if one.partition]
    for span, first, batch in (("short", late, late), ("long", 0, end // 4)):
        batches = rounds[first].draw.batch.cpu()[list(nodes), 0]
        samples = tuple(_unshared(row, held[:i] + held[i + 1 :]) for i, row in enumerate(batches))
        yield Case("sample", span, Removal(nodes, samples, range(first, end)), rounds[first:])
        yield Case("batch", span, Removal(nodes, rounds=range(batch, batch + 1)), rounds[batch:])
        yield Case("participant", span, Removal(nodes, rounds=range(first, end)), rounds[first:])


def _unshared(batch: Tensor, others: Sequence[Tensor]) -> int:
    """A sample of this batch that none of the others holds: networks of a fleet divide the same data."""
    shared = torch.isin(batch, torch.cat([batch.new_zeros(0), *others]))
    return int(batch[int((~shared).int().argmax())])
