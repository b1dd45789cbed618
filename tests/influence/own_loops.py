"""Training loops as somebody else would write them."""

import torch
from influence.cases import NODES, small
from torch import nn

from cascadice import Recorder
from cascadice.engine import Operator, draw, load, module_of
from cascadice.engine.rounds import Perturbation
from cascadice.influence import by_participant, evaluate_on, first_order, reverse_gossip


class Loop:
    """Somebody's own training: plain modules and optimizers, and gossip over their parameters and buffers."""

    def __init__(self, network, optimizer=torch.optim.SGD, clip=None, **options):
        self.network, self.clip = network, clip
        self.models = [module_of(network, network.initial, k).train() for k in range(network.nodes)]
        self.optimizers = [optimizer(model.parameters(), **options) for model in self.models]

    def recorder(self, **options):
        usual = {"test": self.network.data.test, "q": self.network.q, "clip": self.clip}
        return Recorder(self.models, self.optimizers, self.network.learner.loss, **(usual | options))

    def local(self, k, x, y):
        model, optimizer = self.models[k], self.optimizers[k]
        optimizer.zero_grad()
        loss = self.network.learner.loss(model(x), y)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()
        return loss

    @torch.no_grad()
    def gossip(self, W):
        sent = [[v.clone() for v in (*model.parameters(), *model.buffers())] for model in self.models]
        for k, model in enumerate(self.models):
            for place, value in enumerate((*model.parameters(), *model.buffers())):
                if value.is_floating_point():
                    value.copy_(sum(W[k, j] * sent[j][place] for j in range(len(sent))))

    def round(self, recorder, t, numbered=False):
        drawn = draw(self.network, t)
        inputs = load(self.network, drawn)
        with recorder.round(drawn.W) as step:
            for k in range(self.network.nodes):
                for s in range(inputs.x.shape[1]):
                    x, y = inputs.x[k, s], inputs.y[k, s]
                    loss = self.local(k, x, y)
                    step(k, x, y, loss, index=drawn.batch[k, s] if numbered else None)
            self.gossip(drawn.W)

    def run(self, rounds=5, numbered=False, **options):
        recorder = self.recorder(**options)
        for t in range(rounds):
            self.round(recorder, t, numbered)
        return recorder


def plain(kind=torch.optim.SGD, **options):
    """Four participants on the usual network."""
    return Loop(small(), kind, **({"lr": 0.3} | options))


def batch(loop, k, t=0):
    """The first batch of participant k in round t."""
    inputs = load(loop.network, draw(loop.network, t))
    return inputs.x[k, 0], inputs.y[k, 0]


def moved(network, round_, size):
    """The same small change of everybody's parameters, each time."""
    everybody, draw = torch.arange(NODES), torch.Generator().manual_seed(3)
    direction = torch.randn(round_.half.theta.shape, generator=draw, dtype=torch.float64)
    state = {name: torch.zeros_like(value) for name, value in round_.before.state.items()}
    return Perturbation(everybody, everybody, (size * direction).to(round_.half.theta), state)


def assert_differentiated(recorder, close=None):
    """Tangents are finite differences of replays, and adjoints are their transpose."""
    network, rounds = recorder.network, recorder.rounds[-2:]
    op, judged = Operator(network), evaluate_on(network)
    up, down = (op.replay(rounds[0], moved(network, rounds[0], sign * 1e-5)).theta for sign in (1, -1))
    pushed = op.push(rounds[0], moved(network, rounds[0], 1.0)).theta
    torch.testing.assert_close(pushed, (up - down) / 2e-5, **(close or {"rtol": 1e-5, "atol": 1e-7}))
    scores = by_participant(rounds[0], reverse_gossip(network, rounds, judged))
    pushed = first_order(network, rounds, judged).total
    torch.testing.assert_close(scores, pushed, rtol=1e-7, atol=1e-12)  # torch counts in float32
