"""The page as its readers use it, in a real browser: by mouse and keyboard, light and dark, on a desk and a phone."""

import base64
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from report import browser
from report.pages import CONFIG, HOSTILE, ask_everything, train, write_section

from cascadice.report.page import collect, write
from cascadice.runs.config import build
from cascadice.runs.summary import read_summary
from cascadice.runs.whole_run import WholeRunQuestion, ask_whole_run

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason=f"needs a browser: none of {', '.join(browser.NAMES)} is here (apt install chromium)"
)
ARROW = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Escape": 27, "Home": 36}
# a PNG of one pixel
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
RADII = "JSON.stringify([...document.querySelectorAll('#graph .body')].map(c => c.getAttribute('r')))"
FOCUSED = "document.activeElement.id || document.activeElement.dataset.node || document.activeElement.dataset.row"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = train(tmp_path_factory.mktemp("browser") / "run")
    write(folder)
    (folder / "report.html").rename(folder / "bare.html")
    ask_everything(folder)
    write_section(folder, "detect", votes=[[0, 0, 1, 0, 0, 0]], figure="detect.png")
    (folder / "detect" / "detect.png").write_bytes(base64.b64decode(PIXEL))
    paid = {
        "rounds": [0, 1, 2],
        "payments": [1.0] * 6,
        "contributions": [[-1.0, 0.1 * t, 0.5, 0, 0, 0] for t in range(-1, 2)],
    }
    write_section(folder, "reward", **paid)
    write(folder)
    return folder


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    place = Path(os.environ.get("CASCADICE_ARTEFACTS") or tmp_path_factory.mktemp("artefacts"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(chromium, run):
    """The page, opened afresh; whatever a test does with it must leave no error behind."""
    chromium.open(run / "report.html")
    yield chromium
    assert chromium.errors == []


def press(tab, key):
    tab.press(key, ARROW.get(key, 13 if key == "Enter" else 0), "\r" if key == "Enter" else "")


def test_it_loads_without_an_error_and_asks_for_nothing(tab, run):
    elsewhere = [url for url in tab.requests if not url.startswith(("data:", "blob:"))]
    assert elsewhere == [(run / "report.html").as_uri()]
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
    press(tab, "ArrowLeft")
    assert tab.js(RADII) != before
    assert tab.js("JSON.stringify(document.getElementById('matrix').data[0].z)") != heat
    assert tab.text(f"#{slider}-value") == said
    assert tab.js(f"document.getElementById('{slider}').getAttribute('aria-valuetext')") == said
    assert said in tab.text("#panel-text")
    press(tab, "ArrowRight")
    assert tab.js(RADII) == before


def test_the_size_of_a_participant_is_its_influence(tab, run):
    totals = [abs(value) for value in collect(run)["influence"]["totals"]["truth"]]
    radii = [float(r) for r in json.loads(tab.js(RADII))]
    assert [r > 6 for r in radii] == [total > 0 for total in totals]
    assert sorted(range(6), key=lambda j: radii[j]) == sorted(range(6), key=lambda j: totals[j])


def test_a_click_selects_a_source_and_shows_its_cascade(tab, run):
    rows = collect(run)["influence"]["cascades"]["truth"]
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


def test_harm_travels_in_the_colour_of_harm_and_noise_is_not_called_harm(tab, run):
    bounds = read_summary(run / "influence", run, build(CONFIG)).bounds["truth"]
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


def test_the_address_keeps_the_selection_and_rounds_are_played(tab, run):
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
    assert (tab.text("#play"), tab.text("#round-value")) == ("Play", "all rounds")
    tab.js("location.hash = '#participant=4&round=6&hop=1&estimator=first+order&section=samples'")
    tab.wait("document.getElementById('panel-title').textContent.startsWith('Participant 4')")
    assert [tab.text(f"#{name}-value") for name in ("round", "hop")] == ["round 6", "after 1 hop"]
    assert tab.js("document.getElementById('kind').value") == "first order"
    tab.js("location.hash = '#participant=99&round=-5&hop=7&estimator=none'")  # of another run
    tab.wait("document.getElementById('panel-title').textContent.startsWith('Everyone')")
    assert tab.text("#round-value") == "all rounds"


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


def test_a_click_on_the_list_selects_too(tab):
    tab.click('#ranking [data-row="5"]')
    assert tab.text("#panel-title") == "Participant 5"


def test_participants_can_be_selected_by_keyboard(tab):
    tab.js("document.querySelector('#graph [tabindex=\"0\"]').focus()")
    assert tab.js(FOCUSED) == "0"
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        press(tab, key)
    assert tab.js(FOCUSED) == "5"
    assert tab.js("getComputedStyle(document.querySelector('#graph [data-node=\"5\"] .ring')).strokeWidth") == "5px"
    press(tab, "Enter")
    assert tab.text("#panel-title") == "Participant 5"
    assert tab.js(FOCUSED) == "5"
    press(tab, "Escape")
    assert tab.text("#panel-title") == "Everyone, ranked by influence"


def test_everything_can_be_reached_with_the_tab_key_and_shows_it(tab):
    seen = "(e => e === document.body || e.closest('svg') ? 'ring' : getComputedStyle(e).outlineStyle)"
    reached, rings = set(), set()
    for _ in range(80):
        press(tab, "Tab")
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


def test_the_table_is_searched_sorted_and_downloaded(tab):
    tab.js("URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return 'blob:x'; }")
    tab.js("window.saved = []")
    tab.js("HTMLAnchorElement.prototype.click = function () { window.file = this.download; }")
    tab.click("#search")
    tab.write("kind:truth source:2 hop:1 round:3")
    rows = tab.js("[...document.querySelectorAll('#rows tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert len(rows) > 1
    assert all(row[:4] + row[5:6] == ["influence", "truth", "3", "2", "1"] for row in rows)
    assert tab.text("#table-count").startswith(f"{len(rows)} rows of ")
    tab.click("#rows th:last-child button")
    values = [
        float(row.replace("−", "-"))
        for row in tab.js("[...document.querySelectorAll('#rows td:last-child')].map(c => c.textContent)")
    ]
    assert values == sorted(values)
    assert tab.js("document.querySelector('#rows th:last-child').getAttribute('aria-sort')") == "ascending"
    tab.click("#download")
    tab.wait("saved.length === 1")
    lines = tab.js("saved[0]").splitlines()
    assert lines[0] == "folder,kind,round,source,sample,hop,receiver,value"
    assert [float(line.split(",")[-1]) for line in lines[1:]] == values
    assert tab.js("file") == "run-influence.csv"


@pytest.mark.parametrize(
    ("words", "same"), [("source: 2", "source:2"), ("round:>3", "round:6"), ("ROUND: < 3 hop 1", "round:0 hop:1")]
)
def test_the_table_is_searched_by_column(tab, words, same):
    said = []
    for text in (words, same):
        tab.js("document.getElementById('search').value = ''")
        tab.click("#search")
        tab.write(text)
        said.append((tab.text("#table-count").split(" with ")[0], tab.text("#rows tbody")))
    assert said[0] == said[1]
    assert re.match(r"[1-9]\d* rows of ", said[0][0])


def test_a_search_for_a_participant_says_what_it_found(tab):
    tab.click("#search")
    tab.write("Participant 3 kind:truth hop 1")
    assert tab.text("#table-count").endswith(" of 642 with participant 3 as source or receiver, kind truth, hop 1")
    pairs = tab.js("[...document.querySelectorAll('#rows tbody tr')].map(r => [3, 6].map(i => r.cells[i].textContent))")
    assert all("3" in pair for pair in pairs)
    assert {pair.index("3") for pair in pairs} == {0, 1}
    tab.write(" nonsense")
    assert "Nothing matches. Search for a word, participant 3, or" in tab.text("#table-count")


def test_enlarging_a_picture_keeps_the_selection(tab):
    tab.click('#graph [data-node="2"] .body')
    tab.click("#result-detect button.figure")
    assert tab.js("document.getElementById('large').open")
    press(tab, "Escape")
    assert not tab.js("document.getElementById('large').open")
    assert tab.text("#panel-title").startswith("Participant 2")


def test_the_table_of_agreements_can_be_reached(tab):
    tab.js("document.getElementById('agreements').focus()")
    assert tab.js(FOCUSED) == "agreements"


def test_pages_of_the_table_are_turned(tab):
    first = tab.text("#rows tbody")
    tab.click("#later")
    assert tab.text("#rows tbody") != first
    assert tab.text("#place").startswith("2 / ")
    tab.click("#earlier")
    assert tab.text("#rows tbody") == first


def test_nothing_in_the_data_becomes_markup(tab):
    assert tab.text("#result-detect h2") == f"The detect title {HOSTILE}"
    assert HOSTILE in tab.text("#result-reward table")
    assert HOSTILE in tab.text("#result-reward .charts")  # beside a bar
    assert tab.js("document.querySelectorAll('img[src=\"x\"]').length") == 0
    assert tab.js("document.querySelectorAll('#graph .flag').length") == 1


def test_newer_data_keep_the_selection(tab):
    tab.click('#graph [data-node="2"] .body')
    tab.js("document.getElementById('hop').focus()")
    press(tab, "Home")
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent); fresh.title = 'Later'")
    tab.js("fresh.influence.cascades.truth.value = fresh.influence.cascades.truth.value.map(v => 2 * v)")
    tab.js("cascadice.render(fresh)")
    assert tab.text("#title") == "Later"
    assert tab.text("#panel-title") == "Participant 2 (flip-labels)"
    assert tab.text("#hop-value") == "hop 0: on itself, before gossip"
    tab.js("fresh.influence = null; fresh.table = null; fresh.samples = null; cascadice.render(fresh)")
    assert tab.text("#network-title") == "Who gossiped with whom"


def test_receivers_that_are_not_drawn_count(tab):
    tab.click('#graph [data-node="2"] .body')
    total = re.search(r"total influence [−+][\d.]+", tab.text("#panel-text"))[0]
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent); fresh.shown = [0, 1, 2, 3]")
    tab.js(
        "for (const columns of Object.values(fresh.influence.cascades)) {"
        "  const kept = columns.source.flatMap((source, i) => source > 3 ? [] : [i]);"
        "  for (const name in columns) columns[name] = kept.map(i => columns[name][i]);"
        "  columns.receiver = columns.receiver.map(k => k > 3 ? -1 : k); }"
    )
    tab.js("(m => { for (const n of ['receiver', 'source', 'weight']) m[n] = [] })(fresh.mixing.matrices[0])")
    tab.js("cascadice.render(fresh)")
    assert f"and others not drawn; {total}" in tab.text("#panel-text")
    assert "4 of 6 participants are drawn" in tab.text("#network-lead")


def test_a_run_without_influence(chromium, run, artefacts):
    chromium.open(run / "bare.html")
    assert "cascadice influence" in chromium.text("#missing")
    assert chromium.js("document.getElementById('table').hidden && document.getElementById('samples').hidden")
    chromium.click('#graph [data-node="1"] .body')
    heard = {
        k
        for k, j in zip(*(collect(run)["mixing"]["matrices"][0][of] for of in ("receiver", "source")), strict=True)
        if j == 1
    }
    wide = "(card => card.offsetWidth === card.parentElement.clientWidth)(document.getElementById('weights-card'))"
    assert chromium.js(wide)
    assert chromium.text("#panel-text") == f"Its updates are received by {len(heard - {1})} participants."
    assert chromium.js("document.querySelectorAll('#graph .edge.path').length") == len(heard - {1})
    chromium.screenshot(artefacts / "nothing-asked.png")
    assert chromium.errors == []


@pytest.mark.parametrize("absent", ["mixing", "training", "influence", "samples", "table"])
def test_whatever_is_absent_the_rest_is_shown(tab, absent):
    tab.js(f"cascadice.render({{...JSON.parse(document.getElementById('data').textContent), {absent}: null}})")
    assert "6 participants trained mlp" in tab.text("#findings")
    section = {"mixing": "weights-card", "influence": "reach"}.get(absent, absent)
    assert tab.js(f"document.getElementById('{section}').hidden")
    assert tab.js("document.querySelectorAll('#graph .node').length") == 6


def test_totals_are_shown_if_receivers_are_unknown(chromium, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("influence"))
    chromium.open(write(copy)[0])
    assert chromium.text("#network-title") == "Who helped and who harmed"
    before = chromium.js(RADII)
    chromium.click('#graph [data-node="2"] .body')
    assert chromium.js(RADII) == before
    assert "shares, 2 points: only totals are known, not whom they reached" in chromium.text("#panel-text")
    assert chromium.js("document.getElementById('matrix-card').hidden && document.getElementById('reach').hidden")
    assert chromium.errors == []


def test_colours_follow_the_system_and_the_button(chromium, run):
    chromium.open(run / "report.html", theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = chromium.js(ground)
    chromium.click("#theme")
    assert chromium.js(ground) != dark
    assert chromium.text("#theme") == "Dark"
    chromium.open(run / "report.html", theme="dark")  # it was kept
    assert chromium.js(ground) != dark
    chromium.click("#theme")
    chromium.open(run / "report.html", theme="light")  # as the system again
    assert chromium.js(ground) != dark
    assert chromium.errors == []


def test_colours_change_even_without_storage(chromium, run):
    script = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    added = chromium.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    try:
        chromium.open(run / "report.html")
        chromium.click("#theme")
        assert chromium.text("#theme") == "Light"
        assert chromium.errors == []
    finally:
        chromium.call("Page.removeScriptToEvaluateOnNewDocument", **added)


@pytest.mark.parametrize(
    ("name", "width", "height", "theme"),
    [("desktop-light", 1440, 900, "light"), ("desktop-dark", 1440, 900, "dark"), ("phone", 390, 844, "light")],
)
def test_it_fits_the_screen(chromium, run, artefacts, name, width, height, theme):
    chromium.open(run / "report.html", width, height, theme)
    assert chromium.js("document.documentElement.scrollWidth") == width
    smallest = chromium.js(
        "Math.min(...[...document.querySelectorAll('#graph .node')].map(n => n.getBoundingClientRect().height))"
    )
    assert smallest >= 15
    for place in ("#network-lead", "#graph", "#legend"):  # above the fold
        box = chromium.js(f"(b => [b.top, b.bottom])(document.querySelector('{place}').getBoundingClientRect())")
        assert 0 < box[0] < box[1] <= height
    assert "negative (blue) helped, positive (orange) harmed" in chromium.text("#network-lead")
    chromium.click('#graph [data-node="2"] .body')
    assert chromium.text("#panel-title").startswith("Participant 2")
    chromium.js("window.scrollTo(0, 0)")
    chromium.screenshot(artefacts / f"{name}.png")
    assert (artefacts / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert chromium.errors == []


def test_who_helped_the_final_models_stands_above_the_network(chromium, run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    ask_whole_run(folder, WholeRunQuestion(points=1, eval_samples=50), quiet=True)
    write(folder)
    chromium.open(folder / "report.html")
    sections = chromium.js("[...document.querySelectorAll('#nav a')].map(a => a.textContent)")
    assert sections[:3] == ["Network", "Findings", "Contributions"]
    assert chromium.text("#network-title") == "Who helped the final models"
    assert not chromium.js("document.getElementById('matrix-card').hidden")  # of an estimator that has one
    assert "Who helped the final models, and who harmed them" in chromium.text("#result-contributions")
    assert "helped the final models most" in chromium.text("#findings")
    assert chromium.js("document.querySelectorAll('#result-contributions tbody tr').length") == 6
    assert chromium.errors == []
