"""All participants in one process: a generator of rounds, and what to measure on them."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle, repeat
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.data import Samples
from cascadice.engine import behaviours as behaviour
from cascadice.engine.fast.captured_rounds import captured, captures
from cascadice.engine.fast.rows import Room, Work, local_work, make_room, over_rows
from cascadice.engine.fast.tape import Layers
from cascadice.engine.learner import Participants, score
from cascadice.engine.networks import Network, draw, draws_inside, known_layers, load
from cascadice.engine.rounds import Draw, MixingRule, Round, gossiped
from cascadice.losses import accuracy

T = TypeVar("T")


class DivergedError(ArithmeticError):
    """A participant's loss is no longer a number; what was yielded before stands."""

    def __init__(self, t: int, node: int) -> None:
        super().__init__(
            f"the loss of participant {node} became NaN or infinite in round {t}. "
            "Lower the learning rate, or clip the gradient."
        )
        self.t, self.node = t, node


def simulate(
    network: Network,
    rounds: int | None = None,
    *,
    start: int = 0,
    participants: Participants | None = None,
    window: int | None = None,
    taped: bool = False,
    rule: MixingRule | None = None,
) -> Iterator[Round]:
    """Algorithm 1: yield rounds `start` … `rounds` − 1 (for ever if None).

    Rounds are yours to keep. With `window`, memory is reused instead: a round stays intact while the next `window`
    rounds are yielded, and allocation, which on CPU can cost as much as the training of a small model, is saved.
    `participants` is where to go on from, as in `round.after`. If `taped`, rounds carry what it takes to score their
    samples for a third of a training pass; memory: the activations of everybody's batch. A `rule` chooses the W of each
    round from what is sent in it.
    """
    play_on = _player(network, known_layers(network, draw(network, start)) if taped else None, rule)
    now = network.initial if participants is None else participants
    unseen: list[tuple[int, Tensor]] = []
    numbers = count(start) if rounds is None else range(start, rounds)
    for t, room in zip(numbers, _rooms(network, now, window), strict=False):
        done = play_on(draw(network, t), now, room)
        if room is not None and window is None:
            done = done._replace(
                half=_kept(done.half), after=_kept(done.after), loss=done.loss.clone(), tape=_kept(done.tape)
            )
        unseen.append((t, done.loss if network.device.type == "cpu" else done.loss.clone()))
        if len(unseen) >= LOOK_EVERY[network.device.type]:
            _check_finite(unseen)
        yield done
        now = done.after
    _check_finite(unseen)


# To look at a loss on CUDA is to wait for it, and the next rounds could have been launched meanwhile.
LOOK_EVERY = {"cpu": 1, "cuda": 16}


def _check_finite(unseen: list[tuple[int, Tensor]]) -> None:
    if unseen and not bool(torch.isfinite(torch.stack([loss for _, loss in unseen])).all()):
        t, loss = next((t, loss) for t, loss in unseen if not bool(torch.isfinite(loss).all()))
        raise DivergedError(t, int((~torch.isfinite(loss)).nonzero()[0]))
    unseen.clear()


def play(
    network: Network,
    work: Work,
    drawn: Draw,
    before: Participants,
    room: Room | None = None,
    rule: MixingRule | None = None,
) -> Round:
    """One round, a pure function of what was drawn and of the participants before it; `work` does the local part."""
    half, loss, tape = work(before, partial(load, network, drawn), room)
    if network.behaviours:
        nodes = range(network.nodes)
        for row, noise in behaviour.noise(network.behaviours, drawn.t, nodes, half.theta, network.seed).items():
            half.theta[row] += noise
    drawn, after = gossiped(drawn, before, half, rule, None if room is None else room.after)
    return Round(drawn, before, half, after, loss, tape)


def _player(
    network: Network, layers: Layers | None, rule: MixingRule | None
) -> Callable[[Draw, Participants, Room | None], Round]:
    """`play`, captured where that pays and where nothing is drawn or decided on the way."""
    plain = partial(play, network, local_work(network.strategy, network.learner, layers), rule=rule)
    if not captures(network) or rule is not None:
        return plain
    replayed = captured(plain)

    def choose(drawn: Draw, before: Participants, room: Room | None) -> Round:
        clean = not draws_inside(network, drawn.t) and drawn.W.layout == torch.strided
        return replayed(drawn, before, room) if clean and room is not None else plain(drawn, before, room)

    return choose


def _rooms(network: Network, like: Participants, window: int | None) -> Iterator[Room | None]:
    if window is None and not captures(network):
        yield from repeat(None)
    yield from cycle([make_room(like) for _ in range((window or 0) + 2)])


def _kept(structure: T) -> T:
    kept: T = tree_map(torch.clone, structure)
    return kept


class Metrics(NamedTuple):
    """How good each participant's model is; accuracy is NaN where targets are not classes."""

    loss: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]


def evaluate(network: Network, participants: Participants, samples: Samples | None = None, chunk: int = 512) -> Metrics:
    """Loss and accuracy of every participant on `samples` (the test data). Cost: a forward pass each."""
    samples = network.data.test if samples is None else samples
    if len(samples) == 0:
        raise ValueError("the evaluation set must hold at least one sample; it is empty.")
    classify = not samples.y.is_floating_point()
    measures = (network.learner.loss, accuracy) if classify else (network.learner.loss,)
    totals: list[Tensor] = []
    with torch.no_grad():
        for index in torch.split(torch.arange(len(samples), device=network.device), chunk):
            x, y = samples.take(index)
            x = x.to(participants.theta.dtype) if x.is_floating_point() else x
            part = torch.stack(over_rows(score, network.strategy, network.learner, x, y, measures)(participants))
            totals.append(part * (len(index) / len(samples)))
    loss, *rest = torch.stack(totals).sum(0)
    return Metrics(loss, rest[0] if rest else torch.full_like(loss, torch.nan))
