"""Dropout: every estimate draws the recorded masks again, so its derivatives are those of the round that was."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small, smooth, window
from torch import nn

from cascadice.engine import Operator
from cascadice.engine.dropout import Masks
from cascadice.engine.networks import draw, dropout_starts
from cascadice.engine.rounds import Adjoint, Perturbation
from cascadice.influence import by_participant, by_sample, evaluate_on, first_order, reverse_gossip, shares, truth
from cascadice.influence.truth import truth_of_samples
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import measured_at, whole_run_shares

pytestmark = pytest.mark.usefixtures("one_thread")
WAYS = {
    "sgd": {"lr": 0.1},
    "steps of momentum": {"lr": 0.05, "optimizer": "momentum", "local_steps": 3},
    "steps of adam": {"lr": 0.02, "optimizer": "adam", "local_steps": 2},
    "batches that differ": {"lr": 0.1, "batch_size": [4, 2, 3, 4], "local_steps": [1, 2, 2, 3]},
}


def dropping(**options):
    """The usual network with dropout, in the middle of layers that are scored through a tape or, with p, outside."""
    return small(smooth(nn.Dropout(0.5)), strategy="loop", **options)


def change(network, size, seed=3):
    draw = torch.Generator().manual_seed(seed)
    theta, state, _ = network.initial
    everybody = torch.arange(NODES)
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    direction = torch.randn(theta.shape, generator=draw, dtype=theta.dtype)
    return Perturbation(everybody, everybody, size * direction, zeros)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_derivatives_of_local_work_are_those_of_the_same_masks(options):
    network = dropping(**options)
    round_, op, step = window(network, 1)[0], Operator(network), 1e-5
    up, down = (op.replay(round_, change(network, sign * step)) for sign in (1, -1))
    pushed = op.push(round_, change(network, 1.0))
    torch.testing.assert_close(pushed.theta, (up.theta - down.theta) / (2 * step), rtol=1e-6, atol=1e-8)

    adjoint = Adjoint(torch.randn_like(pushed.theta), {n: torch.zeros_like(v) for n, v in pushed.state.items()})
    pulled, _, _ = op.pull_rows(*round_[:3], adjoint, scores=False)
    forwards = (adjoint.theta * pushed.theta).sum(1)
    torch.testing.assert_close(forwards, (pulled.theta * change(network, 1.0).theta).sum(1), **CLOSE)


@pytest.mark.parametrize("options", [WAYS["sgd"], WAYS["steps of momentum"]], ids=["sgd", "steps of momentum"])
def test_estimates_of_a_round_agree(options):
    network = dropping(**options)
    rounds, judged = window(network, 2), evaluate_on(network)
    adjoint, pushed = reverse_gossip(network, rounds, judged), first_order(network, rounds, judged)
    torch.testing.assert_close(by_participant(rounds[0], adjoint), pushed.total, **CLOSE)
    true = truth(network, rounds, judged).total
    assert (pushed.total - true).abs().max() < 0.2 * true.abs().max()
    assert torch.nn.functional.cosine_similarity(shares(network, rounds, judged), true, dim=0) > 0.99


def test_scores_of_samples_follow_their_replay():
    network = dropping(lr=0.01)
    rounds, judged = window(network, 2), evaluate_on(network)
    scores = by_sample(network, rounds[0], reverse_gossip(network, rounds, judged))[1]
    true = truth_of_samples(network, rounds, judged, 1).total
    assert (scores - true).abs().max() < 0.05 * true.abs().max()


def test_whole_runs_are_differentiated_with_the_masks_of_each_round():
    network, rounds, step = dropping(lr=0.05, optimizer="momentum", local_steps=2), 4, 1e-5
    judged = evaluate_on(network)
    found = whole_run(network, rounds, judged).by_round.sum(0)
    for j in range(2):
        one = step * torch.eye(NODES, dtype=torch.float64)[j]
        up, down = (
            measured_at(network, rounds, judged, torch.ones(NODES, dtype=torch.float64) + s * one) for s in (1, -1)
        )
        assert float(found[j]) == pytest.approx(float(up - down) / (2 * step), rel=1e-5)


def test_whole_run_shares_add_up_to_what_training_changed():
    network, rounds = dropping(lr=0.05), 3
    judged = evaluate_on(network)
    found = whole_run_shares(network, rounds, judged, points=5)
    ends = [measured_at(network, rounds, judged, torch.full((NODES,), a, dtype=torch.float64)) for a in (0.0, 1.0)]
    assert float(found.by_round.sum()) == pytest.approx(float(ends[1] - ends[0]), rel=1e-6)


def test_everybody_draws_other_masks_in_every_round():
    network = dropping()
    seeds = [dropout_starts(network, draw(network, t)) for t in range(2)]
    assert len({*seeds[0], *seeds[1]}) == 2 * NODES
    assert dropout_starts(network, draw(network, 1), [2, 0]) == (seeds[1][2], seeds[1][0])


def test_each_local_step_draws_on_and_draws_the_same_when_it_is_passed_again():
    masks, drawn = Masks(), []
    with masks.of(7, torch.device("cpu")):
        for step in (0, 1, 0, 1):
            masks.step(step)
            masks.rewind()
            drawn.append(torch.rand(3).tolist())
    assert drawn[2:] == drawn[:2]
    assert drawn[0] != drawn[1]
