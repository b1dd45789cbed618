"""Trust by influence: its scores against loops and replayed weights, and what it does to attackers."""

import pytest
import torch
from torch.testing import assert_close

import cascadice as cd
from cascadice.engine.exchange.cosine_trust import TrustRule
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.fleets import blocks, fleet
from cascadice.engine.networks import draw
from cascadice.engine.operator import Operator
from cascadice.influence import evaluate_on, own_data
from cascadice.influence.proximity import in_turn
from cascadice.influence.trust import proximal_trust, whole_run_trust
from cascadice.influence.whole_run import whole_run

NODES = 6


def digits(seed=0, nodes=NODES, **options):
    data = cd.data.digits()
    model = cd.models.build("mlp", data.train.shape, 10, hidden=(12,), activation="gelu", seed=seed)
    usual = {"batch_size": 32, "lr": 0.2, "dtype": "float64", "strategy": "vmap", "seed": seed, "mixing": "complete"}
    return cd.network(model, data, nodes=nodes, **(usual | options))


def test_proximal_scores_are_inner_products_with_the_receivers_gradient(one_thread):
    net = digits(mixing="exponential")
    rule = proximal_trust(net, samples=20, explore=False)
    (done,) = cd.simulate(net, 1, rule=rule)
    own = in_turn(evaluate_on(net, own_data(net, 20)), 0, 20)
    _, gradient = Operator(net).gradients(own, done.half, range(NODES))
    heard = neighbours(net.mixing(0))
    for k, j in heard.nonzero().tolist():
        shared = gradient[k].norm() * done.update[heard[k]].norm(dim=1).median()
        assert float(rule.trust.score[k, j]) == pytest.approx(float(gradient[k] @ done.update[j] / shared))
    assert not rule.trust.score[~heard].any()


def test_whole_run_scores_are_those_of_the_rounds_so_far(one_thread):
    net = digits()
    rule = whole_run_trust(net, every=4, samples=16)
    rounds = list(cd.simulate(net, 5, rule=rule))  # the fifth begins with a sweep over the first four
    own = evaluate_on(net, own_data(net, 16))
    for k in range(NODES):
        expected = whole_run(net, rounds[:4], own, on=k, samples=False).participants
        expected[k] = 0
        assert_close(rule.trust.score[k], expected)
    assert torch.equal(rule.trust.trusted, (rule.trust.score < 0) | torch.eye(NODES, dtype=torch.bool))


@pytest.mark.parametrize(
    "make", [proximal_trust, lambda net: whole_run_trust(net, every=10)], ids=["proximal", "whole"]
)
def test_a_sign_flipper_is_dropped_and_the_honest_are_kept(make, one_thread):
    net = digits(behaviours=[cd.Behaviour("sign-flipper", (2,))])
    *_, done = cd.simulate(net, 25, rule=make(net), window=0)
    honest = [k for k in range(NODES) if k != 2]
    assert not done.W[honest, 2].any()
    assert (done.W[honest][:, honest] > 0).double().mean() > 0.8


@pytest.mark.parametrize("make", [proximal_trust, lambda net, **o: whole_run_trust(net, every=2, **o)])
def test_networks_side_by_side_are_judged_as_if_alone(make, one_thread):
    """Evaluated on all that everyone holds: which of it is drawn depends on the number of a participant."""
    apiece = [digits(seed, per_node=200, behaviours=[cd.Behaviour("free-rider", (seed,))]) for seed in (0, 1)]
    explore = {"explore": False} if make is proximal_trust else {}
    both = make(fleet(apiece), samples=200, **explore)
    *_, _ = cd.simulate(fleet(apiece), 4, rule=both)
    for i, net in enumerate(apiece):
        alone = make(net, samples=200, **explore)
        *_, _ = cd.simulate(net, 4, rule=alone)
        assert_close(blocks(both.given, 2)[i], alone.given)


@pytest.mark.parametrize("explore", [True, False])
def test_strangers_are_heard_by_those_who_explore_alone(explore):
    net, received = digits(mixing="ring"), []
    rule = TrustRule(net, lambda trust, *what: received.append(what[-1]) or trust, explore=explore)
    for t in range(4):
        rule(draw(net, t), net.initial, net.initial)
    more = (torch.stack(received) & ~neighbours(net.mixing(0))).sum(2)
    assert more.unique().tolist() == ([0, 1] if explore else [0])
    assert proximal_trust(net, samples=20, explore=explore).explore == explore


def test_refusals():
    with pytest.raises(ValueError, match="every must be at least one round; found 0"):
        whole_run_trust(digits(), every=0)
    with pytest.raises(ValueError, match=r"size must be in 1\.\."):
        proximal_trust(digits(), samples=10**6)
