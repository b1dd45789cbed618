"""Runs: going on from a round, reusing memory, precisions, divergence, and one run pinned for good."""

import pytest
import torch
from engine.cases import data, equal, last, make, perceptron
from torch import nn
from torch.nn import functional as F

from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, mix
from cascadice.engine.networks import draw
from cascadice.engine.rounds import consensus
from cascadice.engine.simulation import DivergedError, simulate


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_going_on_is_bit_identical(optimizer, strategy):
    net = make(optimizer=optimizer, strategy=strategy, mixing="epidemic", nodes=6, local_steps=2)
    whole = list(simulate(net, 7))
    rest = list(simulate(net, 7, start=4, participants=whole[3].after))
    assert [done.t for done in rest] == [4, 5, 6]
    for done, expected in zip(rest, whole[4:], strict=True):
        assert equal(done.before, expected.before)
        assert equal(done.half, expected.half)
        assert equal(done.after, expected.after)


def test_going_on_with_dropout_and_batch_statistics():
    net = make(perceptron(nn.BatchNorm1d(6), nn.Dropout(0.5)), optimizer="momentum")
    whole = list(simulate(net, 5))
    assert equal(last(net, 5, start=2, participants=whole[1].after).after, whole[4].after)


def test_any_round_can_be_drawn_in_any_order():
    options = {"mixing": "epidemic", "nodes": 6, "batch_size": 3}
    in_order = [draw(make(**options), t) for t in range(12)]
    net = make(**options)
    for t in (11, 0, 7, 7, 3, 10, 1):
        drawn = draw(net, t)
        assert drawn.t == t
        assert torch.equal(drawn.batch, in_order[t].batch)
        assert torch.equal(drawn.W, in_order[t].W)


def test_a_run_without_end_yields_on_demand():
    endless = simulate(make())
    assert [next(endless).t for _ in range(3)] == [0, 1, 2]


def test_no_rounds():
    assert list(simulate(make(), 0)) == []
    assert list(simulate(make(), 3, start=3)) == []
    with pytest.raises(ValueError, match=r"rounds must be at least 0, or None to train forever; found -1\."):
        list(simulate(make(), -1))


def test_rounds_are_kept_safe():
    rounds = []
    for done in simulate(make(), 5):
        rounds.append((done, done.after.theta.clone(), done.half.theta.clone()))
    assert all(
        torch.equal(done.after.theta, after) and torch.equal(done.half.theta, half) for done, after, half in rounds
    )


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_window_reuses_memory_and_keeps_that_many_rounds(window, strategy):
    net = make(perceptron(nn.BatchNorm1d(6)) if strategy == "loop" else "mlp", optimizer="adam", strategy=strategy)
    safe, seen, addresses = list(simulate(net, 12)), [], []
    for done in simulate(net, 12, window=window):
        addresses.append((done.half.theta.data_ptr(), done.after.theta.data_ptr(), done.loss.data_ptr()))
        seen.append(done)
        for kept in seen[-1 - window :]:
            expected = safe[kept.t]
            assert equal(kept[1:6], expected[1:6])
    assert len(set(addresses)) == window + 2
    assert addresses[0] == addresses[window + 2]


def test_a_window_leaves_the_network_as_it_was():
    net = make()
    before = net.initial.theta.clone()
    last(net, 5, window=1)
    assert torch.equal(net.initial.theta, before)


def test_a_round_says_what_happened():
    done = last(make(), 2)
    assert torch.equal(done.update, done.half.theta - done.before.theta)
    assert torch.equal(done.W, done.draw.W)
    assert done.t == 1
    assert torch.equal(mix(done.W, done.half).theta, done.after.theta)


def test_consensus_is_the_root_mean_square_distance_to_the_mean():
    theta = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = sum(theta) / 5
    expected = (sum(float(((row - mean) ** 2).sum()) for row in theta) / 5) ** 0.5
    assert float(consensus(theta)) == pytest.approx(expected, rel=1e-12)


def test_divergence_names_participant_and_round_and_keeps_what_was_yielded():
    net = make(lr=lambda t: 1e200 if t == 2 else 0.1)
    rounds = []
    with pytest.raises(DivergedError, match=r"participant \d became NaN or infinite in round 3\. Lower") as caught:
        rounds.extend(simulate(net, 10))
    assert [done.t for done in rounds] == [0, 1, 2]
    assert caught.value.t == 3
    assert 0 <= caught.value.node < 4


def test_divergence_of_one_participant_is_named():
    net = make(mixing="alone", nodes=4)
    theta = net.initial.theta.clone()
    theta[2] = torch.nan
    with pytest.raises(DivergedError, match="participant 2 became NaN or infinite in round 0"):
        last(make(mixing="alone", nodes=4, init=theta))


@pytest.mark.parametrize(
    "blame",
    [
        {"behaviours": [Behaviour("noise-sender", (2,), range(2, 3), 1e300)]},
        {"behaviours": [Behaviour("sign-flipper", (2,), range(2, 3), 1e160)]},
        {"corruptions": [Corruption("noise", (2,), range(2, 3), 1e300)]},
        {"lr": lambda t: torch.tensor([0.1, 0.1, 1e160 if t == 2 else 0.1, 0.1, 0.1]).double()},
    ],
    ids=["noise-sender", "sign-flipper", "noisy data", "learning rate"],
)
def test_divergence_names_who_sent_what_the_others_diverged_by(blame):
    with pytest.raises(
        DivergedError, match=r"participant 2 sent parameters of norm .* in round 2 .* round \d"
    ) as caught:
        last(make(mixing="ring", nodes=5, **blame), 12, window=0)
    assert caught.value.node == 2
    assert ("or the strength of its misbehaviour." in str(caught.value)) == ("lr" not in blame)
    assert "in that network, participant 1 sent" in str(caught.value.within("in that network, ", 1))


def test_small_noise_is_not_blamed_for_a_learning_rate_that_is_too_large():
    noise = [Behaviour("noise-sender", (2,), None, 1e-4)]
    with pytest.raises(DivergedError, match=r"loss of participant \d became NaN"):
        last(make(behaviours=noise, lr=1e200), 12)


@pytest.mark.parametrize("sizes", [3, [3, 2, 3, 2]])
def test_a_batch_without_a_loss_is_not_called_divergence(sizes):
    def ignoring(outputs, y):
        return F.cross_entropy(outputs, y, ignore_index=2)

    usual, ignored = make(batch_size=sizes), (data().train.y == 2).nonzero().flatten()

    def batches(t):
        batch = draw(usual, t).batch.clone()
        if t == 3:
            batch[1, 0, : (batch[1, 0] >= 0).sum()] = ignored[0]
        return batch

    with pytest.raises(DivergedError, match=r"participant 1 .* round 3\. The initial model .* ignored") as caught:
        last(make(batches=batches, loss=ignoring), 5)
    assert (caught.value.t, caught.value.node) == (3, 1)


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_precisions(name):
    exact, single, half = (last(make(name, dtype=dtype), 5) for dtype in ("float64", "float32", "bfloat16"))
    assert [run.after.theta.dtype for run in (exact, single, half)] == [torch.float64, torch.float32, torch.float32]
    torch.testing.assert_close(single.loss.double(), exact.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(half.loss, single.loss, rtol=0.03, atol=0.01)
    assert not torch.equal(half.loss, single.loss)


def test_batch_statistics_are_kept_in_bfloat16():
    """The forward pass works on rounded copies; what it writes into them must not be lost."""
    single, half = (last(make(perceptron(nn.BatchNorm1d(6)), dtype=dtype), 1) for dtype in ("float32", "bfloat16"))
    mean = half.after.buffers["2.running_mean"]
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean, single.after.buffers["2.running_mean"], rtol=0.05, atol=0.02)


# loss of each participant, rounds 0 to 2: a change here is a change of what a seed means
GOLDEN = [
    [1.25214581707, 1.505274496583, 1.598609973682, 1.455264828822],
    [1.403524773591, 1.340912383281, 1.384002159029, 1.36464535887],
    [1.351317646903, 1.371038993114, 1.347622147697, 1.327722104993],
]


def test_a_seeded_run_pinned():
    net = make(seed=2025, optimizer="momentum", local_steps=2, mixing="matching", nodes=4, init="own")
    losses = torch.stack([done.loss for done in simulate(net, 3)])
    torch.testing.assert_close(losses, torch.tensor(GOLDEN, dtype=torch.float64), rtol=0, atol=1e-9)


def test_a_rate_that_no_parameter_can_hold_is_named():
    with pytest.raises(ValueError, match=r"lr must be at most 3\.4e\+38, the largest torch\.float32; .* has 1e\+39"):
        make(lr=1e39, dtype="float32")


NEGATIVE = {
    "number": (lambda t: 0.2 - 0.1 * t, r"lr must be at least 0; round 3 has -0\.1\. To ascend, negate the loss"),
    "one each": (
        lambda t: torch.tensor([0.1, 0.2 - 0.1 * t, 0.1, 0.1], dtype=torch.float64),
        r"lr must be at least 0; participant 1 has -0\.1 in round 3\.",
    ),
}


@pytest.mark.parametrize(("lr", "message"), NEGATIVE.values(), ids=NEGATIVE)
def test_a_rate_that_becomes_negative_is_refused_in_its_round(lr, message):
    net = make(lr=lr)
    last(net, 3)
    with pytest.raises(ValueError, match=message):
        last(net, 4)
