"""Four processes train one network, and each learns the influence of its own data, from messages along the edges.

    torchrun --nproc-per-node 4 examples/torchrun_cascade.py

Every process has two participants: their data, their models and their scores stay there. λ travels back along the edges
on which models came, so one sweep scores everybody. Prints each participant's influence in its own process. Without
torchrun, one process does it all: same numbers.
"""

from cascadice import data, models, network
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.influence.reverse_gossip import by_participant, reverse_gossip
from cascadice.runs.distributed.processes import joined

NODES, ROUNDS, HOPS = 8, 40, 2


def main() -> None:
    with joined() as world:
        members = world.members(NODES)
        # a function, which the network calls by its own seed: every process makes the same model
        mine = network(lambda: models.mlp((64,), 10, hidden=(16,)), data.digits(), nodes=NODES, lr=0.5, members=members)
        with world.exchange(mine) as messages:
            operator = Operator(mine, messages)
            rounds = list(simulate(mine, ROUNDS, operator=operator))[-HOPS:]
            adjoint = reverse_gossip(mine, rounds, evaluate_on(mine), operator=operator)
            scores = by_participant(rounds[0], adjoint)
            sent = sum(messages.post.sent.values()) if messages else 0
        for k, loss, score in zip(members or range(NODES), rounds[-1].loss, scores, strict=True):
            print(f"participant {k}: loss {loss:.3f}, influence {score:+.4f}")
        print(f"Process {world.rank} sent {sent / 1e6:.1f} MB, models and adjoints.")


if __name__ == "__main__":
    main()
