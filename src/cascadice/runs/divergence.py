"""Training that diverged although the losses of all batches are finite: who is to blame."""

import torch
from torch import Tensor

from cascadice.engine import DivergedError, Metrics, Network, Round, evaluate
from cascadice.engine.simulation import OUTLIER


def check_finite(network: Network, round: Round, test: Metrics | None, distance: Tensor) -> None:
    """Raise DivergedError where batch losses are finite, but not parameters or what is computed from them."""
    after, size = round.after, round.after.theta.abs().amax(1)
    if not bool(size.isfinite().all()):
        raise _blamed(round) or DivergedError(round.t, int((~size.isfinite()).nonzero()[0]), sent="has parameters that")
    wrong = distance.isinf() & (size == size.max())
    for tensor in after.state.values():
        wrong = wrong | tensor.reshape(len(tensor), -1).isinf().any(1)
    if test is not None and not bool(test.loss.isfinite().all()):
        measurable = evaluate(network, network.initial).loss.isfinite()  # else training is not to blame
        wrong = wrong | (measurable & ~test.loss.isfinite())
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        large = f"has parameters of up to {float(size[node]):.3g}, and what is computed from them"
        raise _blamed(round) or DivergedError(round.t, node, sent=large)


def _blamed(round: Round) -> DivergedError | None:
    """The error to raise if somebody sent far larger parameters than the others, who then have them too."""
    sent = round.half.theta.abs().amax(1).nan_to_num(torch.inf, torch.inf)
    most, median = sent.max(0), float(sent.median())
    if not float(most.values) > OUTLIER * median:
        return None
    huge = f"sent parameters of up to {float(most.values):.3g} (the median was {median:.3g}), and what is computed from"
    remedy = "Lower its learning rate or the strength of its misbehaviour."
    return DivergedError(round.t, int(most.indices), remedy, sent=f"{huge} them")
