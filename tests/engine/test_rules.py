"""A rule chooses W from what is sent in the round, or makes the result itself."""

import pytest
import torch
from engine.cases import CLOSE, equal, last, make
from torch.testing import assert_close

from cascadice import influence, topology
from cascadice.engine import mix
from cascadice.engine.learner import Participants
from cascadice.engine.simulation import simulate


def by_norm(drawn, before, half):
    """Weights by the size of updates: what is sent decides."""
    sizes = (half.theta - before.theta).norm(dim=1).double().cpu()
    W = drawn.W * sizes
    return W / W.sum(1, keepdim=True)


def test_no_rule_is_the_rule_that_gives_the_w_that_was_drawn():
    net = make()
    assert equal(last(net, rule=lambda drawn, before, half: drawn.W).after, last(net).after)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("window", [None, 0, 1])
def test_the_chosen_w_is_used_and_kept_in_the_round(strategy, window):
    net = make(strategy=strategy)
    for done in simulate(net, 3, rule=by_norm, window=window):
        expected = by_norm(done.draw._replace(W=net.mixing(done.t)), done.before, done.half)
        assert_close(done.W, expected, **CLOSE)
        assert_close(done.after.theta, done.W @ done.half.theta, **CLOSE)
        topology.check(done.W)


def test_a_rule_sees_what_misbehaviour_made_of_the_updates():
    from cascadice.engine.behaviours import Behaviour

    net = make(behaviours=[Behaviour("noise-sender", (1,), strength=4.0)])
    seen = []
    done = last(net, 1, rule=lambda drawn, before, half: seen.append(half.theta.clone()) or drawn.W)
    assert torch.equal(seen[0], done.half.theta)
    assert float((seen[0][1] - done.before.theta[1]).std()) > 1


def test_a_rule_that_is_no_average_gives_the_participants():
    net = make()

    def median(drawn, before, half):
        theta = torch.stack([half.theta[drawn.W[k] > 0].median(0).values for k in range(4)])
        return Participants(theta, half.state, half.buffers)

    *_, done = simulate(net, 2, rule=median)
    assert torch.equal(done.W, net.mixing(1))  # nothing was chosen
    assert torch.equal(done.after.theta[0], done.half.theta[done.W[0] > 0].median(0).values)
    assert not torch.allclose(mix(done.W, done.half).theta, done.after.theta)


def test_rounds_with_a_rule_can_be_gone_on_with():
    net = make()
    whole = list(simulate(net, 5, rule=by_norm))
    *_, end = simulate(net, 5, start=3, participants=whole[2].after, rule=by_norm)
    assert equal(end.after, whole[-1].after)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda W: 2 * W, r"W must have rows summing to 1; row 0 sums to 2\."),
        (lambda W: W - 2 * torch.eye(4), "W must not be negative"),
        (lambda W: W * torch.nan, r"W must hold finite numbers; W\[0, 0\] is nan"),
        (lambda W: W[:3, :3], "it must have a row and a column for each of 4; found 3 x 3"),
        (lambda W: W.sum(), "it must have a row and a column for each of 4; found a single number"),
    ],
)
def test_a_rule_must_return_a_mixing_matrix(change, message):
    def spoil(drawn, before, half):
        return drawn.W if drawn.t < 2 else change(drawn.W)

    with pytest.raises(ValueError, match=rf"rule test_a_rule_must\w+ returned in round 2 cannot be used: {message}"):
        list(simulate(make(), 4, rule=spoil))


def test_a_rule_that_returns_bare_parameters_is_told_how():
    message = r"found 4 x \d+\. Return mixed parameters as half\._replace\(theta=mixed\)"
    with pytest.raises(ValueError, match=message):
        list(simulate(make(), 1, rule=lambda drawn, before, half: half.theta.clone()))


def test_a_rule_must_return_a_tensor():
    with pytest.raises(TypeError, match=r"round 0 cannot be used: it must be a tensor, or Participants; found list"):
        list(simulate(make(), 1, rule=lambda drawn, before, half: drawn.W.tolist()))


def test_a_rule_may_refill_the_tensor_it_returns():
    net = make()
    shared = torch.empty(4, 4, dtype=torch.float64)

    def alternate(drawn, before, half):
        return shared.copy_(drawn.W if drawn.t % 2 else torch.eye(4))

    rounds = list(simulate(net, 4, rule=alternate))
    assert [torch.equal(done.W, torch.eye(4, dtype=torch.float64)) for done in rounds] == [True, False, True, False]
    for done in rounds:
        assert_close(done.after.theta, done.W.to(done.half.theta) @ done.half.theta, **CLOSE)


def in_place(drawn, before, half):
    """Edits the W it is given: alternately alone and all together."""
    return drawn.W.copy_(torch.eye(4) if drawn.t % 2 else torch.full((4, 4), 0.25))


def in_place_then_normalised(drawn, before, half):
    """Edits the W it is given, and returns another."""
    drawn.W[:, 2] = 0
    return drawn.W / drawn.W.sum(1, keepdim=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rule_may_edit_the_w_it_is_given(dtype):
    rounds = list(simulate(make(dtype=dtype), 4, rule=in_place))
    assert [float(done.W[0, 0]) for done in rounds] == [0.25, 1.0, 0.25, 1.0]
    for done in rounds:
        assert_close(done.after.theta, done.W.to(done.half.theta) @ done.half.theta)


@pytest.mark.parametrize("rule", [in_place, in_place_then_normalised])
def test_a_rule_cannot_change_the_w_of_the_network(rule):
    net = make()
    drawn = net.mixing(0).clone()
    last(net, 3, rule=rule)
    assert torch.equal(net.mixing(0), drawn)
    assert torch.equal(next(simulate(net, 1)).W, drawn)


def test_a_rule_that_does_not_average_may_edit_the_w_it_is_given():
    def halves(drawn, before, half):
        drawn.W.mul_(0.5)
        return half._replace(theta=(drawn.W * 2).to(half.theta) @ half.theta)

    net = make()
    rounds = list(simulate(net, 3, rule=halves))
    influence.truth(net, rounds[1:], influence.evaluate_on(net))
    assert all(torch.equal(done.W, topology.uniform(topology.ring(4))) for done in rounds)
