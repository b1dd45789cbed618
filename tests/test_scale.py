"""What `benchmarks/scale.py` predicts is what happens where it can be tried: among few participants."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from cascadice import data, models, network, topology
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.parts import part_of, split
from cascadice.influence import reverse_gossip


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import scale
    import scale_simulation

    return scale, scale_simulation


def sent(rank, group, nodes, rounds):
    """Bytes that the only participant of this process sends while it trains, and then for reverse gossip."""
    whole = network(models.mlp((64,), 10, hidden=()), data.digits(), nodes=nodes, mixing="exponential", batch_size=4)
    mine, parts = part_of(whole, (rank,)), split(nodes, nodes)
    exchange = Messages(mine, parts, rank, group)
    operator = Operator(mine, exchange)
    kept = list(simulate(mine, rounds, operator=operator))
    trained = exchange.post.sent.total()
    reverse_gossip(mine, kept, evaluate_on(mine), operator=operator)
    both = exchange.post.sent.total()
    exchange.post.close()
    return trained, both - trained


def test_bytes_are_those_that_are_sent(benchmarks):
    scale, _ = benchmarks
    nodes, rounds, store, found = 3, 2, dist.HashStore(), {}

    def work(rank):
        group = dist.ProcessGroupGloo(store, rank, nodes, timedelta(seconds=60))
        found[rank] = sent(rank, group, nodes, rounds)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = rounds * scale.exponential(nodes).degree * scale.message(650)
    assert found == dict.fromkeys(range(nodes), (expected, expected))


def test_mixing_and_reach_are_those_of_the_graphs(benchmarks):
    scale, simulation = benchmarks
    W = topology.uniform(topology.exponential(256))
    graph = scale.exponential(256)
    assert graph.factor == pytest.approx(1 - topology.describe(W).spectral_gap, rel=1e-6)
    assert simulation.reach(topology.constant(W), 256, graph.hops) >= scale.REACHED
    assert simulation.reach(topology.constant(W), 256, graph.hops - 1) < scale.REACHED
    gap = topology.describe(topology.uniform(topology.random_regular(600, degree=8))).spectral_gap
    assert scale.regular(600).factor == pytest.approx(1 - gap, rel=0.05)


def test_seconds_are_the_sum_of_their_parts(benchmarks):
    scale, _ = benchmarks
    cost = scale.Cost(message=0.5, byte=1e-6)
    size = 48 + 8 + 4 * 1000  # header, the number of its participant, parameters
    assert scale.seconds(3, 1000, 8e6, cost, messages=2) == pytest.approx(2 * (0.05 + 3 * (0.5 + size * 2e-6)))


def test_a_simulation_agrees_with_its_predictions(benchmarks):
    _, simulation = benchmarks
    checks = {check.what: check for check in simulation.simulated(1500, 5, 30)}
    traffic = ("participants there, %", "messages a round", "MB a round of training")
    for what in (*traffic, "reached in 3 hops, %", "with churn: left by a late round"):
        assert checks[what].measured == pytest.approx(checks[what].predicted, rel=0.06), what
    assert checks["largest score of those away"].measured == 0
    agreed = checks["rounds to 1 % of it, at most"]
    assert 1 < agreed.measured <= agreed.predicted


def test_tables_have_a_row_for_every_size(benchmarks, capsys, monkeypatch):
    scale, _ = benchmarks
    monkeypatch.setattr("sys.argv", ["scale.py", "--cost", "0.001", "1e-8"])
    scale.main()
    printed = capsys.readouterr().out
    assert printed.count("| 1,000,000 |") == 2 * len(scale.GRAPHS)
    assert f"| a round of training | 1 | {scale.message(100_000):,} |" in printed
