"""Trust by cosine: its numbers against a loop over pairs, and what it does to attackers and to the honest."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import cascadice as cd
from cascadice import topology
from cascadice.engine.exchange.cosine_trust import (
    cosine_trust,
    epoch_fading,
    initial_trust,
    learn,
    most_helpful,
    oversized,
    reweighted,
)
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.fleets import fleet
from cascadice.influence import trust

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NODES = 8


def digits(seed=0, nodes=NODES, **options):
    data = cd.data.digits()
    model = cd.models.build("mlp", data.train.shape, 10, hidden=(16,), seed=seed)
    usual = {"batch_size": 16, "lr": 0.2, "dtype": "float64", "strategy": "vmap", "seed": seed}
    return cd.network(model, data, nodes=nodes, **(usual | options))


def slow_trust(updates, known, fading, memory):
    """Round by round, pair by pair, as the docstring says it."""
    n = len(known[0])
    D = torch.zeros_like(updates[0])
    total = [[0.0] * n for _ in range(n)]
    weight = [[0.0] * n for _ in range(n)]
    trust = [[True] * n for _ in range(n)]
    for update, heard in zip(updates, known, strict=True):
        D = fading * D + update
        for k in range(n):
            js = [j for j in range(n) if heard[k, j]]
            c = {j: -float(torch.nn.functional.cosine_similarity(D[k], D[j], dim=0)) for j in js}
            if any(weight[k]):
                trusted = [c[j] for j in js if trust[k][j]]
                signal = max(0.0, -sum(trusted) / max(1, len(trusted)))
            else:
                signal = max(0.0, -min(c.values()))
            for j in js:
                w = signal**2
                total[k][j] += w * c[j]
                weight[k][j] += w
                if weight[k][j] > memory:
                    total[k][j] *= memory / weight[k][j]
                    weight[k][j] = memory
            helps = {j: -total[k][j] / weight[k][j] for j in range(n) if weight[k][j] > 0}
            most = max(helps.values(), default=0.0)
            near = [h for h in helps.values() if h > 0 and h >= 2 / 3 * most]
            reference = sum(near) / max(1, len(near))
            for j, h in helps.items():
                least = 0.6 * weight[k][j] / (weight[k][j] + 0.25) if trust[k][j] else 0.8
                trust[k][j] = h > 0 and h >= least * reference
    return torch.tensor(total), torch.tensor(weight), torch.tensor(trust)


@pytest.mark.parametrize("memory", [20.0, 0.3])
def test_trust_is_what_a_loop_over_pairs_finds(memory):
    draw = torch.Generator().manual_seed(3)
    direction = torch.randn(11, generator=draw, dtype=torch.float64)
    updates = [direction + 2 * torch.randn(6, 11, generator=draw, dtype=torch.float64) for _ in range(15)]
    for update in updates:
        update[4] *= -1
    known = [(torch.rand(6, 6, generator=draw) < 0.7) & ~torch.eye(6, dtype=torch.bool) for _ in updates]
    found = initial_trust(updates[0])
    for update, heard in zip(updates, known, strict=True):
        found = learn(found, update, heard, 0.8, memory)
    total, weight, trust = slow_trust(updates, known, 0.8, memory)
    assert_close(found.total, total.double(), rtol=1e-6, atol=1e-7)
    assert_close(found.weight, weight.double(), rtol=1e-6, atol=1e-7)
    assert torch.equal(found.trusted, trust)
    assert not found.trusted[[0, 1, 2, 3, 5], 4].any()


def test_for_sgd_it_is_the_influence_on_ones_own_batches():
    """−⟨D_k, D_j⟩ is lr times the first-order influence of D_j on the sum of k's batch losses."""
    net = digits()
    rule = cosine_trust(net, fading=0.0, explore=False)
    (done,) = cd.simulate(net, 1, rule=rule)
    from engine.rows import gradients as slopes

    from cascadice.engine import Evaluation
    from cascadice.engine.networks import draw, load

    batch = load(net, draw(net, 0))
    own = Evaluation(batch.x[:, 0], batch.y[:, 0], net.learner.loss, own=True)
    _, slope = slopes(net, own, done.before.theta, {}, range(NODES))
    expected = torch.nn.functional.cosine_similarity(slope[:, None], done.update[None], dim=2)
    heard = neighbours(net.mixing(0))
    assert_close(rule.trust.score[heard], expected[heard], rtol=1e-9, atol=1e-9)
    assert_close(rule.given, rule.trust.score.T)


@pytest.mark.parametrize(
    "attack",
    [
        {"behaviours": [cd.Behaviour("sign-flipper", (1, 4), strength=3.0)]},
        {"behaviours": [cd.Behaviour("noise-sender", (1, 4), strength=0.01)]},
        {"corruptions": [cd.Corruption("mirror-labels", (1, 4))]},
    ],
    ids=["flipped", "noise", "mirrored"],
)
def test_attackers_are_dropped_and_the_honest_are_not(attack):
    net = digits(**attack)
    rule = cosine_trust(net)
    *_, done = cd.simulate(net, 40, rule=rule, window=0)
    honest = [k for k in range(NODES) if k not in (1, 4)]
    heard = neighbours(net.mixing(0))
    assert not done.W[honest][:, [1, 4]].any()
    assert (done.W > 0)[honest][:, honest][heard[honest][:, honest]].all()
    topology.check(done.W)


@pytest.mark.parametrize("attack", ["sign-flipper", "noise-sender"])
def test_what_is_plainly_wrong_is_kept_out_in_the_very_first_round_and_later_after_a_while(attack):
    net = digits(behaviours=[cd.Behaviour(attack, (3,), range(10, 99), strength=30.0)])
    first = {done.t: done.W for done in cd.simulate(net, 45, rule=cosine_trust(net), window=0)}
    hears = neighbours(net.mixing(0))[:, 3]
    assert (first[9][hears, 3] > 0).all()
    assert not first[44][hears, 3].any()
    net = digits(behaviours=[cd.Behaviour(attack, (3,), strength=30.0)])
    (at_once,) = cd.simulate(net, 1, rule=cosine_trust(net))
    assert not at_once.W[hears, 3].any()


def test_a_turncoat_that_blows_up_its_updates_is_not_let_in():
    attack = [cd.Behaviour("sign-flipper", (3,), range(10, 99), strength=30.0)]
    net = digits(behaviours=attack, mixing="complete")
    W = {done.t: done.W for done in cd.simulate(net, 12, rule=cosine_trust(net), window=0)}
    honest = [k for k in range(NODES) if k != 3]
    assert (W[9][honest, 3] > 0).all()
    assert not W[10][honest, 3].any()
    sizes = torch.tensor([1.0, 2.0, 2.4, 9.0], dtype=torch.float64)
    found = oversized(sizes[:, None], ~torch.eye(4, dtype=torch.bool))
    assert found.nonzero().tolist() == [[0, 3], [1, 3], [2, 3]]


def test_groups_part():
    odd = (1, 2, 5, 7)
    net = digits(corruptions=[cd.Corruption("mirror-labels", odd)], mixing="complete")
    *_, done = cd.simulate(net, 60, rule=cosine_trust(net), window=0)
    group = torch.tensor([k in odd for k in range(NODES)])
    assert torch.equal(done.W > 0, group[:, None] == group[None])


def test_nobody_is_left_alone_when_it_may_explore():
    """Everybody 0 hears is an attacker: it finds a stranger that helps."""
    ring = topology.uniform(topology.ring(6))
    attack = [cd.Behaviour("sign-flipper", (1, 5), strength=2.0)]
    left = digits(nodes=None, mixing=ring, behaviours=attack)
    *_, alone = cd.simulate(left, 30, rule=cosine_trust(left, explore=False), window=0)
    *_, found = cd.simulate(left, 30, rule=cosine_trust(left), window=0)
    assert alone.W[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert not found.W[0, [1, 5]].any()
    assert float(found.W[0, [2, 3, 4]].sum()) == pytest.approx(0.5)


def test_degree_is_a_limit():
    net = digits(mixing="complete")
    *_, done = cd.simulate(net, 5, rule=cosine_trust(net, degree=2), window=0)
    assert (neighbours(done.W).sum(1) <= 2).all()
    topology.check(done.W)


def test_a_fleet_is_its_networks():
    alone = [digits(seed, behaviours=[cd.Behaviour("sign-flipper", (seed,))]) for seed in (1, 2)]
    rules = [cosine_trust(net, explore=False) for net in alone]
    apart = [list(cd.simulate(net, 12, rule=rule))[-1].W for net, rule in zip(alone, rules, strict=True)]
    both = fleet(alone)
    together = list(cd.simulate(both, 12, rule=cosine_trust(both, explore=False)))[-1].W
    assert_close(together, torch.block_diag(*apart), **EXACT)
    exploring = cosine_trust(both)
    for t in range(20):
        k, j = exploring._strangers(t, 2 * NODES).nonzero().T
        assert len(k) == 2 * NODES
        assert ((k // NODES == j // NODES) & (k != j)).all()


def test_a_single_participant_has_nobody_to_hear():
    net = digits(nodes=1, mixing="alone")
    *_, done = cd.simulate(net, 3, rule=cosine_trust(net))
    assert done.W.tolist() == [[1.0]]


square = st.integers(2, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=n, max_size=n),
        st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n),
    )
)


@settings(max_examples=50)
@given(square)
def test_reweighted_rows_sum_to_one_and_hold_only_the_kept(case):
    weights, kept = torch.tensor(case[0], dtype=torch.float64), torch.tensor(case[1])
    weights = weights + torch.eye(len(weights)) * (weights.sum(1, keepdim=True) == 0)
    W = weights / weights.sum(1, keepdim=True)
    kept = kept & neighbours(W)
    found = reweighted(W, kept)
    topology.check(found)
    assert not found[~kept & ~torch.eye(len(W), dtype=torch.bool)].any()
    assert_close(reweighted(W, neighbours(W)), W)


def test_the_best_of_each_row():
    influence = torch.tensor([[0.0, -0.3, -0.5, 0.2], [-0.1, 0.0, -0.2, -0.3]], dtype=torch.float64).repeat(2, 1)
    among = torch.tensor([[False, True, True, True], [True, False, True, True]]).repeat(2, 1)
    assert most_helpful(among, influence, 1)[:2].tolist() == [[False, False, True, False], [False, False, False, True]]
    assert torch.equal(most_helpful(among, influence, None), among)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fading": 1.0}, "fading must be at least 0 and below 1; found 1.0"),
        ({"memory": 0.0}, "memory must be positive; found 0.0"),
        ({"degree": 0}, "degree must be at least 1, or nobody is listened to; found 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cosine_trust(digits(), **options)


def test_rules_have_names():
    net = digits()
    for name, kind in trust.RULES.items():
        *_, done = cd.simulate(net, 2, rule=trust.build(name, net))
        assert kind.averages == torch.allclose(done.W @ done.half.theta, done.after.theta)
    with pytest.raises(ValueError, match=r"unknown rule 'krumm'\. Did you mean 'krum'"):
        trust.build("krumm", net)


def test_the_former_name_is_the_same_rule():
    net = digits()
    rules = (cosine_trust(net), trust.build("influence", net), trust.build("cosine-trust", net))
    last = [list(cd.simulate(net, 3, rule=rule))[-1].after.theta for rule in rules]
    assert all(torch.equal(last[0], other) for other in last[1:])


def test_updates_fade_over_an_epoch():
    assert epoch_fading(digits(batch_size=16, per_node=160)) == 0.9
    assert epoch_fading(digits(batch_size=2, per_node=160)) == pytest.approx(1 - 1 / 80)
    given = torch.arange(3 * NODES).view(3, NODES, 1, 1)
    assert epoch_fading(digits(batches=given, batch_size=None)) == 0.9
