"""Compare what ledgers say with what retrained networks show."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cascadice import data
from cascadice.applications.reward.contributions import by_shares
from cascadice.applications.reward.payouts import pay
from cascadice.data import DataSet, Samples
from cascadice.engine import Evaluation, Network, Round, by_network, evaluate, fleet, simulate
from cascadice.influence import evaluate_on, leave_one_out, shares, whole_run, whole_run_shares
from cascadice.influence.agreement import agreement
from cascadice.influence.readings import summed
from cascadice_experiments.data_sets import first
from cascadice_experiments.incentives.coalitions import exact_shapley
from cascadice_experiments.incentives.settings import (
    ACTOR,
    CASES,
    QUALITIES,
    TWIN,
    Setting,
    make_network,
    roles_of,
    with_wrong_labels,
)


def measure(setting: Setting, source: str, root: str | None) -> Iterator[dict[str, Any]]:
    """Yield the parts of the study: against Shapley values, against leaving one out, and what each role earns."""
    clean = data.load(source, root)
    whole = with_wrong_labels(clean)
    for exact in (True, False):
        yield compare(setting, whole, clean.train, exact)
    yield earnings(setting, whole, clean.train)


def judge(network: Network, setting: Setting) -> Evaluation:
    """The loss on the test samples that decide payments."""
    return evaluate_on(network, first(network.data.test, setting.judged))


def ledgers(networks: Sequence[Network], setting: Setting) -> dict[str, Tensor]:
    """Everyone's contribution by each ledger and by simpler baselines, `[networks, n]`."""
    together = fleet(networks)
    evaluation, rounds = judge(together, setting), list(simulate(together, setting.rounds))
    contributed = {
        "whole-run shares": whole_run_shares(together, setting.rounds, evaluation, samples=False).participants,
        "whole run at 0.5": whole_run(together, setting.rounds, evaluation, at=0.5, samples=False).participants,
        "horizon": whole_run(together, rounds, evaluation, samples=False).participants,
        **{f"shares, {hops} hop{'s' * (hops > 1)}": _over_hops(together, rounds, evaluation, hops)
           for hops in setting.hops},
        "shares, 1 hop, and on oneself": summed(shares(together, [round_], evaluation) for round_ in rounds),
        "cosine to the mean update": -summed(_cosine(round_, len(networks)) for round_ in rounds),
        "samples held": -torch.tensor([float(len(part)) for part in together.partition or ()]),
    }  # fmt: skip
    return {name: by_network(value.double().cpu(), len(networks)) for name, value in contributed.items()}


def _over_hops(network: Network, rounds: Sequence[Round], evaluation: Evaluation, hops: int) -> Tensor:
    windows = _windows(rounds, hops)
    return summed(by_shares(network, window, evaluation).participants for window in windows)


def accuracies(networks: Sequence[Network], setting: Setting) -> Tensor:
    """The mean test accuracy of each network when everyone takes part."""
    together = fleet(networks)
    *_, last = simulate(together, setting.rounds, window=0)
    accuracy = evaluate(together, last.after, first(together.data.test, setting.judged)).accuracy
    return by_network(accuracy.double().cpu(), len(networks)).mean(1)


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
    true_values = exact_shapley if exact else leave_one_out
    truth = torch.stack([true_values(one, setting.rounds, judge(one, setting)) for one in networks])
    contributed = ledgers(networks, setting)
    return {
        "part": "Shapley values" if exact else "leaving one out", "nodes": nodes, "roles": roles,
        "truth": truth.tolist(), "found": {name: value.tolist() for name, value in contributed.items()},
        "rows": {name: _agreements(truth, value) for name, value in contributed.items()},
        "paid": {name: pay_by_role(roles, value) for name, value in {"truth": truth, **contributed}.items()},
        "test_accuracy": _spread(accuracies(networks, setting)), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _agreements(truth: Tensor, contributed: Tensor) -> dict[str, Any]:
    each = [agreement(true, value) for true, value in zip(truth, contributed, strict=True)]
    rows = {name: _spread(torch.tensor([getattr(a, name) for a in each])) for name in ("spearman", "pearson")}
    return {**rows, "misplaced": _spread(misplaced(truth, contributed))}


def misplaced(truth: Tensor, contributed: Tensor) -> Tensor:
    """The share of each network's budget that goes to participants whom the ground truth would not pay."""
    right, paid = (torch.stack([_pay(row) for row in value]) for value in (truth, contributed))
    return (paid - right).abs().sum(1) / 2


def pay_by_role(roles: Sequence[Sequence[str]], contributed: Tensor) -> dict[str, Any]:
    """What one participant of each quality is paid: mean and spread over participants and seeds."""
    payment = torch.stack([_pay(row) for row in contributed])
    return {
        role: _spread(payment[torch.tensor([[name == role for name in own] for own in roles])])
        for role in QUALITIES
        if any(role in own for own in roles)
    }


def _spread(values: Tensor) -> dict[str, Any]:
    """Mean and standard deviation of the finite values, and their number; values are NaN where no one was paid."""
    finite = values.double()[values.isfinite()]
    count = {"count": len(finite), "of": values.numel()}
    if not len(finite):
        return {"mean": None, "std": None, **count}
    return {"mean": float(finite.mean()), "std": float(finite.std()) if len(finite) > 1 else 0.0, **count}


def earnings(setting: Setting, whole: DataSet, clean: Samples) -> dict[str, Any]:
    """The share of the budget that ACTOR earns in each role among plain participants; both identities of a duplicator.

    In the honest networks all are equals, and each should be paid the same.
    """
    start, roles = time.perf_counter(), ["plain"] * setting.players
    networks = [make_network(setting, whole, clean, roles, seed, case) for case in CASES for seed in setting.seeds]
    truth = torch.stack([exact_shapley(one, setting.rounds, judge(one, setting)) for one in networks])
    contributed = {"Shapley values": truth, **ledgers(networks, setting)}
    paid = {name: _by_case(torch.stack([_pay(row) for row in value])) for name, value in contributed.items()}
    rows: dict[str, Any] = {}
    for case in CASES:
        who = [ACTOR, TWIN] if case == "duplicator" else [ACTOR]
        rows[case] = {name: _spread(payment[case][:, who].sum(1)) for name, payment in paid.items()}
    accuracy = _by_case(accuracies(networks, setting))
    return {
        "part": "roles", "nodes": setting.players, "rows": rows,
        "found": {name: _by_case_and_seed(value) for name, value in contributed.items()},
        "equals": {name: _equals(payment["honest"]) for name, payment in paid.items()},
        "test_accuracy": {case: _spread(row) for case, row in accuracy.items()},
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _by_case(rows: Tensor) -> dict[str, Tensor]:
    return dict(zip(CASES, rows.chunk(len(CASES)), strict=True))


def _by_case_and_seed(contributed: Tensor) -> dict[str, Any]:
    """Everyone's contribution in each case, a row for each seed."""
    return {case: rows.tolist() for case, rows in _by_case(contributed).items()}


def _equals(payment: Tensor) -> dict[str, Any]:
    """The lowest and highest payment among equal participants, as multiples of an equal share."""
    multiples = payment * payment.shape[1]
    return {"least": _spread(multiples.amin(1)), "most": _spread(multiples.amax(1))}


def _pay(contributed: Tensor) -> Tensor:
    """Everyone's share of the budget; NaN if no one helped, because then no one is paid."""
    helped = bool((contributed < 0).any())
    return pay(contributed[None], 1.0).payment if helped else torch.full_like(contributed, torch.nan)
