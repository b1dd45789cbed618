"""Slow, obvious twins: a list of nn.Modules, torch.optim, gossip by a double loop."""

from copy import deepcopy

import torch
from torch import nn


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
