"""Whole-run influence against the estimates of others, and all of them against exact Shapley values.

Eight participants, so that the network can be trained again with every one of the 255 coalitions: that gives exact
Shapley values, and what was found without any one, with six and with four of the eight.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Network, by_network, evaluate, evaluate_on, fleet, simulate
from cascadice.influence.agreement import agreement
from cascadice.influence.retraining import retrain
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import measured_at, whole_run_shares
from cascadice_experiments import rivals
from cascadice_experiments.retraining.measure import Scores, few_hops, made_by, ranked, scored
from cascadice_experiments.retraining.settings import MLP, Case, load, make_networks
from cascadice_experiments.rivals.coalitions import every_coalition, marginals, prefixes, random_orders
from cascadice_experiments.study import clock

CASE = replace(MLP, name="contest", nodes=8, batch=128)
KEPT = (6, 4)  # how many of the eight are kept
SPARED = 12  # estimates "of every twelfth round" cost about as much as one sweep of whole-run influence
RIVALS: tuple[tuple[str, Callable[..., rivals.Estimate], int], ...] = (
    ("FedSV", rivals.fedsv, SPARED),
    ("TRIP-Shapley", rivals.trip_shapley, SPARED),
    ("GTG-Shapley", rivals.gtg_shapley, SPARED),
    ("ComFedSV", rivals.comfedsv, SPARED),
    ("TracIn", rivals.tracin, SPARED // 6),
    ("TracInCP", rivals.tracin_checkpoints, SPARED // 3),
    ("FedSV", rivals.fedsv, SPARED // 4),  # four times the cost
)


def measure(case: Case, source: str, root: str | None, device: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Retrain all coalitions of each seed, then compute every estimate."""
    whole, held = load(case, source, root)
    networks = make_networks(case, whole, held, device)
    together = fleet(networks) if len(networks) > 1 else networks[0]
    *_, last = simulate(together, 3, window=0)  # warm up: one-time compilation and allocation do not count as cost
    start = clock(device)
    *_, last = simulate(together, case.rounds, window=0)
    training = clock(device) - start
    accuracy = by_network(evaluate(together, last.after).accuracy, len(networks)).mean(1)
    say(f"accuracy {accuracy.mean():.3f}, {len(networks)} seeds trained in {training:.1f} s")
    games = torch.stack([_values(case, network) for network in networks])
    say(f"all coalitions retrained in {clock(device) - start:.1f} s")
    estimates = dict[str, Scores]()
    theirs = _theirs(case, networks, games, training)
    for name, scores in chain(_ours(case, together, len(networks), device), theirs):
        estimates[name] = scores
        say(f"{name}: {scores.seconds / training:.1f} trainings")
    rows = [row for name, scores in estimates.items() for row in _compared(case, name, scores.participants, games)]
    costs = {name: scores.seconds / training for name, scores in estimates.items()}
    result = {"case": case.name, "accuracy": accuracy.tolist(), "rows": rows, "costs": costs, "training_s": training}
    return {**result, **made_by(case, device), "coalitions": games.tolist(), "scores": scored(estimates, case)}


def _values(case: Case, network: Network) -> Tensor:
    """f of every coalition, in the order of `every_coalition`: nobody first, everybody last."""
    evaluation = evaluate_on(network)
    nobody = torch.tensor([measured_at(network, case.rounds, evaluation, 0.0)], dtype=torch.float64)
    some = every_coalition(case.nodes)[1:].double()
    return torch.cat([nobody, retrain(network, case.rounds, evaluation, updates=some, together=case.together)])


def _ours(case: Case, together: Network, count: int, device: str) -> Iterator[tuple[str, Scores]]:
    evaluation = evaluate_on(together)
    whole_run(together, 3, evaluation)  # warm up: one-time compilation and allocation do not count as cost
    for alpha in (1.0, 0.75, 0.5):
        start = clock(device)
        run = whole_run(together, case.rounds, evaluation, at=alpha, samples=False)
        yield f"whole-run at {alpha:g}", Scores(by_network(run.participants, count), None, clock(device) - start)
    for points in (3, 6):
        start = clock(device)
        run = whole_run_shares(together, case.rounds, evaluation, points=points, samples=False)
        found = Scores(by_network(run.participants, count), None, clock(device) - start)
        yield f"whole-run shares, {points} points", found
    for name, kind, every in (("DICE-E", "first-order", 1), ("DICE-GT", "truth", 1)):
        start = clock(device)
        looked = replace(case, every=every)
        scores = few_hops(looked, together, evaluation, count, {"kinds": (kind,), "hops": 1})
        yield _named(name, every), scores._replace(seconds=clock(device) - start)


def _theirs(case: Case, networks: list[Network], games: Tensor, training: float) -> Iterator[tuple[str, Scores]]:
    """Costs are counted in evaluations, a gradient as three; a training is a gradient a participant and round."""
    tests = len(networks[0].data.test)
    one = 3 * case.batch / tests * case.nodes * case.rounds
    for name, estimate, every in RIVALS:
        found = [estimate(network, case.rounds, evaluate_on(network), every=every) for network in networks]
        cost = sum(each.evaluations for each in found) / len(found) / one
        scores = torch.stack([each.scores.double().cpu() for each in found])
        yield _named(name, every), Scores(scores, None, cost * training)
    for count in (1, 4):
        orders = random_orders(case.nodes, count, seed=1)
        coalitions = prefixes(orders)
        numbers = (coalitions.long() << torch.arange(case.nodes)).sum(-1)
        scores = torch.stack([marginals(game[numbers], orders) for game in games])
        trained = len(torch.unique(numbers)) - 1
        yield f"Shapley of {count} retrained permutations", Scores(scores, None, trained * training)


def _named(name: str, every: int) -> str:
    return name if every == 1 else f"{name}, 1 round in {every}"


def _compared(case: Case, name: str, scores: Tensor, games: Tensor) -> Iterator[dict[str, Any]]:
    """A row for each seed and condition: how well the estimate agrees with retraining."""
    coalitions = every_coalition(case.nodes)
    sizes = coalitions.sum(1)
    for seed, own, game in zip(case.seeds, scores, games, strict=True):
        found = {
            "exact Shapley": agreement(shapley(game), own),
            "leave one out": agreement(game[-1] - game[_without_one(case.nodes)], own),
        }
        for kept in KEPT:
            rows = sizes == kept
            found[f"{kept} of {case.nodes} kept"] = agreement(game[rows], coalitions[rows].double() @ own.double())
        for size, change in enumerate(joining(game, case.nodes)):
            found[f"joining {size}"] = agreement(change, own)
        for condition, agreed in found.items():
            yield {"condition": condition, "estimate": name, "seed": seed, **ranked(agreed)}


def joining(game: Tensor, nodes: int) -> Iterator[Tensor]:
    """What each participant changes when it joins a coalition of each size, on average: the terms of Shapley values.

    The mean over all numbers of others, from none to all, is the Shapley value.
    """
    coalitions = every_coalition(nodes)
    sizes, bits = coalitions.sum(1), 1 << torch.arange(nodes)
    for size in range(nodes):
        parts = [((sizes == size) & ~coalitions[:, j]).nonzero().flatten() for j in range(nodes)]
        yield torch.stack([(game[part | bits[j]] - game[part]).mean() for j, part in enumerate(parts)])


def _without_one(nodes: int) -> Tensor:
    """The numbers of the coalitions of all but one."""
    return torch.full((nodes,), 2**nodes - 1) - (1 << torch.arange(nodes))
