"""Groups are found in influence alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score
from torch.testing import assert_close

from cascadice.applications.choose.groups import ALONE, affinity, find_groups

NODES = 18


def planted(groups, noise=0.1, seed=0):
    """Influence of −1 within groups and 0 between them, with noise."""
    draw = torch.Generator().manual_seed(seed)
    same = groups[:, None] == groups[None]
    return -same.double() + noise * torch.randn(same.shape, generator=draw, dtype=torch.float64)


def linked(given, degree, seed=0):
    """Only some pairs ever heard one another."""
    draw = torch.Generator().manual_seed(seed)
    return given * (torch.rand(given.shape, generator=draw) < degree / len(given))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("told", [True, False])
def test_planted_groups_are_found(count, told):
    groups = torch.arange(NODES) % count
    found = find_groups(planted(groups), count if told else None)
    assert adjusted_rand_score(found, groups) == 1
    assert found[0] == 0


def test_groups_are_found_where_few_heard_one_another():
    groups = torch.arange(40) % 2
    assert adjusted_rand_score(find_groups(linked(planted(groups), 14)), groups) == 1


def test_receivers_are_measured_each_by_its_own_yardstick():
    groups = torch.arange(NODES) // 9
    given = planted(groups) * 10 ** torch.linspace(-3, 3, NODES, dtype=torch.float64)
    assert adjusted_rand_score(find_groups(given), groups) == 1


def test_who_helps_nobody_and_is_helped_by_nobody_is_alone():
    given = planted(torch.zeros(NODES, dtype=torch.int64))
    given[4], given[:, 4] = 1.0, 1.0
    found = find_groups(given)
    assert found.tolist() == [ALONE if k == 4 else 0 for k in range(NODES)]
    assert find_groups(torch.ones(3, 3, dtype=torch.float64)).tolist() == [ALONE] * 3


@settings(max_examples=25)
@given(st.permutations(range(NODES)))
def test_renaming_participants_renames_their_groups(order):
    groups, order = torch.arange(NODES) % 2, torch.tensor(order)
    given = planted(groups)
    assert adjusted_rand_score(find_groups(given[order][:, order]), groups[order]) == 1


def test_affinity_is_help_beyond_a_share_of_the_most():
    given = torch.tensor([[-9, -1, -4], [-2, 0, -1], [-1, 3, 0]], dtype=torch.float64)
    # receiver 0: of 1 all, of 2 half; receiver 1: of 0 all; receiver 2: of 0 all, of 1 a quarter
    ties = torch.tensor([[0, 0.5, 0.0], [0.5, 0, 0], [0.5, 0, 0]], dtype=torch.float64)
    assert_close(affinity(given, 0.5), (ties + ties.T) / 2)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (torch.zeros(2, 3), {}, r"influence must be a square matrix of finite numbers; found \[2, 3\]"),
        (torch.full((2, 2), torch.nan), {}, "influence must be a square matrix of finite numbers"),
        (torch.zeros(3, 3), {"count": 4}, r"the number of groups must be in 1\.\.3, the participants; found 4"),
        (torch.zeros(3, 3), {"share": 1.0}, "share must be at least 0 and below 1; found 1.0"),
    ],
)
def test_bad_input_is_refused(given, options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        find_groups(given, **options)
