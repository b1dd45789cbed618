"""The picture of a command has the values, signs and words of its charts on the page."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from cascadice.applications.charts import across, axis, bars, chart, contributions, lines, matrix, matrix_axes, named
from cascadice.applications.choose.charts import charts as choose_charts
from cascadice.applications.reward.charts import charts as reward_charts
from cascadice.influence.uncertainty import Bounds
from cascadice.pictures.charts import HIGHEST, THEME, draw, plot

REWARD = {
    "contributions": [[-1.0, 0.2], [-1.1, 0.3]], "rounds": [0, 1], "payments": [10.0, 0.0],
    "table": {"columns": ["participant", "injected"], "rows": [[0, ""], [1, "flip-labels"]]},
}  # fmt: skip
CHOOSE = {
    "groups": [0, -1], "influence": [[0, -0.5], [0.4, 0]], "gave": [[0.5, -1]], "took": [[-1, 0.5]], "rounds": [0],
    "advice": [{"verdict": "keep"}, {"verdict": "expel"}], "known": {"1": "noise"},
    "intervals": {"gave": [0.1, 0.2], "took": [0.3, 0.4]},
}  # fmt: skip


def drawn(content):
    """The axes that show a chart."""
    axes = Figure().subplots()
    draw(axes, content)
    return axes


def test_bars_of_influence_are_the_pages_with_the_sign_rule_on_the_axis():
    payments, reasons, growth = map(drawn, reward_charts(REWARD))
    assert [bar.get_width() for bar in reasons.patches] == pytest.approx([-2.1, 0.5])  # negative helped
    assert reasons.get_xlabel() == "loss: − helped, + harmed"
    assert growth.get_ylabel() == "loss: − helped, + harmed, so far"
    assert [line.get_ydata()[-1] for line in growth.lines] == pytest.approx([-2.1, 0.5])
    assert [text.get_text() for text in growth.get_legend().get_texts()] == ["flip-labels 1"]
    assert [text.get_text() for text in payments.get_yticklabels()] == ["0", "flip-labels 1"]
    assert payments.yaxis_inverted()
    assert payments.get_title(loc="left") == "Payments"


def test_giving_and_taking_have_the_signs_of_the_page():
    cosines, exchange, balance = map(drawn, choose_charts(CHOOSE))
    (points,) = (points for points in exchange.collections if len(points.get_offsets()) == 2)
    assert points.get_offsets().tolist() == [[1, -0.5], [-0.5, 1]]  # took, gave: negative helped
    assert exchange.get_xlabel() == "took: own loss: − helped, + harmed"
    assert [line.get_ydata().tolist() for line in balance.lines] == [[-1.5], [1.5]]
    assert balance.get_ylabel() == "gave minus took: − gives more, + takes more"
    assert cosines.images[0].get_array().tolist() == [[None, -0.4], [0.5, None]]
    assert [line.get_xdata()[0] for line in cosines.lines[1:]] == [0.5]  # a border between groups


def test_intervals_may_be_one_sided_missing_or_rounded_below_nothing():
    values, bounds = [1.0, -2.0, 3.0], Bounds(np.array([0.5, -2.0, np.nan]), np.array([2.0, -1.999999999, np.nan]))
    axes = drawn(contributions(values, bounds, {}, "who", "truth"))
    ends = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments() if len(segment)]
    assert ends[0] == [0.5, 2.0]
    assert [bar.get_facecolor()[:3] for bar in axes.patches[:1]] == [pytest.approx((0xD5 / 255, 0x5E / 255, 0))]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_charts_is_drawn(tmp_path, name, start, count):
    one = chart(
        "a < b & $x", lines([0, 1], [[1, None], [2, None]], {0: named(0, {})}), "", "a note", shapes=[across(1.0)]
    )
    plot([one] * count, tmp_path / name, "title")
    assert (tmp_path / name).read_bytes().startswith(start)


def test_many_participants_make_a_picture_no_higher_than_a_page(tmp_path):
    who = contributions(np.arange(-500.0, 500.0), None, {}, "who", "truth")
    nobody = chart("nobody", [matrix(np.full((2, 2), np.nan), [0, 1], "", "", zmin=0, zmax=1, colorscale="signed")],
                   "", **matrix_axes())  # fmt: skip
    plot([who, nobody], tmp_path / "many.png")
    with Image.open(tmp_path / "many.png") as picture:
        assert picture.height == 150 * HIGHEST


def test_every_colour_of_a_chart_has_a_value():
    for colour, value in THEME.items():
        axes = drawn(chart("", [bars([1.0], colour, "")], "", xaxis=axis("payment")))
        assert axes.patches[0].get_facecolor()[:3] == to_rgb(value)


def test_a_picture_must_be_png_or_svg():
    with pytest.raises(ValueError, match=r"a figure must end in \.png or \.svg; found 'found.pdf'"):
        plot([], "found.pdf")
