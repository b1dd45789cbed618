"""Batches that a user gives, whose numbers and sizes change from round to round."""

from typing import ClassVar

import pytest
import torch
from influence.cases import CLOSE, NODES, small, smooth
from oracles import gossip, modules_of, retrained, rows_of, step
from torch import nn
from torch.nn.functional import pad

import cascadice as cd
from cascadice import influence
from cascadice.applications.neighbours import with_holdings
from cascadice.cli import main
from cascadice.data.batches import padded
from cascadice.data.corruption import CORRUPTIONS
from cascadice.engine import Operator, draw, simulate
from cascadice.engine.parts import part_of
from cascadice.influence.estimators import ESTIMATORS, WHOLE_RUN_KINDS
from cascadice.runs.recording import open_recording

WORK = [  # the samples of everybody's steps, round by round
    [[[0, 1, 2, 3], [4, 5, 0, 1]], [[6, 7]], [[12, 13, 14]], [[18], [19, 20]]],
    [[[2]], [], [[12, 13, 14], [15, 16, 17], [12, 15, 17]], [[21, 22]]],
    [[[3, 4, 5]], [[8, 9, 10]], [], []],
    [[[0, 1]], [[6, 7]], [[12, 13]], [[18, 19]]],
]


def blocks():
    """The same as one tensor."""
    each = [padded(rows) for rows in WORK]
    return torch.stack([pad(one, (0, 4 - one.shape[2], 0, 3 - one.shape[1]), value=-1) for one in each])


FORMS = {
    "lists": lambda t: WORK[t],
    "index tensors": lambda t: [[torch.tensor(batch) for batch in steps] for steps in WORK[t]],
    "one batch without a list around it": lambda t: [steps[0] if len(steps) == 1 else steps for steps in WORK[t]],
    "padded": lambda t: padded(WORK[t]),
    "padded alike": lambda t: blocks()[t],
    "one tensor": blocks(),
}


def trained_by_torch(network):
    """Plain modules on the batches above."""
    modules = modules_of(network)
    helpers = [torch.optim.SGD(module.parameters(), lr=0) for module in modules]
    for t, rows in enumerate(WORK):
        for k, steps in enumerate(rows):
            for batch in steps:
                step(network, modules[k], helpers[k], torch.tensor(batch), 0.3)
        gossip(network.mixing(t), modules)
        yield rows_of(modules)


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("form", FORMS)
def test_training_is_that_of_plain_modules(form, strategy):
    network = small(batches=FORMS[form], strategy=strategy)
    for round_, after in zip(simulate(network, len(WORK)), trained_by_torch(network), strict=True):
        torch.testing.assert_close(round_.after.theta, after, **CLOSE)


def test_every_estimator_follows():
    network = small(batches=FORMS["lists"])
    rounds, judged = list(simulate(network, len(WORK))), influence.evaluate_on(network)
    true = influence.truth(network, rounds[1:], judged)
    for j in range(NODES):
        torch.testing.assert_close(true.value[:, j], retrained(network, rounds[1:], j), **CLOSE)
    assert true.total[1] == 0  # it sat the round out
    pushed = influence.first_order(network, rounds[1:], judged).total
    adjoint = influence.reverse_gossip(network, rounds[1:], judged)
    torch.testing.assert_close(influence.by_participant(rounds[1], adjoint), pushed, **CLOSE)
    for kind in ESTIMATORS:
        scores = cd.score(network, rounds, hops=2, samples=True, kind=kind)
        assert scores.updates.shape == (3, NODES)
        uses = dict(zip(scores.samples["sample"].tolist(), scores.samples["uses"].tolist(), strict=True))
        assert uses[0] == 2
        assert uses[12] == 3
    for kind in WHOLE_RUN_KINDS:
        scores = cd.score(network, rounds, samples=True, kind=kind)
        by_sample = scores.samples.to_pandas().groupby("participant")["influence"].sum()
        totals = scores.participants.to_pandas().set_index("participant")["influence"]
        torch.testing.assert_close(torch.tensor(by_sample.sort_index()), torch.tensor(totals.sort_index()), **CLOSE)


def test_equal_batches_of_a_function_are_those_of_a_tensor():
    plan = torch.arange(NODES * 6).view(1, NODES, 1, 6).repeat(3, 1, 1, 1)
    given, drawn = small(batches=plan), small(batches=lambda t: plan[t])
    assert not given.uneven
    for one, other in zip(simulate(given, 3), simulate(drawn, 3), strict=True):
        assert torch.equal(one.after.theta, other.after.theta)


def test_participants_with_optimizers_of_their_own_may_differ_in_batches_too():
    options = {"optimizer": ["sgd", "sgd", "adam", "momentum"], "lr": [0.3, 0.3, 0.02, 0.1]}
    network = small(batches=FORMS["lists"], **options)
    rounds = list(simulate(network, len(WORK)))
    judged = influence.evaluate_on(network)
    pushed = influence.first_order(network, rounds[1:], judged).total
    adjoint = influence.reverse_gossip(network, rounds[1:], judged)
    torch.testing.assert_close(influence.by_participant(rounds[1], adjoint), pushed, **CLOSE)
    mine = part_of(network, (1, 2))
    assert mine.batches(1).tolist() == [[[-1] * 3] * 3, [[12, 13, 14], [15, 16, 17], [12, 15, 17]]]


def test_a_run_with_uneven_batches_is_saved_and_answers_commands(tmp_path, capsys):
    network = small(cd.models.mlp((6,), 3, hidden=(4,)), batches=FORMS["lists"], dtype="float32")
    folder = cd.save(network, simulate(network, len(WORK)), tmp_path / "run", model="mlp")
    assert main(["influence", str(folder), "--kind", "whole-run", "--samples"]) == 0
    for command in (["detect"], ["choose"], ["reward", "--budget", "10"], ["forget", "--participant", "2"], ["report"]):
        assert main([command[0], str(folder), *command[1:]]) == 0, command
    assert "participant 2" in capsys.readouterr().out
    held = with_holdings(open_recording(folder)).partition  # everybody was given batches, and no part of the data
    drawn = [sorted({sample for rows in WORK for batch in rows[k] for sample in batch}) for k in range(NODES)]
    assert [own.tolist() for own in held] == drawn


def test_a_round_of_a_function_is_checked_when_it_is_drawn():
    network = small(batches=lambda t: [[0]] * (NODES - (t == 2)))
    with pytest.raises(ValueError, match="there must be 4 participants in the batches of a round; round 2 has 3"):
        list(simulate(network, 3))
    network = small(batches=lambda t: [[100 * t]] * NODES)
    with pytest.raises(ValueError, match=r"below 48, the number of samples.*Round 1, participant 0"):
        list(simulate(network, 3))


DRAWN = {
    "dropout": {"model": smooth(nn.Dropout(0.5)), "strategy": "loop"},
    **{kind: {"corruptions": [cd.Corruption(kind, tuple(range(NODES)))]} for kind in CORRUPTIONS},
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_a_participant_draws_does_not_depend_on_others(name):
    network = small(batches=FORMS["lists"], **DRAWN[name])
    for t in range(len(WORK)):
        whole, _ = Operator(network).work(draw(network, t), network.initial)[:2]
        for members in ((0,), (3,), (1, 2)):
            part = part_of(network, members)
            own, _ = Operator(part).work(draw(part, t), part.initial)[:2]
            torch.testing.assert_close(own.theta, whole.theta[list(members)], **CLOSE)


class Drop(nn.Module):
    """Dropout that keeps its masks, those of all its copies in one list."""

    masks: ClassVar[list[torch.Tensor]] = []

    def forward(self, x):
        if not self.training:
            return x
        self.masks.append(torch.bernoulli(torch.full_like(x, 0.5)))
        return x * self.masks[-1]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1)])
def test_every_step_has_masks_of_its_own(sizes):
    """Participant 0 makes three steps on one batch; another's batch sizes split them into phases, or do not."""
    other = [[6, 7][: sizes[0]], [8, 9][: sizes[1]], [10]]
    network = small(smooth(Drop()), batches=lambda t: [[[0, 1]] * 3, other, [], []], strategy="loop")
    Drop.masks.clear()
    Operator(network).work(draw(network, 0), network.initial)
    pairs = [tuple(mask.flatten().tolist()) for mask in Drop.masks if len(mask) == 2]
    assert len(set(pairs)) == len(pairs) == 3 + sizes.count(2)


@pytest.mark.parametrize("name", DRAWN)
def test_estimators_repeat_what_every_step_drew(name):
    network = small(batches=FORMS["lists"], **DRAWN[name])
    rounds, judged = list(simulate(network, len(WORK))), influence.evaluate_on(network)
    for start in (0, 1):
        pushed = influence.first_order(network, rounds[start:], judged).total
        adjoint = influence.reverse_gossip(network, rounds[start:], judged)
        torch.testing.assert_close(influence.by_participant(rounds[start], adjoint), pushed, **CLOSE)


def test_one_step_draws_as_in_an_even_network():
    plan = torch.arange(NODES * 6).view(1, NODES, 1, 6).repeat(3, 1, 1, 1)
    for options in DRAWN.values():
        given, drawn = small(batches=plan, **options), small(batches=lambda t: plan[t], **options)
        for one, other in zip(simulate(given, 3), simulate(drawn, 3), strict=True):
            assert torch.equal(one.after.theta, other.after.theta)
