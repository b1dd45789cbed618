"""What a recorder refuses to watch, and what it says."""

import pytest
import torch
import torch.nn.functional as F
from influence.cases import NODES, changing, small, smooth
from influence.own_loops import Loop, batch, plain
from torch import nn

from cascadice import Recorder
from cascadice.engine import DivergedError
from cascadice.engine.sample_buffer import SampleBuffer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (torch.optim.LBFGS, {}, TypeError, r"SGD, torch.optim.Adam, torch.optim.AdamW, .*; found LBFGS\.$"),
        (torch.optim.Rprop, {}, TypeError, r"whose steps can be replayed; found Rprop\.$"),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, ValueError, "SGD with dampening is not supported"),
        (torch.optim.Adam, {"decoupled_weight_decay": True}, ValueError, "Adam with decoupled_weight_decay"),
    ],
)
def test_refuses_optimizers_it_cannot_replay(kind, options, error, message):
    with pytest.raises(error, match=message):
        plain(kind, **options).recorder()


def in_groups(model, swapped=False):
    first, *rest = reversed([*model.parameters()]) if swapped else model.parameters()
    return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.3)


def test_parameter_groups_must_keep_the_ratios_of_their_rates():
    loop = plain()
    loop.optimizers = [in_groups(model, k == 2) for k, model in enumerate(loop.models)]
    recorder = loop.recorder()
    one_round(loop, recorder)
    loop.optimizers[1].param_groups[0]["lr"] = 0.2
    with pytest.raises(ValueError, match=r"participant 1 has lr=0\.2, .*; lr=0\.3, .* must keep their ratios"):
        one_round(loop, recorder)


def test_frozen_parameters_must_be_everybodys():
    loop = plain()
    for k, model in enumerate(loop.models):
        model[0].requires_grad_(False)
        nn.init.constant_(model[0].bias, float(k == 3))
        nn.init.ones_(model[0].weight)
    with pytest.raises(
        ValueError, match=r"frozen parameters must be the same for everyone; those of participant 3 differ"
    ):
        loop.recorder()


def test_refuses_participants_that_are_not_alike():
    loop = plain()
    models, optimizers = loop.models, loop.optimizers

    def watch(models, optimizers):
        Recorder(models, optimizers, F.cross_entropy)

    with pytest.raises(ValueError, match=r"a model and an optimizer; found 4 models and 3 optimizers"):
        watch(models, optimizers[:3])
    with pytest.raises(ValueError, match=r"found 0 models"):
        watch([], [])
    wider = smooth(width=5).double()
    with pytest.raises(ValueError, match=r"all models must have the same names, .*; 1 differs from 0"):
        watch([models[0], wider], [optimizers[0], torch.optim.SGD(wider.parameters(), lr=0.3)])
    with pytest.raises(ValueError, match="optimizer 1 must step all parameters of model 1, and no others"):
        watch(models[:2], [optimizers[0], optimizers[2]])
    with pytest.raises(ValueError, match="must not share parameters; 0 and 1 do"):
        watch([models[0]] * 2, [optimizers[0]] * 2)


def test_refuses_one_optimizer_for_all(unchecked):
    loop = plain()
    with pytest.raises(TypeError, match=r"a list with an optimizer for each participant is needed; found one SGD\."):
        Recorder(loop.models, loop.optimizers[0], F.cross_entropy)
    with pytest.raises(TypeError, match=r"a list with a model for each participant is needed; found one Linear\."):
        Recorder(nn.Linear(2, 2), loop.optimizers, F.cross_entropy)


def test_refuses_a_window_without_rounds_and_weights_that_do_not_fit():
    with pytest.raises(ValueError, match="window must be at least 1 round, or None for all; found 0"):
        plain().recorder(window=0)
    with pytest.raises(ValueError, match="q must be 4 weights"):
        plain().recorder(q=[0.5, 0.5])


def test_there_is_no_network_before_the_first_round():
    with pytest.raises(ValueError, match="no round in which somebody trained"):
        _ = plain().recorder().network


def one_round(loop, recorder, W=None, *, told=None, local=None, gossip=True, loss=True):
    """A round on the identity, in which something may go otherwise."""
    W = torch.eye(NODES, dtype=torch.float64) if W is None else W
    with recorder.round(W) as step:
        for k in range(NODES):
            x, y = batch(loop, k)
            value = (local or loop.local)(k, x, y)
            step(k, *((x, y) if told is None else told(x, y)), value if loss else None)
        if gossip:
            loop.gossip(W)


def test_refuses_w_of_others():
    loop = plain()
    with pytest.raises(ValueError, match="W must be for 4 participants; it has 3 rows"):
        one_round(loop, loop.recorder(), torch.eye(3))
    with pytest.raises(ValueError, match="W must have rows summing to 1"):
        one_round(loop, loop.recorder(), torch.ones(NODES, NODES))


def test_says_who_did_not_gossip_as_told_and_by_how_much():
    loop, W = plain(), changing()(0)

    def other(W):
        Loop.gossip(loop, W)
        loop.models[2][0].bias.data += 0.25

    loop.gossip = other
    with pytest.raises(
        ValueError, match=r"after round 0, participant 2 must have Σ_j W\[2, j\] θ_j; its theta is off by 0\.25"
    ):
        one_round(loop, loop.recorder(), W)


def test_refuses_gossip_outside_the_round():
    loop, W = plain(), changing()(0)
    with pytest.raises(ValueError, match=r"after round 0, participant 0 must have .* inside the `with` block"):
        one_round(loop, loop.recorder(), W, gossip=False)
    loop = plain()
    recorder = loop.recorder()
    one_round(loop, recorder, torch.eye(NODES))
    loop.gossip(W)
    with pytest.raises(ValueError, match=r"participants must not change between rounds, .*start a new recorder"):
        one_round(loop, recorder)


def test_refuses_buffers_and_states_that_do_otherwise():
    loop, W = Loop(small(smooth(nn.BatchNorm1d(4))), lr=0.1), changing()(0)

    @torch.no_grad()
    def parameters_only(W):
        buffers = [[b.clone() for b in model.buffers()] for model in loop.models]
        Loop.gossip(loop, W)
        for model, kept in zip(loop.models, buffers, strict=True):
            for buffer, value in zip(model.buffers(), kept, strict=True):
                buffer.copy_(value)

    loop.gossip = parameters_only
    with pytest.raises(ValueError, match=r"Σ_j W\[0, j\] θ_j; its buffer 2\.running_mean is off"):
        one_round(loop, loop.recorder(), W)

    loop = plain(momentum=0.9)

    def with_momentum(W):
        Loop.gossip(loop, W)
        for optimizer in loop.optimizers[1:2]:
            for state in optimizer.state.values():
                state["momentum_buffer"] *= 0.5

    loop.gossip = with_momentum
    with pytest.raises(ValueError, match=r"participant 1 .*; its optimizer's momentum is off by .* nothing else"):
        one_round(loop, loop.recorder(), W)


def test_refuses_steps_it_cannot_make_again():
    loop = plain()
    with pytest.raises(
        ValueError, match=r"replaying the local work of participant 0 .*Its loss was .* and is .* now: give"
    ):
        one_round(loop, Recorder(loop.models, loop.optimizers, lambda out, y: 2 * F.cross_entropy(out, y)))
    loop = plain()
    with pytest.raises(ValueError, match=r"Its loss was .* the batch it trained on"):
        one_round(loop, loop.recorder(), told=lambda x, y: (x + 0.5, y))
    for kind in (torch.optim.SGD, torch.optim.Adam):
        loop = Loop(small(), kind, clip=0.05, lr=0.3)
        with pytest.raises(
            ValueError, match=r", mostly in \d\.(weight|bias)\. Give .* batch .* clipped, pass clip=;.* amp="
        ):
            one_round(loop, loop.recorder(clip=None))
    loop = plain()
    with pytest.raises(ValueError, match=r"\. Give the loss function and the batch it trained on\. If gradients"):
        one_round(loop, loop.recorder(), told=lambda x, y: (x + 0.5, y), loss=False)


def test_refuses_a_loss_that_is_not_scalar():
    loop = plain()
    recorder = Recorder(loop.models, loop.optimizers, lambda out, y: F.cross_entropy(out, y, reduction="none"))
    with pytest.raises(ValueError, match="the loss must be a scalar"):
        one_round(loop, recorder)


def test_says_who_diverged():
    loop = plain()

    def explode(k, x, y):
        loss = loop.__class__.local(loop, k, x, y)
        if k == 3:
            loop.models[3][0].bias.data[0] = torch.nan
        return loss

    with pytest.raises(DivergedError, match="participant 3 became NaN or infinite in round 0"):
        one_round(loop, loop.recorder(), local=explode)


@pytest.mark.parametrize(
    ("node", "stepped", "told", "message"),
    [
        (4, 0, 1, r"numbered from 0 to 3; found 4\.$"),
        (1, 0, 1, r"step\(1, x, y\) must follow each optimizer.step\(\) of 1; there were 0 since"),
        (1, 1, 2, r"step\(1, …\) was called again without an optimizer step of participant 1 in between\."),
        (1, 2, 1, r"there were 2 since"),
        (1, 1, 0, r"of 1; the last one was not reported"),
        (1, 0, 0, r"somebody must make a local step in a round; nobody did"),
    ],
)
def test_every_step_is_told_once_after_it_was_made(node, stepped, told, message):
    loop = plain()
    x, y = batch(loop, 0)

    def train():
        with loop.recorder().round(torch.eye(NODES)) as step:
            for _ in range(stepped):
                loop.local(node, x, y)
            for _ in range(told):
                step(node, x, y)

    with pytest.raises(ValueError, match=message):
        train()


def test_refuses_other_settings_on_the_way():
    loop = plain(momentum=0.9)
    recorder = loop.recorder()
    one_round(loop, recorder)
    loop.optimizers[2].param_groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match=r"only the learning rate may change .*; participant 2 has .*momentum=0\.5"):
        one_round(loop, recorder)


X, Y = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "y", "index", "error", "message"),
    [
        ([1.0], Y, None, TypeError, "two tensors, x and y; found list and Tensor"),
        (X[:1], Y, None, ValueError, r"a row for each sample, at least one; found shapes \[1, 3\] and \[2\]"),
        (X[:0], Y[:0], None, ValueError, r"at least one; found shapes \[0, 3\]"),
        (torch.tensor(1.0), Y, None, ValueError, r"found shapes \[\] and \[2\]"),
        (X.byte(), Y, None, TypeError, r"found uint8\. Pass x\.float\(\), or x\.long\(\) for tokens"),
        (X[:, :2], Y, None, ValueError, r"keep their shape and dtype; x had \[3\] torch.float32, then \[2\]"),
        (X, Y.int(), None, ValueError, r"y had \[\] torch.int64, then \[\] torch.int32"),
        (X, Y, [3], ValueError, r"index must be 2 whole numbers, .*; found torch.int64 of shape \[1\]"),
        (X, Y, [3, -1], ValueError, r"index must be 2 whole numbers, at least 0"),
        (X, Y, [0.5, 1], ValueError, r"found torch.float32 of shape \[2\]"),
        (X, Y, [7, 8], ValueError, r"either all batches must come with index= or none"),
    ],
)
def test_refuses_batches_that_are_not(x, y, index, error, message):
    shelf = SampleBuffer(torch.device("cpu"))
    shelf.put(X, Y)
    with pytest.raises(error, match=message):
        shelf.put(x, y, index)


@pytest.mark.parametrize("later", [(torch.stack([X[0], X[1] + 1]), Y), (X, Y + torch.tensor([0, 1]))], ids=["x", "y"])
def test_refuses_a_number_that_stands_for_two_samples(later):
    shelf = SampleBuffer(torch.device("cpu"))
    shelf.put(X, Y, [4, 9])
    shelf.put(X, Y, torch.tensor([4, 9]))
    assert len(shelf.samples) == 10
    with pytest.raises(ValueError, match=r"number 9 has changed\. Where samples are augmented, leave index out"):
        shelf.put(*later, [4, 9])
    with pytest.raises(ValueError, match="number 3 has changed"):
        shelf.put(torch.stack([X[0], X[1] + 1]), Y, [3, 3])
