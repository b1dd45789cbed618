"""TracIn: dot products of training gradients with evaluation gradients (Pruthi et al. 2020, arXiv 2002.08484).

TracIn      score_j = Σ_t q_j ∇L(θ_j^t)ᵀ Δ_j        of sample i in a batch of B: −η/B q_j ∇L(θ_j^t)ᵀ ∇ℓ_i(θ_j^t)
TracInCP    score_j = −Σ_checkpoints η q_j ∇L(θ_j^t)ᵀ ∇ℓ_{D_j}(θ_j^t)      over the whole of j's data
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cascadice.engine import Evaluation, Network, Operator, Round, load
from cascadice.influence import by_participant, by_sample
from cascadice.influence.reverse_gossip import RoundAdjoint
from cascadice_experiments.rivals.estimate import GRADIENT, Estimate, looked_at


def tracin(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 1
) -> Estimate:
    """What every participant's updates did to its own model, to first order.

    Adapted: TracIn is about one model that is trained, so each participant is treated as if it trained alone, and its
    score is on its own model; what gossip does with an update is left out. Δ_j is the update as it was made, by
    whatever optimizer.

    Nothing is drawn, so `seed` is not used.
    """
    operator, scores, count = Operator(network), torch.zeros(network.nodes, dtype=torch.float64), 0
    for round_, weight in looked_at(network, rounds, every):
        scores += weight * by_participant(round_, _direct(operator, round_, evaluation)).double().cpu()
        count += 1
    return Estimate(scores, GRADIENT * count * network.nodes)


def tracin_samples(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 1
) -> Estimate:
    """The part of every training sample in `tracin`, summed over the rounds in which it was drawn.

    With one local step of SGD a round, samples sum to their participant's score. Adapted as `tracin`.

    Samples that are drawn in none of the rounds looked at get 0. The cost counts a pass over a batch as an evaluation
    gradient.
    """
    operator, count = Operator(network), 0
    scores = torch.zeros(len(network.data.train), dtype=torch.float64)
    for round_, weight in looked_at(network, rounds, every):
        parts = by_sample(network, round_, _direct(operator, round_, evaluation)).double().cpu()
        drawn = round_.draw.batch.flatten(1)[:, : parts.shape[1]].cpu()
        scores.index_add_(0, drawn[drawn >= 0], weight * parts[drawn >= 0])
        count += 1
    return Estimate(scores, 2 * GRADIENT * count * network.nodes)


def tracin_checkpoints(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 10
) -> Estimate:
    """TracInCP: at some checkpoints, the evaluation gradient times that of all of a participant's own data.

    Adapted as `tracin`. A checkpoint stands for the rounds around it, each of which moves a model by η times the number
    of local steps along the mean gradient of its own data: the expectation of a step of SGD. Other optimizers are
    treated as SGD, as in the paper.

    `every` is the number of rounds from one checkpoint to the next.

    Raises:
        ValueError: Where the network does not know who holds what.
    """
    operator, nodes, count = Operator(network), range(network.nodes), 0
    scores = torch.zeros(network.nodes, dtype=torch.float64)
    for round_, weight in looked_at(network, rounds, every):
        measured = operator.objective(evaluation, round_.before)
        _, trained = operator.gradients(_own_data(network, round_), round_.before, nodes)
        steps = (round_.draw.batch[:, :, 0] >= 0).sum(1).cpu()
        rates = torch.as_tensor(round_.draw.lr, dtype=torch.float64).cpu() * steps
        scores -= weight * rates * (measured * trained).sum(1).double().cpu()
        count += 1
    return Estimate(scores, 2 * GRADIENT * count * network.nodes)


def _direct(operator: Operator, round_: Round, evaluation: Evaluation) -> RoundAdjoint:
    """q_j ∇L(θ_j^t) of everybody, as an adjoint of the round's updates."""
    state = {name: torch.zeros_like(value) for name, value in round_.before.state.items()}
    return RoundAdjoint(round_.t, operator.objective(evaluation, round_.before), state)


def _own_data(network: Network, round_: Round) -> Evaluation:
    """Everybody's own data, as it trained on it in this round: with wrong labels, where it has them."""
    if network.partition is None:
        raise ValueError("participants must have data of their own; this network was given batches. Pass a partition.")
    x, y = list[Tensor](), list[Tensor]()
    for k, part in enumerate(network.partition):
        batch = torch.as_tensor(part).cpu().expand(network.nodes, 1, len(part))
        inputs = load(network, round_.draw._replace(batch=batch), [k])
        x.append(inputs.x[0, 0])
        y.append(inputs.y[0, 0])
    return Evaluation(tuple(x), tuple(y), network.learner.loss, own=True)
