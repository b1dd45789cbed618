import pytest
import torch

from cascadice.engine import Metrics
from cascadice.pictures.training import LINES_UP_TO, draw
from cascadice.runs.store import RoundMetrics


def measures(nodes, rounds=5, seen=2):
    steps = torch.arange(1, nodes + 1) / nodes
    return [
        RoundMetrics(t, steps / (t + 1), steps[0], Metrics(steps, steps) if t % seen == 0 else None)
        for t in range(rounds)
    ]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_the_suffix_decides_the_format(tmp_path, suffix, start):
    path = tmp_path / f"training{suffix}"
    draw(measures(3), path, title="three")
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def lines(tmp_path, rows):
    draw(rows, tmp_path / "a.svg")
    return (tmp_path / "a.svg").read_text().count("stroke-opacity: 0.35")


def test_each_participant_has_a_line_unless_they_are_too_many(tmp_path):
    assert lines(tmp_path, measures(8)) == 2 * 8
    assert lines(tmp_path, measures(LINES_UP_TO)) == 2 * LINES_UP_TO
    assert lines(tmp_path, measures(LINES_UP_TO + 1)) == 0


def test_one_round_alone_and_no_evaluation_can_be_drawn(tmp_path):
    draw(measures(2, rounds=1), tmp_path / "one.svg")
    unseen = [m._replace(evaluation=None) for m in measures(2)]
    draw(unseen, tmp_path / "unseen.svg")
    regression = [m._replace(evaluation=Metrics(torch.ones(2), torch.full((2,), torch.nan))) for m in measures(2)]
    draw(regression, tmp_path / "regression.svg")
    assert "not evaluated" in (tmp_path / "unseen.svg").read_text()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .png or .svg; found"):
        draw(measures(2), tmp_path / "a.gif")
    with pytest.raises(ValueError, match="at least one round to draw"):
        draw([], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
