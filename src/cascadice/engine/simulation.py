"""Train a network: a generator of rounds, which stops if a loss is no longer a number."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import torch
from torch import Tensor

from cascadice import loggers
from cascadice.data.inputs import at
from cascadice.engine.groups import uniform_parts
from cascadice.engine.learner import Participants, measure_all
from cascadice.engine.networks import Network, draw, load
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import MixingRule, Round, consensus, rows_of

LOWER = "Lower the learning rate, or clip the gradient."


class DivergedError(ArithmeticError):
    """A participant's loss is no longer a number. On CUDA this is noticed up to 16 rounds late.

    Args:
        t: The round in which it happened.
        node: The participant; or, if others' losses followed from the parameters that somebody sent, that one.
        remedy: What to do.
        run: Which of several runs it was; the beginning of the message.
        sent: What `node` sent, e.g. "sent parameters of norm 1e30 in round 3, and losses"; "" if its own loss diverged.
    """

    def __init__(self, t: int, node: int, remedy: str = LOWER, run: str = "", sent: str = "") -> None:
        what = f"participant {node} {sent}" if sent else f"the loss of participant {node}"
        super().__init__(f"{run}{what} became NaN or infinite in round {t}. {remedy}")
        self.t, self.node, self.remedy, self.sent = t, node, remedy, sent

    def within(self, run: str, node: int | None = None) -> "DivergedError":
        """The same error for one of several runs, in which the participant may have another number."""
        return DivergedError(self.t, self.node if node is None else node, self.remedy, run, self.sent)


def simulate(
    network: Network, rounds: int | None = None, *, start: int = 0, participants: Participants | None = None,
    window: int | None = None, taped: bool = False, rule: MixingRule | None = None, operator: Operator | None = None,
    progress: bool = False, callbacks: Sequence[loggers.Callback] = (),
) -> Iterator[Round]:  # fmt: skip
    """Algorithm 1: train by gossip, and yield each round.

        θ_k^{t+½} = O_k(θ_k^t, z_k^t)        θ_k^{t+1} = Σ_j W[k, j] θ_j^{t+½}

    Args:
        network: The network to train; see `network`.
        rounds: The round to stop before; never if None.
        start: The number of the first round.
        participants: What they carry before it, e.g. `round.after` of an earlier run; by default the initial ones.
        window: If None, you may keep every round. With a number, memory is reused: a round stays intact while the next
            `window` rounds are yielded, which on CPU saves allocations that can cost as much as training a small model.
        taped: Keep in each round what makes scores of its samples cost a third of a training pass. Memory: the
            activations of everybody's batch.
        rule: Chooses how each round is mixed from what is sent in it.
        operator: The operator to use; defaults to one with an exchange in memory.
        progress: Show a progress bar; without a terminal, a few lines.
        callbacks: Called with every round's losses, e.g. `loggers.TensorBoard("logs")`.

    Yields:
        The rounds from `start` up to, not including, `rounds`.

    Raises:
        ValueError: If the number of rounds is negative, or `progress` is asked for without one.
        TypeError: If the rule is not a function.
        DivergedError: If a loss is no longer a number.

    Example:
        >>> for round in simulate(network, 100):
        ...     print(round.t, float(round.loss.mean()))
    """
    if rule is not None and not callable(rule):
        raise TypeError(f"rule must be a function of (draw, before, half); found {rule!r}. See engine.exchange.rules.")
    if rounds is not None and rounds < 0:
        raise ValueError(f"rounds must be at least 0, or None to train forever; found {rounds}.")
    numbers = count(start) if rounds is None else range(start, rounds)
    before = network.initial if participants is None else participants
    unchecked, norms = list[tuple[int, Tensor]](), dict[int, Tensor]()  # losses; norms of what was sent, by round
    draws = (draw(network, t) for t in numbers)
    trained = (operator or Operator(network)).train(draws, before, window, taped, rule)
    if progress:
        from cascadice.console import Console, track

        if rounds is None:
            raise ValueError("progress needs the number of rounds. Pass it, or leave progress out.")
        trained = track(trained, rounds, Console(), "training", lambda round_: f"trained round {round_.t}", start=start)
    about = {"participants": network.nodes, "parameters": network.learner.size, "rounds": rounds}
    with loggers.telling(callbacks, about | {"data": network.data.name}) as tell:
        for round_ in trained:
            unchecked.append((round_.t, round_.loss if network.device.type == "cpu" else round_.loss.clone()))
            if len(unchecked) >= LOOK_EVERY[network.device.type]:
                _check_finite(network, unchecked, norms)
            # one participant may make all others diverge, so the norm of what each sends is noted: a pass over theta
            if network.behaviours or network.corruptions or network.groups or isinstance(round_.draw.lr, Tensor):
                norms[round_.t] = torch.linalg.vector_norm(round_.half.theta, dim=1)
            tell(round_.t, partial(_metrics, network, round_))
            yield round_
        _check_finite(network, unchecked, norms)


def _metrics(network: Network, round_: Round) -> Mapping[str, float]:
    losses = loggers.of_participants("train_loss", round_.loss.tolist(), network.members)
    return {**losses, "consensus": float(consensus(round_.after.theta))}


# Rounds between checks: reading a loss on CUDA waits for it, and the next rounds could be launched meanwhile.
LOOK_EVERY = {"cpu": 1, "cuda": 16}

OUTLIER = 100  # times the median norm of what is sent


def _check_finite(network: Network, unchecked: list[tuple[int, Tensor]], norms: dict[int, Tensor]) -> None:
    if unchecked and not bool(torch.isfinite(torch.stack([loss for _, loss in unchecked])).all()):
        t, loss = next((t, loss) for t, loss in unchecked if not bool(torch.isfinite(loss).all()))
        node = int((~torch.isfinite(loss)).nonzero()[0])
        if not _has_loss(network, t, node):
            no_loss = "The initial model has no finite loss on this batch either"
            raise DivergedError(t, node, f"{no_loss}: are all its targets ignored, or is there a NaN in the data?")
        for earlier, norm in norms.items():
            sent = f"sent parameters of norm {{}} in round {earlier} (the median was {{}}), and losses"
            if earlier < t and (error := from_outlier(network, t, norm, sent)):
                raise error
        raise DivergedError(t, node)
    unchecked.clear()


def from_outlier(network: Network, t: int, size: Tensor, sent: str) -> DivergedError | None:
    """The error to raise if somebody sent far larger parameters than the others; `sent` has {} for size and median."""
    median, most = float(size.nanmedian()), size.nan_to_num(torch.inf, torch.inf).max(0)
    if not float(most.values) > OUTLIER * median:
        return None
    node, remedy = int(most.indices), LOWER
    if any(node in fault.nodes for fault in (*network.behaviours, *network.corruptions)):
        remedy = "Lower its learning rate or the strength of its misbehaviour."
    return DivergedError(t, node, remedy, sent=sent.format(f"{float(most.values):.3g}", f"{median:.3g}"))


def _has_loss(network: Network, t: int, k: int) -> bool:
    """Whether the initial model has a finite loss on the batches of k; if not, training is not to blame."""
    one, learner, losses = rows_of(network.initial, k), network.learner, list[Tensor]()
    for phase, group in uniform_parts(network, draw(network, t)):
        if k in group.nodes:
            x, y, *_ = load(network, phase, [k], group=group)
            steps = [(at(x, (0, i)), y[0, i]) for i in range(y.shape[1])]
            with torch.no_grad():
                losses += [measure_all(learner, one, *batch, (learner.loss,))[0] for batch in steps]
    return bool(torch.stack(losses).isfinite().all())
