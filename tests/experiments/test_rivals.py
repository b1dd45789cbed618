"""The estimators of others: each is what brute force says, where that is defined, and counts what it costs."""

from itertools import permutations
from math import comb

import pytest
import torch
from influence.cases import NODES, small
from torch.testing import assert_close

from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Operator, Participants, module_of, simulate
from cascadice.influence import evaluate_on
from cascadice.influence.agreement import agreement
from cascadice.influence.whole_run_shares import measured_at
from cascadice_experiments import rivals
from cascadice_experiments.rivals.coalitions import RoundGame, every_coalition, local_shapley, prefixes
from cascadice_experiments.rivals.comfedsv import completed
from cascadice_experiments.rivals.estimate import weighted_rounds
from cascadice_experiments.rivals.gtg_shapley import guided_orders

ROUNDS = 4
CLOSE = {"rtol": 1e-8, "atol": 1e-12}
NOTHING_CUT = {"between": 0.0, "within": 0.0, "tolerance": 0.0}
FROM_COALITIONS = [rivals.fedsv, rivals.trip_shapley, rivals.gtg_shapley, rivals.comfedsv]
DOUBLY_STOCHASTIC = torch.tensor([[2.0, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]], dtype=torch.float64) / 4


@pytest.fixture(scope="module")
def run():
    network = small()
    return network, list(simulate(network, ROUNDS)), evaluate_on(network)


def receivers_losses(network, round_, evaluation, coalition):
    """L(θ_k^{t+1}(S)) by a loop: what every k would have after the exchange, had only S worked."""
    sent = [round_.half.theta[j] if j in coalition else round_.before.theta[j] for j in range(network.nodes)]
    losses = []
    for k in range(network.nodes):
        theta = sum(round_.W[k, j] * sent[j] for j in range(network.nodes))
        model = module_of(network, Participants(theta[None], {}, {}), 0)
        with torch.no_grad():
            losses.append(float(evaluation.measure(model(evaluation.x), evaluation.y)))
    return torch.tensor(losses, dtype=torch.float64)


def brute(network, round_, evaluation):
    """ψ[k, j] from all 2^n coalitions, by the formula."""
    n = network.nodes
    losses = {}
    for number in range(2**n):
        coalition = frozenset(j for j in range(n) if number >> j & 1)
        losses[coalition] = receivers_losses(network, round_, evaluation, coalition)
    psi = torch.zeros(n, n, dtype=torch.float64)
    for j in range(n):
        for coalition in losses:
            if j not in coalition:
                psi[:, j] += (losses[coalition | {j}] - losses[coalition]) / n / comb(n - 1, len(coalition))
    return psi


@pytest.fixture(scope="module")
def psi(run):
    network, rounds, evaluation = run
    return [brute(network, round_, evaluation) for round_ in rounds]


def test_the_game_of_a_round(run):
    network, rounds, evaluation = run
    game = RoundGame(Operator(network), rounds[2], evaluation)
    found = game.by_receiver(every_coalition(NODES))
    for number in (0, 5, 11, 15):
        coalition = [j for j in range(NODES) if number >> j & 1]
        assert_close(found[number], receivers_losses(network, rounds[2], evaluation, coalition), **CLOSE)
    assert_close(game.value(every_coalition(NODES)), found @ network.q.double())
    heard = (rounds[2].W != 0).sum(1)
    assert game.evaluations == int((2**heard).sum()) < NODES * 2**NODES  # each model that can arise, once


def test_local_shapley_values_are_those_of_all_coalitions(run, psi):
    network, rounds, evaluation = run
    for round_, expected in zip(rounds, psi, strict=True):
        game = RoundGame(Operator(network), round_, evaluation)
        assert_close(local_shapley(game), expected, **CLOSE)
        assert_close(local_shapley(game, torch.tensor(list(permutations(range(NODES))))), expected, **CLOSE)


def test_fedsv_sums_to_what_the_updates_of_all_rounds_changed(run, psi):
    network, rounds, evaluation = run
    found = rivals.fedsv(network, rounds, evaluation)
    assert_close(found.scores, network.q.double() @ torch.stack(psi).sum(0), **CLOSE)
    everyone = range(NODES)
    changes = [
        receivers_losses(network, r, evaluation, everyone) - receivers_losses(network, r, evaluation, [])
        for r in rounds
    ]
    assert_close(found.scores.sum(), sum(change @ network.q.double() for change in changes), **CLOSE)
    sampled = rivals.fedsv(network, rounds, evaluation, permutations=3)
    assert_close(sampled.scores.sum(), found.scores.sum(), **CLOSE)
    assert not torch.allclose(sampled.scores, found.scores)
    assert not torch.equal(sampled.scores, rivals.fedsv(network, rounds, evaluation, seed=1, permutations=3).scores)


def test_trip_shapley_passes_contributions_on_as_models_are(run, psi):
    network, rounds, evaluation = run
    phi = torch.zeros(NODES, NODES, dtype=torch.float64)
    for round_, own in zip(rounds, psi, strict=True):
        new = torch.zeros_like(phi)
        for k in range(NODES):
            new[k] = own[k] + sum(round_.W[k, j] * phi[j] for j in range(NODES))
        phi = new
    found = rivals.trip_shapley(network, rounds, evaluation).scores
    assert_close(found, network.q.double() @ phi, **CLOSE)
    assert not torch.allclose(found, rivals.fedsv(network, rounds, evaluation).scores, rtol=1e-3)


def test_trip_shapley_is_fedsv_where_mixing_is_doubly_stochastic():
    network = small(mixing=DOUBLY_STOCHASTIC)
    evaluation = evaluate_on(network)
    trip, fedsv = (rival(network, ROUNDS, evaluation) for rival in (rivals.trip_shapley, rivals.fedsv))
    assert_close(trip.scores, fedsv.scores, **CLOSE)
    assert trip.evaluations == fedsv.evaluations == ROUNDS * NODES * 2**3


def test_gtg_shapley_converges_to_fedsv(run):
    network, rounds, evaluation = run[0], run[1][:1], run[2]
    exact = rivals.fedsv(network, rounds, evaluation).scores
    errors = torch.zeros(2, 4)
    for place, most in enumerate((4, 400)):
        for seed in range(4):
            found = rivals.gtg_shapley(network, rounds, evaluation, seed, **NOTHING_CUT, least=0, most=most)
            assert_close(found.scores.sum(), exact.sum(), **CLOSE)  # every order sums to the round's change
            errors[place, seed] = (found.scores - exact).norm()
    few, many = errors.mean(1).tolist()
    assert many < few / 5  # 100 times the orders: a tenth of the error
    assert many < 0.001 * float(exact.norm())


def test_gtg_shapley_is_the_mean_over_its_orders(run):
    network, rounds, evaluation = run
    found = rivals.gtg_shapley(network, rounds[:1], evaluation, seed=7, **NOTHING_CUT, least=0, most=12)
    orders = torch.cat([guided_orders(NODES, 7, 0, count) for count in (0, 4, 8)])
    expected = network.q.double() @ local_shapley(RoundGame(Operator(network), rounds[0], evaluation), orders)
    assert_close(found.scores, expected, **CLOSE)
    assert orders[:, 0].bincount().tolist() == [3] * NODES
    assert orders.sort(1).values.tolist() == [list(range(NODES))] * 12


def test_gtg_shapley_truncates_rounds_and_permutations(run):
    network, rounds, evaluation = run
    still = rivals.gtg_shapley(network, rounds, evaluation, between=10.0)
    assert not still.scores.any()
    assert still.evaluations == ROUNDS * 2 * NODES  # nobody and everybody
    cut = rivals.gtg_shapley(network, rounds[:1], evaluation, **(NOTHING_CUT | {"within": 0.5}), least=0, most=4)
    expected, evaluated = torch.zeros(NODES, dtype=torch.float64), set()

    def value(coalition):
        evaluated.update((k, frozenset(j for j in coalition if rounds[0].W[k, j])) for k in range(NODES))
        return float(receivers_losses(network, rounds[0], evaluation, coalition) @ network.q.double())

    nobody, everybody = value([]), value(range(NODES))
    for order in guided_orders(NODES, 0, 0, 0).tolist():
        before = nobody
        for place, j in enumerate(order):
            if abs(everybody - before) >= 0.5 * abs(everybody - nobody):
                after = value(order[: place + 1])
                expected[j] += (after - before) / NODES
                before = after
    assert_close(cut.scores, expected, **CLOSE)
    assert cut.evaluations == len(evaluated) < int((2 ** (rounds[0].W != 0).sum(1)).sum())
    brief = rivals.gtg_shapley(network, rounds[:1], evaluation, **(NOTHING_CUT | {"tolerance": 1e9}), least=0, most=400)
    orders = torch.cat(
        [guided_orders(NODES, 0, 0, count) for count in (0, 4, 8)]
    )  # the first that have ten before them
    expected = network.q.double() @ local_shapley(RoundGame(Operator(network), rounds[0], evaluation), orders)
    assert_close(brief.scores, expected, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"permutations": 24}])
def test_comfedsv_that_sees_everything_is_fedsv(run, options):
    network, rounds, evaluation = run
    everything = {"observed": 1.0, "rank": ROUNDS, "ridge": 1e-12}
    found = rivals.comfedsv(network, rounds, evaluation, **everything, **options)
    exact = rivals.fedsv(network, rounds, evaluation)
    assert found.evaluations == exact.evaluations
    assert_close(found.scores.sum(), exact.scores.sum(), rtol=1e-5, atol=0)
    if not options:
        assert_close(found.scores, exact.scores, rtol=1e-5, atol=0)


def test_comfedsv_follows_fedsv_from_a_part():
    network = small(mixing=DOUBLY_STOCHASTIC, batch_size=12)  # everybody's whole data, so that rounds are alike
    evaluation = evaluate_on(network)
    exact = rivals.fedsv(network, 24, evaluation)
    found = rivals.comfedsv(network, 24, evaluation, observed=0.3)
    assert found.evaluations < 0.8 * exact.evaluations
    assert agreement(exact.scores, found.scores).pearson > 0.9


def test_a_low_rank_matrix_is_completed():
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, 2, generator=draw, dtype=torch.float64) for size in (12, 20))
    seen = torch.rand(12, 20, generator=draw) < 0.6
    whole = left @ right.T
    found = completed(whole * seen, seen, 2, 1e-8, 50)
    assert_close(found, whole, rtol=1e-3, atol=1e-3)
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    assert_close(completed(nothing, nothing == 0, 2, 1e-3, 2), nothing)


def test_retrained_shapley_is_that_of_every_coalition(run):
    network, rounds, evaluation = run
    found = rivals.retrained_shapley(network, ROUNDS, evaluation)
    values = [measured_at(network, ROUNDS, evaluation, row.double()) for row in every_coalition(NODES)]
    assert_close(found.scores, shapley(torch.tensor(values, dtype=torch.float64)), **CLOSE)
    assert found.trainings == 2**NODES - 1
    assert_close(rivals.retrained_shapley(network, rounds, evaluation).scores, found.scores)
    sampled = rivals.retrained_shapley(network, ROUNDS, evaluation, permutations=2)
    assert sampled.trainings < found.trainings
    assert_close(sampled.scores.sum(), found.scores.sum(), **CLOSE)


@pytest.mark.parametrize("rival", [*FROM_COALITIONS, rivals.tracin, rivals.tracin_samples, rivals.tracin_checkpoints])
def test_rounds_that_are_played_are_those_that_were_kept(run, rival):
    network, rounds, evaluation = run
    for every in (1, 3):
        kept, played = (rival(network, given, evaluation, every=every) for given in (rounds, ROUNDS))
        assert_close(kept.scores, played.scores, **CLOSE)
        assert kept.evaluations == played.evaluations > 0
        assert kept.trainings == 0


@pytest.mark.parametrize(
    ("count", "every", "weights"), [(6, 3, [0, 3, 0, 0, 3, 0]), (3, 1, [1, 1, 1]), (5, 3, [0, 2.5, 0, 0, 2.5])]
)
def test_rounds_that_are_looked_at_stand_for_all(run, count, every, weights):
    assert [weight for _, weight in weighted_rounds(run[0], count, every)] == weights


def test_who_does_not_work_contributes_nothing():
    network = small(lr=[0.0, 0.3, 0.3, 0.3], mixing=DOUBLY_STOCHASTIC)
    evaluation = evaluate_on(network)
    for rival in (*FROM_COALITIONS[:3], rivals.retrained_shapley, rivals.tracin):
        scores = rival(network, ROUNDS, evaluation).scores
        assert abs(float(scores[0])) < 1e-14
        assert scores[1:].all()


def test_prefixes_are_of_the_orders():
    members = prefixes(torch.tensor([[2, 0, 1]]))
    assert members[0].int().tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1]]


def test_what_cannot_be_computed_is_refused(run):
    network, rounds, evaluation = run
    with pytest.raises(ValueError, match=r"leave one of 4 rounds to look at; found 9\."):
        rivals.fedsv(network, rounds, evaluation, every=9)
    with pytest.raises(ValueError, match=r"all coalitions are too many for 13 players; at most 12\. Give permutations"):
        every_coalition(13)
    with pytest.raises(ValueError, match=r"trained again from round 0; the rounds start at 2"):
        rivals.retrained_shapley(network, rounds[2:], evaluation)
    mixed = rounds[1]._replace(rule=lambda draw, before, half: half)
    with pytest.raises(ValueError, match=r"round 1 was mixed by a rule that does not average"):
        rivals.fedsv(network, [mixed], evaluation)
    many = small(mixing=torch.eye(9, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"all coalitions of 9 participants are too many; at most 8"):
        rivals.retrained_shapley(many, 1, evaluation)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("rival", [*FROM_COALITIONS, rivals.tracin, rivals.tracin_samples, rivals.tracin_checkpoints])
def test_cuda_is_cpu(run, rival):
    network, _, evaluation = run
    there = small(device="cuda")
    options = {"every": 1} if rival is rivals.tracin_checkpoints else {}  # more than this run has, unless given
    found, expected = (
        rival(one, ROUNDS, measured, **options)
        for one, measured in ((there, evaluate_on(there)), (network, evaluation))
    )
    assert_close(found.scores, expected.scores, rtol=1e-6, atol=1e-10)
    assert found.evaluations == expected.evaluations
