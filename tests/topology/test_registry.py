import pytest
import torch

from cascadice import topology
from cascadice.topology import SPARSE_FROM, TOPOLOGIES

ASKED_FOR = {
    "ring", "exponential", "one-peer-exponential", "base", "complete", "star", "torus", "random-regular", "erdos-renyi",
    "small-world", "dominant", "pairwise-gossip", "epidemic", "matching", "alone",
}  # fmt: skip


def test_all_are_there_with_a_line_each():
    assert set(TOPOLOGIES) == ASKED_FOR
    for entry in [*TOPOLOGIES.values(), *topology.WEIGHTS.values()]:
        assert 10 < len(entry.description) < 100
        assert "\n" not in entry.description


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
@pytest.mark.parametrize("nodes", [4, 16, SPARSE_FROM])
def test_every_name_builds_mixing_matrices(name, nodes):
    schedule = topology.build(name, nodes, seed=3)
    for t in (0, 5):
        W = schedule(t)
        topology.check(W)
        assert W.dtype == torch.float64
        assert W.shape == (nodes, nodes)
        assert (W.layout == torch.sparse_csr) == (nodes >= SPARSE_FROM and name != "complete")


@pytest.mark.parametrize("name", sorted(ASKED_FOR - {"dominant"}))
def test_one_participant_alone_works(name):
    assert topology.build(name, 1)(4).tolist() == [[1.0]]


def test_weights_and_options_are_passed_on():
    star = topology.build("star", 5, weights="metropolis")(0)
    assert torch.equal(star, topology.metropolis(topology.star(5)))
    dense = topology.build("random-regular", 20, degree=6, seed=4)(0)
    assert torch.equal(dense, topology.uniform(topology.random_regular(20, degree=6, seed=4)))
    assert len(topology.build("base", 9, max_degree=2).matrices) == 2
    pairs = topology.build("pairwise-gossip", 6, graph="star", seed=1)
    assert all(pairs(t)[0, 0] == 0.5 for t in range(10))


def test_seeds_matter_to_random_ones():
    assert not torch.equal(topology.build("erdos-renyi", 16, seed=1)(0), topology.build("erdos-renyi", 16, seed=2)(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "rings"}, "unknown topology 'rings'. Did you mean 'ring'"),
        ({"name": "ring", "weights": "unifrom"}, "unknown weights 'unifrom'. Did you mean 'uniform'"),
        ({"name": "ring", "degree": 3}, "topology 'ring' has no option 'degree'. Accepted: none."),
        ({"name": "small-world", "p": 3}, "topology 'small-world' has no option 'p'. Accepted: degree, probability."),
        ({"name": "dominant", "weights": "metropolis"}, "topology 'dominant' has its own weights"),
        ({"name": "exponential", "weights": "metropolis"}, "has none. Use uniform weights"),
        ({"name": "ring", "nodes": 0}, "at least 1 participant; found nodes=0"),
        ({"name": "pairwise-gossip", "graph": "base"}, "pairwise gossip needs a fixed graph; 'base' is not one"),
        ({"name": "pairwise-gossip", "graph": "rnig"}, "unknown topology 'rnig'"),
    ],
)
def test_mistakes_are_explained_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        topology.build(**{"nodes": 8, **arguments})
    assert "\n" not in str(error.value)
