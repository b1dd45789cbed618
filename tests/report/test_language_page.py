"""The first finding of a page of a language model: loss and perplexity, because accuracy says little about tokens."""

import math

import pytest
import torch
from torch import nn

import cascadice as cd
from cascadice.data.inputs import are_tokens
from cascadice.report.page import collect


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (torch.zeros(4, 3, dtype=torch.int64), True),
        (torch.zeros(4, dtype=torch.int64), False),
        (torch.zeros(4, 1, dtype=torch.int64), False),  # one class a sample
        (torch.zeros(4, 3), False),
        (torch.zeros(0, 3, dtype=torch.int64), False),
    ],
)
def test_tokens_are_several_whole_numbers_a_sample(targets, expected):
    assert are_tokens(targets) == expected


def first_finding(tmp_path, y, model, **options):
    x = torch.randint(5, (12, 3), generator=torch.Generator().manual_seed(0))
    data = cd.data.from_tensors(x[:8], y(x[:8]), x[8:], y(x[8:]), name="words", classes=5)
    network = cd.network(model, data, nodes=2, mixing="complete", lr=0.5, batch_size=4, **options)
    rounds = list(cd.simulate(network, 2))
    cd.save(network, rounds, tmp_path / "run")
    return collect(tmp_path / "run")["findings"][0], cd.evaluate(network, rounds[-1].after)


def test_of_tokens_it_says_the_loss_and_the_perplexity(tmp_path):
    said, test = first_finding(tmp_path, lambda x: (x + 1) % 5, nn.Embedding(5, 5))
    loss, right = float(test.loss.mean()), float(test.accuracy.mean())
    assert f"Their test loss is {loss:.3f} on average, from " in said
    assert said.endswith(
        f" (perplexity {math.exp(loss):.3g}, e to the mean loss); {100 * right:.1f} % of tokens are right."
    )


def test_of_classes_it_says_the_accuracy(tmp_path):
    classifier = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 5))
    said, test = first_finding(tmp_path, lambda x: x[:, 0], classifier)
    assert f"Their test accuracy is {float(test.accuracy.mean()):.3f} on average, from " in said
    assert "perplexity" not in said
