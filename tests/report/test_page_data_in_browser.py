"""The page in a real browser with more, less and newer data; light and dark, on a desk and a phone."""

import json
import re
import shutil

import pytest
from report.pages import RADII

from cascadice.report.page import collect, write
from cascadice.runs.ask import ask
from cascadice.runs.question import Question


def test_newer_data_keep_the_selection(tab):
    tab.click('#graph [data-node="2"] .body')
    tab.js("document.getElementById('hop').focus()")
    tab.press("Home")
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent); fresh.title = 'Later'")
    tab.js("fresh.influence.cascades.truth.value = fresh.influence.cascades.truth.value.map(v => 2 * v)")
    tab.js("cascadice.render(fresh)")
    assert tab.text("#title") == "Later"
    assert tab.text("#panel-title") == "Participant 2 (flip-labels)"
    assert tab.text("#hop-value") == "hop 0: on itself, before gossip"
    tab.js("fresh.influence = null; fresh.table = null; fresh.samples = null; cascadice.render(fresh)")
    assert tab.text("#network-title") == "Who gossiped with whom"


def test_numbers_of_a_column_have_the_same_decimals(tab):
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent)")
    rows = [[12, 81.14, -1, 0.16861, 0.01362], [3, 0, 2, -0.00001, 0.05], [7, 9.5, 0, None, None]]
    tab.js(f"Object.assign(fresh.sections[0], {{columns: ['who', 'a', 'b', 'c', '± c'], rows: {json.dumps(rows)}}})")
    tab.js("cascadice.render(fresh)")
    found = tab.js("[...document.querySelectorAll('#sections section:first-child td')].map(c => c.textContent)")
    numbers = [["81.14", "−1", "+0.1686", "0.0136"], ["0.00", "2", "0.0000", "0.0500"], ["9.50", "0", "–", "–"]]
    assert found == ["12", *numbers[0], "3", *numbers[1], "7", *numbers[2]]


def test_an_interval_that_excludes_0_is_seen_to(tab):
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent)")
    pairs = [(0.00214, 0.00206), (-0.021201, 0.021199), (0.00206, 0.00214), (-0.00146, 0.000098)]
    given = [{"value": value, "half": half} for value, half in pairs]
    tab.js(f"fresh.samples.harmed = {json.dumps(given)}.map(one => ({{...fresh.samples.harmed[0], ...one}}))")
    tab.js("cascadice.render(fresh)")
    shown = tab.js("[...document.querySelectorAll('#samples-harmed b')].map(b => b.textContent)")
    assert shown == ["+0.00214 ± 0.00206", "−0.021201 ± 0.021199", "+0.0021 ± 0.0021", "−0.001460 ± 0.000098"]


def test_commands_and_flags_in_a_sentence_are_code(tab):
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent)")
    tab.js(
        "fresh.findings = ['ask both with `cascadice influence --hops 2`, or --kind truth.']; cascadice.render(fresh)"
    )
    assert tab.text("#findings") == "Ask both with cascadice influence --hops 2, or --kind truth."
    code = tab.js("[...document.querySelectorAll('#findings code')].map(c => [c.textContent, c.className])")
    assert code == [["cascadice influence --hops 2", ""], ["--kind", "flag"]]


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


def test_a_run_without_influence(chromium, shown, artefacts):
    chromium.open(shown / "bare.html")
    assert "cascadice influence" in chromium.text("#missing")
    assert chromium.js("document.getElementById('table').hidden && document.getElementById('samples').hidden")
    chromium.click('#graph [data-node="1"] .body')
    heard = {
        k
        for k, j in zip(*(collect(shown)["mixing"]["matrices"][0][of] for of in ("receiver", "source")), strict=True)
        if j == 1
    }
    wide = "(card => card.offsetWidth === card.parentElement.clientWidth)(document.getElementById('weights-card'))"
    assert chromium.js(wide)
    assert chromium.text("#matrices-title") == "Who listens to whom"
    assert chromium.text("#matrices-text") == "The matrix has a row for each receiver and a column for each source."
    assert chromium.text("#panel-title") == "Everyone"
    assert (
        chromium.text("#panel-text") == f"Participant 1: its updates are received by {len(heard - {1})} participants."
    )
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


def test_totals_are_shown_if_receivers_are_unknown(chromium, shown, tmp_path):
    copy = shutil.copytree(shown, tmp_path / "run", ignore=shutil.ignore_patterns("influence"))
    chromium.open(write(copy)[0])
    assert chromium.text("#network-title") == "Who helped"  # nobody clearly harmed
    before = chromium.js(RADII)
    chromium.click('#graph [data-node="2"] .body')
    assert chromium.js(RADII) == before
    assert chromium.text("#panel-title") == "Everyone, ranked by influence"
    assert chromium.js("[...document.querySelectorAll('#ranking [aria-current]')].map(b => b.dataset.row)") == ["2"]
    assert chromium.text("#panel-text").startswith("Participant 2 (flip-labels): total influence ")
    assert "shares, 2 points: only totals are known, not whom they reached" in chromium.text("#panel-text")
    assert chromium.js("document.getElementById('matrix-card').hidden && document.getElementById('reach').hidden")
    assert chromium.errors == []


def test_colours_follow_the_system_and_the_button(chromium, shown):
    chromium.open(shown / "report.html", theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = chromium.js(ground)
    chromium.click("#theme")
    assert chromium.js(ground) != dark
    assert chromium.text("#theme") == "Dark"
    chromium.open(shown / "report.html", theme="dark")  # it was kept
    assert chromium.js(ground) != dark
    chromium.click("#theme")
    chromium.open(shown / "report.html", theme="light")  # as the system again
    assert chromium.js(ground) != dark
    assert chromium.errors == []


def test_colours_change_even_without_storage(chromium, shown):
    script = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    added = chromium.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    try:
        chromium.open(shown / "report.html")
        chromium.click("#theme")
        assert chromium.text("#theme") == "Light"
        assert chromium.errors == []
    finally:
        chromium.call("Page.removeScriptToEvaluateOnNewDocument", **added)


@pytest.mark.parametrize(
    ("name", "width", "height", "theme"),
    [
        ("desktop-light", 1440, 900, "light"),
        ("desktop-dark", 1440, 900, "dark"),
        ("phone", 390, 844, "light"),
        ("phone-dark", 390, 844, "dark"),
    ],
)
def test_it_fits_the_screen(chromium, shown, artefacts, name, width, height, theme):
    chromium.open(shown / "report.html", width, height, theme)
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
    inside = "(b => b.left >= 0 && b.right <= innerWidth)"
    value = "document.querySelector('#rows td:last-child').getBoundingClientRect()"
    assert chromium.js(f"{inside}({value})"), "the number of a row is in sight"
    source = value.replace("td:last-child", "td[data-column=source]")
    assert chromium.js(f"{source}.right <= {value}.left"), "and whose it is"
    chromium.js("window.scrollTo(0, 0)")
    chromium.screenshot(artefacts / f"{name}.png")
    assert (artefacts / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert chromium.errors == []


def test_who_helped_the_final_models_stands_above_the_network(chromium, shown, tmp_path):
    folder = shutil.copytree(shown, tmp_path / "run")
    ask(folder, Question(("whole-run-shares",), points=1, eval_samples=50), quiet=True)
    write(folder)
    chromium.open(folder / "report.html")
    sections = chromium.js("[...document.querySelectorAll('#nav a')].map(a => a.textContent)")
    assert sections[:3] == ["Network", "Findings", "Final models"]
    assert chromium.text("#network-title") == "Who helped the final models"
    assert not chromium.js("document.getElementById('matrix-card').hidden")  # of an estimator that has one
    assert chromium.text("#result-contributions").startswith("Who helped the final models")
    assert "helped the final models most" in chromium.text("#findings")
    assert chromium.js("document.querySelectorAll('#result-contributions tbody tr').length") == 6
    assert chromium.errors == []


def test_a_single_evaluation_is_a_point(tab):
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent)")
    tab.js("for (const key of ['rounds', 'mean']) fresh.training['test loss'][key] = [7]")
    tab.js("fresh.training.accuracy.rounds = [7]; fresh.training.accuracy.mean = [0.5]; cascadice.render(fresh)")
    modes = tab.js("['loss', 'accuracy'].map(id => document.getElementById(id).data.at(-1).mode)")
    assert modes == ["markers", "markers"]
    assert tab.js("document.getElementById('accuracy').layout.xaxis.range")[0] <= 0  # no rounds 6.5 and 7.5


def test_losses_that_are_not_known_have_no_name_in_the_legend(tab):
    names = "document.getElementById('loss').data.map(trace => trace.name)"
    assert {"training batches", "test data"} <= set(tab.js(names))
    tab.js(
        "window.fresh = JSON.parse(document.getElementById('data').textContent);"
        "fresh.training.loss.mean.fill(null); cascadice.render(fresh)"
    )
    assert tab.js(names) == ["test data"]
