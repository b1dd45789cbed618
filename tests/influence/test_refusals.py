"""Mistakes that gave wrong numbers or raw errors once: each is refused, or works, now."""

import numpy as np
import pytest
import torch
from influence.cases import CLOSE, NODES, changing, directed, small, smooth, window
from oracles import losses
from torch import nn

from cascadice import influence, models, network
from cascadice.data import from_tensors
from cascadice.engine import Operator, evaluate, simulate
from cascadice.influence.reverse_gossip import RoundAdjoint
from cascadice.influence.shares import scaled_rounds
from cascadice.optimizers import Optimizer


@pytest.mark.parametrize(
    "form", [torch.Tensor.numpy, lambda W: W, lambda W: W.to_sparse_csr()], ids=["array", "dense", "sparse"]
)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_schedule_that_refills_one_buffer_is_read_each_round(form):
    """It once trained for ever by its first W."""
    buffer = torch.empty(NODES, NODES, dtype=torch.float64)
    shown = form(buffer) if form is torch.Tensor.numpy else None

    def refilling(t):
        buffer.copy_(directed(t % 3))
        return shown if shown is not None else form(buffer)

    expected = list(simulate(small(mixing=lambda t: directed(t % 3)), 4))
    rounds = list(simulate(small(mixing=refilling), 4))
    for one, other in zip(rounds, expected, strict=True):
        assert torch.equal(one.W.to_dense(), other.W.to_dense())
        torch.testing.assert_close(one.after.theta, other.after.theta, **CLOSE)


def drawn_batches(t):
    return torch.randint(48, (NODES, 1, 4), generator=torch.Generator().manual_seed(t))


def drawn_rates(t):
    return torch.full((NODES,), 0.3 / (t + 1), dtype=torch.float64)


def refilled(function):
    """The same function, which returns one buffer each time."""
    buffer = function(0).clone()
    return lambda t: buffer.copy_(function(t))


def refilled_array(function):
    """The same as an array, which shares its memory with a tensor made of it."""
    buffer = refilled(function)
    return lambda t: buffer(t).numpy()


@pytest.mark.parametrize(
    ("name", "function", "form"),
    [("batches", drawn_batches, refilled), ("lr", drawn_rates, refilled), ("lr", drawn_rates, refilled_array)],
)
def test_rounds_of_a_function_that_refills_one_buffer_keep_what_they_drew(name, function, form):
    plain, net = small(**{name: function}), small(**{name: form(function)})
    expected, rounds = list(simulate(plain, 4)), list(simulate(net, 4))
    for one, other in zip(rounds, expected, strict=True):
        assert torch.equal(one.draw.batch, other.draw.batch)
        assert torch.equal(torch.as_tensor(one.draw.lr), torch.as_tensor(other.draw.lr))
    judged = influence.evaluate_on(net)
    found, right = (influence.whole_run(net, kept, judged) for kept in (rounds, expected))
    torch.testing.assert_close(found.samples, right.samples, **CLOSE)
    assert torch.equal(found.drawn, right.drawn)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("factor", [1.04, 1.002])
def test_inputs_that_are_slightly_off_are_noticed(dtype, factor):
    """10 % of an update were once allowed."""
    train, test = (getattr(small().data, name) for name in ("train", "test"))
    scaled = from_tensors(train.x * factor, train.y, test.x, test.y, classes=3)
    if dtype == "float32" and factor < 1.01:
        pytest.skip("rounding of single precision may be as large")
    honest, other = small(dtype=dtype), small(dtype=dtype, data=scaled)
    with pytest.raises(ValueError, match="gives different parameters"):
        influence.truth(other, window(honest, 1), influence.evaluate_on(other))
    for strategy in ("loop", "vmap"):
        again = small(dtype=dtype, strategy=strategy)
        assert influence.truth(again, window(honest, 1), influence.evaluate_on(again)).value.isfinite().all()


def test_shares_hold_running_statistics_as_they_were():
    net = small(smooth(nn.BatchNorm1d(4)), strategy="loop", lr=0.1)
    rounds = window(net, 3)
    again = scaled_rounds(Operator(net), rounds, 1.0)
    for one, other in zip(again, rounds, strict=True):
        for name, value in other.after.buffers.items():
            torch.testing.assert_close(one.after.buffers[name], value)
        torch.testing.assert_close(one.after.theta, other.after.theta, **CLOSE)
    half = scaled_rounds(Operator(net), rounds, 0.5)
    for one, other in zip(half, rounds, strict=True):
        for name, value in other.half.buffers.items():
            assert torch.equal(one.half.buffers[name], value)
    evaluation = influence.evaluate_on(net)
    held = scaled_rounds(Operator(net), rounds, 0.0)
    change = net.q @ (losses(net, rounds[0].half) - losses(net, held[0].half))
    change = change + sum(
        net.q @ (losses(net, a.after) - losses(net, b.after)) for a, b in zip(rounds, held, strict=True)
    )
    shares = influence.shares(net, rounds, evaluation, points=16)
    torch.testing.assert_close(shares.sum(), change, rtol=1e-9, atol=1e-12)


def test_an_adjoint_of_another_round_is_refused():
    net = small()
    rounds = list(simulate(net, 4))
    adjoint = influence.reverse_gossip(net, rounds[1:3], influence.evaluate_on(net))
    message = r"the adjoint is of round 1, the updates are of round 2"
    with pytest.raises(ValueError, match=message):
        influence.by_participant(rounds[2], adjoint)
    with pytest.raises(ValueError, match=message):
        influence.by_sample(net, rounds[2], adjoint)


def lion(beta=0.9):
    """Sign-based: its step does not respond to a small change of the gradient."""

    def update(gradient, state, theta, lr):
        moment = torch.lerp(gradient, state["m"], beta)
        return -moment.sign() * lr[..., None], {"m": moment}

    return Optimizer(lambda theta: {"m": torch.zeros_like(theta)}, update)


def test_a_sign_based_optimizer_has_truth_and_no_derivatives():
    net = small(optimizer=lion(), lr=0.01)
    rounds, evaluation = window(net, 2), influence.evaluate_on(net)
    assert influence.truth(net, rounds, evaluation).value.any()
    adjoint = RoundAdjoint(rounds[0].t, torch.ones_like(rounds[0].half.theta), rounds[0].half.state)
    for estimate in (
        lambda: influence.first_order(net, rounds, evaluation),
        lambda: influence.reverse_gossip(net, rounds, evaluation),
        lambda: influence.by_sample(net, rounds[0], adjoint),
        lambda: list(influence.full_horizon(net, reversed(rounds), evaluation)),
    ):
        with pytest.raises(ValueError, match="truth"):
            estimate()


def test_a_generator_of_rounds_is_named_where_a_list_is_needed(unchecked):
    net = small()
    for estimate in (influence.truth, influence.first_order, influence.reverse_gossip, influence.shares):
        with pytest.raises(TypeError, match=r"must be a list of rounds; found generator\. Use list\(simulate"):
            estimate(net, simulate(net, 2), influence.evaluate_on(net))


def test_one_round_is_not_a_list_of_rounds(unchecked):
    net = small()
    (round_,) = window(net, 1)
    for estimate in (influence.truth, influence.first_order, influence.reverse_gossip, influence.shares):
        with pytest.raises(TypeError, match=r"must be a list of rounds; found one Round\. Use \[round\]"):
            estimate(net, round_, influence.evaluate_on(net))


@pytest.mark.parametrize("lr", [torch.tensor(0.3), np.float64(0.3)])
def test_a_rate_may_be_a_scalar_of_any_kind(lr):
    one, other = next(simulate(small(lr=lr), 1)), next(simulate(small(lr=0.3), 1))
    torch.testing.assert_close(one.after.theta, other.after.theta)


def test_a_measure_that_cannot_be_vectorised_says_what_to_do():
    def by_item(outputs, targets):
        return outputs.sum() if outputs.sum().item() > 0 else -outputs.sum()

    with pytest.raises(ValueError, match=r"the measure cannot run for all participants at once.*strategy='loop'"):
        influence.evaluate_on(small(strategy="vmap"), measure=by_item)
    looped = small(strategy="loop")
    rounds = window(looped, 1)
    assert influence.truth(looped, rounds, influence.evaluate_on(looped, measure=by_item)).value.isfinite().all()


def test_many_convolutional_participants_are_evaluated_in_parts(monkeypatch):
    """768 participants of 512 samples each died in avg_pool: their product is too large for one sweep."""
    from cascadice.engine.fast import evaluation_passes

    draw = torch.Generator().manual_seed(0)
    images = from_tensors(
        torch.randn(40, 1, 8, 8, generator=draw), torch.arange(40) % 4, torch.randn(12, 1, 8, 8, generator=draw),
        torch.arange(12) % 4, classes=4,
    )  # fmt: skip
    net = network(
        models.build("cnn", (1, 8, 8), 4, channels=(2, 3, 4)),
        images,
        nodes=10,
        mixing="ring",
        batch_size=4,
        strategy="vmap",
        init="own",
    )
    whole = evaluate(net, net.initial)
    calls = []
    plain = evaluation_passes.over_rows
    monkeypatch.setattr(
        evaluation_passes,
        "over_rows",
        lambda *a, **k: lambda rows: calls.append(len(rows.theta)) or plain(*a, **k)(rows),
    )
    monkeypatch.setattr(evaluation_passes, "MOST_AT_ONCE", 12 * 3)
    parts = evaluate(net, net.initial)
    assert calls == [3, 3, 3, 1]
    torch.testing.assert_close(parts.loss, whole.loss)
    assert torch.equal(parts.accuracy, whole.accuracy)


def test_a_changing_w_is_still_checked():
    with pytest.raises(ValueError, match=r"in round 2, W must have rows summing to 1"):
        list(simulate(small(mixing=lambda t: changing()(t) * (1.0 if t < 2 else 0.9)), 3))


def test_remembered_gradients_are_those_of_the_evaluation_asked_for():
    net = small()
    rounds, operator = window(net, 2), Operator(net)
    for measure in (None, influence.measures.negative_margin, None):
        evaluation = influence.evaluate_on(net, measure=measure)
        expected = influence.reverse_gossip(net, rounds, evaluation).theta
        torch.testing.assert_close(
            influence.reverse_gossip(net, rounds, evaluation, operator=operator).theta, expected, **CLOSE
        )


def test_windows_do_not_share_gradients_where_buffers_differ():
    net = small(smooth(nn.BatchNorm1d(4)), strategy="loop")
    rounds, operator, evaluation = list(simulate(net, 5)), Operator(net), influence.evaluate_on(net)
    for t in range(3):
        expected = influence.reverse_gossip(net, rounds[t : t + 3], evaluation).theta
        shared = influence.reverse_gossip(net, rounds[t : t + 3], evaluation, operator=operator).theta
        torch.testing.assert_close(shared, expected, **CLOSE)


MISTAKEN = {
    "a round": (
        lambda net, rounds: list(influence.score_rounds(net, rounds[0], influence.evaluate_on(net))),
        "one Round",
    ),
    "a round to sweep from": (
        lambda net, rounds: list(influence.full_horizon(net, rounds[0], influence.evaluate_on(net))),
        r"must come in a list or from a generator; found one Round\. Use \[round\]",
    ),
    "a round to take hops from": (lambda net, rounds: influence.hops_from(rounds[0], 2, 1), "found one Round"),
    "rounds to look at": (
        lambda net, rounds: influence.proximity(net, rounds, influence.evaluate_on(net)),
        r"a Round is needed; found list\. Give one of the rounds, e\.g\. rounds\[0\]",
    ),
    "numbers of rounds": (
        lambda net, rounds: influence.truth(net, [0], influence.evaluate_on(net)),
        "a Round is needed; found int",
    ),
    "a measure": (lambda net, rounds: influence.evaluate_on(net, measure="accuracy"), "must be a function of"),
    "a module": (
        lambda net, rounds: influence.truth(net.learner.training, rounds, influence.evaluate_on(net)),
        r"network must be a Network; found Sequential\. Build it with cascadice\.network",
    ),
    "no evaluation": (
        lambda net, rounds: influence.reverse_gossip(net, rounds, None),
        r"evaluation must be an Evaluation; found NoneType\. Use influence\.evaluate_on",
    ),
    "samples": (
        lambda net, rounds: influence.truth(net, rounds, net.data.test),
        "evaluation must be an Evaluation; found Samples",
    ),
    "points": (
        lambda net, rounds: influence.shares(net, rounds, influence.evaluate_on(net), points="3"),
        "points must be a whole number, from 1 to 100; found '3'",
    ),
    "a data set": (lambda net, rounds: influence.evaluate_on(net.data), "network must be a Network; found DataSet"),
    "a rule": (lambda net, rounds: list(simulate(net, 1, rule="trimmed-mean")), "rule must be a function"),
    "a compression": (lambda net, rounds: small(compression=8), "a name in COMPRESSIONS or a Compression; found 8"),
}


@pytest.mark.parametrize(("call", "message"), MISTAKEN.values(), ids=MISTAKEN)
def test_mistaken_types_are_named(call, message, unchecked):
    net = small()
    with pytest.raises(TypeError, match=message):
        call(net, window(net, 1))
