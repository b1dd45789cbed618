"""Does interplay tell who substitutes for whom? It is compared with networks retrained without each pair.

    exact[j, i] = (f(all but j) − f(all but i and j)) − (f(all) − f(all but i))

This is how the effect of leaving out i changes once j is gone; interplay is how i's slope changes.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from cascadice import files
from cascadice.engine import Evaluation, Network, evaluate, evaluate_on, simulate
from cascadice.influence.agreement import agreement
from cascadice.influence.interplay import interplay
from cascadice.influence.retraining import retrain
from cascadice_experiments import study
from cascadice_experiments.data_sets import find
from cascadice_experiments.retraining.settings import MLP, QUICK, load, make_networks
from cascadice_experiments.retraining.table import spread

ALPHAS = (1.0, 0.5)
FLAGS: study.Flags = {
    "--cifar": {"action": "store_true", "help": "CIFAR-10 instead of digits"},
    "--iid": {"action": "store_true", "help": "IID data instead of Dirichlet 0.5"},
    "--seeds": {"default": 5},
    "--first-seed": {},
    "--rounds": {"type": int, "metavar": "N", "help": "rounds to train (the study's)"},
    "--out": {"help": "folder for pairs.json"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the interplay of every pair with retraining, seed by seed."""
    return study.run("pairs", _measure, study.parser("retraining.pairs", FLAGS).parse_args(arguments))


def exact_interplay(network: Network, rounds: int, evaluation: Evaluation) -> Tensor:
    """How the effect of leaving out i changes without j, by n (n + 1) / 2 + 1 trainings; zero on the diagonal."""
    n = network.nodes
    pairs = torch.triu_indices(n, n)
    kept = torch.ones(pairs.shape[1], n, dtype=torch.float64)
    kept.scatter_(1, pairs.T, 0.0)  # of equal numbers, one participant alone
    everybody, *losses = retrain(network, rounds, evaluation, updates=torch.cat([torch.ones(1, n), kept]).double())
    without = torch.zeros(n, n, dtype=torch.float64)
    without[pairs[0], pairs[1]] = without[pairs[1], pairs[0]] = torch.stack(losses)
    alone = without.diagonal()
    exact: Tensor = alone[:, None] - without - everybody + alone
    return exact.fill_diagonal_(0.0)


def compared(found: Tensor, exact: Tensor) -> dict[str, float]:
    """How well the order of pairs agrees, and the fraction of pairs with the right sign."""
    apart = ~torch.eye(len(exact), dtype=torch.bool)
    found, exact = found[apart], exact[apart]
    signs = (found.sign() == exact.sign()).double().mean()
    return {
        "spearman": agreement(exact, found).spearman, "signs": float(signs),
        "substitutes": float((exact < 0).double().mean()),
    }  # fmt: skip


def _measure(args: Namespace) -> dict[str, Any]:
    source, root = find(args.data_root) if args.cifar else ("digits", None)
    seeds = tuple(range(args.first_seed, args.first_seed + args.seeds))
    settings: dict[str, Any] = {**QUICK, "seeds": seeds, "partition": "iid" if args.iid else MLP.partition}
    case = replace(MLP, **{**settings, "rounds": args.rounds or settings["rounds"]})
    accuracy: list[float] = []
    rows: dict[float, list[dict[str, float]]] = {at: [] for at in ALPHAS}
    for network in make_networks(case, *load(case, source, root), args.device):
        evaluation = evaluate_on(network)
        exact = exact_interplay(network, case.rounds, evaluation)
        for at in ALPHAS:
            rows[at].append(compared(interplay(network, case.rounds, evaluation, at=at), exact))
        *_, last = simulate(network, case.rounds, window=0)
        accuracy.append(float(evaluate(network, last.after).accuracy.mean()))
    print("| interplay at α | order of pairs (Spearman) | right signs | substitutes by retraining |\n|---|---|---|---|")
    for at, each in rows.items():
        print(f"| {at:g} | " + " | ".join(spread([one[name] for one in each]) for name in each[0]) + " |")
    print(f"\ntest accuracy {mean(accuracy):.3f}, {len(seeds)} seeds")
    result = {
        "data": source,
        "partition": case.partition,
        "rounds": case.rounds,
        "nodes": case.nodes,
        "accuracy": accuracy,
        "seeds": list(seeds),
    }
    result |= {"rows": {str(at): each for at, each in rows.items()}}
    if args.out:
        files.write_json(args.out / "pairs.json", result)
    return result


if __name__ == "__main__":
    sys.exit(main())
