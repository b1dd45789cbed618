"""The same numbers live, with little memory, and afterwards from a recording."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small

from cascadice import influence
from cascadice.engine import operator, simulate
from cascadice.runs import store

HOPS, ROUNDS = 2, 6
ALL_KINDS = tuple(influence.estimators.ESTIMATORS)


def all_of(network, rounds, **options):
    found = influence.score_rounds(network, rounds, influence.evaluate_on(network), hops=HOPS, **options)
    return influence.tables.concatenate([influence.estimators.table(one) for one in found])


def assert_same(one, other):
    for name, column in one.columns.items():
        if name != "value":
            assert (column == other.columns[name]).all(), name
    torch.testing.assert_close(torch.as_tensor(one.value), torch.as_tensor(other.value), equal_nan=True, **CLOSE)


@pytest.mark.parametrize("samples", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_live_in_a_window_and_from_a_recording(tmp_path, samples):
    network = small()
    expected = all_of(network, list(simulate(network, ROUNDS)), kinds=ALL_KINDS, samples=samples)
    live = all_of(network, simulate(network, ROUNDS, window=HOPS, taped=samples), kinds=ALL_KINDS, samples=samples)
    assert_same(live, expected)
    for done in simulate(network, ROUNDS):
        store.save_round(tmp_path, done)
    assert_same(all_of(network, store.load_rounds(tmp_path), kinds=ALL_KINDS, samples=samples), expected)
    assert set(expected.columns["round"]) == set(range(ROUNDS - HOPS + 1))


def test_what_is_watched_is_what_is_computed_by_hand():
    network, yardstick = small(), None
    yardstick = influence.evaluate_on(network)
    rounds = list(simulate(network, ROUNDS))
    found = list(influence.score_rounds(network, rounds, yardstick, hops=HOPS, kinds=ALL_KINDS, samples=True, every=2))
    assert [one.round.t for one in found] == [0, 2, 4]
    here = rounds[2:4]
    worth = influence.reverse_gossip(network, here, yardstick)
    torch.testing.assert_close(found[1].samples["first order"], influence.by_sample(network, here[0], worth), **CLOSE)
    torch.testing.assert_close(found[1].cascades[0].value, influence.truth(network, here, yardstick).value, **CLOSE)
    torch.testing.assert_close(
        found[1].samples["truth"][1], influence.truth_of_samples(network, here, yardstick, 1).total, **CLOSE
    )
    torch.testing.assert_close(
        found[1].participants["shares, 2 points"], influence.shares(network, here, yardstick), **CLOSE
    )


def test_truths_of_samples_stand_where_the_samples_were_drawn():
    network = small(batch_size=[4, 2, 4, 4], local_steps=[1, 2, 3, 1])
    rounds, yardstick = list(simulate(network, 1)), influence.evaluate_on(network)
    (found,) = influence.score_rounds(network, rounds, yardstick, kinds=["truth"], samples=True)
    drawn = rounds[0].draw.batch.flatten(1) >= 0
    assert torch.equal(~found.samples["truth"].isnan(), drawn)
    alone = influence.truth_of_samples(network, rounds, yardstick, 1).total
    torch.testing.assert_close(found.samples["truth"][1, drawn[1]], alone, **CLOSE)


def test_each_evaluation_gradient_is_found_once(monkeypatch):
    network = small()
    yardstick, asked = influence.evaluate_on(network), []
    compute = operator.row_gradients
    monkeypatch.setattr(operator, "row_gradients", lambda *a: asked.append(a) or compute(*a))
    rounds = simulate(network, ROUNDS, window=3, taped=True)
    list(influence.score_rounds(network, rounds, yardstick, hops=3, samples=True))
    assert len(asked) == ROUNDS + 1


def test_some_sources_only():
    network = small()
    found = all_of(network, simulate(network, 3), kinds=["truth", "first-order", "path-integrated"], sources=[2])
    assert set(found.columns["source"]) == {2}
    scored = influence.score_rounds(
        network, simulate(network, 3), influence.evaluate_on(network), kinds=["truth"], samples=True, sources=[2]
    )
    for one in scored:
        assert one.samples["truth"].isnan().any(1).tolist() == [k != 2 for k in range(NODES)]


BAD = {
    "hops below 0": ({"hops": -1}, r"hops must be at least 0 and every at least 1; found -1 and 1"),
    "samples at home": ({"hops": 0, "samples": True}, r"samples and shares need at least 1 hop; found 0"),
    "too many hops": ({"hops": 4}, r"4 hops need at least 4 rounds; found 3\. Record more"),
    "no such kind": ({"kinds": ["thruth"]}, r"unknown kind 'thruth'. Did you mean 'truth'"),
    "no such source": ({"sources": [9]}, r"sources must be from 0 to 3; found 9"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_input(options, message):
    network = small()
    with pytest.raises(ValueError, match=message):
        list(influence.score_rounds(network, simulate(network, 3), influence.evaluate_on(network), **options))


def test_first_order_of_samples_of_some_sources():
    network = small()
    ways = {"kinds": ["first-order", "shares", "truth"], "samples": True, "sources": [1, 3]}
    found = all_of(network, simulate(network, 3), **ways)
    assert set(found.columns["source"]) == {1, 3}


def test_nothing_to_look_at():
    network = small()
    for options in ({"kinds": []}, {"sources": []}):
        with pytest.raises(ValueError, match=r"at least one kind and one source"):
            list(influence.score_rounds(network, simulate(network, 3), influence.evaluate_on(network), **options))
    with pytest.raises(ValueError, match=r"at least one round is needed"):
        list(influence.full_horizon(network, [], influence.evaluate_on(network)))


@pytest.mark.parametrize("samples", [False, True])
def test_rounds_of_another_network(samples):
    network, other = small(), small(optimizer="momentum")
    rounds, yardstick = list(simulate(network, 3)), influence.evaluate_on(other)
    with pytest.raises(ValueError, match=r"must belong to this network, .* with state momentum; found"):
        list(influence.score_rounds(other, rounds, yardstick, samples=samples))
    with pytest.raises(ValueError, match=r"must belong to this network"):
        list(influence.full_horizon(other, reversed(rounds), yardstick))
    with pytest.raises(ValueError, match=r"must be consecutive"):
        list(influence.score_rounds(network, rounds[::-1], influence.evaluate_on(network)))
