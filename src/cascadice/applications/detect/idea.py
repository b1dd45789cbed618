"""Who is unlike the others? Every participant accumulates evidence about its in-neighbours, round after round."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.applications.detect.evidence import (
    ALLOWANCE,
    Evidence,
    accumulate,
    deviations,
    lasting_spread,
    no_evidence,
    strengths,
)
from cascadice.applications.detect.signals import SIGNALS, Signal, scores_of
from cascadice.applications.neighbours import LEAST, Received, receive
from cascadice.engine import Evaluation, Network, Round
from cascadice.influence.proximity import in_turn

MAJORITY = 0.5  # j is flagged by the network if at least this share of its receivers flag it


class Verdict(NamedTuple):
    """The evidence of every receiver k against every source j after round t, as matrices `[j, k]`.

    Attributes:
        deviation: How far j is from k's other neighbours by each signal, in robust standard deviations.
        strength: The largest |deviation| divided by its threshold; above 1, k flags j.
        since: The round since which k has flagged j without a break; −1 if it does not.
        heard: Whether k has ever received an update from j.
        spread: How far apart honest-looking neighbours are in the long run by each signal, over all receivers.
    """

    t: int
    deviation: Float[Tensor, "signals n n"]
    strength: Float[Tensor, "n n"]
    since: Int[Tensor, "n n"]
    heard: Bool[Tensor, "n n"]
    spread: Float[Tensor, " signals"]

    @property
    def flagged(self) -> Bool[Tensor, "n n"]:
        return self.strength > 1

    @property
    def able(self) -> Bool[Tensor, "n n"]:
        """Whether k can judge j: it has heard j, and enough others to tell which one is the odd one out."""
        return self.heard & (self.heard.sum(0) >= LEAST)


def detect(
    network: Network, rounds: Iterable[Round], evaluation: Evaluation, *, rate: float = 0.01,
    allowance: float | None = None, memory: float = math.inf, samples: int | None = None, unlike: bool = False,
    signals: Mapping[str, Signal] = SIGNALS, look: Callable[[Network, Round, Evaluation], Received] = receive,
) -> Iterator[Verdict]:  # fmt: skip
    """Flag neighbours that are unlike the others after each round, live while training or from a recording.

    Args:
        evaluation: On each participant's own data: `evaluate_on(network, own_data(network, size))`.
        rate: False-alarm rate: the probability that a receiver flags a given honest neighbour at a given check, split
            evenly between the signals. It holds as long as the lasting differences between honest neighbours have a
            standard deviation of at most `allowance`.
        allowance: How far apart honest neighbours may be in the long run, in units of their mean difference in a round.
            By default the measured spread (`Verdict.spread`), at least 0.5; receivers must then tell one another how
            much their neighbours differ. With a number, k uses its own data and what it received, nothing else.
        memory: Rounds after which evidence fades; 1 judges each round by itself.
        samples: How many of its own samples each participant evaluates on in a round, in turn; all by default.
        unlike: Keep the rate however much honest neighbours differ: j must also be far out by the spread of k's own
            neighbours. These are few, so fewer attackers are flagged.
        signals: name -> signal; `SIGNALS` by default.
        look: Returns what receivers see of a round; across processes, `receive` with their exchange.

    Yields:
        The verdict of every receiver about every source, after each round.

    Example:
        >>> own = evaluate_on(network, own_data(network, 80))
        >>> for verdict in detect(network, cascadice.simulate(network, 60), own):
        ...     print(verdict.t, votes(verdict))
    """
    check_options(rate, allowance, memory)
    evidence: Evidence | None = None
    since = torch.full((network.whole, network.whole), -1, device=network.device)
    for round_ in rounds:
        now = evaluation if samples is None else in_turn(evaluation, round_.t, samples)
        received = look(network, round_, now)
        scores = scores_of(received, signals)
        heard = received.heard.to(scores.device)
        evidence = accumulate(evidence or no_evidence(scores), scores, heard, 1 - 1 / memory)
        spread = lasting_spread(evidence)
        allowed = spread.clamp_min(ALLOWANCE) if allowance is None else allowance
        strength = strengths(evidence, rate, allowed, unlike)
        since = torch.where(strength > 1, torch.where(since < 0, round_.t, since), -1)
        yield Verdict(round_.t, deviations(evidence, allowed), strength, since, evidence.weight > 0, spread)


def check_options(rate: float, allowance: float | None = None, memory: float = math.inf) -> None:
    """Raise ValueError unless `detect` accepts these options."""
    if not 1e-4 <= rate <= 0.5:
        raise ValueError(f"rate must be a probability from 0.0001 to 0.5; found {rate}.")
    if allowance is not None and not 0 <= allowance < math.inf:
        raise ValueError(f"allowance must be at least 0 and finite; found {allowance}.")
    if not memory >= 1:
        raise ValueError(f"memory must be at least one round; found {memory}.")


def votes(verdict: Verdict) -> Float[Tensor, " n"]:
    """The share of j's receivers that flag j, of those that can judge; NaN if none can.

    No participant knows this alone: receivers must tell one another. The probability that at least half of them flag
    an honest participant is at most twice the rate, however dependent they are (Markov's inequality).

    Args:
        verdict: What `detect` yields after a round.

    Returns:
        A share for each participant, from 0 to 1.

    Example:
        >>> *_, last = detect(network, rounds, evaluate_on(network, own_data(network, 80)))
        >>> votes(last) >= MAJORITY
    """
    return (verdict.flagged & verdict.able).sum(1) / verdict.able.sum(1).double()
