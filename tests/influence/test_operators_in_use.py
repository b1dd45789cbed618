"""An operator that a caller gives is the one that is used, and is left as it was."""

import pytest
import torch
from influence.cases import CLOSE, small, smooth, window
from torch import nn

from cascadice import influence
from cascadice.engine import Operator, simulate
from cascadice.engine.exchange.stacked import Averaging


class Centred(nn.Module):
    """Samples of a batch depend on one another."""

    def forward(self, x):
        return x - x.mean(0)


class Counted(Averaging):
    """The exchange in memory, which counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def _count(self, way, *given):
        self.asked += 1
        return getattr(super(), way)(*given)

    def pull(self, *given):
        return self._count("pull", *given)

    def push(self, *given):
        return self._count("push", *given)

    def replay(self, *given):
        return self._count("replay", *given)


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("kind", influence.estimators.ESTIMATORS)
def test_every_kind_goes_through_the_given_exchange(kind, samples):
    network, exchange = small(), Counted()
    options = {"kinds": [kind], "samples": samples, "sources": [1]}
    evaluation = influence.evaluate_on(network)
    list(influence.score_rounds(network, simulate(network, 1), evaluation, exchange=exchange, **options))
    assert exchange.asked > 0


def test_so_do_models_with_buffers():
    network, exchange = small(smooth(nn.BatchNorm1d(4))), Counted()
    rounds, evaluation = window(network, 2), influence.evaluate_on(network)
    found = influence.reverse_gossip(network, rounds, evaluation, operator=Operator(network, exchange))
    assert exchange.asked == 2
    torch.testing.assert_close(found.theta, influence.reverse_gossip(network, rounds, evaluation).theta, **CLOSE)


def test_shares_leave_no_gradients_behind():
    network = small(lr=1.0)
    rounds, evaluation, operator = window(network, 2), influence.evaluate_on(network), Operator(network)
    expected = influence.reverse_gossip(network, rounds, evaluation).theta
    influence.shares(network, rounds, evaluation, operator=operator)
    found = influence.reverse_gossip(network, rounds, evaluation, operator=operator).theta
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_rule_that_selects_lets_tangents_and_changes_reach_others():
    def adopt(draw, before, half):
        norms = half.theta.norm(dim=1)
        chosen = half.theta[(norms - norms.mean()).abs().argmin()]
        return half._replace(theta=(half.theta + chosen) / 2)

    network = small(lr=2.0)
    rounds, evaluation = list(simulate(network, 3, rule=adopt)), influence.evaluate_on(network)
    together = influence.path_integrated(network, rounds, evaluation).value
    for j in range(network.nodes):
        alone = influence.path_integrated(network, rounds, evaluation, sources=[j]).value[:, 0]
        torch.testing.assert_close(together[:, j], alone, **CLOSE)


def test_the_full_horizon_of_participants_needs_no_separate_samples():
    network = small(smooth(Centred()))
    rounds, evaluation = list(simulate(network, 3)), influence.evaluate_on(network)
    with pytest.raises(ValueError, match="Score participants"):
        next(influence.full_horizon(network, reversed(rounds), evaluation))
    found = [one.participants for one in influence.full_horizon(network, reversed(rounds), evaluation, samples=False)]
    expected = influence.whole_run(network, rounds, evaluation, samples=False).by_round
    torch.testing.assert_close(torch.stack(found[::-1]), expected, **CLOSE)


def test_the_full_horizon_refuses_running_statistics():
    network = small(smooth(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match="running_mean' has changed"):
        next(influence.full_horizon(network, reversed(list(simulate(network, 2))), influence.evaluate_on(network)))
