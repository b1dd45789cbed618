"""Networks whose participants differ in data quality, or in which one participant plays a role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice import models, seeds
from cascadice.data import DataSet, Samples
from cascadice.engine import Behaviour, Network, network


@dataclass(frozen=True)
class Setting:
    """How large the networks are and how long they train.

    `players` is how many participants play the game of all coalitions, `crowd` how many are left out one by one,
    `judged` the number of test samples.
    """

    players: int = 6
    crowd: int = 16
    rounds: int = 60
    hops: tuple[int, ...] = (1, 4)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    per_node: int = 80
    batch_size: int = 16
    lr: float = 0.2
    hidden: int = 32
    judged: int = 1000
    device: str = "cpu"


CIFAR: Mapping[str, Any] = {"per_node": 512, "batch_size": 64, "lr": 0.1, "rounds": 80, "hops": (1, 4, 16)}
QUICK: Mapping[str, Any] = {
    "players": 4, "crowd": 8, "rounds": 20, "hops": (1, 2), "per_node": 64, "batch_size": 16, "hidden": 16,
    "judged": 200,
}  # fmt: skip


class Quality(NamedTuple):
    """A participant's data: its share of the usual number of samples, the share of wrong labels, how many classes."""

    share: float = 1.0
    wrong: float = 0.0
    classes: int | None = None


QUALITIES: Mapping[str, Quality] = {
    "plain": Quality(),
    "few samples": Quality(share=0.25),
    "40 % wrong": Quality(wrong=0.4),
    "80 % wrong": Quality(wrong=0.8),
    "two classes": Quality(classes=2),
}
WRONG = tuple(dict.fromkeys(quality.wrong for quality in QUALITIES.values()))
CASES = ("honest", "label-flipper", "free-rider", "noise-sender", "duplicator", "unique class")
ACTOR, TWIN = 0, 1  # the participant that plays a role, and a duplicator's second identity
FLIPPED = "80 % wrong"  # the quality of a label-flipper's data


def with_wrong_labels(clean: DataSet, seed: int = 0) -> DataSet:
    """The training data once per share of wrong labels, one copy after the other; indices say who holds which copy."""
    y, classes = clean.train.y, len(clean.classes)
    labels = []
    for share in WRONG:
        draw = seeds.generator(seed, "wrong labels", f"{share:g}")
        other = torch.randint(1, classes, y.shape, generator=draw)
        labels.append((y + other * (torch.rand(y.shape, generator=draw) < share)) % classes)
    x = clean.train.x
    train = replace(clean.train, x=x.repeat(len(WRONG), *[1] * (x.dim() - 1)), y=torch.cat(labels))
    return replace(clean, train=train)


def holdings(
    clean: Samples, qualities: Sequence[Quality], per_node: int, seed: int, unique: int | None = None
) -> list[Tensor]:
    """Disjoint sets of samples of these qualities, as indices into the data that `with_wrong_labels` makes.

    Half of ACTOR's samples are of the class `unique`, which nobody else holds.
    """
    order = torch.randperm(len(clean), generator=seeds.generator(seed, "holdings"))
    own = clean.y[order] == (-1 if unique is None else unique)
    rare, order = order[own][: per_node // 2], order[~own]
    parts = []
    for node, quality in enumerate(qualities):
        size = int(quality.share * per_node)
        if quality.classes is None:
            chosen = order[:size]
        else:  # from the other end, or the next participants would lack these classes
            kinds = torch.randperm(int(clean.y.max()) + 1, generator=seeds.generator(seed, "classes", node))
            chosen = order[torch.isin(clean.y[order], kinds[: quality.classes])][-size:]
        order = order[~torch.isin(order, chosen)]
        parts.append(chosen + WRONG.index(quality.wrong) * len(clean))
    parts[ACTOR] = torch.cat([rare, parts[ACTOR][len(rare) :]])
    return parts


def roles_of(nodes: int, seed: int) -> list[str]:
    """Each participant's quality: about a third plain, the other qualities in turn, at random places."""
    spoilt = [name for name in QUALITIES if name != "plain"]
    plain = max(1, nodes // 3)
    names = ["plain"] * plain + [spoilt[i % len(spoilt)] for i in range(nodes - plain)]
    return [names[i] for i in torch.randperm(nodes, generator=seeds.generator(seed, "roles")).tolist()]


def make_network(
    setting: Setting, whole: DataSet, clean: Samples, roles: Sequence[str], seed: int, case: str = "honest"
) -> Network:
    """A network of participants with these qualities, in which ACTOR plays the role `case`, one of CASES.

    `whole` is the data that `with_wrong_labels` makes of the `clean` training data.
    """
    roles = [FLIPPED, *roles[1:]] if case == "label-flipper" else roles
    unique = seed % len(whole.classes) if case == "unique class" else None
    parts = holdings(clean, [QUALITIES[role] for role in roles], setting.per_node, seed, unique)
    if case == "duplicator":
        parts[TWIN] = parts[ACTOR]
    model = models.build("mlp", whole.train.shape, len(whole.classes), hidden=(setting.hidden,), seed=seed)
    size = sum(p.numel() for p in model.parameters())
    # noise about as long as an honest update, whatever the size of the model
    noise = Behaviour("noise-sender", (ACTOR,), strength=0.25 / size)
    behaviours = {"free-rider": [Behaviour("free-rider", (ACTOR,))], "noise-sender": [noise]}.get(case, [])
    return network(
        model, whole, nodes=len(roles), partition=parts, batch_size=setting.batch_size, lr=setting.lr, seed=seed,
        behaviours=behaviours, device=setting.device, strategy="vmap",
    )  # fmt: skip
