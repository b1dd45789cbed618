"""Reverse gossip: one sweep backwards over the rounds scores every participant and every single sample at once."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap

from cascadice.engine.execution import over_rows
from cascadice.engine.learner import Learner, Participants, forward, gradient, unflatten
from cascadice.engine.networks import Network, load
from cascadice.engine.rounds import Round
from cascadice.influence.carrying import check_differentiable, step_of
from cascadice.influence.cascades import check_rounds
from cascadice.influence.judging import Judge, slopes
from cascadice.optimizers import State
from cascadice.topology import gossip_transposed


class Sensitivity(NamedTuple):
    """A_j: how the judged sum changes with what participant j carries after its local step in the first round."""

    theta: Float[Tensor, "n d"]
    state: State


def reverse_gossip(
    network: Network, rounds: Sequence[Round], judge: Judge, *, direct: Float[Tensor, "n d"] | None = None
) -> Sensitivity:
    """Backwards over consecutive rounds, from the last one's receivers to the sources of the first.

        λ_k ← q_k ∇L(θ_k) + (I − η H_k) Σ_l W[l, k] λ_l        A_j = q_j ∇L(θ_j^t) + Σ_k W[k, j] λ_k

    Theorem 2 of Zhu et al. 2025, transposed: influence of any piece Δ of j's update = A_jᵀ Δ. For optimizers with state
    the pair (θ, state) is pulled back. `direct` is where the effect on oneself is differentiated: θ^t unless given.
    Cost: a Hessian-vector product and an evaluation gradient a participant and hop.
    """
    check_rounds(rounds)
    check_differentiable(network)
    first, final = rounds[0], rounds[-1].after
    lam = Sensitivity(_weighted_slopes(network, judge, final), _zeros(final.state))
    for done in reversed(rounds[1:]):
        lam = pull(network, done, Sensitivity(gossip_transposed(done.W, lam.theta), lam.state))
        lam = lam._replace(theta=lam.theta + _weighted_slopes(network, judge, done.before))
    start = first.half._replace(theta=first.before.theta if direct is None else direct)
    own = _weighted_slopes(network, judge, start)
    return Sensitivity(gossip_transposed(first.W, lam.theta) + own, lam.state)


def _weighted_slopes(network: Network, judge: Judge, participants: Participants) -> Tensor:
    _, slope = slopes(network, judge, participants.theta, participants.buffers, range(network.nodes))
    return network.q.to(slope)[:, None] * slope


def pull(network: Network, done: Round, lam: Sensitivity) -> Sensitivity:
    """λ through everybody's local work of the round, backwards: the transposed derivative of the whole step."""
    inputs = load(network, done.drawn)
    theta, state = over_rows(_pulled, network.strategy, network.learner)(
        done.before, lam.theta, lam.state, inputs.x, inputs.y, inputs.lr, inputs.conduct
    )
    return Sensitivity(theta, state)


def _pulled(
    learner: Learner, mine: Participants, theta: Tensor, state: State, x: Tensor, y: Tensor, lr: Tensor, conduct: Any
) -> Any:
    step = step_of(learner, mine, x, y, lr, conduct)
    _, back = vjp(step, mine.theta, mine.state)
    return back((theta, state))


def by_participant(first: Round, sensitivity: Sensitivity) -> Float[Tensor, " n"]:
    """A_jᵀ Δ_j: the r-hop influence of every participant's update in the first round."""
    found = (sensitivity.theta * first.update).sum(-1).double()
    for name, lam in sensitivity.state.items():
        change = first.half.state[name] - first.before.state[name]
        found = found + (lam * change).reshape(len(found), -1).sum(-1).double()
    return found


def by_sample(network: Network, first: Round, sensitivity: Sensitivity) -> Float[Tensor, "n batch"]:
    """The part of every single sample: the derivative of its own loss along what its gradient is worth.

        score_i = cᵀ ∇ℓ_i / B,   c = derivative of A_jᵀ (θ, state)^{t+½} with respect to j's gradient   (−η A_j for SGD)

    One forward-mode pass for the whole batch: no gradient of a sample is ever formed. The loss must be a mean over
    samples, and a round have one local step.
    """
    _check_samples_are_apart(network.learner.training)
    inputs = load(network, first.drawn)
    if (steps := inputs.x.shape[1]) != 1:
        raise ValueError(f"scores of samples need one local step a round; found {steps}. Score participants instead.")
    rows = over_rows(_scored, network.strategy, network.learner, workers=1)
    found: Tensor = rows(first.before, *sensitivity, inputs.x[:, 0], inputs.y[:, 0], inputs.lr, inputs.conduct)
    return found


def _check_samples_are_apart(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{name!r} is a BatchNorm: in training it makes every sample's output depend on the whole batch, so a "
                "sample has no score of its own. Score participants, or use GroupNorm."
            )


def _scored(
    learner: Learner, mine: Participants, theta: Tensor, state: State, x: Tensor, y: Tensor, lr: Tensor, conduct: Any
) -> Tensor:
    if conduct:
        taken, factor = conduct
        theta, state = taken * factor * theta, {name: taken * lam for name, lam in state.items()}
    slope, _, _ = gradient(learner, mine.theta, mine.buffers, x, y)
    _, back = vjp(partial(_updated, learner, mine, lr), slope)
    (worth,) = back((theta, state))
    scores: Tensor = jvp(partial(_losses, learner, mine, x, y), (mine.theta,), (worth,))[1]
    return scores / len(y)


def _updated(learner: Learner, mine: Participants, lr: Tensor, slope: Tensor) -> tuple[Tensor, State]:
    return learner.optimizer.update(slope, mine.state, mine.theta, lr)


def _losses(learner: Learner, mine: Participants, x: Tensor, y: Tensor, theta: Tensor) -> Tensor:
    """The loss of each sample of a batch."""
    tensors = {**dict(unflatten(learner.training, theta)), **mine.buffers}
    outputs = forward(learner.training, tensors, x, learner.compute)
    return vmap(lambda output, target: learner.loss(output[None], target[None]))(outputs, y)


def _zeros(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}
