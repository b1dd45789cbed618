"""Figures that take axes: what they show is what they were given."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from cascadice import pictures, topology
from cascadice.influence.cascade import Cascade
from cascadice.influence.uncertainty import bounds_of_totals
from cascadice.pictures.figures import HARMED, HELPED, UNCLEAR

UPDATES = np.array([[-1.0, 0.5, 0.4], [-1.2, -0.5, 0.5], [-1.1, 0.2, 0.45]])
CASCADE = Cascade("truth", 4, (0, 2), torch.arange(24.0).reshape(3, 2, 4) - 12)


@pytest.fixture
def ax():
    return Figure().subplots()


def test_contributions_have_intervals_and_noise_is_grey(ax):
    assert pictures.contributions(torch.from_numpy(UPDATES), injected={2: "flip-labels"}, ax=ax) is ax
    bars = ax.patches[:3]
    assert [bar.get_width() for bar in bars] == pytest.approx(UPDATES.sum(0))
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars] == [HELPED, UNCLEAR, HARMED]
    (lines,) = (one for one in ax.collections)
    ends = np.array([line[:, 0] for line in lines.get_segments()])
    np.testing.assert_allclose(ends.T, bounds_of_totals(UPDATES))
    assert ax.get_yticklabels()[2].get_text() == "flip-labels  2"
    alone = pictures.contributions(UPDATES[:1], kind="truth", ax=Figure().subplots())
    assert alone.get_title() == "who helped, who harmed (truth)\none round has no intervals"


def test_a_matrix_has_receivers_as_rows(ax):
    influence = np.array([[0.0, -0.5], [0.2, 0.0]])
    assert pictures.matrix(influence, ax=ax) is ax
    assert ax.images[0].get_array().filled(0).tolist() == influence.T.tolist()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("source j", "receiver k")


def test_a_cascade_has_a_row_for_each_hop(ax):
    assert pictures.cascade(CASCADE, 2, ax=ax) is ax
    assert ax.images[0].get_array().filled(0).tolist() == CASCADE.value[:, 1].tolist()
    with pytest.raises(ValueError, match=r"source must be one of the cascade's, \[0, 2\]; found 1\."):
        pictures.cascade(CASCADE, 1, ax=ax)


def test_a_network_shows_influence_by_size_and_colour(ax):
    pictures.network(topology.build("ring", 4)(0).numpy(), [-1.0, 0.25, 0.0, -0.5], ax=ax)
    assert ax.get_title() == "who sends to whom (blue helped, orange harmed; totals have no intervals)"
    circles = ax.collections[-1]
    assert [to_hex(colour).upper() for colour in circles.get_facecolors()] == [HELPED, HARMED, UNCLEAR, HELPED]
    assert np.argsort(circles.get_sizes()).tolist() == [2, 1, 3, 0]
    pictures.network(topology.build("ring", 3)(0), UPDATES, ax=ax)
    assert [to_hex(colour).upper() for colour in ax.collections[-1].get_facecolors()] == [HELPED, UNCLEAR, HARMED]
    title = "who sends to whom (blue helped, orange harmed, grey within noise)"
    assert ax.get_title() == f"{title}\ninfluence summed over rounds, with its 95 % interval"
    low, high = bounds_of_totals(UPDATES)
    assert f"{UPDATES.sum(0)[2]:+.4f} ± {(high - low)[2] / 2:.4f}" in [text.get_text() for text in ax.texts]
    pictures.network(topology.build("ring", 3)(0), UPDATES[:1], ax=ax)
    assert ax.get_title() == "who sends to whom (blue helped, orange harmed; one round has no intervals)"
    with pytest.raises(ValueError, match="influence must have a value for each of 4 participants; found 3"):
        pictures.network(topology.build("ring", 4)(0), [1.0, 2.0, 3.0], ax=ax)


@pytest.mark.parametrize("inches", [2, 8])
def test_numbers_stand_clear_of_circles_whatever_the_size_of_the_axes(inches):
    figure = Figure((inches, inches))
    ax = pictures.network(topology.build("ring", 4)(0), [-1.0, 1.0, -1.0, 1.0], ax=figure.subplots())
    figure.canvas.draw()
    circles = ax.collections[-1]
    centres = ax.transData.transform(circles.get_offsets())
    radius = np.sqrt(circles.get_sizes()) / 2 * figure.dpi / 72  # sizes are in points
    for node, number in enumerate(ax.texts):
        box = number.get_window_extent()
        nearest = np.clip(centres[node], (box.x0, box.y0), (box.x1, box.y1))
        assert np.linalg.norm(nearest - centres[node]) > radius[node]


def test_decay_and_agreement_draw_every_estimator(ax):
    assert pictures.decay({"truth": [0.3, 0.2], "shares": [0.3, 0.1]}, ax=ax) is ax
    assert [bar.get_height() for bar in ax.patches] == [0.3, 0.2, 0.3, 0.1]
    other = Figure().subplots()
    estimates = {"first order": UPDATES * 2, "exact": UPDATES}
    assert pictures.agreement(torch.from_numpy(UPDATES), estimates, ax=other) is other
    texts = [text.get_text() for text in other.get_legend().get_texts()]
    assert texts == ["first order\nPearson 1.000, relative RMSE 1.000", "exact\nPearson 1.000, relative RMSE 0.000"]
