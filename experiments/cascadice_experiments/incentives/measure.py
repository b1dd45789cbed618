"""Compare what ledgers say with what retrained networks show."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cascadice import data
from cascadice.applications.reward.contributions import by_horizon, by_shares
from cascadice.applications.reward.payouts import pay, shapley
from cascadice.data import DataSet, Samples
from cascadice.engine import Network, Round, by_network, fleet, simulate
from cascadice.influence import evaluate_on, shares
from cascadice.influence.readings import agreement, summed
from cascadice_experiments.data_sets import first
from cascadice_experiments.incentives.coalitions import all_but_one, coalitions, retrain
from cascadice_experiments.incentives.settings import (
    CHEAT,
    CHEATS,
    QUALITIES,
    TWIN,
    Setting,
    make_network,
    roles_of,
    with_wrong_labels,
)


def measure(setting: Setting, source: str, root: str | None) -> Iterator[dict[str, Any]]:
    """Yield the three parts of the study: against Shapley values, against leaving one out, and what cheats earn."""
    clean = data.load(source, root)
    whole = with_wrong_labels(clean)
    for exact in (True, False):
        yield compare(setting, whole, clean.train, exact)
    yield earnings_of_cheats(setting, whole, clean.train)


def ledgers(networks: Sequence[Network], setting: Setting) -> dict[str, Tensor]:
    """Everyone's contribution by each ledger and by what people would pay by instead, `[networks, n]`."""
    together = fleet(networks)
    evaluation = evaluate_on(together, first(together.data.test, setting.judged))
    rounds = list(simulate(together, setting.rounds))
    over_hops = {
        f"shares, {hops} hop{'s' * (hops > 1)}": summed(
            by_shares(together, window, evaluation).participants for window in _windows(rounds, hops)
        )
        for hops in setting.hops
    }
    contributed = {
        **over_hops,
        "shares, 1 hop, and on oneself": summed(shares(together, [round_], evaluation) for round_ in rounds),
        "horizon": summed(entry.participants for entry in by_horizon(together, reversed(rounds), evaluation)),
        "cosine to the mean update": -summed(_cosine(round_, len(networks)) for round_ in rounds),
        "samples held": -torch.tensor([float(len(part)) for part in together.partition or ()]),
    }
    return {name: by_network(value.double().cpu(), len(networks)) for name, value in contributed.items()}


def _windows(rounds: Sequence[Round], size: int) -> Iterator[Sequence[Round]]:
    """Each round with those that follow it; long windows overlap, so they start a quarter of their length apart."""
    for start in range(0, len(rounds) - size + 1, max(1, size // 4)):
        yield rounds[start : start + size]


def _cosine(round_: Round, count: int) -> Tensor:
    update = by_network(round_.update, count)
    return torch.cosine_similarity(update, update.mean(1, keepdim=True), dim=2).reshape(-1)


def compare(setting: Setting, whole: DataSet, clean: Samples, exact: bool) -> dict[str, Any]:
    """Compare ledgers with exact Shapley values of a few participants, or with leaving out each of a crowd."""
    start, nodes = time.perf_counter(), setting.players if exact else setting.crowd
    roles = [roles_of(nodes, seed) for seed in setting.seeds]
    networks = [make_network(setting, whole, clean, own, seed) for own, seed in zip(roles, setting.seeds, strict=True)]
    retrained = [retrain(one, coalitions(nodes) if exact else all_but_one(nodes), setting) for one in networks]
    truth = torch.stack([shapley(r.loss) if exact else r.loss[0] - r.loss[1:] for r in retrained])
    contributed = ledgers(networks, setting)
    accuracy = torch.stack([r.accuracy[-1 if exact else 0] for r in retrained])
    return {
        "part": "Shapley values" if exact else "leaving one out", "nodes": nodes, "roles": roles,
        "truth": truth.tolist(), "found": {name: value.tolist() for name, value in contributed.items()},
        "rows": {name: _agreements(truth, value) for name, value in contributed.items()},
        "paid": {name: pay_by_role(roles, value) for name, value in {"truth": truth, **contributed}.items()},
        "test_accuracy": _spread(accuracy), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _agreements(truth: Tensor, contributed: Tensor) -> dict[str, Any]:
    each = [agreement(true, value) for true, value in zip(truth, contributed, strict=True)]
    return {name: _spread(torch.tensor([getattr(a, name) for a in each])) for name in ("spearman", "pearson")}


def pay_by_role(roles: Sequence[Sequence[str]], contributed: Tensor) -> dict[str, Any]:
    """What one participant of each quality is paid: mean and spread over participants and seeds."""
    payment = torch.stack([_pay(row) for row in contributed])
    return {
        role: _spread(payment[torch.tensor([[name == role for name in own] for own in roles])])
        for role in QUALITIES
        if any(role in own for own in roles)
    }


def _spread(values: Tensor) -> dict[str, float]:
    """Mean and standard deviation of the finite values."""
    finite = values.double()[values.isfinite()]
    return {"mean": float(finite.mean()), "std": float(finite.std()) if len(finite) > 1 else 0.0}


def earnings_of_cheats(setting: Setting, whole: DataSet, clean: Samples) -> dict[str, Any]:
    """The share of the budget that each cheat earns among plain participants; both identities of a duplicator."""
    start, roles = time.perf_counter(), ["plain"] * setting.players
    networks = [make_network(setting, whole, clean, roles, seed, cheat) for cheat in CHEATS for seed in setting.seeds]
    retrained = [retrain(one, coalitions(setting.players), setting) for one in networks]
    contributed = {"Shapley values": torch.stack([shapley(r.loss) for r in retrained]), **ledgers(networks, setting)}
    accuracy = torch.stack([r.accuracy[-1] for r in retrained]).view(len(CHEATS), -1)
    rows = {}
    for cheat, its_networks in zip(CHEATS, torch.arange(len(networks)).view(len(CHEATS), -1), strict=True):
        who = [CHEAT, TWIN] if cheat == "duplicator" else [CHEAT]
        rows[cheat] = {
            name: _spread(torch.stack([_pay(value[i])[who].sum() for i in its_networks]))
            for name, value in contributed.items()
        }
    return {
        "part": "cheats", "nodes": setting.players, "rows": rows,
        "test_accuracy": {cheat: _spread(row) for cheat, row in zip(CHEATS, accuracy, strict=True)},
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _pay(contributed: Tensor) -> Tensor:
    """Everyone's share of the budget; NaN if no one helped, because then no one is paid."""
    helped = bool((contributed < 0).any())
    return pay(contributed[None], 1.0).payment if helped else torch.full_like(contributed, torch.nan)
