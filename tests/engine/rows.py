"""Losses and gradients of rows of parameters, for tests that need them without an estimator."""

from cascadice.engine import Operator, Participants


def losses(network, evaluation, theta, buffers, nodes):
    """L(θ_p; z') of rows that stand for these participants."""
    return Operator(network).losses(evaluation, Participants(theta, {}, buffers), list(nodes))


def gradients(network, evaluation, theta, buffers, nodes):
    """L(θ_p; z') and ∇L(θ_p; z') of rows that stand for these participants."""
    return Operator(network).gradients(evaluation, Participants(theta, {}, buffers), list(nodes))


def known_layers(network, drawn):
    """The model's layers for batches like the one drawn; None where samples cannot be scored by them."""
    return Operator(network)._runner.layers(drawn)
