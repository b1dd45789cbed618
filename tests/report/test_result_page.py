"""Reproduced figures on one page: findings, pictures, numbers and every point."""

import base64
import json

import pyarrow as pa
import pytest
from pyarrow import parquet
from report.pages import HOSTILE

from cascadice.cli import main
from cascadice.report.page import collect_results, page_of_results, results, write_results
from cascadice.report.page.writing import LARGEST

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"></svg>'
POINTS = {
    "panel": ["MLP, CIFAR-10", "MLP, CIFAR-10", HOSTILE],
    "node": [3, 13, 30],
    "shown": [True, False, None],
    "truth": [-0.125, float("nan"), 0.3333333333],
}


def make(folder, name="align-ring-16", points=POINTS, **more):
    """Write what `cascadice reproduce` writes for a figure."""
    place = folder / name
    place.mkdir(parents=True)
    row = {"panel": f"MLP {HOSTILE}", "pearson": [0.99, 0.98, 1.0], "nobody": None, "points": 30}
    content = {
        "title": f"The title of {name} {HOSTILE}", "shows": ["a-label"], "claim": "they agree.", "version": "0.1.0",
        "device": "cpu (x86_64)", "seconds": 12.3, "findings": [f"pearson 0.99 {HOSTILE}"], "summary": [row, row],
        "settings": {"quick": True, "mixing": None}, **more,
    }  # fmt: skip
    (place / "result.json").write_text(json.dumps(content))
    (place / "figure.png").write_bytes(PNG)
    (place / "figure.svg").write_bytes(SVG)
    parquet.write_table(pa.table(points), place / "points.parquet")
    return place


def test_a_result_is_shown_with_all_there_is(tmp_path):
    data = collect_results(make(tmp_path))
    (found,) = data["results"]
    assert data["title"] == f"The title of align-ring-16 {HOSTILE}"
    assert data["notes"] == []
    assert found["columns"] == ["panel", "pearson", "points"]
    assert found["rows"][0] == [f"MLP {HOSTILE}", "0.99 (0.98 to 1)", "30"]
    assert found["command"] == "cascadice reproduce align-ring-16 --quick"
    assert found["made"].endswith("12 s on cpu (x86_64), cascadice 0.1.0")
    assert found["picture"] == "data:image/svg+xml;base64," + base64.b64encode(SVG).decode()
    words = {"panel": [HOSTILE, "MLP, CIFAR-10"], "shown": ["no", "yes"]}
    assert found["points"]["words"] == words
    assert found["points"]["columns"] == list(POINTS)
    assert found["points"]["values"] == [[1, 1, 0], [3, 13, 30], [1, 0, None], [-0.125, None, 0.33333]]


def test_all_results_come_in_the_order_of_the_paper(tmp_path):
    for name in ("unheard-of", "anomalies-flip", "servers"):
        make(tmp_path, name)
    (tmp_path / "reproduction.json").write_text('{"figures": ["servers", "align-tiny-ring", "anomalies-flip"]}')
    data = collect_results(tmp_path)
    assert [found["name"] for found in data["results"]] == ["servers", "anomalies-flip", "unheard-of"]
    assert data["title"] == "The paper, reproduced: 3 results"


def test_a_summary_as_text_leaves_out_empty_columns():
    rows = [
        {"name": "x", "pearson": [0.51234, 0.4, 0.61], "never": None},
        {"name": "y", "pearson": None, "never": None},
    ]
    assert results.text_table(rows) == [["name", "pearson"], ["x", "0.5123 (0.4 to 0.61)"], ["y", ""]]


def test_the_smaller_picture_is_taken_until_the_page_is_full(tmp_path, monkeypatch):
    (make(tmp_path, "align-ring-16") / "figure.svg").write_bytes(SVG * 10)
    make(tmp_path, "anomalies-flip")
    monkeypatch.setattr(results, "PICTURE_BYTES", len(PNG) + len(SVG) - 1)
    data = collect_results(tmp_path)
    assert data["results"][0]["picture"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert data["results"][1]["picture"] is None
    (note,) = data["notes"]
    assert note == f"The figure of anomalies-flip is too large for the page; see {tmp_path}/anomalies-flip/figure.svg."


def test_many_points_are_thinned_and_the_page_stays_small(tmp_path):
    for place in range(4):
        make(tmp_path, f"figure-{place}", {"i": list(range(60_000)), "value": [i / 7 for i in range(60_000)]})
    data = collect_results(tmp_path)
    points = data["results"][0]["points"]
    assert len(points["values"][0]) == 25_000
    assert (points["values"][0][0], points["values"][0][-1]) == (0, 59_999)
    assert points["note"] == f"25,000 of 60,000 rows; all are in {tmp_path}/figure-0/points.parquet."
    assert len(page_of_results(data).encode()) < LARGEST / 2


def test_missing_or_damaged_parts_are_noted_and_the_rest_is_shown(tmp_path):
    make(tmp_path, "align-ring-16")
    (tmp_path / "align-ring-16" / "points.parquet").write_bytes(b"half")
    for name in ("figure.png", "figure.svg", "points.parquet"):
        (make(tmp_path, f"without-{name}") / name).unlink()
    (tmp_path / "without-figure.png" / "figure.svg").unlink()
    (make(tmp_path, "zzz") / "result.json").write_text("{")
    data = collect_results(tmp_path)
    assert len(data["results"]) == 4
    assert [note.split(":")[0] for note in data["notes"]] == [
        "The result in zzz is not shown",
        "The figure of without-figure.png is missing.",
        "The points of align-ring-16 are not shown",
        "The points of without-points.parquet are not shown",
    ]
    assert data["notes"][-1].endswith("points.parquet is missing.")


@pytest.mark.parametrize("empty", [{"x": []}, {}])
def test_a_result_without_points_has_no_table(tmp_path, empty):
    assert collect_results(make(tmp_path, points=empty))["results"][0]["points"] is None


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("made", "made has no result yet. Run the same `cascadice reproduce` command again to continue."),
        (
            "begun/stopped",
            "stopped has no result yet. Not finished: stopped. Run the same `cascadice reproduce` command",
        ),
        ("begun/failed", "no result yet. Not finished: failed (failed, see"),
        ("begun", "begun/failed/error.txt), stopped. Run the same `cascadice reproduce` command again to continue."),
        ("kept", "kept holds numbers of figures, NAME.json, but no figure's folder, NAME/result.json. Name a folder"),
        ("file", "file is a file. Name a folder that `cascadice run`, `cascadice reproduce` or a study wrote."),
        ("other", "result.json lacks title, findings, summary, settings, seconds, device, version;"),
    ],
)
def test_mistakes_are_reported_in_one_line(tmp_path, capsys, folder, message):
    for name in ("made", "begun/stopped/parts", "begun/failed", "kept", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "made/reproduction.json",
        "begun/failed/error.txt",
        "kept/servers.json",
        "kept/servers.parquet",
        "file",
    ):
        (tmp_path / name).write_text("{}")
    (tmp_path / "other" / "result.json").write_text('{"experiment": "another"}')
    assert main(["report", str(tmp_path / folder)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_figures_that_are_not_finished_are_named(tmp_path):
    make(tmp_path)
    (tmp_path / "stopped" / "parts").mkdir(parents=True)
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "error.txt").write_text("Traceback")
    (tmp_path / "anything").mkdir()
    seen = f"failed (failed, see {tmp_path}/failed/error.txt), stopped"
    assert collect_results(tmp_path)["notes"] == [
        f"Not finished: {seen}. Run the same `cascadice reproduce` command again to continue."
    ]


def test_findings_of_several_figures_are_printed_by_name(tmp_path, capsys):
    for name in ("align-ring-16", "anomalies-flip"):
        make(tmp_path, name, findings=["the same."])
    assert main(["report", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["align-ring-16:", "  the same.", "anomalies-flip:", "  the same."]


def test_no_result_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match=r"has no result\.json, and neither has a folder in it\. Name a folder"):
        collect_results(tmp_path)


def test_the_command_writes_the_page_of_one_and_of_all(tmp_path, capsys):
    make(tmp_path)
    for folder in (tmp_path, tmp_path / "align-ring-16"):
        assert main(["report", str(folder)]) == 0
        said = capsys.readouterr().out
        assert "pearson 0.99" in said
        assert f"wrote {folder / 'report.html'}" in said
        text = (folder / "report.html").read_text()
        assert "connect-src 'none'" in text
        assert HOSTILE not in text
        assert "{{" not in text


def test_one_result_in_a_browser(chromium, tmp_path):
    path, _ = write_results(make(tmp_path))
    chromium.open(path)
    assert [url for url in chromium.requests if not url.startswith("data:")] == [path.as_uri()]
    assert chromium.text("#title") == f"The title of align-ring-16 {HOSTILE}"
    assert chromium.js("[...document.querySelectorAll('#nav a')].map(a => a.textContent)") == [
        "Overview", "Result", "Table",
    ]  # fmt: skip
    assert chromium.js("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert "The paper: they agree." in chromium.text("#result-align-ring-16")
    chromium.click("#search")
    chromium.write("node:3")
    cells = chromium.js("[...document.querySelectorAll('#rows td')].map(c => c.textContent)")
    assert cells == ["MLP, CIFAR-10", "3", "yes", "−0.125"]
    assert chromium.js("document.getElementById('which-label').hidden && document.getElementById('live').hidden")
    assert chromium.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_figure_is_enlarged_by_keyboard_and_closed_by_escape(chromium, tmp_path, width):
    place = make(tmp_path)
    (place / "figure.png").unlink()
    (place / "figure.svg").write_bytes(SVG.replace(b'"4"', b'"2000"').replace(b'"3"', b'"1500"'))
    chromium.open(write_results(place)[0], width, 844)
    assert chromium.js("document.querySelector('button.figure img').clientWidth") < width
    chromium.js("document.querySelector('button.figure').focus()")
    chromium.press("Enter")
    assert chromium.js("document.getElementById('large').open")
    assert chromium.js("document.activeElement.id") == "large-picture"
    assert chromium.js("document.querySelector('#large img').clientWidth") == 2000
    assert chromium.js("document.querySelector('#large img').alt").startswith("What was found. pearson 0.99")
    chromium.press("ArrowRight")
    chromium.wait("document.getElementById('large-picture').scrollLeft > 0")
    assert chromium.js("document.documentElement.scrollWidth") == width
    chromium.press("Escape")
    assert not chromium.js("document.getElementById('large').open")
    assert chromium.js("document.activeElement.className") == "figure"
    chromium.click("button.figure")
    chromium.click("#large form button")
    assert not chromium.js("document.getElementById('large').open")
    assert chromium.errors == []


def test_all_results_in_a_browser(chromium, tmp_path):
    make(tmp_path, "align-ring-16")
    make(tmp_path, "anomalies-flip", {"flipped": [7, -1]})
    make(tmp_path, "align-ring-32-slow")
    make(tmp_path, "search")  # as an element of the page is called
    chromium.open(write_results(tmp_path)[0], width=390, height=844)
    assert chromium.js("document.documentElement.scrollWidth") == 390
    assert chromium.js("[...document.querySelectorAll('#contents a')].map(a => a.hash)") == [
        "#result-align-ring-16", "#result-align-ring-32-slow", "#result-anomalies-flip", "#result-search",
    ]  # fmt: skip
    chromium.click("#result-anomalies-flip .how + button")
    assert chromium.js("document.getElementById('which').value") == "anomalies-flip"
    assert chromium.js("[...document.querySelectorAll('#rows td')].map(c => c.textContent)") == ["7", "−1"]
    chromium.js("URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return ''; }")
    chromium.js("HTMLAnchorElement.prototype.click = function () { window.file = this.download; }")
    chromium.click("#download")
    chromium.wait("window.saved")
    assert chromium.js("[file, saved]") == ["anomalies-flip-points.csv", "flipped\n7\n-1\n"]
    chromium.click("#theme")
    assert chromium.js("document.getElementById('which').value") == "anomalies-flip"
    chromium.js(
        "(w => { w.value = 'align-ring-16'; w.dispatchEvent(new Event('change')); })(document.getElementById('which'))"
    )
    assert chromium.text("#table-count") == "3 rows"
    assert chromium.errors == []
