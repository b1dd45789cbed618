"""Weights on updates and on samples: of senders of noise too, one upon another, in fleets, parts and tapes."""

import pytest
import torch
from influence.cases import NODES, small

from cascadice.engine import Behaviour, Operator, simulate
from cascadice.engine.fleets import fleet
from cascadice.engine.networks import Weights, draw
from cascadice.engine.parts import part_of
from cascadice.engine.weighting import with_weights
from cascadice.influence import by_sample, evaluate_on, reverse_gossip
from cascadice.influence.retraining import retrain
from cascadice.influence.whole_run_shares import measured_at

same = torch.testing.assert_close
ONE, TWO = torch.rand(2, 48, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def update(network, samples=()):
    """Everybody's first update, with these weights on the samples of their batches."""
    drawn = draw(network, 0)
    chosen = Weights(samples=tuple(weights[drawn.batch] for weights in samples))
    return Operator(network).work(drawn, network.initial, None, chosen)[0].theta - network.initial.theta


def test_half_the_weight_is_half_of_every_update_noise_included():
    network = small(behaviours=[Behaviour("noise-sender", (1,), strength=1e-2)])
    same(update(with_weights(network, 0.5)), 0.5 * update(network))
    with pytest.raises(ValueError, match="cannot be combined with noise senders"):
        with_weights(network, 0.5, during=range(1))


def test_weights_of_samples_multiply_and_go_with_those_of_updates():
    network = small()
    once, both = with_weights(network, samples=ONE), update(with_weights(network, samples=ONE * TWO))
    assert (both - update(once)).abs().amin() > 0
    same(update(with_weights(once, samples=TWO)), both)
    same(update(once, [TWO]), both)
    same(update(with_weights(network, 0.5, ONE * TWO)), 0.5 * both)


def test_they_stay_with_networks_side_by_side_and_with_parts():
    network, weighted = small(), with_weights(small(), samples=ONE)
    same(update(fleet([network, weighted])), torch.cat([update(network), update(weighted)]))
    same(update(part_of(weighted, (2, 3))), update(weighted)[2:])


def test_networks_that_are_trained_again_keep_their_weights():
    weighted, both = with_weights(small(), samples=ONE), with_weights(small(), samples=ONE * TWO)
    evaluation = evaluate_on(weighted)
    found = retrain(weighted, 2, evaluation, samples=TWO[None])
    assert float(found) == pytest.approx(measured_at(both, 2, evaluation, 1.0), abs=1e-12)


def test_tapes_do_not_forget_them():
    network = with_weights(small(strategy="loop"), samples=ONE)
    evaluation = evaluate_on(network)
    taped, plain = (list(simulate(network, 1, taped=taped)) for taped in (True, False))
    scores = [by_sample(network, rounds[0], reverse_gossip(network, rounds, evaluation)) for rounds in (taped, plain)]
    assert scores[0].shape[0] == NODES
    same(*scores)
