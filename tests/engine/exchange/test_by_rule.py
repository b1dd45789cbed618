"""Rounds that a rule mixes, not a matrix: replayed and differentiated through the rule itself."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small, window
from oracles import losses

from cascadice import influence
from cascadice.applications.forget.idea import Removal, forget
from cascadice.engine import Behaviour, Operator, Participants, simulate
from cascadice.engine.exchange.robust import trimmed_mean
from cascadice.influence.shares import scaled_rounds


def median(draw, before, half):
    """The coordinate-wise median of everybody."""
    middle = half.theta.median(0).values
    return Participants(middle.expand_as(half.theta).clone(), half.state, half.buffers)


def anchored(draw, before, half):
    """Half of what was there before: depends on more than what is sent."""
    mean = half.theta.mean(0, keepdim=True)
    return Participants(0.5 * (before.theta + mean), half.state, half.buffers)


RULES = {"trimmed mean": trimmed_mean(0.25), "median": median, "anchored": anchored}


def ruled(rule, rounds=5, start=2, **options):
    network = small(mixing=torch.full((NODES, NODES), 1 / NODES, dtype=torch.float64), **options)
    return network, list(simulate(network, rounds, rule=rule))[start:]


def retrained(network, rounds, rule, source):
    """[hop, receiver]: the same rounds again from a first one in which the source sends what it had."""
    first, operator = rounds[0], Operator(network)
    theta = first.half.theta.clone()
    theta[source] = first.before.theta[source]
    half = first.half._replace(theta=theta)
    now, found = rule(first.draw, first.before, half), []
    found.append(losses(network, first.after) - losses(network, now))
    for round_ in rounds[1:]:
        half, _, _ = operator.work(round_.draw, now)
        now = rule(round_.draw, now, half)
        found.append(losses(network, round_.after) - losses(network, now))
    return network.q * torch.stack(found)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_truth_replays_the_rule(rule):
    network, rounds = ruled(rule)
    truth = influence.truth(network, rounds, influence.evaluate_on(network)).value
    by_w = influence.truth(network, [r._replace(rule=None) for r in rounds], influence.evaluate_on(network)).value
    for source in range(NODES):
        torch.testing.assert_close(truth[1:, source], retrained(network, rounds, rule, source), **CLOSE)
    assert not torch.allclose(truth[1:], by_w[1:], rtol=1e-3, atol=0)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_first_order_is_the_derivative_of_the_replay(rule):
    """Against central differences in the size of one update."""
    network, rounds = ruled(rule, lr=0.1)
    evaluation, source, step = influence.evaluate_on(network), 1, 1e-4
    estimate = influence.first_order(network, rounds, evaluation, [source]).value[1:, 0]
    ends = []
    for alpha in (1 + step, 1 - step):
        along = scaled_rounds(Operator(network), rounds, alpha, source)
        ends.append(torch.stack([losses(network, round_.after) for round_ in along]))
    expected = network.q * (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close(estimate, expected, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("name", ["trimmed mean", "median"])
def test_reverse_gossip_is_first_order_transposed(name):
    network, rounds = ruled(RULES[name])
    evaluation = influence.evaluate_on(network)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    expected = influence.first_order(network, rounds, evaluation).total
    torch.testing.assert_close(influence.by_participant(rounds[0], adjoint), expected, **CLOSE)


def test_shares_sum_to_what_the_rule_made_of_the_round():
    network, rounds = ruled(RULES["trimmed mean"], lr=0.05)
    evaluation = influence.evaluate_on(network)
    none = scaled_rounds(Operator(network), rounds, 0.0)
    change = network.q @ (losses(network, rounds[0].half) - losses(network, none[0].half))
    for with_work, without in zip(rounds, none, strict=True):
        change = change + network.q @ (losses(network, with_work.after) - losses(network, without.after))
    shares = influence.shares(network, rounds, evaluation, points=16)
    torch.testing.assert_close(shares.sum(), change, rtol=0.02, atol=1e-8)  # the rule has kinks


def test_a_rule_that_reads_what_was_before_is_refused_by_reverse_sweeps():
    network, rounds = ruled(anchored)
    with pytest.raises(ValueError, match="depends on what participants had before it"):
        influence.reverse_gossip(network, rounds, influence.evaluate_on(network))


def test_a_rule_without_a_derivative_says_so():
    def in_place(draw, before, half):
        out = torch.empty_like(half.theta)
        torch.mm(torch.full((NODES, NODES), 1 / NODES, dtype=torch.float64), half.theta, out=out)
        return half._replace(theta=out)

    network, rounds = ruled(in_place)
    assert influence.truth(network, rounds, influence.evaluate_on(network)).value.isfinite().all()
    with pytest.raises(ValueError, match=r"cannot be differentiated.*Use truth"):
        influence.first_order(network, rounds, influence.evaluate_on(network))


def test_what_follows_w_refuses_rounds_that_w_did_not_mix():
    network, rounds = ruled(median)
    with pytest.raises(ValueError, match="mixed by a rule that does not average; forgetting follows"):
        forget(network, rounds, Removal(nodes=(1,)))
    with pytest.raises(ValueError, match="its links have no weights"):
        influence.proximity(network, rounds[0], influence.evaluate_on(network))


@pytest.mark.parametrize("part", ["before", "half"])
@pytest.mark.parametrize("averages", [True, False])
def test_a_rule_that_edits_participants_is_refused(part, averages):
    """The round would say that they had sent, or had before, what the rule made of it."""

    def editing(draw, before, half):
        {"before": before, "half": half}[part].theta[0].mul_(0.5)
        return draw.W if averages else half

    with pytest.raises(ValueError, match=r"must not edit the participants .* did in round 0\. Use operations out of"):
        list(simulate(small(), 1, rule=editing))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_derivatives_through_a_rule_where_w_is_sparse():
    """W of 512 participants or more is a CSR, which torch cannot read inside a derivative; here, W of a few is."""
    network, rounds = ruled(RULES["trimmed mean"])
    sparse = [round_._replace(draw=round_.draw._replace(W=round_.W.to_sparse_csr())) for round_ in rounds]
    evaluation = influence.evaluate_on(network)
    for estimate in (influence.truth, influence.first_order):
        found, expected = (estimate(network, given, evaluation).value for given in (sparse, rounds))
        torch.testing.assert_close(found, expected, **CLOSE)
    adjoints = [influence.reverse_gossip(network, given, evaluation) for given in (sparse, rounds)]
    found, expected = (influence.by_participant(rounds[0], adjoint) for adjoint in adjoints)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_rule_that_refills_one_buffer_does_not_change_earlier_rounds():
    W = torch.empty(NODES, NODES, dtype=torch.float64)

    def refilling(draw, before, half):
        return W.copy_(torch.eye(NODES).roll(draw.t, 0))

    network = small()
    rounds = list(simulate(network, 3, rule=refilling))
    assert [int(round_.W[0].argmax()) for round_ in rounds] == [
        int(torch.eye(NODES).roll(t, 0)[0].argmax()) for t in range(3)
    ]


def test_a_window_of_averaged_rounds_has_no_rule():
    assert all(round_.rule is None for round_ in window(small(), 2))


def handed_on(draw, before, half):
    """Mixes nothing: hands on the very tensors it was given."""
    return half


def now_and_then(draw, before, half):
    """W in odd rounds, nothing in even ones."""
    return draw.W if draw.t % 2 else half


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("rule", [handed_on, now_and_then, trimmed_mean(0.25)], ids=["none", "now and then", "trimmed"])
def test_sweeps_over_ruled_rounds_are_first_order(rule, strategy):
    """A rule that hands on what it was given must not let a sweep overwrite its own adjoint."""
    network, rounds = ruled(rule, rounds=6, start=0, strategy=strategy)
    evaluation = influence.evaluate_on(network)
    for scores in influence.full_horizon(network, reversed(rounds), evaluation):
        expected = influence.first_order(network, rounds[scores.t :], evaluation).value[-1].sum(-1)
        torch.testing.assert_close(scores.participants, expected, **CLOSE)
    for result in influence.score_rounds(network, rounds, evaluation, hops=3, samples=True):
        expected = influence.first_order(network, rounds[result.round.t :][:3], evaluation).total
        torch.testing.assert_close(result.participants["first order"], expected, **CLOSE)


def test_a_captured_sweep_is_not_of_another_exchange(monkeypatch):
    """What CUDA graphs are captured for is averaging by W: rounds of a rule go the plain way."""
    from cascadice.engine.fast import captured_rounds

    network, rounds = ruled(trimmed_mean(0.25), rounds=3, start=0)
    evaluation = influence.evaluate_on(network)
    expected = list(influence.full_horizon(network, reversed(rounds), evaluation))
    monkeypatch.setattr(captured_rounds, "should_capture", lambda network: True)
    monkeypatch.setattr(captured_rounds, "captured_call", lambda call, in_place=True: call)
    again = list(influence.full_horizon(network, reversed(rounds), evaluation))
    for one, other in zip(again, expected, strict=True):
        torch.testing.assert_close(one.participants, other.participants, **CLOSE)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_optimizer_state_stays_with_whom_it_changed(optimizer):
    network, rounds = ruled(RULES["trimmed mean"], optimizer=optimizer, lr=0.05)
    evaluation, source, step = influence.evaluate_on(network), 1, 1e-4
    estimate = influence.first_order(network, rounds, evaluation, [source]).value[1:, 0]
    ends = [
        torch.stack([losses(network, r.after) for r in scaled_rounds(Operator(network), rounds, alpha, source)])
        for alpha in (1 + step, 1 - step)
    ]
    torch.testing.assert_close(estimate, network.q * (ends[0] - ends[1]) / (2 * step), rtol=1e-4, atol=1e-9)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    forwards = influence.first_order(network, rounds, evaluation).total
    torch.testing.assert_close(influence.by_participant(rounds[0], adjoint), forwards, **CLOSE)


def test_path_integrated_goes_through_the_rule():
    network, rounds = ruled(anchored)
    evaluation = influence.evaluate_on(network)
    truth = influence.truth(network, rounds, evaluation).total
    integrated = influence.path_integrated(network, rounds, evaluation, points=8).total
    torch.testing.assert_close(integrated, truth, rtol=1e-7, atol=1e-10)


def test_a_source_that_reaches_nobody_has_an_empty_cascade():
    free = [Behaviour("free-rider", (1,))]
    network, rounds = ruled(trimmed_mean(0.25), behaviours=free)
    W = torch.eye(NODES, dtype=torch.float64)
    W[1] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    unheard = small(mixing=W)
    for net, window_ in ((network, rounds), (unheard, window(unheard, 3))):
        for estimate in (influence.truth, influence.first_order, influence.path_integrated):
            assert not estimate(net, window_, influence.evaluate_on(net), [1]).value[1:].any()


def test_rows_that_a_rule_refills_are_copied_and_checked():
    kept = {}

    def refilling(draw, before, half):
        rows = kept.setdefault("rows", Participants(torch.empty_like(half.theta), half.state, half.buffers))
        rows.theta.copy_(half.theta.median(0).values.expand_as(half.theta))
        return rows

    network, rounds = ruled(refilling, rounds=3, start=0)
    _, expected = ruled(median, rounds=3, start=0)
    for one, other in zip(rounds, expected, strict=True):
        assert torch.equal(one.after.theta, other.after.theta)
    with pytest.raises(ValueError, match="returned in round 0 must be like those sent; theta is not"):
        list(simulate(network, 1, rule=lambda draw, before, half: half._replace(theta=half.theta[:1])))
