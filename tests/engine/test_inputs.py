"""Models that take dictionaries, give outputs with logits, and have frozen or shared parameters."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

import cascadice as cd
from cascadice.data import Samples, from_torch, next_tokens
from cascadice.engine.learner import learner
from cascadice.influence import (
    by_participant,
    by_sample,
    evaluate_on,
    first_order,
    reverse_gossip,
    samples_by_receiver,
    truth,
)
from cascadice.losses import accuracy, cross_entropy
from cascadice.optimizers import sgd

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY, TIME = 7, 5


class Output(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


class Reader(nn.Module):
    """A tiny language model: tied or frozen embedding, a mask over its inputs, an output of several tensors."""

    def __init__(self, tied=False, frozen=False, give=Output):
        super().__init__()
        torch.manual_seed(1)
        self.tokens, self.mix = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, VOCABULARY, bias=False)
        if tied:
            self.out.weight = self.tokens.weight
        self.tokens.requires_grad_(not frozen)
        self.give = give

    def forward(self, input_ids, attention_mask):
        seen = (self.tokens(input_ids) * attention_mask[..., None]).cumsum(1)
        return self.give(self.out(torch.tanh(self.mix(seen))), seen)


def texts(count, seed=0):
    """Padded on the left: a causal model never looks at padding on the right, masked or not."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (count, TIME), generator=draw)
    mask = torch.arange(TIME) >= torch.randint(TIME - 1, (count, 1), generator=draw)
    return ids, mask.long()


def samples(count, seed=0):
    ids, mask = texts(count, seed)
    return Samples({"input_ids": ids, "attention_mask": mask}, next_tokens(ids.masked_fill(mask == 0, -100)))


def reading(model, strategy="loop", **options):
    usual = {"nodes": 3, "mixing": "ring", "batch_size": 4, "lr": 0.03, "dtype": "float64", "seed": 1}
    return cd.network(model, (samples(24), samples(9, 1)), strategy=strategy, **(usual | options))


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("options", [{"tied": True}, {"frozen": True}], ids=["tied", "frozen"])
def test_every_estimate_takes_them(options, strategy):
    network = reading(Reader(**options), strategy)
    assert network.learner.size == 20 + VOCABULARY * 4  # a tied embedding counts once, a frozen one not at all
    rounds, judged = list(cd.simulate(network, 2)), evaluate_on(network)
    pushed, adjoint = first_order(network, rounds, judged), reverse_gossip(network, rounds, judged)
    torch.testing.assert_close(by_participant(rounds[0], adjoint), pushed.total, rtol=1e-9, atol=1e-13)
    scores = by_sample(network, rounds[0], adjoint)
    torch.testing.assert_close(scores.sum(1), pushed.total, rtol=1e-9, atol=1e-13)
    true = truth(network, rounds, judged).total
    assert (pushed.total - true).abs().max() < 0.3 * true.abs().max()


def test_outputs_are_tensors_or_have_logits():
    ways = (Output, lambda out, hidden: out, lambda out, hidden: {"logits": out, "hidden": hidden})
    networks = [reading(Reader(give=give)) for give in ways]
    losses = [cd.evaluate(network, network.initial).loss for network in networks]
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])


def test_scores_of_samples_for_each_receiver():
    network = reading(Reader())
    rounds, judged = list(cd.simulate(network, 2)), evaluate_on(network, [samples(5, k) for k in range(3)])
    each = samples_by_receiver(network, rounds, judged)
    pushed = first_order(network, rounds, judged).value.sum(0)  # [source, receiver]
    torch.testing.assert_close(each.sum(2), pushed.T, rtol=1e-9, atol=1e-13)
    whole = by_sample(network, rounds[0], reverse_gossip(network, rounds, judged))
    torch.testing.assert_close(each.sum(0), whole, rtol=1e-9, atol=1e-13)
    assert torch.equal(samples_by_receiver(network, rounds, judged, [2])[0], each[2])
    with pytest.raises(ValueError, match=r"receivers must be from 0 to 2; found 3"):
        samples_by_receiver(network, rounds, judged, [3])


def test_a_batch_trains_as_it_does_in_torch():
    network, model = reading(Reader(frozen=True), q=[0.2, 0.3, 0.5]), Reader(frozen=True).double()
    done = next(cd.simulate(network, 1))
    data = network.data.train
    rows = done.draw.batch[1, 0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    output = model(data.x["input_ids"][rows], data.x["attention_mask"][rows])
    nn.functional.cross_entropy(output.logits.flatten(0, 1), data.y[rows].flatten()).backward()
    optimizer.step()
    expected = [p for p in model.parameters() if p.requires_grad]
    torch.testing.assert_close(done.half.theta[1], torch.cat([p.detach().flatten() for p in expected]))
    copy = cd.module_of(network, done.half, 1)
    for ours, theirs in zip(copy.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_frozen_parameters_are_held_once():
    made = learner(Reader(frozen=True), cross_entropy, sgd())
    twin = made.twin()
    places = {each.tokens.weight.data_ptr() for each in (made.training, made.evaluating, twin.training)}
    assert len(places) == 1
    assert twin.training.mix.weight.data_ptr() != made.training.mix.weight.data_ptr()
    changed = [Reader(frozen=True) for _ in range(3)]
    nn.init.zeros_(changed[2].tokens.weight)
    with pytest.raises(
        ValueError, match="frozen parameters must be the same for everyone; those of participant 2 differ"
    ):
        reading(Reader(frozen=True), init=changed)


@pytest.mark.parametrize("output", [lambda logits, hidden: (logits, hidden), lambda logits, hidden: {"last": hidden}])
def test_an_output_without_logits_is_refused(output):
    with pytest.raises(ValueError, match=r"a model must return a tensor, or an output whose .* (tuple|dict)\."):
        reading(Reader(give=output))


def test_data_sets_of_dictionaries():
    ids, mask = texts(6)
    labels = ids.masked_fill(mask == 0, -100)
    rows = zip(ids, mask.tolist(), labels, strict=True)
    items = [{"input_ids": tokens, "attention_mask": seen, "labels": y} for tokens, seen, y in rows]
    found = from_torch(items, items).train
    assert torch.equal(found.x["attention_mask"], mask)
    assert torch.equal(found.y, next_tokens(labels))  # labels that repeat the tokens are shifted, as their models do
    graded = [{**item, "labels": k % 3} for k, item in enumerate(items)]
    assert from_torch(graded, graded).train.y.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(TypeError, match=r"A dictionary needs the key 'labels'; it has 'input_ids'"):
        from_torch([{"input_ids": ids[0]}], items)
    with pytest.raises(ValueError, match=r"must have one row per sample; found \[5, 6\] rows"):
        Samples({"input_ids": ids, "attention_mask": mask[:5]}, labels)
    with pytest.raises(ValueError, match=r"noise needs real-valued features; x is a dict"):
        list(cd.simulate(reading(Reader(), corruptions=[cd.data.corruption.parse("noise:1:0.1")]), 1))


def test_ignored_targets_count_nowhere():
    logits, y = torch.randn(2, 4, 3), torch.tensor([[0, -100, 2, -100], [1, 1, -100, -100]])
    right = [logits[i, t].argmax() == y[i, t] for i, t in ((0, 0), (0, 2), (1, 0), (1, 1))]
    assert accuracy(logits, y) == torch.stack(right).float().mean()
    network = reading(Reader())
    metrics = [cd.evaluate(network, network.initial, chunk=chunk) for chunk in (2, 9)]
    torch.testing.assert_close(*metrics)
