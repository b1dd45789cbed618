"""A part of a network, made as such, is what is cut out of the whole one; it has nobody else's model or samples."""

import gc
import weakref

import pytest
import torch
from torch import nn

from cascadice import data, models, network
from cascadice.data.corruption import Corruption
from cascadice.data.samples import content_digest
from cascadice.engine import Operator
from cascadice.engine.assembly import Network
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.networks import draw, load
from cascadice.engine.parts import part_of, split
from cascadice.runs import sources
from cascadice.runs.config import Config, build, length_of
from cascadice.runs.sources import load_data

DIGITS, NODES = data.digits(), 6
CASES = {
    "shared": {},
    "own": {"init": "own"},
    "given": {"init": torch.arange(6.0)[:, None].expand(6, 610)},
    "mixed": {
        "optimizer": ["sgd", "adam", "sgd", "momentum", "adam", "adam"],
        "lr": [0.1, 0.003, 0.1, 0.03, 0.2, 0.003],
        "batch_size": [8, 8, 4, 8, 6, 8],
        "local_steps": [1, 2, 1, 1, 3, 1],
    },
    "attacks": {
        "behaviours": [Behaviour("absent", (1,), range(2, 4)), Behaviour("noise-sender", (4,), None, 0.01)],
        "corruptions": [Corruption("flip-labels", (5,), None, 0.5)],
        "q": [0.3, 0.1, 0.1, 0.2, 0.2, 0.1],
    },
}


def made(members=(), **options) -> Network:
    def model():
        return models.build("mlp", (64,), 10, hidden=[8], seed=torch.initial_seed())

    return network(model, DIGITS, **{"nodes": NODES, "batch_size": 8} | options, members=members)


@pytest.mark.parametrize("name", CASES)
def test_made_as_a_part_or_cut_out(name):
    options = CASES[name]
    whole = made(**options)
    for members in ((0, 1, 2), (3, 4, 5), (4, 5)):
        cut, part = part_of(whole, members), made(members, **options)
        assert (part.whole, part.nodes) == (NODES, len(members))
        assert all(map(torch.equal, (part.initial.theta, part.q), (cut.initial.theta, cut.q)))
        assert (part.corruptions, part.behaviours) == (cut.corruptions, cut.behaviours)
        for t in (0, 2):
            one, other = draw(part, t), draw(cut, t)
            assert all(map(torch.equal, (one.batch, one.W), (other.batch, other.W)))
            torch.testing.assert_close(torch.as_tensor(one.lr), torch.as_tensor(other.lr))
        for k in range(len(members)):
            own = next((group.learner for group in part.groups if k in group.nodes), part.learner).optimizer
            theirs = next((group.learner for group in cut.groups if k in group.nodes), cut.learner).optimizer
            assert own.update.__qualname__ == theirs.update.__qualname__


def test_no_model_of_anybody_else_is_made():
    drawn = []

    def model():
        drawn.append(torch.initial_seed())
        return models.mlp((64,), 10, hidden=(8,))

    network(model, DIGITS, nodes=NODES, init="own", members=(4, 5))
    assert len(drawn) == 3  # a template, and two members


def test_members_are_participants_in_order():
    with pytest.raises(ValueError, match="members must be participants below 6, in ascending order"):
        made((5, 4))
    with pytest.raises(ValueError, match=r"found 7 processes for 6\. Start at most 6"):
        split(6, 7)


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_a_part_keeps_the_samples_of_its_own_participants_alone(partition):
    whole = made(partition=partition)
    for cut in (False, True):
        for members in split(NODES, 3):
            part = part_of(whole, members) if cut else made(members, partition=partition)
            held, train = torch.cat([whole.partition[k] for k in members]), part.data.train
            assert len(train.x) == len(train.y) == len(held) < len(train) == len(DIGITS.train)
            assert torch.equal(train.numbers, held.sort().values)
            assert train.x.untyped_storage().nbytes() == len(held) * DIGITS.train.x[0].nbytes  # a copy, not a view
            assert all(map(torch.equal, train.take(held), DIGITS.train.take(held)))
            assert all(map(torch.equal, part.partition, [whole.partition[k] for k in members]))
            for t in (0, 7):
                own, everybody = load(part, draw(part, t)), load(whole, draw(whole, t))
                assert torch.equal(own.x, everybody.x[list(members)])
            foreign = next(i for i in range(len(DIGITS.train)) if i not in set(held.tolist()))
            with pytest.raises(IndexError, match=f"sample {foreign} is not in this process: it keeps {len(held)} of"):
                train.take(torch.tensor([int(held[0]), foreign]))
            assert content_digest(part.data) == content_digest(DIGITS)


def test_nothing_in_a_process_holds_the_samples_or_labels_of_others(monkeypatch):
    config = Config(data="digits", nodes=4, epochs=3, lr_schedule="cosine", participants=("1:local_steps=2",))
    expected, read = length_of(config, build(config)), []

    def watched(*args):
        found = load_data(*args)
        read.extend(map(weakref.ref, (found.train.x, found.train.y)))
        return found

    monkeypatch.setattr(sources, "load_data", watched)
    part = build(config, processes=4, rank=1)
    gc.collect()
    assert [each() for each in read] == [None, None]
    assert part.batches.partition[0].tolist() == part.partition[0].tolist()
    assert len(part.batches.partition) == 1
    assert length_of(config, part) == expected  # an epoch is everybody's
    assert repr(part.data.train) == "Samples(1,442 of 1 × 8 × 8, 361 of them here, float32, on cpu)"


def test_without_a_partition_a_part_keeps_everything():
    indices = torch.arange(NODES * 8).view(1, NODES, 1, 8)
    part = network(lambda: models.mlp((64,), 10), DIGITS, nodes=NODES, batches=indices, members=(4, 5))
    assert part.data.train.numbers is None
    assert len(part.data.train.x) == len(DIGITS.train)


@pytest.mark.parametrize("partition", [None, [range(8 * k, 8 * k + 8) for k in range(NODES)]])
@pytest.mark.parametrize("norm", [False, True])
def test_a_part_whose_participants_sit_out_round_0_can_be_made(norm, partition):
    def model():
        layers = [nn.BatchNorm1d(8)] if norm else [nn.Dropout(0.5)]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, 10))

    def batches(t):
        return [[[8 * k, 8 * k + 1]] if t or k < 4 else [] for k in range(NODES)]

    options = {"nodes": NODES, "batches": batches, "partition": partition, "init": "own"}
    whole, part = network(model, DIGITS, **options), network(model, DIGITS, **options, members=(4, 5))
    assert part.learner.stochastic is whole.learner.stochastic is not norm
    for t in (0, 1):
        theta = Operator(part).work(draw(part, t), part.initial)[0].theta
        torch.testing.assert_close(theta, Operator(whole).work(draw(whole, t), whole.initial)[0].theta[4:])
        assert torch.equal(theta, part.initial.theta) is (t == 0)
