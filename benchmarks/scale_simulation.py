"""10,000 participants that come and go: what was predicted beside what happened.

In each round a participant leaves with probability LEAVE, and one that is away comes back with RETURN, with the model
it left with. The graph is a random regular one; only links between participants who are there are used. Bytes are
counted along the links of every W^t, at the size of a message of `engine.exchange.messages`.
"""

import argparse
import math
import resource
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from scale import AGREED, DEGREE, message, regular, rounds_to_agree, show, within
from torch import Tensor

from cascadice import data, models, network, seeds, topology
from cascadice.engine import Network, Round, evaluate_on, simulate
from cascadice.influence import reverse_gossip
from cascadice.influence.reverse_gossip import by_participant

LEAVE, RETURN, BATCH, EVALUATED, COLUMNS = 0.02, 0.08, 8, 8, 16
THERE = RETURN / (LEAVE + RETURN)


class Check(NamedTuple):
    """A prediction, and what happened."""

    what: str
    predicted: float
    measured: float


def churn(nodes: int, rounds: int, seed: int = 0) -> Tensor:
    """Who is there in which round, as booleans [rounds, n]: two-state Markov chains, from their long run on."""
    generator = seeds.generator(seed, "churn")
    there = torch.empty(rounds, nodes, dtype=torch.bool)
    now = torch.rand(nodes, generator=generator, dtype=torch.float64) < THERE
    for t in range(rounds):
        there[t] = now
        draws = torch.rand(nodes, generator=generator, dtype=torch.float64)
        now = torch.where(now, draws >= LEAVE, draws < RETURN)
    return there


def crossed(W: Tensor) -> int:
    """The messages of a round: links between two participants."""
    entries = topology.links(W)
    return int((entries.receivers != entries.sources).sum())


def disagreements(schedule: topology.Schedule, nodes: int, rounds: int) -> list[float]:
    """The spread around the mean after each round of gossip alone, beside that at the start."""
    x = torch.randn(nodes, COLUMNS, generator=seeds.generator(0, "disagreement"), dtype=torch.float64)
    spread = [float((x - x.mean(0)).norm())]
    for t in range(rounds):
        x = topology.gossip(schedule(t), x)
        spread.append(float((x - x.mean(0)).norm()))
    return [value / spread[0] for value in spread]


def agreed(spread: Sequence[float], left: float) -> float:
    """Rounds until this part is left."""
    return next((t for t, value in enumerate(spread) if value <= left), math.nan)


def reach(schedule: topology.Schedule, nodes: int, hops: int) -> float:
    """The part of the participants that an update has reached after some hops, on average over 16 updates."""
    x = torch.zeros(nodes, 16, dtype=torch.float64)
    x[torch.arange(16) * (nodes // 16), torch.arange(16)] = 1
    for t in range(hops):
        x = (topology.gossip(schedule(t), x) > 0).double()
    return float(x.mean())


def gossip_checks(static: topology.Schedule, churning: topology.Schedule, nodes: int, rounds: int) -> list[Check]:
    """Mixing and reach, without churn and with it."""
    graph, still, moving = regular(nodes), disagreements(static, nodes, 30), disagreements(churning, nodes, rounds)
    late = (moving[rounds] / moving[10]) ** (1 / (rounds - 10))
    # those who have been away from the start keep all of theirs: (1 − p)(1 − RETURN)^(t−1) of the variance
    to_tenth = 1 + math.log(0.01 / (1 - THERE)) / math.log(1 - RETURN)
    return [
        *(
            Check(f"reached in {hops} hops, %", 100 * within(nodes, hops), 100 * reach(static, nodes, hops))
            for hops in (graph.hops - 2, graph.hops)
        ),
        Check("disagreement left by a late round", graph.factor, (still[30] / still[20]) ** 0.1),
        Check("rounds to 1 % of it, at most", rounds_to_agree(graph.factor), agreed(still, AGREED)),
        Check("with churn: left by a late round", math.sqrt(1 - RETURN), late),
        Check("with churn: rounds to 10 % of it", to_tenth, agreed(moving, 0.1)),
    ]


def built(nodes: int, schedule: topology.Schedule, there: Tensor) -> Network:
    """Softmax regression on digits; everybody has 32 samples of its own, and rests while it is away."""
    digits = data.digits()
    own = torch.randint(len(digits.train), (nodes, 32), generator=seeds.generator(0, "own"))

    def batches(t: int) -> Tensor:
        places = torch.randint(32, (nodes, BATCH), generator=seeds.generator(0, "batch", t))
        return own.gather(1, places)[:, None]

    return network(
        models.mlp((64,), 10, hidden=()), digits, nodes=nodes, mixing=schedule, batches=batches,
        lr=lambda t: 0.1 * there[t].double(),
    )  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    """The processor time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def training_checks(net: Network, rounds: int, hops: int) -> tuple[list[Check], list[Check]]:
    """Messages and bytes of training and of reverse gossip from the first of the last `hops` rounds; and its cost."""
    nodes, size = net.nodes, message(net.learner.size)
    kept: list[Round] = []
    messages, start = [], time.process_time()
    for round_ in simulate(net, rounds):
        messages.append(crossed(round_.W))
        kept = [*kept, round_][-hops:]
    training = (time.process_time() - start) / rounds
    evaluation = evaluate_on(net, net.data.test.subset(torch.arange(EVALUATED)))
    scores: list[Tensor] = []
    backwards = timed(lambda: scores.append(by_participant(kept[0], reverse_gossip(net, kept, evaluation))))
    assert bool(scores[0].isfinite().all())
    away = torch.as_tensor(net.lr(kept[0].t)) == 0
    edges = nodes * DEGREE * THERE**2
    traffic = [
        Check("messages a round", edges, sum(messages) / rounds),
        Check("MB a round of training", edges * size / 1e6, sum(messages) * size / rounds / 1e6),
        Check(f"MB of reverse gossip, {hops} hops", hops * edges * size / 1e6, sum(messages[-hops:]) * size / 1e6),
        Check("largest score of those away", 0, float(scores[0][away].abs().max())),
    ]
    # a Hessian-vector product is two gradients of the batch; a gradient on z' comes with every hop, and one more
    passes = ((hops - 1) * 2 * BATCH + (hops + 1) * EVALUATED) / BATCH
    return traffic, [Check("reverse gossip, in rounds of training, at most", passes, backwards / training)]


def main() -> None:
    """Print predictions and measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20, help="of training")
    parser.add_argument(
        "--gossip-rounds", type=int, default=40, help="without training, to see how disagreement shrinks"
    )
    args = parser.parse_args()
    checks = simulated(args.nodes, args.rounds, args.gossip_rounds)
    rows = [[check.what, f"{check.predicted:.4g}", f"{check.measured:.4g}"] for check in checks]
    show(f"{args.nodes:,} participants, {THERE:.0%} of them there", [["", "predicted", "measured"], *rows])
    print(
        f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB, {time.process_time():.0f} s"
    )


def simulated(nodes: int, rounds: int, gossip_rounds: int) -> list[Check]:
    """All predictions about a network of this size, and what happened in it."""
    W = topology.uniform(topology.random_regular(nodes, degree=DEGREE))
    there = churn(nodes, max(rounds, gossip_rounds))
    static = topology.constant(W)
    churning = topology.presence(static, lambda t: there[t])
    net = built(nodes, churning, there)
    traffic, cost = training_checks(net, rounds, hops=min(rounds, regular(nodes).hops))
    present = float(there[:rounds].double().mean())
    return [
        Check("participants there, %", 100 * THERE, 100 * present),
        *traffic, *cost, *gossip_checks(static, churning, nodes, gossip_rounds),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
