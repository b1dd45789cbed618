import math

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascadice import topology


def slow_gap(W):
    eigenvalues = torch.linalg.eigvals(W).abs().sort(descending=True).values
    return 1 - float(eigenvalues[1])


@given(st.integers(2, 14), st.sampled_from(["exponential", "ring", "erdos-renyi", "star"]))
def test_gap_is_one_minus_the_second_eigenvalue(nodes, name):
    W = topology.build(name, nodes)(0)
    assert topology.describe(W).spectral_gap == pytest.approx(slow_gap(W), abs=1e-7)


@pytest.mark.parametrize("nodes", [16, 600])
def test_gap_of_a_ring_is_known(nodes):
    gap = topology.describe(topology.build("ring", nodes)(0)).spectral_gap
    assert gap == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / nodes)), rel=1e-3)


def test_gap_of_a_large_directed_network_has_complex_eigenvalues():
    nodes, chords = 600, (0, 1, 7, 55, 210)
    graph = nx.DiGraph([((k + chord) % nodes, k) for k in range(nodes) for chord in chords[1:]])
    roots = [sum(complex(math.cos(x * c), math.sin(x * c)) for c in chords) / len(chords) for x in angles(nodes)]
    gap = topology.describe(topology.uniform(graph)).spectral_gap
    assert gap == pytest.approx(1 - max(map(abs, roots)), rel=1e-3)


def angles(nodes):
    return [2 * math.pi * i / nodes for i in range(1, nodes)]


@pytest.mark.parametrize(("name", "nodes"), [("one-peer-exponential", 16), ("base", 21), ("base", 600)])
def test_exact_consensus_is_a_gap_of_one_judged_on_the_union(name, nodes):
    schedule = topology.build(name, nodes)
    found = topology.describe_schedule(schedule)
    assert found.spectral_gap == 1
    assert found.rounds == len(schedule.matrices)
    assert found.strongly_connected
    with pytest.warns(UserWarning, match=r"not strongly connected: participant \d+ never hears"):
        topology.describe(schedule(1))


@pytest.mark.parametrize("nodes", [20, 520])
def test_gap_of_a_repeated_matrix_is_its_own(nodes):
    W = topology.build("small-world", nodes)(0)
    once, often = topology.describe(W), topology.describe_schedule(topology.constant(W), 60)
    assert often.spectral_gap == pytest.approx(once.spectral_gap, rel=1e-3)
    assert often.links == once.links


def test_gap_survives_a_contraction_far_below_rounding():
    W = topology.build("random-regular", 16, degree=10)(0)
    assert (1 - slow_gap(W)) ** 100 < 1e-30
    assert topology.describe_schedule(topology.constant(W), 100).spectral_gap == pytest.approx(slow_gap(W), rel=1e-6)


def test_random_schedules_are_described_over_a_hundred_rounds():
    found = topology.describe_schedule(topology.random_matching(16))
    assert found.rounds == 100
    assert 0.1 < found.spectral_gap < 0.9
    assert found.doubly_stochastic


def test_weights_in_and_out():
    found = topology.describe(topology.matrix([[0.5, 0.5, 0.0], [0.2, 0.7, 0.1], [0.3, 0.0, 0.7]]))
    assert found.in_weight.tolist() == pytest.approx([0.5, 0.3, 0.3])
    assert found.out_weight.tolist() == pytest.approx([0.5, 0.5, 0.1])
    assert (found.nodes, found.links, found.rounds) == (3, 4, 1)
    assert found.row_stochastic
    assert not found.doubly_stochastic
    assert found.strongly_connected


def test_what_does_not_sum_to_one_is_said_so():
    found = topology.describe(torch.tensor([[1.0, 1.0], [0.5, 0.5]]))
    assert not found.row_stochastic
    assert not found.doubly_stochastic
    assert math.isnan(found.spectral_gap)
    with pytest.raises(ValueError, match="must not be negative"):
        topology.describe(torch.tensor([[1.0, -1.0], [0.5, 0.5]]))


def test_a_network_in_two_pieces_warns_and_never_mixes():
    W = topology.metropolis(nx.Graph([(0, 1), (2, 3)]))
    with pytest.warns(UserWarning, match="participant 2 never hears from participant 0"):
        found = topology.describe(W)
    assert not found.strongly_connected
    assert found.spectral_gap == pytest.approx(0, abs=1e-12)
    with pytest.warns(UserWarning, match="not strongly connected over 3 rounds"):
        topology.describe_schedule(topology.constant(W), 3)


def test_one_participant_always_agrees_with_itself():
    found = topology.describe(topology.identity(1))
    assert found.spectral_gap == 1
    assert found.strongly_connected


def test_the_text_is_a_small_table():
    text = str(topology.describe(topology.dominant(16)))
    assert "participants        16\nlinks               58\nspectral gap        0.4204\n" in text
    assert "          7     0.5000      1.3400" in text
    assert len(text.splitlines()) == 5 + 2 + 16


def test_the_text_of_a_large_network_shows_the_most_influential():
    text = str(topology.describe(topology.build("star", 100)(0)))
    rows = text.splitlines()
    assert rows[7].split()[0] == "0"
    assert rows[-1] == "… and 68 with less out-weight"
    assert "4 over 3 rounds" not in text
    assert "over 4 rounds\nspectral gap        1 per round" in str(
        topology.describe_schedule(topology.build("base", 16))
    )
