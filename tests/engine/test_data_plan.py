"""What is given about data: batches, beside a partition or alone, and options that would have no effect."""

import pytest
import torch
from influence.cases import NODES, small

from cascadice import influence
from cascadice.engine import simulate

PLAN = torch.arange(NODES * 6).view(1, NODES, 1, 6).repeat(3, 1, 1, 1)
PARTS = [torch.arange(6 * k, 6 * k + 6) for k in range(NODES)]


def test_a_partition_beside_batches_says_who_holds_what():
    network = small(batches=PLAN, partition=PARTS)
    assert [part.tolist() for part in network.partition] == [part.tolist() for part in PARTS]
    assert influence.own_data(network, 5)
    assert small(batches=PLAN).partition is None


UNUSED = {
    "an unknown option": ({"learning_rate": 0.5}, "learning_rate"),
    "options of no partition": ({"alpha": 0.1, "per_node": 4}, "per_node, alpha"),
    "a batch size": ({"batch_size": 99}, "batch_size"),
    "steps": ({"local_steps": 7, "partition": PARTS}, "local_steps"),
}


@pytest.mark.parametrize(("options", "named"), UNUSED.values(), ids=UNUSED)
def test_options_that_have_no_effect_beside_batches_are_refused(options, named):
    with pytest.raises(TypeError, match=f"if batches are given, network\\(\\) ignores {named}\\. Leave out"):
        small(batches=PLAN, **options)


def test_given_batches_must_be_of_the_given_partition():
    strange = PLAN.clone()
    strange[2, 1, 0, 5] = 0
    message = r"participants must draw from their own part; 1 draws sample 0 in round 2, which it does not hold"
    with pytest.raises(ValueError, match=message):
        small(batches=strange, partition=PARTS)
    network = small(batches=lambda t: strange[t], partition=PARTS)
    with pytest.raises(ValueError, match=message):
        list(simulate(network, 3))
    padded = PLAN.clone()
    padded[:, 1, 0, 5] = -1
    assert len(list(simulate(small(batches=padded, partition=PARTS), 3))) == 3
    assert len(list(simulate(small(batches=strange, partition=[torch.arange(24)] * NODES), 3))) == 3


def test_batches_that_are_neither_a_tensor_nor_a_function_are_refused(unchecked):
    with pytest.raises(TypeError, match=r"a tensor \[rounds, n, steps, batch\] or a function of the round; found list"):
        small(batches=[PLAN[0]])
    with pytest.raises(ValueError, match="someone must train in round 0"):
        small(batches=lambda t: [[]] * NODES)
