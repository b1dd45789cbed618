"""The page is one file that asks for nothing, holds its data as they are, and can be read in both themes."""

import json
import re
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report.pages import HOSTILE, write_section

from cascadice.applications.plain import evenly, plain, short
from cascadice.names import CONTROLS
from cascadice.report.page import collect, page
from cascadice.report.page.writing import LARGEST, json_in_html


class Reader(HTMLParser):
    """What a browser makes of a page: its tags, and the text of its data and title."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, None

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open = dict(attributes).get("id") if tag == "script" else tag

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, text):
        self.texts[self.open] = self.texts.get(self.open, "") + text


def test_nothing_in_a_run_becomes_markup(run, tmp_path):
    write_section(run, "detect")
    hostile = run.rename(tmp_path / HOSTILE.replace("/", "⁄"))
    data = collect(hostile)
    reader = Reader()
    reader.feed(page(data))
    assert json.loads(reader.texts["data"]) == json.loads(json.dumps(data))
    assert HOSTILE in reader.texts["data"] or HOSTILE in json.dumps(json.loads(reader.texts["data"]))
    assert reader.texts["title"] == f"{hostile.name} · cascadice"
    assert not any(tag == "img" for tag, _ in reader.tags)


def test_the_page_is_one_file_that_asks_for_nothing(asked):
    reader = Reader()
    text = page(collect(asked))
    reader.feed(text)
    assert not [a for _, a in reader.tags if "src" in a or a.get("href", "#").startswith(("http", "/"))]
    assert not any(tag == "link" for tag, _ in reader.tags)
    assert any("default-src 'none'" in a.get("content", "") for _, a in reader.tags)
    assert not re.search(r"\{\{\w+\}\}", text.replace(page_of_plotly(), ""))
    assert len(text.encode()) < LARGEST


def page_of_plotly():
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


@settings(max_examples=50)
@given(st.text())
def test_text_in_data_comes_through(text):
    embedded = json_in_html({"text": text, "key" + text: [text]})
    assert not set("<>&\u2028\u2029") & set(embedded)
    seen = text.translate({code: written for code, written in CONTROLS.items() if chr(code) not in "\b\f\r"})
    assert json.loads(embedded) == {"text": seen, "key" + seen: [seen]}


def test_numbers_are_rounded_and_null_if_not_finite():
    assert short([0.123456789, float("nan"), float("inf"), -2.0]) == [0.12346, None, None, -2.0]
    assert plain({"a": [float("nan"), 1.5, (float("-inf"),)]}) == {"a": [None, 1.5, [None]]}


@given(st.integers(0, 200), st.integers(1, 50))
def test_places_are_spread_evenly(count, most):
    places = evenly(count, most)
    assert len(places) == min(count, most)
    assert places == sorted(set(places))
    if count and most > 1:
        assert (places[0], places[-1]) == (0, count - 1)
    steps = np.diff(places)
    assert len(steps) == 0 or steps.max() - steps.min() <= 1


def colours(theme):
    text = (resources.files("cascadice.report.page") / "page.css").read_text()
    block = re.search(
        r":root\[data-theme=\"dark\"\] \{(.*?)\}" if theme == "dark" else r":root \{(.*?)\}", text, re.DOTALL
    )
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block[1]))


def luminance(colour):
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme):
    """WCAG AA: 4.5 : 1 for text."""
    tones = colours(theme)
    for text in ("ink", "soft", "accent", "helped", "harmed"):
        for ground in ("card", "ground"):
            dark, light = sorted((luminance(tones[text]), luminance(tones[ground])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
