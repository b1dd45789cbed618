"""What cannot be measured is refused in one line that says what to do; what only looks as if it could not, is right."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from influence.cases import CLOSE, NODES, data, small, smooth, window
from oracles import losses as losses_of
from torch import nn

from cascadice import losses, optimizers
from cascadice.data import Samples
from cascadice.engine import Behaviour, simulate
from cascadice.influence import (
    by_sample,
    evaluate_on,
    first_order,
    hops_from,
    measures,
    path_integrated,
    path_integrated_samples,
    reverse_gossip,
    samples_by_receiver,
    shares,
    shares_of_samples,
    truth,
    truth_of_samples,
)


def of_one(way):
    """A way that wants a source, with one."""

    def named(network, rounds, judged, source=0):
        return way(network, rounds, judged, source)

    return named


WAYS = {
    "truth": truth,
    "truth of samples": of_one(truth_of_samples),
    "first order": first_order,
    "path-integrated": path_integrated,
    "path-integrated samples": of_one(path_integrated_samples),
    "shares": shares,
    "shares of samples": shares_of_samples,
    "reverse gossip": reverse_gossip,
    "samples by receiver": samples_by_receiver,
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def refused(reason, way, network, rounds, **options):
    with pytest.raises(ValueError, match=reason) as caught:
        way(network, rounds, evaluate_on(network), **options)
    assert "\n" not in str(caught.value)


# --- rounds that are not there ---


def test_the_rounds_of_some_hops():
    network = small()
    run = list(simulate(network, 6))
    assert [done.t for done in hops_from(run, 2, 3)] == [2, 3, 4]
    assert [done.t for done in hops_from(iter(run), 5, 1)] == [5]
    endless = simulate(network)
    assert [done.t for done in hops_from(endless, 1, 2)] == [1, 2]


@pytest.mark.parametrize(("t", "hops", "found"), [(3, 3, "3, 4"), (4, 9, "4"), (7, 2, "none of them")])
def test_hops_beyond_the_recording(t, hops, found):
    run = list(simulate(small(), 5))
    with pytest.raises(ValueError, match=rf"{hops} hops from round {t} need .*; found {found}\. Ask for fewer hops"):
        hops_from(run, t, hops)


def test_hops_over_a_hole_in_the_recording():
    first, _, third = simulate(small(), 3)
    with pytest.raises(ValueError, match=r"3 hops from round 0 need rounds 0 to 2; found 0, 2\. "):
        hops_from([first, third], 0, 3)


def test_there_is_at_least_one_hop():
    with pytest.raises(ValueError, match="at least 1 hop; found 0"):
        hops_from([], 0, 0)


@pytest.mark.parametrize("source", [-1, NODES])
@pytest.mark.parametrize("way", [truth_of_samples, path_integrated_samples])
def test_a_source_must_be_a_participant(way, source):
    network = small()
    refused(f"sources must be from 0 to 3; found {source}", way, network, window(network, 1), source=source)


# --- rounds of another network ---

OTHERS = {
    "size": (
        lambda: small(smooth(width=5)),
        r"4 participants of 43 parameters.*; found 4 participants of 53 parameters",
    ),
    "participants": (
        lambda: small(mixing=torch.eye(5, dtype=torch.float64)),
        r"4 participants of.*; found 5 participants",
    ),
    "optimizer": (lambda: small(optimizer="momentum"), r"float64 on cpu; found .* with state momentum\."),
    "precision": (lambda: small(dtype="float32"), r"float64 on cpu; found .*float32 on cpu"),
}


@pytest.mark.parametrize(("make", "reason"), OTHERS.values(), ids=OTHERS)
def test_a_recording_of_another_network(make, reason):
    refused(
        rf"round 2 must belong to this network, .*{reason}.*Build the network that was",
        truth,
        small(),
        window(make(), 1),
    )


LOOKALIKES = {
    "model": lambda: small(smooth(activation=nn.GELU)),
    "data": lambda: small(data=data(samples=60)),
    "loss": lambda: small(loss=losses.mse),
    "rule": lambda: small(optimizer=optimizers.sgd(weight_decay=1.0)),
}


@pytest.mark.parametrize("make", LOOKALIKES.values(), ids=LOOKALIKES)
def test_a_recording_of_a_network_that_only_looks_the_same(make):
    refused(
        r"(participant 0 in round 2 gives different|2 drew sample \d+; .* has 48).*network that was recorded",
        truth,
        small(),
        window(make(), 1),
    )


@EVERY_WAY
def test_no_way_takes_the_rounds_of_another_network(way):
    refused("found 4 participants of 53 parameters", way, small(), window(OTHERS["size"][0](), 1))
    refused("gives different parameters", way, small(), window(LOOKALIKES["model"](), 1))


def test_samples_of_a_round_of_another_network():
    network = small()
    rounds, x = window(network, 1), network.data.train.x
    adjoint = reverse_gossip(network, rounds, evaluate_on(network))
    scaled = replace(network.data, train=replace(network.data.train, x=1.04 * x))
    with pytest.raises(ValueError, match="gives different parameters"):
        by_sample(replace(network, data=scaled), rounds[0], adjoint)


@pytest.mark.parametrize("way", [truth, first_order, path_integrated])
def test_the_sources_that_were_asked_for_are_replayed(way):
    network = small(mixing=torch.eye(9, dtype=torch.float64))
    (first,) = window(network, 1)
    for source in range(9):
        theta = first.half.theta.clone()
        theta[source] += 0.01
        wrong = [first._replace(half=first.half._replace(theta=theta))]
        refused(
            f"participant {source} in round 2 gives different", way, network, wrong, sources=[(source + 1) % 9, source]
        )


def test_sources_that_sat_the_round_out_are_not_all_that_is_replayed():
    network = small(behaviours=[Behaviour("absent", (0,))])
    refused("of participant 1 in round 2", truth, replace(network, data=data(60)), window(network, 1), sources=[0])


def test_a_recording_with_another_seed_of_dropout():
    network = small(smooth(nn.Dropout(0.5)), strategy="loop")
    other = replace(network, seed=network.seed + 1)
    refused(r"gives different parameters.*loss, optimizer and seed\.", truth, other, window(network, 1))


class Restless(nn.Module):
    """Draws from a generator of its own, which nobody can seed again."""

    def __init__(self):
        super().__init__()
        self.draw = np.random.default_rng(0)

    def forward(self, x):
        return x * self.draw.uniform(0, 2) if self.training else x


@pytest.mark.parametrize("way", [truth, of_one(truth_of_samples), first_order])
def test_a_model_that_draws_out_of_our_sight(way):
    network = small(smooth(Restless()), strategy="loop")
    refused("The model uses random numbers that are not from torch's generator", way, network, window(network, 1))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rounding_is_no_reason_to_refuse(optimizer):
    """Recorded by a loop and replayed in a sweep, in single precision."""
    network = small(optimizer=optimizer, dtype="float32", strategy="loop", lr=0.05)
    rounds = window(network, 2, start=10)
    assert truth(replace(network, strategy="vmap"), rounds, evaluate_on(network)).total.isfinite().all()


@pytest.mark.parametrize("kind", ["free-rider", "noise-sender", "absent"])
def test_who_did_nothing_is_not_asked_to_do_it_again(kind):
    network = small(behaviours=[Behaviour(kind, (0, 1))])
    rounds = window(network, 1)
    truth(network, rounds, evaluate_on(network))
    refused("of participant 2 in round 2 gives", truth, replace(network, data=data(60)), rounds)


def test_nobody_did_anything():
    network = small(behaviours=[Behaviour("free-rider", tuple(range(NODES)))])
    assert not truth(network, window(network, 2), evaluate_on(network)).value.any()


@EVERY_WAY
def test_rounds_that_are_not_numbers(way):
    network = small()
    first, second = window(network, 2)
    reason = "those of participant 3 are not, in round 3.*lower learning rate"
    for place in ("before", "half", "after"):
        refused(reason, way, network, [first, broken(second, place)])


def broken(done, place):
    theta = getattr(done, place).theta.clone()
    theta[3, 7] = float("nan")
    return done._replace(**{place: getattr(done, place)._replace(theta=theta)})


# --- what is measured ---

NOT_TENSORS = {"float": (lambda o, t: o.mean().item(), "float"), "None": (lambda o, t: None, "NoneType")}


@pytest.mark.parametrize(("measure", "kind"), NOT_TENSORS.values(), ids=NOT_TENSORS)
def test_a_measure_must_give_a_tensor(measure, kind):
    with pytest.raises(TypeError, match=rf"must return a tensor; found {kind}\. Remove \.item\(\)"):
        evaluate_on(small(), measure=measure)


def test_a_measure_takes_outputs_and_targets():
    network = small()
    with pytest.raises(
        TypeError, match=r"a function of \(outputs, targets\); found one of \(outputs\)\. Let it take both"
    ):
        evaluate_on(network, measure=lambda outputs: outputs.sum())
    evaluate_on(network, measure=torch.nn.CrossEntropyLoss())
    x = network.data.test.x
    evaluate_on(small(strategy="loop"), Samples(x, torch.zeros(len(x), 3).double()), torch.dist)  # has no signature


def test_a_measure_must_give_a_number():
    with pytest.raises(
        ValueError, match=r"must return a finite number; at the initial parameters it is nan.*no evaluation sample has"
    ):
        evaluate_on(small(), measure=measures.on_class(99))


def test_a_measure_must_give_a_number_on_every_set():
    network = small()
    targets = network.data.train.y
    sets = [network.data.train.subset((targets == min(k, 2)).nonzero()[:5, 0]) for k in range(NODES)]
    with pytest.raises(ValueError, match="must return a finite number"):
        evaluate_on(network, sets, measures.on_class(0))


DERIVATIVES = {name: WAYS[name] for name in WAYS if "truth" not in name} | {"reverse gossip": reverse_gossip}


@pytest.mark.parametrize("way", DERIVATIVES.values(), ids=DERIVATIVES)
def test_accuracy_has_no_derivative(way):
    network = small()
    rounds = window(network, 1)
    for strategy in ("loop", "vmap"):
        judged = evaluate_on(network := replace(network, strategy=strategy), measure=losses.accuracy)
        with pytest.raises(ValueError, match=r"has no derivative .*accuracy has none.*Use the ground truth"):
            way(network, rounds, judged)


def test_accuracy_has_a_truth():
    network = small(lr=3.0)
    rounds = window(network, 2)
    found = truth(network, rounds, evaluate_on(network, measure=losses.accuracy), [1]).value
    before, half = (
        losses_of(network, people, measure=losses.accuracy)[1] for people in (rounds[0].before, rounds[0].half)
    )
    torch.testing.assert_close(found[0, 0, 1], network.q[1] * (half - before), **CLOSE)
    assert found.abs().max() > 0


# --- dropout, one hop: no derivative of a training step is taken ---


def test_one_hop_of_dropout_needs_no_derivative_of_a_step():
    network = small(smooth(nn.Dropout(0.5)), strategy="loop", lr=0.1)
    rounds, judged = window(network, 1), evaluate_on(network)
    true = truth(network, rounds, judged).value
    torch.testing.assert_close(path_integrated(network, rounds, judged, points=5).value, true, **CLOSE)
    error = (first_order(network, rounds, judged).value - true).abs().max()
    assert 0 < error < 0.1 * true.abs().max()
