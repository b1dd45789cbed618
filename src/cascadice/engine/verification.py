"""Check a watched round by computing it again: the same local work, and gossip by its W."""

from collections.abc import Iterator
from typing import Any

import torch

from cascadice.engine.exchange.stacked import mix
from cascadice.engine.learner import Participants, unflatten
from cascadice.engine.networks import Network
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Round


def verified(network: Network, round_: Round) -> Round:
    """The round, if replaying its local work gives the same; losses that were not reported are filled in."""
    again = Operator(network).apply(round_.draw, round_.before)
    eps = torch.finfo(again.loss.dtype).eps
    # 1 % in float32, because gradients are summed in another order; in mixed precision they have three digits
    slack = 30 * eps**0.5 if network.learner.autocast is None else 0.1
    for name, was, theirs, ours in _pieces(round_.before, round_.half, again.half):
        gap, moved, size = (torch.linalg.vector_norm(rows, dim=1) for rows in (theirs - ours, theirs - was, theirs))
        wrong = ~(gap <= slack * moved + 16 * eps * size)
        if wrong.any():
            k = int(wrong.nonzero()[0])
            pieces = unflatten(network.learner.training, (theirs - ours)[k]) if name == "theta" else ()
            most = max(pieces, key=lambda named: float(named[1].norm()), default=None)
            mostly = f", mostly in {most[0]}" if most else ""
            raise ValueError(
                f"replaying the local work of participant {k} must give the same result; its {name} moved by "
                f"{float(moved[k]):.3g} and is off by {float(gap[k]):.3g}{mostly}. "
                + _remedy(float(round_.loss[k]), float(again.loss[k]), slack)
            )
    return round_._replace(loss=torch.where(round_.loss.isnan(), again.loss, round_.loss))


def _remedy(theirs: float, ours: float, slack: float) -> str:
    if abs(theirs - ours) > slack * max(1.0, abs(ours)):
        return (
            f"Its loss was {theirs:.4g} and is {ours:.4g} now: give the loss function and the batch it trained on, "
            "with its model in training mode, and the precision of torch.autocast by amp=."
        )
    return (
        "Give the loss function and the batch it trained on. If gradients are clipped, pass clip=; if passes run in "
        "torch.autocast, pass amp=; otherwise leave gradients as backward() made them. A parameter without effect, "
        "such as a bias before BatchNorm, has a gradient of rounding errors, which Adam makes steps of: do without it "
        "(bias=False)."
    )


def check_gossip(round_: Round) -> None:
    """Check up to rounding that θ^{t+1} = W θ^{t+½}, floating-point buffers too, and that optimizer state is kept."""
    for name, sent, theirs, ours in _pieces(round_.half, round_.after, mix(round_.W, round_.half)):
        gap = (theirs - ours).abs().amax(1)
        wrong = ~(gap <= 100 * torch.finfo(theirs.dtype).eps * sent.abs().max())
        if wrong.any():
            k = int(wrong.nonzero()[0])
            raise ValueError(
                f"after round {round_.t}, participant {k} must have Σ_j W[{k}, j] θ_j; its {name} is off by "
                f"{float(gap[k]):.3g}. Average parameters and real-valued buffers, nothing else, with the same W, "
                "after the last step(...) and inside the `with` block."
            )


def _pieces(*stages: Participants) -> Iterator[tuple[Any, ...]]:
    """The name, and the value at each stage, of each floating-point tensor that participants carry, one row each."""
    yield "theta", *(stage.theta for stage in stages)
    n = len(stages[0].theta)
    for name in stages[0].state:
        yield f"optimizer's {name}", *(stage.state[name].reshape(n, -1) for stage in stages)
    for name, buffer in stages[0].buffers.items():
        if buffer.is_floating_point() and buffer.numel():
            yield f"buffer {name}", *(stage.buffers[name].reshape(n, -1) for stage in stages)
