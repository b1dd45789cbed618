"""Models and losses off the beaten track: estimates are right, or refused with a reason."""

import pytest
import torch
from influence.cases import CLASSES, FEATURES, small, window
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from cascadice import losses, optimizers
from cascadice.data.corruption import Corruption
from cascadice.engine import draw, load
from cascadice.engine.fast.strategies import choose
from cascadice.influence import by_participant, by_sample, evaluate_on, first_order, reverse_gossip, score_rounds, truth

BOTH = pytest.mark.parametrize("strategy", ["loop", "vmap"])


class Standardised(nn.Linear):
    """Not linear in its weight."""

    def forward(self, x):
        return F.linear(x, torch.tanh(self.weight), self.bias)


class ZeroHead(nn.Module):
    """Where training starts, the head passes nothing back to a layer that is other than it seems."""

    def __init__(self):
        super().__init__()
        self.body, self.head = Standardised(FEATURES, 4), nn.Linear(4, CLASSES)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class Attention(nn.Module):
    """By torch's fused attention, which has no second derivative."""

    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(2, 6), nn.Linear(2, CLASSES)

    def forward(self, x):
        query, key, value = self.project(x.unflatten(-1, (FEATURES // 2, 2))).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(query, key, value).mean(-2))


class Folded(nn.Module):
    """Its layers see more rows than there are samples."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 3), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.reshape(-1, 2))).reshape(len(x), -1, 3).mean(1))


class Convolved(nn.Module):
    """Convolutions that are no layers: a fixed one, called with numbers, and one whose kernel a layer computes."""

    def __init__(self):
        super().__init__()
        self.kernel, self.body, self.head = nn.Linear(FEATURES, 9), nn.Conv2d(1, 2, 2), nn.Linear(4, CLASSES)
        self.register_buffer("blur", torch.ones(1, 1, 2, 2), persistent=False)

    def forward(self, x):
        image = x.view(-1, 1, 2, 3).tile(1, 1, 2, 1)
        kernel = self.kernel(x).mean(0).view(1, 1, 3, 3)
        moved = F.conv2d(F.conv2d(image, self.blur, None, 1, 1, 1, 1), kernel, None, (1, 1), (0, 0), (1, 1), 1)
        return self.head(torch.tanh(self.body(moved)).flatten(1)[:, :4])


def built(model):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return model()


@BOTH
@pytest.mark.parametrize("model", [ZeroHead, Attention, Folded])
def test_samples_add_up_and_backwards_is_forwards(model, strategy, one_thread):
    network = small(built(model), strategy=strategy)
    rounds, judged = window(network, 3), evaluate_on(network)
    worth = reverse_gossip(network, rounds, judged)
    whole = by_participant(rounds[0], worth)
    assert_close(by_sample(network, rounds[0], worth).sum(1), whole, rtol=1e-9, atol=1e-13)
    assert_close(first_order(network, rounds, judged).total, whole.double(), rtol=1e-9, atol=1e-13)


def test_convolutions_that_are_no_layers(one_thread):
    # the kernel is a mean over the batch, so samples have no parts of their own; participants have
    network = small(built(Convolved), strategy="loop", init="shared")
    rounds, judged = window(network, 3), evaluate_on(network)
    backwards = by_participant(rounds[0], reverse_gossip(network, rounds, judged))
    assert_close(first_order(network, rounds, judged).total, backwards.double(), rtol=1e-9, atol=1e-13)


@BOTH
@pytest.mark.parametrize("rule", [optimizers.adam(), optimizers.adamw(), optimizers.momentum()])
def test_three_hops_in_single_precision(rule, strategy, one_thread):
    network = small(optimizer=rule, lr=0.01, dtype="float32", strategy=strategy)
    rounds, judged = window(network, 3), evaluate_on(network)
    backwards = by_participant(rounds[0], reverse_gossip(network, rounds, judged))
    assert_close(first_order(network, rounds, judged).total, backwards.double().cpu(), rtol=1e-3, atol=1e-6)


COUPLED = {
    "a squared mean": lambda outputs, y: F.cross_entropy(outputs, y) ** 2,
    "a root mean square": lambda outputs, y: losses.mse(outputs, y).sqrt(),
    "contrast within the batch": lambda outputs, y: F.cross_entropy(outputs @ outputs.T, torch.arange(len(y))),
}


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("loss", COUPLED.values(), ids=COUPLED)
def test_a_loss_that_couples_samples_has_no_scores_of_samples_but_of_participants(loss, strategy):
    network = small(loss=loss, lr=0.01, strategy=strategy)
    rounds, evaluation = window(network, 1), evaluate_on(network, measure=losses.cross_entropy)
    adjoint = reverse_gossip(network, rounds, evaluation)
    assert by_participant(rounds[0], adjoint).isfinite().all()
    with pytest.raises(ValueError, match="a sample's term depends on the other samples"):
        by_sample(network, rounds[0], adjoint)


def test_a_model_that_can_be_trained_but_not_judged_side_by_side_is_looped(monkeypatch):
    network = small()
    inputs = load(network, draw(network, 0))
    assert choose(network.learner, network.initial, inputs) == "vmap"
    monkeypatch.setattr(network.learner.evaluating, "forward", lambda x: x.sum().item())  # vmap has no rule for .item()
    assert choose(network.learner, network.initial, inputs) == "loop"


def test_a_recording_in_which_others_had_other_labels():
    mirrored = small(corruptions=[Corruption("mirror-labels", (1, 2, 3))])
    with pytest.raises(ValueError, match=r"participant 1 in round 2 gives different parameters"):
        truth(small(), window(mirrored, 1), evaluate_on(small()))


@pytest.mark.parametrize("kind", ["truth", "first-order", "path-integrated"])
def test_over_zero_hops_is_what_updates_did_to_those_who_made_them(kind):
    network = small()
    rounds, judged = window(network, 2), evaluate_on(network)
    none, one = (list(score_rounds(network, rounds, judged, hops=hops, kinds=[kind])) for hops in (0, 1))
    assert len(none) == len(one) == 2
    for home, out in zip(none, one, strict=True):
        assert home.cascades[0].value.shape[0] == 1
        assert_close(home.cascades[0].value[0], out.cascades[0].value[0])
