import matplotlib
import pytest
import torch

from cascadice.influence import agreement
from cascadice.pictures.influence import plot


def content(*kinds, nodes=5, **more):
    """Influence of these kinds, as `plot` takes it."""
    updates, matrix = (
        torch.randn(nodes + 1, nodes, generator=torch.Generator().manual_seed(0)).double().split([1, nodes])
    )
    points = torch.arange(3.0)
    agreements = {kind: agreement(points, points) for kind in kinds if kind != "truth" and "truth" in kinds}
    return {
        "updates": {kind: updates.numpy() for kind in (*kinds, "shares, 2 points")},
        "by_hop": {kind: updates.numpy()[0, :2] for kind in kinds},
        "matrix": {kind: matrix.numpy() for kind in kinds},
        "agreements": agreements,
        "injected": {},
        **more,
    }


def text_of(content, path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(path, **content, title="a title")
    return path.read_text()


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".SVG", b"<?xml")])
@pytest.mark.parametrize("nodes", [2, 40])
def test_a_picture_is_written_and_nothing_else(tmp_path, suffix, start, nodes):
    path = tmp_path / f"influence{suffix}"
    plot(path, **content("truth", "first order", nodes=nodes))
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_there_is_a_panel_for_each_thing_there_is_to_show(tmp_path):
    more = {"injected": {3: "flip-labels"}, "test_results": "accuracy 0.875 (round 2)"}
    everything = text_of(content("truth", "first order", **more), tmp_path / "all.svg")
    panels = (
        "who helped, who harmed (truth)",
        "who influenced whom",
        "how far it reaches",
        "estimates against the truth",
    )
    details = "a title", "flip-labels  3", "test accuracy 0.875 (round 2)", "Pearson 1.000, relative RMSE 0.000"
    for words in (*panels, *details):
        assert words in everything
    untold = text_of(content("first order"), tmp_path / "untold.svg")
    assert "how far it reaches" in untold
    assert "against the truth" not in untold
    totals = text_of(content(), tmp_path / "totals.svg")
    assert "who helped, who harmed (shares, 2 points)" in totals
    assert "who influenced whom" not in totals


def test_a_network_in_which_nothing_travels_can_be_drawn(tmp_path):
    nothing = {"truth": torch.zeros(2, 2).numpy()}
    plot(tmp_path / "alone.png", **content("truth", updates=nothing, matrix=nothing))
    assert (tmp_path / "alone.png").stat().st_size > 0


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg; found"):
        plot(tmp_path / "influence.gif", **content("truth"))
    assert list(tmp_path.iterdir()) == []
