"""Processes that hear each other by messages compute what the simulator does, to rounding.

Here processes are threads, each with a process group of its own: the same code and sockets, without the start-up.
"""

import threading
from datetime import timedelta
from functools import partial

import networkx as nx
import pytest
import torch
import torch.distributed as dist

from cascadice import data, models, network, topology
from cascadice.data.corruption import Corruption
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.parts import part_of, split
from cascadice.influence import reverse_gossip
from cascadice.influence.reverse_gossip import by_participant, by_sample
from cascadice.influence.whole_run import whole_run

NODES, ROUNDS = 6, 6
DIGITS, MODEL = data.digits(), models.mlp((64,), 10, hidden=(8,), activation="gelu")


def together(count, work):
    """`work(rank, group)` in threads that are connected by gloo on the loopback interface; the results, by rank."""
    store, results, errors = dist.HashStore(), [None] * count, []

    def runs(rank):
        try:
            group = dist.ProcessGroupGloo(store, rank, count, timedelta(seconds=60))
            results[rank] = work(rank, group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=runs, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def built(**options):
    given = {"nodes": NODES, "batch_size": 8, "lr": 0.1, "dtype": "float64", "mixing": "exponential"} | options
    return network(MODEL, DIGITS, **given)


def one_peer(t):
    """Everybody hears one other, another one in each round: directed and changing."""
    W = torch.zeros(NODES, NODES, dtype=torch.float64)
    for k in range(NODES):
        W[k, k] = 0.6
        W[k, (k + 1 + t % (NODES - 1)) % NODES] += 0.4
    return W


def directed():
    graph = nx.gnp_random_graph(NODES, 0.4, seed=1, directed=True)
    W = torch.eye(NODES, dtype=torch.float64) + torch.tensor(nx.to_numpy_array(graph)).T
    return W / W.sum(1, keepdim=True)


CASES = {
    "static": {},
    "directed": {"mixing": directed()},
    "one peer, changing": {"mixing": one_peer},
    "lost links": {"mixing": topology.link_loss(topology.resolve("exponential", NODES, 0)[0], 0.3, seed=4)},
    "local steps": {"local_steps": 3},
    "momentum": {"optimizer": "momentum", "lr": 0.03},
    "adam": {"optimizer": "adam", "lr": 0.003},
    "mixed": {
        "optimizer": ["sgd", "adam", "sgd", "momentum", "sgd", "adam"],
        "lr": [0.1, 0.003, 0.1, 0.03, 0.2, 0.003],
        "batch_size": [8, 8, 4, 8, 6, 8],
        "local_steps": [1, 2, 1, 1, 3, 1],
    },
    "absences and attackers": {
        "behaviours": [Behaviour("absent", (1,), range(2, 4)), Behaviour("noise-sender", (4,), None, 0.01)],
        "corruptions": [Corruption("flip-labels", (5,), None, 0.5)],
    },
    "weights q": {"q": [0.3, 0.1, 0.1, 0.2, 0.2, 0.1]},
    "compressed": {"compression": "8-bit"},
}


def in_parts(name, count, work):
    parts = split(NODES, count)
    nets = [built(**CASES[name]) for _ in parts]  # one each: a network is not made for several threads

    def of_rank(rank, group):
        mine = part_of(nets[rank], parts[rank])
        exchange = Messages(mine, parts, rank, group)
        try:
            return work(mine, exchange)
        finally:
            exchange.post.close()

    return together(count, of_rank)


def trained(mine, exchange):
    rounds = list(simulate(mine, ROUNDS, operator=Operator(mine, exchange)))
    return rounds[-1].after.theta, torch.stack([round_.loss for round_ in rounds])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [2, 4])
def test_training_is_the_simulators(name, count):
    net = built(**CASES[name])
    whole = list(simulate(net, ROUNDS))
    thetas, losses = zip(*in_parts(name, count, trained), strict=True)
    torch.testing.assert_close(torch.cat(thetas), whole[-1].after.theta, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(losses, 1), torch.stack([r.loss for r in whole]), rtol=0, atol=1e-10)


def backwards(mine, exchange):
    operator = Operator(mine, exchange)
    rounds = list(simulate(mine, 3, operator=operator))
    adjoint = reverse_gossip(mine, rounds, evaluate_on(mine), operator=operator)
    return by_participant(rounds[0], adjoint), by_sample(mine, rounds[0], adjoint)


@pytest.mark.parametrize("name", [name for name in CASES if name != "compressed"])
def test_reverse_gossip_is_the_simulators(name):
    net = built(**CASES[name])
    rounds = list(simulate(net, 3))
    adjoint = reverse_gossip(net, rounds, evaluate_on(net))
    participants, samples = zip(*in_parts(name, 3, backwards), strict=True)
    torch.testing.assert_close(torch.cat(participants), by_participant(rounds[0], adjoint), rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(samples), by_sample(net, rounds[0], adjoint), rtol=0, atol=1e-10)


def whole(mine, exchange, at, length):
    run = whole_run(mine, ROUNDS, evaluate_on(mine), at=at, length=length, exchange=exchange)
    return run.by_round, run.samples


def compare_whole_run(name, at, length):
    net = built(**CASES[name])
    expected = whole_run(net, ROUNDS, evaluate_on(net), at=at)
    by_round, samples = zip(*in_parts(name, 3, partial(whole, at=at, length=length)), strict=True)
    torch.testing.assert_close(torch.cat(by_round, 1), expected.by_round, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(samples, 1), expected.samples, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["static", "one peer, changing", "local steps", "adam", "mixed", "weights q"])
@pytest.mark.parametrize(("at", "length"), [(1.0, ROUNDS), (0.5, 2)])
def test_whole_run_influence_is_the_simulators(name, at, length):
    compare_whole_run(name, at, length)


@pytest.mark.parametrize("name", ["directed", "lost links", "absences and attackers"])
def test_whole_run_influence_is_the_simulators_where_links_are_missing(name):
    compare_whole_run(name, 0.5, 2)
