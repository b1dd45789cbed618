"""Who substitutes whom, against finite differences of runs."""

import pytest
import torch
from influence.cases import NODES, small

from cascadice.influence import evaluate_on
from cascadice.influence.interplay import interplay
from cascadice.influence.whole_run_shares import measured_at

ROUNDS = 3


@pytest.mark.parametrize(("weight", "on"), [(1.0, "all"), (0.6, "average")])
def test_it_is_how_much_an_influence_changes_without_somebody(weight, on):
    network = small()
    evaluation = evaluate_on(network)
    found = interplay(network, ROUNDS, evaluation, at=weight, on=on)
    assert torch.equal(found.isnan(), torch.eye(NODES, dtype=torch.bool))

    def slope(i, without=()):
        at = torch.full((NODES,), weight, dtype=torch.float64)
        at[list(without)] = 0
        step = 1e-5 * torch.eye(NODES, dtype=torch.float64)[i]
        up, down = (measured_at(network, ROUNDS, evaluation, at + s, on=on) for s in (step, -step))
        return (up - down) / 2e-5

    for j, i in ((0, 2), (3, 1)):
        assert float(found[j, i]) == pytest.approx(slope(i, [j]) - slope(i), rel=1e-5)
        assert abs(float(found[j, i] - found[i, j])) > 1e-5


def test_a_duplicate_substitutes_its_twin():
    """Participants 0 and 1 hold the same two classes, 2 and 3 the other one."""
    W = torch.full((4, 4), 0.25, dtype=torch.float64)
    y = small().data.train.y
    halves = [torch.nonzero(y != 2).flatten()[:8], torch.nonzero(y == 2).flatten()[:8]]
    network = small(
        mixing=W, partition=[halves[0], halves[0], halves[1], halves[1]], init="shared", lr=0.2, batch_size=8
    )
    found = interplay(network, 20, evaluate_on(network))
    assert found.diagonal().isnan().all()
    assert found[0, 1] < 0
    assert found[0, 1] < found[0, 2]
