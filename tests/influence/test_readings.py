"""Readings are sums, slices and ratios of cascades: against loops over their entries, and on known networks."""

import math

import pytest
import torch
from engine.rows import gradients as slopes
from hypothesis import given, settings
from hypothesis import strategies as st
from influence import cases

from cascadice.engine import simulate
from cascadice.influence import agreement, by_sample, evaluate_on, first_order, reverse_gossip, truth
from cascadice.influence.agreement import Agreement, resampled_rank_correlations
from cascadice.influence.cascade import Cascade
from cascadice.influence.readings import (
    accumulate,
    by_hop,
    by_receiver,
    extremes,
    neighbourhood_reciprocity,
    one_hop,
    proximal,
    r_hop,
    reciprocity,
    sample_contributions,
    summed,
)

NODES, HOPS = 5, 3
equal = torch.testing.assert_close


def cascade(sources=(4, 1), hops=HOPS, seed=0, **fields):
    """Random entries."""
    draw = torch.Generator().manual_seed(seed)
    value = torch.randn(hops + 1, len(sources), NODES, generator=draw, dtype=torch.float64)
    return Cascade(**({"kind": "truth", "t": 7, "sources": sources, "value": value} | fields))


def entries(made):
    """(hop, place of the source, receiver) and value, one by one."""
    for h, at_hop in enumerate(made.value.tolist()):
        for s, of_source in enumerate(at_hop):
            for k, value in enumerate(of_source):
                yield h, s, k, value


def added_up(made, keep, key):
    found = {}
    for h, s, k, value in entries(made):
        if keep(h, s, k):
            found[key(h, s, k)] = found.get(key(h, s, k), 0) + value
    return found


def same(found, expected):
    for place, value in expected.items():
        assert float(found[place]) == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert found.numel() == len(expected)


def test_sums_over_hops_and_receivers():
    made = cascade()
    every = lambda h, s, k: True  # noqa: E731
    same(r_hop(made), added_up(made, every, lambda h, s, k: s))
    same(by_hop(made), added_up(made, every, lambda h, s, k: (h, s)))
    same(by_receiver(made), added_up(made, every, lambda h, s, k: (s, k)))
    same(one_hop(made), added_up(made, lambda h, s, k: h < 2, lambda h, s, k: s))
    same(proximal(made), added_up(made, lambda h, s, k: h == 1, lambda h, s, k: (s, k)))


def test_one_hop_as_in_the_published_code_leaves_the_self_loop_out():
    made = cascade()
    others = added_up(made, lambda h, s, k: h == 0 or (h == 1 and k != made.sources[s]), lambda h, s, k: s)
    same(one_hop(made, own=False), others)


def test_a_cascade_without_hops_has_no_neighbours():
    with pytest.raises(ValueError, match=r"at least one hop; found only hop 0\. Compute it from one round"):
        proximal(cascade(hops=0))
    with pytest.raises(ValueError, match=r"at least one hop"):
        one_hop(cascade(hops=0))


def test_proximal_influence_is_definition_4():
    network = cases.small()
    rounds = cases.window(network, 1)
    jury, done = evaluate_on(network), rounds[0]
    _, slope = slopes(network, jury, done.after.theta, done.after.buffers, range(network.nodes))
    found = proximal(first_order(network, rounds, jury))
    for j in range(network.nodes):
        for k in range(network.nodes):
            expected = done.W[k, j] * network.q[k] * slope[k] @ done.update[j]
            equal(found[j, k], expected, **cases.CLOSE)
            assert (found[j, k] == 0) == (done.W[k, j] == 0)


def test_reciprocity_of_a_known_exchange():
    # 0 gives 1 two and gets one back; 2 gives 0 four and gets nothing; what one gives oneself does not matter
    given = -torch.tensor([[9.0, 2.0, 0.0], [1.0, 9.0, 0.0], [4.0, 0.0, 9.0]], dtype=torch.float64)
    found = reciprocity(given)
    assert found[1, 0] == 2  # what 1 gains from 0 over what 0 gains from 1
    assert found[0, 1] == 0.5
    assert math.isnan(found[0, 2])
    assert found[2, 0] == 0
    assert math.isnan(found[1, 2])
    assert neighbourhood_reciprocity(given)[:2].tolist() == pytest.approx([2 / 5, 1 / 2])
    assert math.isnan(neighbourhood_reciprocity(given)[2])  # nobody gives 2 anything


@given(st.integers(0, 1000), st.integers(2, 6))
def test_reciprocity_of_pairs_and_neighbourhoods(seed, nodes):
    draw = torch.Generator().manual_seed(seed)
    given = torch.randn(nodes, nodes, generator=draw, dtype=torch.float64)
    found, around = reciprocity(given), neighbourhood_reciprocity(given)
    equal(found * found.T, torch.ones_like(found))
    for j in range(nodes):
        out = sum(float(given[j, k]) for k in range(nodes) if k != j)
        into = sum(float(given[k, j]) for k in range(nodes) if k != j)
        assert float(around[j]) == pytest.approx(out / into, rel=1e-9)
    even = reciprocity(given + given.T)
    equal(even, torch.ones_like(even))


def test_accumulate_sums_rounds():
    network = cases.small()
    rounds = list(simulate(network, 5))
    jury = evaluate_on(network)
    made = [truth(network, rounds[t : t + 2], jury, sources=[2, 0]) for t in range(4)]
    total = accumulate(iter(made))
    assert (total.kind, total.t, total.sources) == ("truth", 0, (2, 0))
    equal(total.value, made[0].value + made[1].value + made[2].value + made[3].value)
    equal(made[0].value, truth(network, rounds[:2], jury, sources=[2, 0]).value)  # nothing was added in place


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (cascade(kind="first order"), r"found kinds 'truth' and 'first order'\."),
        (cascade(sources=(1, 4)), r"found sources \[4, 1\] and \[1, 4\]\."),
        (cascade(samples=(0, 1)), r"found single samples, which differ from round to round\."),
        (cascade(hops=2), r"found values of shape \[4, 2, 5\] and \[3, 2, 5\]\."),
    ],
)
def test_unlike_cascades_are_not_summed(other, match):
    with pytest.raises(ValueError, match=match):
        accumulate([cascade(), other])


def test_nothing_is_not_summed():
    with pytest.raises(ValueError, match=r"at least one cascade to accumulate; found none"):
        accumulate([])
    with pytest.raises(ValueError, match=r"at least one round of scores; found none"):
        summed([])
    with pytest.raises(ValueError, match=r"the same participants; found 3, then 2"):
        summed([torch.zeros(3), torch.zeros(2)])


def test_scores_of_rounds_are_summed_in_double_precision():
    scores = [torch.tensor([1.0, 1e-9]), torch.tensor([1e-9, -2.0])]
    found = summed(iter(scores))
    equal(found, torch.tensor([1 + 1e-9, 1e-9 - 2], dtype=torch.float64), rtol=0, atol=1e-15)
    equal(scores[0], torch.tensor([1.0, 1e-9]))


def test_sample_contributions_are_a_loop_over_all_draws():
    network = cases.small()
    rounds = list(simulate(network, 9))
    jury = evaluate_on(network)
    scored = [(done, by_sample(network, done, reverse_gossip(network, [done], jury))) for done in rounds]
    size = len(network.data.train)
    found = sample_contributions(iter(scored), size)
    value, uses = [0.0] * size, [0] * size
    for done, scores in scored:
        for k in range(network.nodes):
            for place, sample in enumerate(done.draw.batch[k, 0].tolist()):
                value[sample] += float(scores[k, place])
                uses[sample] += 1
    equal(found.value, torch.tensor(value, dtype=torch.float64), **cases.CLOSE)
    assert found.uses.tolist() == uses
    assert max(uses) > 1
    equal(found.value.sum(), torch.stack([scores.sum() for _, scores in scored]).sum())


def test_a_sample_drawn_twice_in_a_round_counts_twice():
    done = next(simulate(cases.small(), 1))
    done = done._replace(draw=done.draw._replace(batch=torch.tensor([[[3, 3]], [[0, 3]]])))
    found = sample_contributions([(done, torch.tensor([[1.0, 2.0], [4.0, 8.0]]))], 5)
    assert found.value.tolist() == [4, 0, 0, 11, 0]
    assert found.uses.tolist() == [1, 0, 0, 3, 0]


def test_scores_must_be_of_their_round():
    done = next(simulate(cases.small(), 1))
    with pytest.raises(ValueError, match=r"found 10, and round 0 drew sample \d+\. Use len\(network.data.train\)"):
        sample_contributions([(done, torch.zeros(4, 4))], 10)
    with pytest.raises(ValueError, match=r"found \[4, 3\] for batches of \[participants, steps, batch\] = \[4, 1, 4\]"):
        sample_contributions([(done, torch.zeros(4, 3))], 48)
    twice = next(simulate(cases.small(local_steps=2), 1))
    with pytest.raises(ValueError, match=r"found \[4, 4\] .* \[4, 2, 4\]"):
        sample_contributions([(twice, torch.zeros(4, 4))], 48)
    assert sample_contributions([(twice, torch.zeros(4, 8))], 48).uses.sum() == 4 * 8


@given(st.lists(st.sampled_from([0.0, -1.0, 2.0, 0.5, -0.5, math.nan]), max_size=12), st.integers(1, 14))
def test_extremes_are_the_strongest_on_either_side(values, most):
    found = extremes(torch.tensor(values, dtype=torch.float64), most)
    below = sorted(v for v in values if v < 0)
    above = sorted((v for v in values if v > 0), reverse=True)
    assert [values[i] for i in found.helpful.tolist()] == below[:most]
    assert [values[i] for i in found.harmful.tolist()] == above[:most]
    for chosen in found:
        assert len(set(chosen.tolist())) == len(chosen)


def test_extremes_of_nobody():
    with pytest.raises(ValueError, match=r"most must be at least 1; found 0"):
        extremes(torch.zeros(3), 0)


def test_agreement_of_known_estimates():
    true = torch.tensor([1.0, 2.0, 3.0, -4.0], dtype=torch.float64)
    assert agreement(true, true) == pytest.approx((1, 1, 1, 0))
    assert agreement(true, 2 * true) == pytest.approx((1, 1, 2, 1))
    assert agreement(true, -true) == pytest.approx((-1, -1, -1, 2))
    assert agreement(true, true.exp()).spearman == pytest.approx(1)
    assert agreement(true, true.exp()).pearson < 0.9
    assert agreement(true, true + 1) == pytest.approx(Agreement(1, 1, 1, math.sqrt(4 / 30)))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=20))
def test_agreement_is_what_scipy_finds(points):
    from scipy import stats

    true, found = torch.tensor(points, dtype=torch.float64).T
    if len(true.unique()) == 1 or len(found.unique()) == 1:
        assert math.isnan(agreement(true, found).pearson)
        return
    made = agreement(true, found)
    line = stats.linregress(true.numpy(), found.numpy())
    rank = stats.spearmanr(true.numpy(), found.numpy()).statistic
    assert made[:3] == pytest.approx((line.rvalue, rank, line.slope), abs=1e-9)


def test_rank_correlations_of_resamples_are_those_of_a_loop():
    draw = torch.Generator().manual_seed(0)
    true, found = torch.randint(4, (2, 6), generator=draw).double()  # with ties
    picks = torch.cat([torch.randint(6, (40, 6), generator=draw), torch.zeros(1, 6, dtype=torch.long)])
    slow = torch.tensor([agreement(true[pick], found[pick]).spearman for pick in picks], dtype=torch.float64)
    assert bool(slow[-1].isnan())  # one point alone does not vary
    equal(resampled_rank_correlations(true, found, picks), slow, equal_nan=True)


def test_agreement_leaves_out_what_is_not_finite():
    true = torch.tensor([1.0, math.nan, 2.0, 3.0, 5.0], dtype=torch.float64)
    found = torch.tensor([1.1, 7.0, 2.0, 2.5, math.inf], dtype=torch.float64)
    kept = [0, 2, 3]
    assert agreement(true, found) == agreement(true[kept], found[kept])
    with pytest.raises(ValueError, match=r"at least 3 finite points; found 2\. Score more"):
        agreement(true[1:], found[1:])
