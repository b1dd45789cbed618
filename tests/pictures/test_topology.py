import numpy as np
import pytest

from cascadice import topology
from cascadice.pictures.topology import plot

PNG, SVG = b"\x89PNG", b"<?xml"


@pytest.mark.parametrize(
    ("name", "nodes"), [("dominant", 16), ("exponential", 32), ("ring", 100), ("exponential", 1500), ("alone", 1)]
)
@pytest.mark.parametrize(("suffix", "magic"), [("png", PNG), ("SVG", SVG)])
def test_a_picture_is_written_and_nothing_else(tmp_path, name, nodes, suffix, magic):
    path = tmp_path / f"W.{suffix}"
    plot(topology.build(name, nodes)(0), path, title="a network")
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def text_of(W, tmp_path):
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(W, tmp_path / "W.svg")
    return (tmp_path / "W.svg").read_text()


def test_small_networks_show_arrows_and_large_ones_say_why_not(tmp_path):
    small = text_of(topology.build("ring", 16)(0), tmp_path)
    assert "who sends to whom" in small
    assert "too many" not in small
    large = text_of(topology.build("ring", 65)(0), tmp_path)
    assert "65 participants: too many to draw as a graph" in large
    assert "who sends to whom" not in large
    assert "largest W[k, j] of 2 x 2" in text_of(topology.build("ring", 1000)(0), tmp_path)


def test_every_link_is_an_arrow(tmp_path):
    counts = [
        text_of(topology.build(name, 8)(0), tmp_path).count("stroke-linecap: round") for name in ("ring", "alone")
    ]
    assert counts[0] - counts[1] in (16, 32)  # a line, perhaps with its head apart


def test_the_picture_follows_the_matrix(tmp_path):
    from PIL import Image

    pictures = []
    for name in ("ring", "star"):
        plot(topology.build(name, 8)(0), tmp_path / "W.png")
        pictures.append(np.asarray(Image.open(tmp_path / "W.png").convert("L"), dtype=float))
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).mean() > 0.05


@pytest.mark.parametrize("name", ["W.jpg", "W"])
def test_other_formats_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg; found"):
        plot(topology.identity(2), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
