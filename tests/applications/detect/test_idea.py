"""Evidence against neighbours: against loops over links, and in networks whose attackers are known."""

import math
import statistics

import pytest
import torch
from engine.cases import make
from engine.rows import gradients as slopes
from hypothesis import given, settings
from hypothesis import strategies as st
from influence import cases
from torch.testing import assert_close

from cascadice import data, models, topology
from cascadice.applications.detect.evidence import (
    accumulate,
    deviations,
    lasting_spread,
    no_evidence,
    strengths,
    threshold,
)
from cascadice.applications.detect.idea import Verdict, detect, votes
from cascadice.applications.detect.signals import SIGNALS, Signal, signal_scores
from cascadice.data import partition as partitions
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, module_of, network, simulate
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.fleets import blocks, fleet
from cascadice.influence import evaluate_on, own_data
from cascadice_experiments.anomalies.rivals import RIVALS


def drawn(rounds=6, nodes=7, signs=2, seed=0, density=0.7):
    """Random scores, and who is heard: others in each round."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(rounds, signs, nodes, nodes, generator=draw, dtype=torch.float64)
    heard = torch.rand(rounds, nodes, nodes, generator=draw) < density
    return scores, heard & ~torch.eye(nodes, dtype=torch.bool)


def evidence_of(scores, heard, keep=1.0):
    evidence = no_evidence(scores[0])
    for one, who in zip(scores, heard, strict=True):
        evidence = accumulate(evidence, one, who, keep)
    return evidence


def slow_deviations(scores, heard, allowance, keep=1.0):
    """The module's equations, link by link."""
    rounds, count, nodes, _ = scores.shape
    found = torch.zeros(count, nodes, nodes, dtype=torch.float64)
    for c in range(count):
        for k in range(nodes):
            latest, zs = {}, {}
            for t in range(rounds):
                now = [j for j in range(nodes) if heard[t, j, k]]
                latest |= {j: float(scores[t, c, j, k]) for j in now}
                middle = statistics.median(latest.values()) if latest else 0
                spread = statistics.mean(abs(x - middle) for x in latest.values()) if latest else 0
                for j in now:
                    z = (latest[j] - middle) / spread if spread else 0
                    zs.setdefault(j, []).append((keep ** (rounds - 1 - t), z))
            if len(zs) < 3:
                continue
            mean = {j: sum(w * z for w, z in pairs) / sum(w for w, _ in pairs) for j, pairs in zs.items()}
            centre = statistics.median(mean.values())
            mad = statistics.median(abs(m - centre) for m in mean.values())
            for j, pairs in zs.items():
                seen = sum(w for w, _ in pairs) ** 2 / sum(w * w for w, _ in pairs)
                floor = math.sqrt(math.pi / 2 * len(zs) / (len(zs) - 1) / seen + allowance**2)
                found[c, j, k] = (mean[j] - centre) / max(1.4826 * mad, floor)
    return found


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.5, 1.0]), st.sampled_from([1.0, 0.8]))
def test_evidence_is_that_of_a_loop_over_links(seed, density, keep):
    scores, heard = drawn(seed=seed, density=density)
    expected = slow_deviations(scores, heard, 0.3, keep)
    assert_close(deviations(evidence_of(scores, heard, keep), 0.3), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_renaming_participants_renames_the_evidence(seed):
    scores, heard = drawn(seed=seed)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    moved = deviations(evidence_of(scores[..., order, :][..., order], heard[:, order][:, :, order]))
    assert_close(moved, deviations(evidence_of(scores, heard))[:, order][:, :, order])


def test_a_receivers_units_do_not_matter():
    scores, heard = drawn()
    scaled = scores * torch.arange(1.0, 8.0).double() + torch.arange(7.0).double()
    assert_close(deviations(evidence_of(scaled, heard)), deviations(evidence_of(scores, heard)))


def test_one_message_however_large_counts_for_no_more_than_the_neighbours():
    scores, heard = torch.zeros(1, 1, 5, 5).double(), ~torch.eye(5, dtype=torch.bool)
    scores[0, 0] = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    scores[0, 0, 2] = 1e30
    evidence = evidence_of(scores, heard[None])
    assert 3.9 < float(evidence.total[0, 2, 0]) <= 4


def test_neighbours_that_take_turns_are_compared_too():
    scores, _ = drawn(rounds=40, nodes=6, signs=1)
    scores[:, 0, 2] += 6
    turns = torch.stack([torch.eye(6, dtype=torch.bool).roll(1 + t % 5, 0) for t in range(40)])
    found = deviations(evidence_of(scores, turns))[0]
    others = [k for k in range(6) if k != 2]
    assert found[2, others].min() > threshold(5, 0.01)
    assert found[others][:, others].abs().max() < threshold(5, 0.01)


@pytest.mark.parametrize("neighbours", [3, 5, 12])
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_the_threshold_is_exceeded_as_often_as_it_says(neighbours, rate):
    # differences that last and are as large as the allowance, seen for many rounds
    lasting = torch.randn(neighbours, 200_000 // neighbours, generator=torch.Generator().manual_seed(3)).double()
    middle = lasting.quantile(0.5, dim=0)
    spread = 1.4826 * (lasting - middle).abs().quantile(0.5, dim=0)
    beyond = (lasting - middle).abs() / spread.clamp_min(1) > threshold(neighbours, rate)
    assert float(beyond.double().mean()) == pytest.approx(rate, rel=0.15)


def honest_evidence(lasting, signs=5, nodes=160, rounds=30):
    """Of participants in a circle with five neighbours each, between whom there are lasting differences."""
    draw = torch.Generator().manual_seed(4)
    heard = torch.zeros(nodes, nodes, dtype=torch.bool)
    for offset in range(1, 6):
        heard |= torch.eye(nodes, dtype=torch.bool).roll(offset, 0)
    bias = lasting * torch.randn(signs, nodes, nodes, generator=draw).double()
    evidence = no_evidence(bias)
    for _ in range(rounds):
        evidence = accumulate(evidence, bias + torch.randn(signs, nodes, nodes, generator=draw), heard)
    return evidence, heard


@pytest.mark.parametrize(("lasting", "allowance"), [(0.0, 0.0), (0.3, 0.5)])
def test_honest_neighbours_are_flagged_no_more_often_than_the_rate(lasting, allowance):
    rate, (evidence, heard) = 0.02, honest_evidence(lasting)
    share = (deviations(evidence, allowance).abs() > threshold(5, rate)).sum() / heard.sum() / 5
    assert 0.2 * rate < float(share) <= 1.25 * rate


@pytest.mark.parametrize("lasting", [0.3, 1.0, 5.0])
def test_unlike_neighbours_are_flagged_no_more_often_than_the_rate(lasting):
    rate, (evidence, heard) = 0.05, honest_evidence(lasting, nodes=320)
    alike, unlike = ((strengths(evidence, rate, 0.2, unlike)[heard] > 1).double().mean() for unlike in (False, True))
    assert unlike <= 1.25 * rate
    assert lasting < 1 or alike > 2 * rate, "differences that were not allowed for"


@pytest.mark.parametrize("lasting", [0.0, 1.0, 2.0])
def test_the_spread_that_all_receivers_see_keeps_the_rate_and_one_number_does_not(lasting):
    rate, (evidence, heard) = 0.05, honest_evidence(lasting, nodes=320)
    spread = lasting_spread(evidence)
    fixed, measured = ((strengths(evidence, rate, a)[heard] > 1).double().mean() for a in (0.2, spread))
    assert measured <= 1.25 * rate
    assert lasting < 1 or fixed > 2 * rate
    # z is in units of the mean difference within a round, here √(2/π (1 + lasting²)), less the outliers' own part of it
    assert bool((spread < 0.25).all() if lasting == 0 else ((spread > 0.8) & (spread < 1.4)).all())


def test_attackers_on_a_fifth_of_the_links_do_not_widen_the_spread():
    scores, _ = drawn(rounds=80, nodes=30)
    heard = torch.stack([~torch.eye(30, dtype=torch.bool)] * 80)
    honest = lasting_spread(evidence_of(scores, heard))
    scores[:, :, :6] += 100
    assert (lasting_spread(evidence_of(scores, heard)) < honest + 0.05).all()


def test_nobody_sees_a_spread_among_two():
    heard = torch.eye(8, dtype=torch.bool).roll(1, 0) | torch.eye(8, dtype=torch.bool).roll(-1, 0)
    scores, _ = drawn(nodes=8)
    assert lasting_spread(evidence_of(scores, [heard] * 6)).tolist() == [0, 0]


def test_data_that_differ_raise_the_allowance(one_thread):
    parts = partitions.build("dirichlet", data.digits().train.y, 16, alpha=0.3, minimum=32, seed=1)
    flags = {}
    for name, options in (("alike", {}), ("differ", {"partition": parts})):
        net = small_attack(nodes=16, **options)
        own, rounds = evaluate_on(net, own_data(net, 32)), list(simulate(net, 40))
        for allowance in (0.5, None):
            *_, last = detect(net, rounds, own, allowance=allowance)
            flags[name, allowance] = int(last.flagged.sum()), float(last.spread.max())
    assert flags["differ", None][1] > 0.8 > flags["alike", None][1]
    assert flags["differ", 0.5][0] > 4 * max(1, flags["differ", None][0])


def test_unlike_neighbours_hide_no_one_who_is_far_out(one_thread):
    net = small_attack(behaviours=[Behaviour("sign-flipper", (3,), strength=3.0)], mixing="complete")
    own = evaluate_on(net, own_data(net, 40))
    *_, last = detect(net, simulate(net, 25), own, unlike=True)
    assert votes(last)[3] == 1


def test_of_two_nobody_knows_the_odd_one():
    assert threshold(2, 0.01) == math.inf
    net = small_attack(mixing=topology.build("ring", 8))
    *_, last = detect(net, simulate(net, 5), evaluate_on(net, own_data(net, 8)))
    assert not last.strength.any()
    assert votes(last).isnan().all()


def small_attack(corruptions=(), behaviours=(), mixing="exponential", nodes=8, **options):
    """Eight participants read digits; enough to tell an honest from a false update."""
    nodes = {"nodes": nodes} if isinstance(mixing, str) else {}
    digits = data.digits()
    model = models.build("mlp", digits.train.shape, 10, hidden=(16,))
    usual = {"batch_size": 32, "lr": 0.1, "mixing": mixing, "corruptions": corruptions, "behaviours": behaviours}
    return network(model, digits, **nodes, **(usual | options))


ATTACKS = {
    "flipped labels": {"corruptions": [Corruption("flip-labels", (3,))]},
    "permuted labels": {"corruptions": [Corruption("permute-labels", (3,))]},
    "noisy features": {"corruptions": [Corruption("noise", (3,), strength=100.0)]},
    "sign-flipper": {"behaviours": [Behaviour("sign-flipper", (3,))]},
    "free-rider": {"behaviours": [Behaviour("free-rider", (3,))]},
    "noise sender": {"behaviours": [Behaviour("noise-sender", (3,), strength=1e-4)]},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_lasting_attacker_is_the_one_that_stands_out(attack, one_thread):
    net = small_attack(mixing="complete", **ATTACKS[attack])
    *_, last = detect(net, simulate(net, 40, window=0), evaluate_on(net, own_data(net, 64)), samples=32)
    honest = [k for k in range(8) if k != 3]
    assert votes(last)[3] == 1, f"{attack}: {last.strength[3]}"
    assert last.strength[3, honest].min() > last.strength[honest][:, honest].max()
    assert (last.since[3, honest] >= 0).all()


def test_two_attackers_do_not_hide_one_another(one_thread):
    net = small_attack([Corruption("flip-labels", (3, 4))], mixing="complete")
    *_, last = detect(net, simulate(net, 40, window=0), evaluate_on(net, own_data(net, 64)), samples=32)
    assert votes(last).argsort(descending=True)[:2].sort().values.tolist() == [3, 4]


def test_since_is_the_round_from_which_the_flag_has_stood(one_thread):
    net = small_attack(behaviours=[Behaviour("sign-flipper", (3,), range(10, 13), strength=30.0)], mixing="complete")
    found = list(detect(net, simulate(net, 20, window=0), evaluate_on(net, own_data(net, 32)), memory=1.0))
    stood = [verdict.since[3, 0].item() for verdict in found]
    assert stood[10:13] == [10, 10, 10]
    assert stood[:10] + stood[13:] == [-1] * 17


def test_a_receiver_knows_its_own_data_and_what_it_heard_and_no_more():
    net = cases.small(mixing=cases.directed(2, 6, density=0.9), nodes=None)
    sets = own_data(net, 8)
    others = [sets[0], *own_data(cases.small(mixing=cases.directed(2, 6, density=0.9), nodes=None, seed=8), 8)[1:]]
    both = (evaluate_on(net, chosen) for chosen in (sets, others))
    (*_, mine), (*_, theirs) = (detect(net, simulate(net, 4), own, allowance=0.5) for own in both)
    assert torch.equal(mine.deviation[:, :, 0], theirs.deviation[:, :, 0])
    assert not torch.equal(mine.deviation, theirs.deviation)


def test_networks_side_by_side_are_judged_as_if_alone(one_thread):
    riding = [[Behaviour("free-rider", (k,))] for k in (1, 6)]
    apiece = [small_attack(behaviours=bad, seed=seed, dtype="float64") for seed, bad in enumerate(riding)]
    sets = [own_data(net, 16) for net in apiece]

    def last(net, samples):
        *_, found = detect(net, simulate(net, 6), evaluate_on(net, samples), allowance=0.5)
        return found

    found = last(fleet(apiece), [*sets[0], *sets[1]])
    for i, (net, chosen) in enumerate(zip(apiece, sets, strict=True)):
        assert_close(blocks(found.strength, 2)[i], last(net, chosen).strength)


def test_the_first_signals_are_the_product_and_its_factors():
    net = cases.small()
    *_, done = simulate(net, 2)
    yardstick = evaluate_on(net, own_data(net, 6))
    _, slope = slopes(net, yardstick, done.after.theta, done.after.buffers, range(4))
    influence, direction, size, _ = signal_scores(net, done, yardstick)
    expected = torch.where(done.W.T > 0, done.update @ slope.T, 0.0)
    assert_close(influence * slope.norm(dim=1), expected, **cases.CLOSE)
    assert_close(direction * size * slope.norm(dim=1), expected, **cases.CLOSE)
    assert_close(size[:, 0], done.update.norm(dim=1), **cases.CLOSE)


def slow_krum(done, heard, j, k):
    at = [k, *heard[:, k].nonzero()[:, 0].tolist()]
    apart = sorted(float((done.update[j] - done.update[i]).square().sum()) for i in at if i != j)
    return sum(apart[: max(1, len(at) - 3)])


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_scores_are_what_their_names_say(seed):
    net = cases.small(mixing=cases.directed(seed, 6, density=0.6), nodes=None)
    *_, done = simulate(net, 2)
    sets, heard = own_data(net, 6), neighbours(done.W).T
    both = {**SIGNALS, **RIVALS}
    names = dict(zip(both, signal_scores(net, done, evaluate_on(net, sets), both), strict=True))
    for j, k in heard.nonzero().tolist():
        with torch.no_grad():
            loss = net.learner.loss(module_of(net, done.half, j)(sets[k].x), sets[k].y)
        expected = {
            "size": done.update[j].norm(),
            "distance": slow_krum(done, heard, j, k),
            "cosine to own update": torch.cosine_similarity(done.update[j], done.update[k], dim=0),
            "loss of received model": loss,
        }
        for name, value in expected.items():
            assert_close(float(names[name][j, k]), float(value), rtol=1e-8, atol=1e-12)


def test_rivals_gather_evidence_in_the_same_way(one_thread):
    net = small_attack(behaviours=[Behaviour("sign-flipper", (3,), strength=5.0)], mixing="complete")
    *_, last = detect(net, simulate(net, 10, window=0), evaluate_on(net, own_data(net, 16)), signals=RIVALS)
    assert last.deviation.shape == (2, 8, 8)
    assert votes(last)[3] == 1


def test_who_could_not_tell_has_no_vote():
    known = torch.ones(4, 4, dtype=torch.bool) & ~torch.eye(4, dtype=torch.bool)
    known[0, 3] = False  # 3 hears two
    strength = torch.zeros(4, 4).double()
    strength[1, 0] = strength[1, 3] = 2
    since = torch.full((4, 4), -1)
    assert votes(Verdict(0, strength[None], strength, since, known, strength[0])).tolist() == [0, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rate": 0.0}, r"rate must be a probability from 0\.0001 to 0\.5; found 0\.0"),
        ({"rate": 0.9}, r"rate must be a probability"),
        ({"allowance": -1.0}, r"allowance must be at least 0 and finite; found -1\.0"),
        ({"allowance": math.nan}, r"allowance must be"),
        ({"memory": 0.5}, r"memory must be at least one round; found 0\.5"),
        ({"samples": 99}, r"size must be in 1\.\.8, the samples of the evaluation; found 99"),
    ],
)
def test_refusals(asked, message):
    net = make()
    with pytest.raises(ValueError, match=message):
        next(iter(detect(net, simulate(net, 1), evaluate_on(net, own_data(net, 8)), **asked)))


@pytest.mark.parametrize("side", [-1, 1])
def test_both_sides_are_suspicious(side):
    """Whoever is far from the others is flagged, be it above them or below."""
    digits = data.digits()
    net = network(models.build("mlp", digits.train.shape, 10, hidden=(4,)), digits, nodes=8, mixing="complete")
    draw = torch.Generator().manual_seed(3)

    def score(received):
        found = torch.randn(8, 8, generator=draw, dtype=torch.float64)
        found[5] += 20 * side
        return found

    one = {"noise": Signal(score, "above", "below")}
    *_, last = detect(net, simulate(net, 12, window=0), evaluate_on(net, own_data(net, 8)), signals=one)
    assert last.flagged.any(1).nonzero().flatten().tolist() == [5]
    assert bool(last.flagged[5][torch.arange(8) != 5].all())
