"""Reciprocity over time, and advice in plain words."""

import pytest
import torch
from torch.testing import assert_close

from cascadice.applications.choose.balance import advise, balance_over_time
from cascadice.applications.choose.groups import ALONE
from cascadice.influence.proximity import Proximity
from cascadice.influence.readings import neighbourhood_reciprocity, reciprocity
from cascadice.influence.uncertainty import bounds_of_totals


def carried(rounds=7, nodes=4):
    draw = torch.Generator().manual_seed(2)
    links = [torch.randn(nodes, nodes, generator=draw, dtype=torch.float64) for _ in range(rounds)]
    return [Proximity(t, link, link) for t, link in enumerate(links)]


def test_both_factors_are_those_of_what_was_given_so_far():
    found = balance_over_time(carried(), every=3)
    assert found.t == (2, 5, 6)
    for t, given, pairs, neighbourhoods in zip(found.t, found.given, found.pairs, found.neighbourhoods, strict=True):
        total = sum(one.influence for one in carried()[: t + 1])
        assert_close(given, total)
        assert_close(pairs, reciprocity(total))
        assert_close(neighbourhoods, neighbourhood_reciprocity(total))


def test_giving_and_taking_leave_out_what_one_gives_itself():
    found = balance_over_time(carried())
    total = sum(one.influence for one in carried())
    for j in range(4):
        assert float(found.gave[-1, j]) == pytest.approx(-sum(float(total[j, k]) for k in range(4) if k != j))
        assert float(found.took[-1, j]) == pytest.approx(-sum(float(total[k, j]) for k in range(4) if k != j))
    assert_close(found.gave.sum(1), found.took.sum(1))


def test_intervals_are_those_of_sums_over_rounds():
    found, values = balance_over_time(carried()), torch.stack([one.influence for one in carried()]).numpy()
    others = values * (1 - torch.eye(4).numpy())
    gave, took = -others.sum(2), -others.sum(1)
    for half, sums in zip(found.half_widths, (gave, took, gave - took), strict=True):
        bounds = bounds_of_totals(sums)
        assert half.tolist() == pytest.approx((bounds.high - bounds.low) / 2)
    of_links = bounds_of_totals(values.reshape(7, 16))
    assert found.link_bounds.low.ravel() == pytest.approx(of_links.low)
    assert found.link_bounds.high.ravel() == pytest.approx(of_links.high)
    assert balance_over_time(carried(1)).half_widths.isnan().all()


@pytest.mark.parametrize(
    ("rounds", "every", "message"), [(0, 1, "at least one round of influence; found none"), (3, 0, "every must be")]
)
def test_nothing_to_sum(rounds, every, message):
    with pytest.raises(ValueError, match=message):
        balance_over_time(carried(rounds), every)


def told(helps, heard, groups=(0, 0, 0, 0), gave=(1, 1, 1, 1), took=(2, 2, 2, 2), helped=()):
    helps, heard = torch.tensor(helps).bool(), torch.tensor(heard).bool()
    numbers = [torch.tensor(values, dtype=torch.float64) for values in (gave, took)]
    return advise(helps, heard, torch.tensor(groups), *numbers, helped=helped)


RING = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


def test_who_helps_nobody_should_go():
    helps = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0]]
    found = told(helps, RING, (0, 0, 0, ALONE), gave=(3, 1, 1, -5))
    assert [advice.verdict for advice in found] == ["keep", "keep", "keep", "expel"]
    kept = told(helps, RING, (0, 0, 0, ALONE), gave=(3, 1, 1, -5), helped={1, 3})
    assert kept[3][1:] == ("keep", "it helps nobody, but its data clearly helped the final models")
    assert kept[:3] == found[:3]
    assert found[3].reason == "it helps nobody"
    assert found[0].reason == "it helps all 2 receivers; gives more than it takes"
    assert found[1].reason == "it helps all 2 receivers; takes more than it gives"
    helps, sure = torch.tensor(helps).bool(), torch.tensor([False, True, True, True])
    numbers = [torch.tensor(values).double() for values in ((3, 1, 1, -5), (2, 2, 2, 2))]
    unsure = advise(helps, torch.tensor(RING).bool(), torch.tensor([0, 0, 0, ALONE]), *numbers, sure)
    assert unsure[0].reason == "it helps all 2 receivers; gives about as much as it takes, within noise"
    assert unsure[1].reason == found[1].reason
    harm = told(helps.int().tolist(), RING, (0, 0, 0, ALONE), gave=(-1, -2, -1, -1), took=(-2, -1, -1, -1))
    assert harm[0].reason == harm[1].reason == "it helps all 2 receivers; what it gave and took did not help"


def test_who_would_help_others_should_move():
    helps = [[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    found = told(helps, RING)
    assert (found[2].verdict, found[2].reason) == ("move", "it helps none of its 2 receivers, but would help 0")


def test_who_helps_its_own_group_should_be_heard_there():
    everybody = [[int(k != j) for j in range(4)] for k in range(4)]
    helps = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    found = told(helps, everybody, (0, 0, 1, 1))
    assert {advice.verdict for advice in found} == {"keep in its group"}
    assert found[0].reason == "it helps 1 of its 3 receivers, all of its group"
    assert told(helps, everybody)[0].verdict == "keep"  # there is one group only
