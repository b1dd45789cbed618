"""The page as its readers use it, in a real browser: by mouse and keyboard."""

import json

import pytest
from report.pages import CONFIG, HOSTILE, RADII

from cascadice.report.page import collect
from cascadice.runs.config import build
from cascadice.runs.summary import read_summary

FOCUSED = "document.activeElement.id || document.activeElement.dataset.node || document.activeElement.dataset.row"


def test_it_loads_without_an_error_and_asks_for_nothing(tab, shown):
    elsewhere = [url for url in tab.requests if not url.startswith(("data:", "blob:"))]
    assert elsewhere == [(shown / "report.html").as_uri()]
    charts = tab.js(
        "[...document.querySelectorAll('.chart')].filter(c => c.querySelector('svg.main-svg')).map(c => c.id)"
    )
    assert charts == ["matrix", "weights", "decay", "scatter", "accuracy", "loss", "consensus", "", "", ""]
    sections = tab.js("[...document.querySelectorAll('#nav a')].map(a => a.textContent)")
    assert sections == [
        "Network", "Findings", "Matrices", "Reach", "Training", "Samples", "Detect", "Reward", "Table", "About",
    ]  # fmt: skip
    assert tab.js("[...document.querySelectorAll('#nav a')].every(a => document.querySelector(a.hash))")
    assert "6 participants trained mlp on digits" in tab.text("#findings")
    assert tab.js("[...document.images].every(i => i.complete && i.naturalWidth > 0)")


@pytest.mark.parametrize(("slider", "said"), [("round", "round 6"), ("hop", "after 2 hops")])
def test_sliders_change_the_picture(tab, slider, said):
    before = tab.js(RADII)
    heat = tab.js("JSON.stringify(document.getElementById('matrix').data[0].z)")
    tab.js(f"document.getElementById('{slider}').focus()")
    tab.press("ArrowLeft")
    assert tab.js(RADII) != before
    assert tab.js("JSON.stringify(document.getElementById('matrix').data[0].z)") != heat
    assert tab.text(f"#{slider}-value") == said
    assert tab.js(f"document.getElementById('{slider}').getAttribute('aria-valuetext')") == said
    assert said in tab.text("#panel-text")
    tab.press("ArrowRight")
    assert tab.js(RADII) == before


def test_the_size_of_a_participant_is_its_influence(tab, shown):
    totals = [abs(value) for value in collect(shown)["influence"]["totals"]["truth"]]
    radii = [float(r) for r in json.loads(tab.js(RADII))]
    assert [r > 6 for r in radii] == [total > 0 for total in totals]
    assert sorted(range(6), key=lambda j: radii[j]) == sorted(range(6), key=lambda j: totals[j])


def test_a_click_selects_a_source_and_shows_its_cascade(tab, shown):
    rows = collect(shown)["influence"]["cascades"]["truth"]
    reached = {
        k
        for t, j, k, v in zip(rows["round"], rows["source"], rows["receiver"], rows["value"], strict=True)
        if (t, j) == (-1, 2) and v
    }
    tab.click('#graph [data-node="2"] .body')
    assert tab.text("#panel-title") == "Participant 2 (flip-labels)"
    assert f"Its updates reached {len(reached)} participants" in tab.text("#panel-text")
    listed = tab.js("[...document.querySelectorAll('#ranking button')].map(b => Number(b.dataset.row))")
    assert set(listed) == reached
    assert tab.js("document.querySelectorAll('#graph .edge.path').length") > 0
    assert tab.js("document.querySelector('#graph [aria-pressed=true]').dataset.node") == "2"
    tab.click("#clear")
    assert tab.text("#panel-title") == "Everyone, ranked by influence"
    assert tab.js("document.querySelectorAll('#graph .edge.path').length") == 0


CLEAR = """window.fresh = JSON.parse(document.getElementById('data').textContent);
for (const c of Object.values(fresh.influence.cascades)) c.value = c.value.map((_, i) =>
  (c.source[i] === 2 ? 1 : c.source[i] === 1 ? c.round[i] - 2.5 : -1) * (c.round[i] < 0 ? 3 : 1));
cascadice.render(fresh);"""


def test_harm_travels_in_the_colour_of_harm_and_noise_is_not_called_harm(tab, shown):
    bounds = read_summary(shown / "influence", shown, build(CONFIG)).bounds["truth"]
    half = tab.js(
        "Number(document.querySelector('#ranking [data-row=\"5\"] .value').textContent.match(/± ([\\d.e-]+)/)[1])"
    )
    assert half == pytest.approx((bounds.high - bounds.low)[5] / 2, rel=0.06)  # two digits are shown
    tab.js(CLEAR)
    kinds = tab.js("[...document.querySelectorAll('#graph .node')].map(n => n.classList[1])")
    assert kinds == ["helped", "unclear", "harmed", "helped", "helped", "helped"]
    assert "within noise" in tab.text('#ranking [data-row="1"]')
    colours = "[...document.querySelectorAll('#graph .edge.path')].map(p => getComputedStyle(p).stroke)"
    for node, named in ((2, "harmed"), (0, "helped"), (1, "grey")):
        tab.click(f'#graph [data-node="{node}"] .body')
        wanted = tab.js(f"getComputedStyle(document.documentElement).getPropertyValue('--{named}').trim()")
        assert set(tab.js(colours)) == {f"rgb({', '.join(str(int(wanted[i : i + 2], 16)) for i in (1, 3, 5))})"}


@pytest.mark.parametrize(("sums", "title"), [
    ("[-1, 1, 0, 0, 0, 0]", "Who helped the final models, and who harmed them"),
    ("[-1, -1, 0, 0, 0, 0]", "Who helped the final models"),
    ("[0, 1, 0, 0, 0, 0]", "Who harmed the final models"),
    ("[0, 0, 0, 0, 0, 0]", "Nobody clearly helped or harmed the final models"),
])  # fmt: skip
def test_the_title_promises_only_what_intervals_allow(tab, sums, title):
    tab.js(f"""const fresh = JSON.parse(document.getElementById('data').textContent), own = fresh.influence;
      const sums = {sums}, rows = [-1, 0, 3, 6].flatMap(round => sums.map((sum, node) => [round, node, sum, round]));
      const value = ([round, , sum]) => round < 0 ? 3 * sum : sum + (round === 3 ? 0.01 : round === 6 ? -0.01 : 0);
      own.cascades = {{ 'whole-run': {{ round: rows.map(r => r[0]), source: rows.map(r => r[1]),
        receiver: rows.map(r => r[1]), hop: rows.map(() => 0), value: rows.map(value) }} }};
      own.scored = {{ 'whole-run': {{ ...own.scored.truth, hops: 0 }} }};
      cascadice.render(fresh)""")
    assert tab.text("#network-title") == title
    tab.js("document.getElementById('round').focus()")
    tab.press("ArrowLeft")
    assert tab.text("#network-title") == "Influence on the final models"  # one round has no interval


def test_the_address_keeps_the_selection_and_rounds_are_played(tab, shown):
    tab.js("window.setInterval = (step) => { window.step = step; return 1; }")
    tab.click("#play")
    assert (tab.text("#play"), tab.text("#round-value")) == ("Stop", "round 0")
    tab.js("step()")
    assert tab.text("#round-value") == "round 3"
    tab.click('#graph [data-node="2"] .body')
    assert tab.js("location.hash") == "#participant=2&round=3"
    tab.click('#nav a[href="#table"]')
    tab.wait("location.hash === '#participant=2&round=3&section=table'")
    tab.js("step(); step()")
    assert (tab.text("#play"), tab.text("#round-value")) == ("Play", "3 of 8 rounds")
    tab.js("location.hash = '#participant=4&round=6&hop=1&estimator=first+order&section=samples'")
    tab.wait("document.getElementById('panel-title').textContent.startsWith('Participant 4')")
    assert [tab.text(f"#{name}-value") for name in ("round", "hop")] == ["round 6", "after 1 hop"]
    assert tab.js("document.getElementById('kind').value") == "first order"
    tab.js("location.hash = '#participant=99&round=-5&hop=7&estimator=none'")  # of another run
    tab.wait("document.getElementById('panel-title').textContent.startsWith('Everyone')")
    assert tab.text("#round-value") == "3 of 8 rounds"


def test_figures_are_saved(tab):
    tab.js("window.saved = []")
    tab.js("HTMLAnchorElement.prototype.click = function () { saved.push([this.download, this.href]); }")
    for count, place in enumerate(("#matrix-card", ".drawing", "#result-reward .charts figure"), start=1):
        for which, start in ((1, "data:image/png;base64,iVBOR"), (2, "data:image/svg+xml,")):
            tab.click(f"{place} .save button:nth-child({which})")
            tab.wait(f"saved.length === {2 * (count - 1) + which}")
            assert tab.js("saved.at(-1)[1]").startswith(start)
    assert tab.js("saved.map(([name]) => name)")[::2] == ["run-influence.png", "run-network.png", "run-payments.png"]
    assert "fill: rgb(" in tab.js("decodeURIComponent(saved[3][1])")  # the style sheet's colours
    assert "Truth, 3 of 8 rounds, all hops. Blue: helped (loss went down)" in tab.js("decodeURIComponent(saved[3][1])")


def test_a_click_on_the_list_selects_too(tab):
    tab.click('#ranking [data-row="5"]')
    assert tab.text("#panel-title") == "Participant 5"


def test_participants_can_be_selected_by_keyboard(tab):
    tab.js("document.querySelector('#graph [tabindex=\"0\"]').focus()")
    assert tab.js(FOCUSED) == "0"
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        tab.press(key)
    assert tab.js(FOCUSED) == "5"
    assert tab.js("getComputedStyle(document.querySelector('#graph [data-node=\"5\"] .ring')).strokeWidth") == "5px"
    tab.press("Enter")
    assert tab.text("#panel-title") == "Participant 5"
    assert tab.js(FOCUSED) == "5"
    tab.press("Escape")
    assert tab.text("#panel-title") == "Everyone, ranked by influence"


def test_everything_can_be_reached_with_the_tab_key_and_shows_it(tab):
    seen = "(e => e === document.body || e.closest('svg') ? 'ring' : getComputedStyle(e).outlineStyle)"
    reached, rings = set(), set()
    for _ in range(80):
        tab.press("Tab")
        reached.add(tab.js(FOCUSED))
        rings.add(tab.js(f"{seen}(document.activeElement)"))
    assert {"theme", "round", "hop", "kind", "0", "search", "download", "later"} <= reached
    assert rings == {"ring", "solid"}


def test_controls_have_accessible_names(tab):
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    named = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in ("button", "slider", "searchbox", "combobox", "image", "region", "link") and not node["ignored"]:
            named.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert {"button", "slider", "searchbox", "combobox", "image"} <= named.keys()
    assert all(name for names in named.values() for name in names), named
    assert any(name.startswith("participant 2 (flip-labels), flagged: within noise") for name in named["button"])


def test_another_estimator_can_be_chosen(tab):
    before = tab.text("#ranking")
    tab.js("(s => { s.value = 'first order'; s.dispatchEvent(new Event('change')); })(document.getElementById('kind'))")
    assert tab.text("#panel-text").startswith("Influence by first order (")
    assert tab.text("#ranking") != before


def test_enlarging_a_picture_keeps_the_selection(tab):
    tab.click('#graph [data-node="2"] .body')
    tab.click("#result-detect button.figure")
    assert tab.js("document.getElementById('large').open")
    tab.press("Escape")
    assert not tab.js("document.getElementById('large').open")
    assert tab.text("#panel-title").startswith("Participant 2")


def test_the_table_of_agreements_can_be_reached(tab):
    tab.js("document.getElementById('agreements').focus()")
    assert tab.js(FOCUSED) == "agreements"


def test_nothing_in_the_data_becomes_markup(tab):
    assert tab.text("#result-detect h2") == f"The detect title {HOSTILE}"
    assert HOSTILE in tab.text("#result-reward table")
    assert HOSTILE in tab.text("#result-reward .charts")  # beside a bar
    assert tab.js("document.querySelectorAll('img[src=\"x\"]').length") == 0
    assert tab.js("document.querySelectorAll('#graph .flag').length") == 1
