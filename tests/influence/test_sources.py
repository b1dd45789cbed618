"""Sources may be given in any form that holds integers, and in no other."""

import numpy as np
import pytest
import torch
from influence.cases import small, window

from cascadice import influence


def test_one_source_may_be_a_number():
    net = small()
    rounds, evaluation = window(net, 2), influence.evaluate_on(net)
    for estimate in (influence.truth, influence.first_order, influence.path_integrated):
        assert estimate(net, rounds, evaluation, 2).sources == (2,)


SOURCES = {
    "a tensor": torch.tensor([2, 1]),
    "an array": np.array([2, 1]),
    "numbers of NumPy": [np.int64(2), np.int32(1)],
    "numbers of torch": (torch.tensor(2), torch.tensor(1)),
}


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
def test_sources_may_be_integers_of_any_kind(sources, unchecked):
    net = small()
    rounds, evaluation = window(net, 1), influence.evaluate_on(net)
    expected = influence.truth(net, rounds, evaluation, [2, 1])
    found = influence.truth(net, rounds, evaluation, sources)
    assert found.sources == (2, 1)
    assert torch.equal(found.value, expected.value)
    (scored,) = influence.score_rounds(net, rounds, evaluation, kinds=["truth"], sources=sources)
    assert scored.cascades[0].sources == (2, 1)


@pytest.mark.parametrize("source", [np.int64(2), torch.tensor(2), np.array(2)])
def test_one_source_may_be_an_integer_of_any_kind(source, unchecked):
    net = small()
    rounds, evaluation = window(net, 1), influence.evaluate_on(net)
    for estimate in (influence.truth, influence.truth_of_samples):
        chosen = estimate(net, rounds, evaluation, source).sources
        assert set(chosen) == {2}
        assert type(chosen[0]) is int
    scored = influence.path_integrated_samples(net, rounds, evaluation, source)
    assert torch.equal(scored, influence.path_integrated_samples(net, rounds, evaluation, 2))
    (result,) = influence.score_rounds(net, rounds, evaluation, sources=source)
    assert result.cascades[0].sources == (2,)


@pytest.mark.parametrize(
    ("sources", "found"), [(True, "True"), (torch.tensor([True, False]), "True"), (1.0, r"1\.0"), ("02", "'0'")]
)
def test_sources_must_be_numbers_of_participants(sources, found, unchecked):
    net = small()
    with pytest.raises(TypeError, match=rf"sources must be numbers of participants, e\.g\. \[0, 2\]; found {found}\."):
        influence.truth(net, window(net, 1), influence.evaluate_on(net), sources)
