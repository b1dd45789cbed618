from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cascadice.data import partition

LABELS = torch.arange(600) % 10
MAKERS: dict[str, Callable[[int, int], list[Tensor]]] = {
    "iid": lambda nodes, seed: partition.iid(600, nodes, seed=seed),
    "dirichlet": lambda nodes, seed: partition.dirichlet(LABELS, nodes, 0.1, seed=seed),
    "dirichlet, equal": lambda nodes, seed: partition.dirichlet(LABELS, nodes, 0.1, per_node=600 // nodes, seed=seed),
    "by-class": lambda nodes, seed: partition.by_class(LABELS, nodes, 2, seed=seed),
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@settings(max_examples=15, deadline=None)
@given(nodes=st.integers(1, 40), seed=st.integers(0, 5))
def test_disjoint_partitions_are_disjoint_and_leave_nobody_empty(
    maker: Callable[[int, int], list[Tensor]], nodes: int, seed: int
) -> None:
    parts = maker(nodes, seed)
    everything = torch.cat(parts)
    assert len(parts) == nodes
    assert min(len(part) for part in parts) >= 1
    assert len(everything.unique()) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < 600
    assert everything.dtype == torch.int64
    assert all(torch.equal(a, b) for a, b in zip(parts, maker(nodes, seed), strict=True))


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_another_seed_divides_differently(maker: Callable[[int, int], list[Tensor]]) -> None:
    assert not all(torch.equal(a.sort()[0], b.sort()[0]) for a, b in zip(maker(5, 0), maker(5, 1), strict=False))


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(50, 200))
def test_iid_uses_everything_evenly(nodes: int, n_samples: int) -> None:
    sizes = [len(part) for part in partition.iid(n_samples, nodes)]
    assert sum(sizes) == n_samples
    assert max(sizes) - min(sizes) <= 1
    assert [len(part) for part in partition.iid(n_samples, nodes, 1)] == [1] * nodes


def test_with_replacement_may_exceed_the_data() -> None:
    parts = partition.with_replacement(10, 4, 25, seed=3)
    assert [len(part) for part in parts] == [25] * 4
    assert set(torch.cat(parts).tolist()) == set(range(10))
    assert not torch.equal(parts[0], parts[1])
    assert len(partition.with_replacement(10, 4)[0]) == 2


def test_dirichlet_skew_falls_with_alpha() -> None:
    def concentration(alpha: float, per_node: int | None) -> float:
        parts = partition.dirichlet(LABELS, 10, alpha, per_node=per_node, seed=1)
        held = partition.counts(parts, LABELS, 10).double()
        return float((held / held.sum(1, keepdim=True)).square().sum(1).mean())  # 1: one class each, 0.1: even

    for per_node in (None, 40):
        assert concentration(0.02, per_node) > 0.6 > 0.3 > concentration(1.0, per_node) > concentration(100.0, per_node)
        assert concentration(1000.0, per_node) < 0.14


@given(st.integers(1, 20), st.integers(0, 3), st.sampled_from([0.01, 0.5, 10.0]))
@settings(max_examples=20, deadline=None)
def test_dirichlet_keeps_its_promised_sizes(minimum: int, seed: int, alpha: float) -> None:
    free = partition.dirichlet(LABELS, 30, alpha, minimum=minimum, seed=seed)
    assert min(len(part) for part in free) >= minimum
    assert sum(len(part) for part in free) == 600
    equal = partition.dirichlet(LABELS, 30, alpha, per_node=minimum, seed=seed)
    assert [len(part) for part in equal] == [minimum] * 30


@given(st.integers(1, 10), st.integers(5, 25), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_by_class_gives_each_its_number_of_classes(classes_per_node: int, nodes: int, seed: int) -> None:
    held = partition.counts(partition.by_class(LABELS, nodes, classes_per_node, seed=seed), LABELS, 10)
    assert ((held > 0).sum(1) == classes_per_node).all()
    holders = (held > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for c in range(10):
        shares = held[:, c][held[:, c] > 0]
        assert len(shares) == 0 or (shares.sum() == 60 and shares.max() - shares.min() <= 1)


def test_by_class_can_be_cut_to_size() -> None:
    assert [len(part) for part in partition.by_class(LABELS, 10, 2, per_node=30)] == [30] * 10
    with pytest.raises(ValueError, match=r"every participant must get 61 samples; participant \d+ would hold"):
        partition.by_class(LABELS, 9, 2, per_node=61)
    with pytest.raises(ValueError, match=r"must get 1 samples; participant \d would hold 0"):
        partition.by_class(torch.tensor([0, 1, 1, 1, 1, 1]), 4, 1)


@pytest.mark.parametrize("name", partition.PARTITIONS)
def test_build_knows_every_name(name: str) -> None:
    parts = partition.build(name, LABELS, 6, per_node=20, alpha=0.3, classes_per_node=3, seed=2)
    assert [len(part) for part in parts] == [20] * 6


def test_build_passes_its_options_on() -> None:
    wanted = partition.dirichlet(LABELS, 6, 0.05, minimum=30, seed=4)
    found = partition.build("dirichlet", LABELS, 6, alpha=0.05, minimum=30, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert (
        (partition.counts(partition.build("by-class", LABELS, 6, classes_per_node=3), LABELS, 10) > 0).sum(1) == 3
    ).all()
    assert len(partition.build("iid", torch.zeros(20, 5), 4)[0]) == 5


def same(one: partition.Partition, other: partition.Partition) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_names_schemes_and_index_lists_are_resolved() -> None:
    skewed = partition.dirichlet(LABELS, 6, 0.05, minimum=30, seed=4)
    given = partition.scheme("dirichlet", alpha=0.05, minimum=30)
    assert same(partition.resolve(given, LABELS, 6, seed=4), skewed)
    assert same(partition.resolve("iid", LABELS, 6, per_node=20, seed=4), partition.iid(600, 6, 20, seed=4))
    assert same(partition.resolve([part.tolist() for part in skewed], LABELS, 6), skewed)
    own = partition.resolve(lambda labels, nodes, per_node, seed: torch.arange(600).split(100), LABELS, 6)
    assert same(own, list(torch.arange(600).reshape(6, 100)))


def test_what_is_no_partition_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown partition 'dirichelt'\. Did you mean 'dirichlet'"):
        partition.scheme("dirichelt")
    with pytest.raises(ValueError, match=r"unknown option of dirichlet 'alhpa'\. Did you mean 'alpha'"):
        partition.scheme("dirichlet", alhpa=0.1)
    with pytest.raises(ValueError, match=r"unknown option of iid 'alpha'\. Known: none"):
        partition.scheme("iid", alpha=0.1)
    with pytest.raises(ValueError, match="one part per participant; found 2 parts for 3"):
        partition.resolve([[0], [1]], LABELS, 3)
    with pytest.raises(
        ValueError, match=r"must hold indices in 0\.\.599, the training samples; participant 1 has others"
    ):
        partition.resolve([[0], [600]], LABELS, 2)
    with pytest.raises(ValueError, match="per_node must be left out if the partition is given as index lists; found 1"):
        partition.resolve([[0], [1]], LABELS, 2, per_node=1)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown partition 'dirichelt'\. Did you mean 'dirichlet'"):
        partition.build("dirichelt", LABELS, 3)
    with pytest.raises(ValueError, match=r"more participants \(11\) than samples \(10\)"):
        partition.iid(10, 11)
    with pytest.raises(
        ValueError, match="4 participants × 3 samples need 12, but there are 10; use at most 2 each, or with-"
    ):
        partition.iid(10, 4, 3)
    with pytest.raises(ValueError, match="at least 1 participant; found 0"):
        partition.with_replacement(10, 0)
    with pytest.raises(ValueError, match="at least 1 sample; found 0"):
        partition.with_replacement(10, 2, 0)
    with pytest.raises(ValueError, match="at least 1 sample to divide"):
        partition.with_replacement(0, 2, 5)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="alpha must be positive and finite"):
            partition.dirichlet(LABELS, 3, alpha)
    with pytest.raises(ValueError, match="minimum must be at least 1"):
        partition.dirichlet(LABELS, 3, minimum=0)
    with pytest.raises(ValueError, match="10 participants × 61 samples need 610"):
        partition.dirichlet(LABELS, 10, minimum=61)
    with pytest.raises(ValueError, match=r"classes_per_node must be in 1\.\.10, the number of classes; found 11"):
        partition.by_class(LABELS, 3, 11)
    with pytest.raises(ValueError, match=r"one integer label per sample; found torch.float32 of shape \(6, 2\)"):
        partition.by_class(torch.zeros(6, 2), 3)


def test_counts_agree_with_counting() -> None:
    parts = partition.dirichlet(LABELS, 7, 0.3)
    held = partition.counts(parts, LABELS, 12)
    assert held.tolist() == [[sum(int(LABELS[i]) == c for i in part) for c in range(12)] for part in parts]


def test_a_column_of_labels_is_told_how_to_become_a_row() -> None:
    with pytest.raises(ValueError, match=r"found torch\.int64 of shape \(6, 1\)\. Give y\[:, 0\]"):
        partition.by_class(torch.zeros(6, 1, dtype=torch.int64), 2)
