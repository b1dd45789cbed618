"""The slow, obvious twins of everything fast: plain modules, torch.optim, retraining, all paths with Hessians."""

import math
import statistics
from copy import deepcopy
from dataclasses import replace
from itertools import product

import torch
from torch import nn
from torch.func import functional_call, grad, hessian
from torch.utils._pytree import tree_map

from cascadice.engine import Behaviour, mix, module_of, simulate


def modules_of(network):
    """Everybody's model as an ordinary module with its initial parameters and buffers."""
    modules = [deepcopy(network.learner.training) for _ in range(network.nodes)]
    for k, module in enumerate(modules):
        nn.utils.vector_to_parameters(network.initial.theta[k].clone(), module.parameters())
    return modules


def rows_of(modules):
    """The parameters of all modules, [n, d]."""
    return torch.stack([nn.utils.parameters_to_vector(module.parameters()).detach() for module in modules])


def gossip(W, modules):
    """θ_k ← Σ_j W[k, j] θ_j, tensor by tensor; floating buffers likewise, integers stay."""
    dense = W.to_dense() if W.layout != torch.strided else W
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
    for k, module in enumerate(modules):
        mixed = {}
        for name, own in before[k].items():
            mixed[name] = own
            if own.is_floating_point():
                mixed[name] = sum(float(dense[k, j]) * before[j][name] for j in range(len(modules)))
        module.load_state_dict(mixed)


def train(network, rounds, optimizer, max_norm=None):
    """Algorithm 1 for every participant in turn: yields (after local work, after gossip, losses) of each round.

    `optimizer` makes a torch.optim optimizer from parameters; batches, W and learning rates are the network's own.
    """
    modules = modules_of(network)
    helpers = [optimizer(module.parameters()) for module in modules]
    for t in range(rounds):
        losses = []
        for module, helper, batches in zip(modules, helpers, network.batches(t), strict=True):
            steps = [step(network, module, helper, batch, network.lr(t), max_norm) for batch in batches]
            losses.append(sum(steps) / len(steps))
        half = rows_of(modules)
        gossip(network.mixing(t), modules)
        yield half, rows_of(modules), torch.tensor(losses, dtype=torch.float64)


def step(network, module, helper, batch, lr, max_norm=None):
    """One ordinary training step; returns the loss before it."""
    samples = network.data.train
    x, y = samples.x[batch], samples.y[batch]
    x = x.to(network.initial.theta.dtype) if x.is_floating_point() else x
    for group in helper.param_groups:
        group["lr"] = lr
    helper.zero_grad()
    loss = network.learner.loss(module(x), y)
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    helper.step()
    return float(loss.detach())


def evaluate(module, loss, x, y):
    """Loss and accuracy of one module, sample by sample."""
    module.eval()
    with torch.no_grad():
        outputs = [module(x[i : i + 1]) for i in range(len(x))]
    losses = [float(loss(output, y[i : i + 1])) for i, output in enumerate(outputs)]
    hits = [float((output.argmax(-1) == y[i : i + 1]).double().mean()) for i, output in enumerate(outputs)]
    return sum(losses) / len(x), sum(hits) / len(x)


def losses(network, participants, sets=None, measure=None):
    """L(θ_k; z') of everyone, with ordinary modules one by one."""
    sets = [network.data.test] * network.nodes if sets is None else sets
    measure = network.learner.loss if measure is None else measure
    with torch.no_grad():
        found = [measure(module_of(network, participants, k)(sets[k].x), sets[k].y) for k in range(network.nodes)]
    return torch.stack(found).double()


def retrained(network, rounds, source, **judged):
    """[hop, receiver]: the same run again, with a source that does no local work in the first round."""
    t, end = rounds[0].t, rounds[-1].t + 1
    idle = Behaviour("free-rider", (source,), range(t, t + 1))
    behaviours = (*_without_noise(network.behaviours, source, t), idle)
    again = list(simulate(replace(network, behaviours=behaviours), end, start=t, participants=rounds[0].before))
    found = torch.zeros(len(rounds) + 1, network.nodes, dtype=torch.float64)
    skipped = losses(network, rounds[0].half, **judged) - losses(network, again[0].half, **judged)
    found[0, source] = skipped[source]
    for hop, (done, other) in enumerate(zip(rounds, again, strict=True), start=1):
        found[hop] = losses(network, done.after, **judged) - losses(network, other.after, **judged)
    return network.q * found


def _without_noise(behaviours, source, t):
    """A noise sender's update is its noise: removing the update removes it, in round t and not later."""
    for b in behaviours:
        if b.kind != "noise-sender" or source not in b.nodes:
            yield b
            continue
        assert b.rounds is None
        yield replace(b, rounds=range(t + 1, t + 100))
        if others := tuple(node for node in b.nodes if node != source):
            yield replace(b, nodes=others, rounds=range(t, t + 1))


def along(network, rounds, scale):
    """[hop][receiver] of unweighted losses where `scale[k]` of what k did in the first round was done."""
    first, scale = rounds[0], torch.as_tensor(scale, dtype=torch.float64)
    half = tree_map(lambda old, new: old + _column(scale, new) * (new - old), first.before, first.half)
    found, now = [losses(network, half)], mix(first.W, half)
    found.append(losses(network, now))
    for done in simulate(network, rounds[-1].t + 1, start=first.t + 1, participants=now):
        found.append(losses(network, done.after))
    return torch.stack(found)


def _column(scale, like):
    return scale.view(-1, *[1] * (like.dim() - 1)) if like.is_floating_point() else (scale > 0).to(like)


def slope_in_scale(network, rounds, source, step=1e-3):
    """dΦ/dα at α = 1, α of the source's update, to fourth order in the step; hops from 1 on."""

    def at(alpha):
        scale = torch.ones(network.nodes, dtype=torch.float64)
        scale[source] = alpha
        return along(network, rounds, scale)[1:]

    near, far = at(1 + step) - at(1 - step), at(1 + 2 * step) - at(1 - 2 * step)
    return network.q * (8 * near - far) / (12 * step)


def loss_of(network, x, y, theta, module=None):
    """The training loss as a function of a row of parameters, from nothing but the module."""
    module = network.learner.evaluating if module is None else module
    named = dict(module.named_parameters())
    pieces = theta.split([p.numel() for p in named.values()])
    values = {name: piece.view(p.shape) for (name, p), piece in zip(named.items(), pieces, strict=True)}
    return network.learner.loss(functional_call(module, values, (x,)), y)


def batch_of(network, done, k):
    index = done.draw.batch[k, 0]
    return network.data.train.x[index], network.data.train.y[index]


def by_paths(network, rounds):
    """[hop, source, receiver] of Theorem 2 for SGD: a sum over all walks, with the Hessian of whoever passes it on."""
    test, n = network.data.test, network.nodes
    slope = grad(lambda theta: loss_of(network, test.x, test.y, theta))
    slopes = [[slope(theta) for theta in rows] for rows in (rounds[0].before.theta, *(r.after.theta for r in rounds))]
    passing = [[_passing(network, done, k) for k in range(n)] for done in rounds]
    found = torch.zeros(len(rounds) + 1, n, n, dtype=torch.float64)
    for source in range(n):
        delta = rounds[0].half.theta[source] - rounds[0].before.theta[source]
        found[0, source, source] = slopes[0][source] @ delta
        for hop in range(1, len(rounds) + 1):
            for walk in product(range(n), repeat=hop):
                carried = rounds[0].W[walk[0], source] * delta
                for s in range(1, hop):
                    carried = rounds[s].W[walk[s], walk[s - 1]] * (passing[s][walk[s - 1]] @ carried)
                found[hop, source, walk[-1]] += slopes[hop][walk[-1]] @ carried
    return network.q * found


def _passing(network, done, k):
    """I − η H of participant k in this round."""
    x, y = batch_of(network, done, k)
    curved = hessian(lambda theta: loss_of(network, x, y, theta))(done.before.theta[k])
    return torch.eye(len(curved), dtype=curved.dtype) - done.draw.lr * curved


def noise_by_loops(values, group, rounds, steps=200, prior=10):
    """Mean and spread of each group and b² of each round, by one row after the other."""
    rows, many = list(zip(values, group, rounds, strict=True)), max(rounds) + 1
    b2 = [1.0] * many
    for _ in range(steps):
        mean, a2, weight = {}, {}, {}
        for k in set(group):
            own = [(v, b2[t]) for v, g, t in rows if g == k]
            weight[k] = sum(1 / b for _, b in own)
            mean[k] = sum(v / b for v, b in own) / weight[k]
            a2[k] = sum((v - mean[k]) ** 2 / b for v, b in own) / (len(own) - 1) if len(own) > 1 else math.nan
        squares = sum((v - mean[g]) ** 2 / a2[g] for v, g, _ in rows if a2[g] > 0)
        level = squares / sum(b2[t] - 1 / weight[g] for _, g, t in rows if a2[g] > 0)
        above, below = [prior * statistics.median(b2)] * many, [float(prior)] * many
        for v, g, t in rows:
            if a2[g] > 0:
                above[t] += (v - mean[g]) ** 2 / a2[g]
                below[t] += 1 - 1 / b2[t] / weight[g]
        b2 = [up / down for up, down in zip(above, below, strict=True)]
        average = sum(b2[t] for *_, t in rows) / len(rows)
        b2 = [one / average for one in b2]
    return [mean[k] for k in sorted(mean)], [(level * a2[k]) ** 0.5 for k in sorted(a2)], b2
