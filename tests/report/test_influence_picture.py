import matplotlib
import pytest
import torch

from cascadice.engine import Metrics
from cascadice.influence import Cascade, concatenate, table_of, table_of_participants
from cascadice.pictures.influence import draw
from cascadice.runs.store import RoundMetrics
from cascadice.runs.summary import findings


def found(*kinds, nodes=5, known=None):
    value = torch.randn(3, nodes, nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = RoundMetrics(
        2, torch.ones(nodes), torch.tensor(0.0), Metrics(torch.ones(nodes), torch.full((nodes,), 0.875))
    )
    tables = [table_of(Cascade(kind, 2, tuple(range(nodes)), value)) for kind in kinds]
    tables.append(table_of_participants("shares, 2 points", 2, value[0, 0]))
    return findings(concatenate(tables), nodes, [seen], known)


def text_of(findings, path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(findings, path, title="a title")
    return path.read_text()


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".SVG", b"<?xml")])
@pytest.mark.parametrize("nodes", [2, 40])
def test_a_picture_is_written_and_nothing_else(tmp_path, suffix, start, nodes):
    path = tmp_path / f"influence{suffix}"
    draw(found("truth", "first order", nodes=nodes), path)
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_there_is_a_panel_for_each_thing_there_is_to_show(tmp_path):
    everything = text_of(found("truth", "first order", known={3: "flip-labels"}), tmp_path / "all.svg")
    panels = "who helped, who harmed (truth)", "who influenced whom", "how far it goes", "estimates against the truth"
    details = "a title", "flip-labels  3", "test accuracy 0.875 (round 2)", "Pearson 1.000, relative RMSE 0.000"
    for words in (*panels, *details):
        assert words in everything
    untold = text_of(found("first order"), tmp_path / "untold.svg")
    assert "how far it goes" in untold
    assert "against the truth" not in untold
    totals = text_of(found(), tmp_path / "totals.svg")
    assert "who helped, who harmed (shares, 2 points)" in totals
    assert "who influenced whom" not in totals


def test_a_network_in_which_nothing_travels_can_be_drawn(tmp_path):
    alone = Cascade("truth", 0, (0, 1), torch.zeros(2, 2, 2, dtype=torch.float64))
    draw(findings(table_of(alone), 2), tmp_path / "alone.png")


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg; found"):
        draw(found("truth"), tmp_path / "influence.gif")
    assert list(tmp_path.iterdir()) == []
