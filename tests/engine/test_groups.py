"""Participants that work in different ways: other optimizers, rates, batch sizes, numbers of local steps."""

import pytest
import torch
from influence.cases import CLOSE, NODES, data, small, window
from oracles import gossip, losses, modules_of, retrained, rows_of, step

from cascadice import influence, optimizers
from cascadice.applications.forget.idea import Removal, forget
from cascadice.engine import Behaviour, Operator, simulate
from cascadice.influence.readings import sample_contributions
from cascadice.influence.shares import scaled_rounds
from cascadice.influence.tables import table_of_samples

DIFFERENT = {
    "optimizer": ["sgd", "adam", optimizers.momentum(0.8), optimizers.momentum(0.8)],
    "lr": [0.3, 0.02, 0.1, 0.05],
    "batch_size": [4, 3, 2, 2],
    "local_steps": [1, 2, 3, 1],
}
TORCH = [
    lambda p: torch.optim.SGD(p, lr=0),
    lambda p: torch.optim.Adam(p, lr=0),
    lambda p: torch.optim.SGD(p, lr=0, momentum=0.8),
    lambda p: torch.optim.SGD(p, lr=0, momentum=0.8),
]


def different(strategy="vmap", **options):
    return small(**(DIFFERENT | {"strategy": strategy} | options))


def trained_by_torch(network, rounds):
    """Plain modules and torch.optim, each participant on its own batches at its own rate."""
    modules = modules_of(network)
    helpers = [make(module.parameters()) for make, module in zip(TORCH, modules, strict=True)]
    for t in range(rounds):
        rates, batches = network.lr(t), network.batches(t)
        for k, (module, helper) in enumerate(zip(modules, helpers, strict=True)):
            steps, size = DIFFERENT["local_steps"][k], DIFFERENT["batch_size"][k]
            for batch in batches[k, :steps, :size]:
                step(network, module, helper, batch, float(rates[k]))
        half = rows_of(modules)
        gossip(network.mixing(t), modules)
        yield half, rows_of(modules)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_training_is_that_of_plain_modules(strategy):
    network = different(strategy)
    assert len(network.groups) == 4
    for round_, (half, after) in zip(simulate(network, 5), trained_by_torch(network, 5), strict=True):
        torch.testing.assert_close(round_.half.theta, half, **CLOSE)
        torch.testing.assert_close(round_.after.theta, after, **CLOSE)


def test_participants_that_are_alike_are_no_groups():
    alike = small(optimizer=["sgd"] * NODES, lr=[0.3] * NODES, batch_size=[4] * NODES, local_steps=[1] * NODES)
    assert alike.groups == ()
    plain = small()
    for one, other in zip(simulate(alike, 3), simulate(plain, 3), strict=True):
        assert torch.equal(one.after.theta, other.after.theta)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_truth_is_retraining(strategy):
    network = different(strategy)
    rounds = window(network, 3)
    truth = influence.truth(network, rounds, influence.evaluate_on(network)).value
    for source in range(NODES):
        torch.testing.assert_close(truth[:, source], retrained(network, rounds, source), **CLOSE)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_first_order_is_the_derivative_and_reverse_gossip_its_transpose(strategy):
    network = different(strategy)
    rounds, evaluation, step = window(network, 3), influence.evaluate_on(network), 1e-4
    forwards = influence.first_order(network, rounds, evaluation)
    for source in range(NODES):
        ends = [
            torch.stack([losses(network, r.after) for r in scaled_rounds(Operator(network), rounds, alpha, source)])
            for alpha in (1 + step, 1 - step)
        ]
        expected = network.q * (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(forwards.value[1:, source], expected, rtol=1e-5, atol=1e-9)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    torch.testing.assert_close(influence.by_participant(rounds[0], adjoint), forwards.total, **CLOSE)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_integrals_sum_to_the_truth(strategy):
    network = different(strategy)
    rounds, evaluation = window(network, 2), influence.evaluate_on(network)
    truth = influence.truth(network, rounds, evaluation).total
    integrated = influence.path_integrated(network, rounds, evaluation, points=6).total
    torch.testing.assert_close(integrated, truth, rtol=1e-6, atol=1e-9)
    assert influence.shares(network, rounds, evaluation, points=4).isfinite().all()


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_samples_have_their_places_and_padding_has_none(strategy):
    network = different(strategy, optimizer="sgd", lr=[0.3, 0.2, 0.1, 0.05], local_steps=[1, 1, 1, 1])
    rounds, evaluation = window(network, 2), influence.evaluate_on(network)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    scores = influence.by_sample(network, rounds[0], adjoint)
    torch.testing.assert_close(scores.sum(1), influence.by_participant(rounds[0], adjoint), **CLOSE)
    padding = rounds[0].draw.batch.flatten(1) < 0
    assert padding.sum() == 1 + 2 + 2
    assert not scores[padding].any()
    assert len(table_of_samples("first order", rounds[0], scores)) == int((~padding).sum())
    used = sample_contributions([(rounds[0], scores)], len(network.data.train)).uses
    assert int(used.sum()) == int((~padding).sum())
    truth = influence.truth_of_samples(network, rounds, evaluation, 1)
    assert truth.samples == (0, 1, 2)


def test_several_steps_of_samples_are_in_their_places():
    network = different(optimizer="sgd", lr=[0.3, 0.2, 0.1, 0.05], batch_size=[3, 2, 3, 3], local_steps=[1, 2, 2, 1])
    rounds, evaluation = window(network, 1), influence.evaluate_on(network)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    scores = influence.by_sample(network, rounds[0], adjoint).view(rounds[0].draw.batch.shape)
    assert not scores[rounds[0].draw.batch < 0].any()
    assert (scores[rounds[0].draw.batch >= 0] != 0).all()
    alone = small(lr=0.2, batch_size=2, local_steps=2)
    start = rounds[0].before
    (same,) = simulate(alone, 3, start=2, participants=start._replace(theta=start.theta.clone()))
    assert torch.equal(same.draw.batch[1], rounds[0].draw.batch[1, :2, :2])
    by_itself = influence.by_sample(alone, same, adjoint)[1].view(2, 2)
    torch.testing.assert_close(scores[1, :2, :2], by_itself, **CLOSE)


def test_horizon_shares_and_forgetting_follow():
    network = different(behaviours=[Behaviour("free-rider", (2,), range(1, 2))])
    rounds, evaluation = list(simulate(network, 4)), influence.evaluate_on(network)
    for scores in influence.full_horizon(network, reversed(rounds), evaluation):
        expected = influence.first_order(network, rounds[scores.t :], evaluation).value[-1].sum(-1)
        torch.testing.assert_close(scores.participants, expected, **CLOSE)
    removal = Removal(nodes=(1,))
    exact = forget(network, rounds, removal, "replay").participants.theta
    idle = different(behaviours=[Behaviour("free-rider", (2,), range(1, 2)), Behaviour("free-rider", (1,))])
    *_, last = simulate(idle, 4)
    torch.testing.assert_close(exact, last.after.theta, **CLOSE)
    integrated = forget(network, rounds, removal, "path-integrated", points=8).participants.theta
    assert (integrated - exact).norm() < 0.02 * (rounds[-1].after.theta - exact).norm()
    with pytest.raises(ValueError, match=r"one optimizer for all .* this network has others"):
        forget(network, rounds, removal, "gossip")


def test_evaluation_sets_may_differ_in_size():
    network = small()
    sets = [network.data.test.subset(torch.arange(k, 3 + 2 * k % 5)) for k in range(NODES)]
    evaluation = influence.evaluate_on(network, sets)
    rounds = window(network, 2)
    for strategy in ("loop", "vmap"):
        net = small(strategy=strategy)
        truth = influence.truth(net, rounds, evaluation).value
        for source in range(NODES):
            expected = retrained(net, rounds, source, sets=sets)
            torch.testing.assert_close(truth[:, source], expected, **CLOSE)
        adjoint = influence.reverse_gossip(net, rounds, evaluation)
        expected = influence.first_order(net, rounds, evaluation).total
        torch.testing.assert_close(influence.by_participant(rounds[0], adjoint), expected, **CLOSE)


def test_own_data_of_different_sizes():
    network = small()
    sets = influence.own_data(network, [1, 2, 3, 4])
    assert [len(part) for part in sets] == [1, 2, 3, 4]
    assert influence.proximity(network, window(network, 1)[0], influence.evaluate_on(network, sets)).influence.any()


WRONG = {
    "optimizers": ({"optimizer": ["sgd", "adam"]}, ValueError, "an optimizer for each of 4 participants"),
    "rates": ({"lr": [0.1, 0.2]}, ValueError, "4"),
    "batches": ({"batch_size": [1, 2, 3]}, ValueError, "batch_size must be one number, or one for each of 4"),
    "steps": ({"local_steps": [1, 2, 3, 4, 5]}, ValueError, "local_steps must be one number, or one for each of 4"),
    "a torch.optim class": ({"optimizer": torch.optim.SGD}, TypeError, "torch.optim"),
}


@pytest.mark.parametrize(("options", "error", "message"), WRONG.values(), ids=WRONG)
def test_there_must_be_one_setting_for_each(options, error, message):
    with pytest.raises(error, match=message):
        small(**options)


def test_data_may_be_a_torch_dataset():
    train, test = data().train, data().test
    pair = (torch.utils.data.TensorDataset(train.x, train.y), torch.utils.data.TensorDataset(test.x, test.y))
    one, other = next(simulate(small(data=pair), 1)), next(simulate(small(), 1))
    assert torch.equal(one.after.theta, other.after.theta)


@pytest.mark.parametrize("window_size", [0, 2])
def test_buffers_that_are_used_again_change_nothing(window_size):
    network = different()
    expected = list(simulate(network, 6))
    for round_ in simulate(network, 6, window=window_size, taped=True):
        assert torch.equal(round_.after.theta, expected[round_.t].after.theta)
        assert torch.equal(round_.half.theta, expected[round_.t].half.theta)


def adagrad(start):
    """Keeps a sum of squares that starts at a value of its own."""

    def update(gradient, state, theta, lr):
        total = state["sum"] + gradient.square()
        return -lr[..., None] * gradient / total.sqrt(), {"sum": total}

    return optimizers.Optimizer(lambda theta: {"sum": torch.full_like(theta, start)}, update)


def test_state_of_one_name_starts_as_each_optimizer_says():
    one, two = adagrad(0.5), adagrad(4.0)
    network = small(optimizer=[one, one, two, two], lr=0.1)
    assert network.initial.state["sum"][:, 0].tolist() == [0.5, 0.5, 4.0, 4.0]
    mixed, alone = next(simulate(network, 1)), next(simulate(small(optimizer=two, lr=0.1), 1))
    torch.testing.assert_close(mixed.half.theta[2:], alone.half.theta[2:], **CLOSE)


def test_forgetting_samples_of_several_steps_is_training_without_them():
    network = different(optimizer="sgd", lr=[0.3, 0.2, 0.1, 0.05], batch_size=[3, 2, 3, 3], local_steps=[1, 2, 3, 1])
    rounds = list(simulate(network, 3))
    sample = int(rounds[0].draw.batch[2, 2, 1])
    exact = forget(network, rounds, Removal(samples=(sample,)), "replay").participants.theta
    modules = modules_of(network)
    for round_ in rounds:
        for k, module in enumerate(modules):
            for batch in round_.draw.batch[k]:
                index = batch[batch >= 0]
                if len(index):
                    descend(network, module, index, sample, float(round_.draw.lr[k]))
        gossip(round_.W, modules)
    torch.testing.assert_close(exact, rows_of(modules), **CLOSE)
    assert not torch.allclose(exact, rounds[-1].after.theta)


def descend(network, module, index, removed, lr):
    """One plain step in which the removed sample has no term; the mean is still over the whole batch."""
    x, y = network.data.train.x[index], network.data.train.y[index]
    each = torch.nn.functional.cross_entropy(module(x), y, reduction="none")
    pieces = torch.autograd.grad((each * (index != removed)).sum() / len(index), list(module.parameters()))
    with torch.no_grad():
        for parameter, piece in zip(module.parameters(), pieces, strict=True):
            parameter -= lr * piece


def test_padding_is_no_sample_to_forget_and_none_to_pay():
    from cascadice.applications.forget.removals import forgotten_samples
    from cascadice.applications.reward.contributions import by_shares
    from cascadice.applications.reward.ledger import columns_of

    network = different()
    rounds = window(network, 2)
    samples = forgotten_samples(Removal(nodes=(1,)), [round_.draw for round_ in rounds], NODES)
    assert int(samples.min()) >= 0
    columns = columns_of(by_shares(network, rounds, influence.evaluate_on(network), samples=True))
    assert int((columns["sample"] == -1).sum()) == NODES
    assert len(columns["sample"]) == NODES + int((rounds[0].draw.batch >= 0).sum())


@pytest.mark.parametrize("lr", [lambda t: torch.tensor(0.3), lambda t: [0.3] * NODES, lambda t: 0.3])
def test_a_schedule_may_give_a_rate_of_any_kind(lr):
    torch.testing.assert_close(
        next(simulate(small(lr=lr), 1)).after.theta, next(simulate(small(lr=0.3), 1)).after.theta
    )


def test_a_schedule_must_give_one_rate_or_one_each():
    with pytest.raises(ValueError, match="lr must be one number or 4, one a participant"):
        small(lr=lambda t: [0.1, 0.2])
