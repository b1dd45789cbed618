"""What a study measured, on the page of results: its table, its figure, and what is refused."""

import base64
import json

import pytest

from cascadice.cli import main
from cascadice.report.page.studies import STUDIES, collect_study, is_study

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# as each study writes them, cut short
RESULTS = {
    "anomalies": [
        {
            "name": "flip-128-0.1", "once": False, "accuracy": {"mean": 0.321, "sd": 0.0102, "most": 0.33},
            "auroc": {"detector": {"mean": 1.0, "sd": 0.0}, "distance": {"mean": 0.98765, "sd": 0.011}}, "delay": 3.0,
        },
        {"name": "honest-128-0.1", "once": False, "accuracy": {"mean": 0.322, "sd": 0.01}},
    ],
    "collaboration": [{"attack": "nobody", "nodes": 12, "seeds": [0, 1], "accuracy": {"krum": [0.25, 0.35]}}],
    "incentives": [
        {
            "part": "Shapley values", "nodes": 4, "roles": [["plain"]], "truth": [[0.1]], "found": {"horizon": [[0.2]]},
            "rows": {"horizon": {"spearman": {"mean": 0.9, "std": 0.1}}, "samples": {"spearman": {"mean": 0.1}}},
            "paid": {"horizon": {"plain": {"mean": 0.25, "std": 0.0}}}, "test_accuracy": {"mean": 0.542, "std": 0.06},
        },
    ],
    "unlearning": [{"level": "gossip", "seeds": 2, "distance": 0.887, "distance_deviation": 0.032, "lr": 0.1}],
}  # fmt: skip
TABLES = {
    "anomalies": {
        "name": "flip-128-0.1", "once": "no", "accuracy": "0.321 ± 0.01", "auroc: detector": "1",
        "auroc: distance": "0.9877 ± 0.011", "delay": "3",
    },
    "collaboration": {"attack": "nobody", "nodes": "12", "accuracy: krum": "0.3 ± 0.071"},
    "incentives": {
        "part": "Shapley values", "nodes": "4", "test accuracy": "0.542 ± 0.06", "of": "horizon",
        "spearman": "0.9 ± 0.1", "paid: plain": "0.25",
    },
    "unlearning": {"level": "gossip", "seeds": "2", "distance": "0.887 ± 0.032", "lr": "0.1"},
}  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """Write what `python -m cascadice_experiments.STUDY --out` writes."""

    def made(study, **more):
        (tmp_path / "result.json").write_text(json.dumps({"experiment": study, "results": RESULTS.get(study), **more}))
        (tmp_path / f"{study}.png").write_bytes(PNG)
        (tmp_path / "points.parquet").write_bytes(b"")
        return tmp_path

    return made


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_shown_with_its_table_and_figure(make, study, capsys):
    folder = make(study)
    (found,) = collect_study(folder)["results"]
    assert dict(zip(found["columns"], found["rows"][0], strict=True)) == TABLES[study]
    assert found["picture"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert found["title"].endswith("?")
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "note: Every point measured is in points.parquet." in said
    assert f"wrote {folder / 'report.html'}" in said
    assert (
        TABLES[study]["level" if study == "unlearning" else found["columns"][0]] in (folder / "report.html").read_text()
    )


def test_rows_need_not_have_all_columns(make):
    (found,) = collect_study(make("anomalies"))["results"]
    assert found["rows"][1] == ["honest-128-0.1", "no", "0.322 ± 0.01", "", "", ""]
    assert found["count"] == 2


def test_many_rows_are_in_the_table_to_search_and_sorted_by_number(make):
    measured = [{"level": f"level {i % 3}", "distance": 100.5 - i, "distance_deviation": 0.5} for i in range(29)]
    (found,) = collect_study(make("unlearning", results=[*measured, {"level": "last"}]))["results"]
    assert (found["rows"], found["count"]) == ([], 30)
    listed = found["points"]
    assert listed["columns"] == ["level", "distance"]
    cells = [
        [None if place is None else listed["words"][column][place] for place in values]
        for column, values in zip(listed["columns"], listed["values"], strict=True)
    ]
    assert cells[0] == [*(entry["level"] for entry in measured), "last"]
    assert (cells[1][0], cells[1][-2:]) == ("100.5 ± 0.5", ["72.5 ± 0.5", None])
    assert listed["values"][1] == [*range(28, -1, -1), None]


def test_a_study_without_a_figure_is_shown_also_in_another_file(make, tmp_path):
    folder = make("unlearning")
    (folder / "unlearning.png").unlink()
    assert collect_study(folder)["results"][0]["picture"] is None
    assert main(["report", str(folder), "--out", str(tmp_path / "there.html"), "--quiet"]) == 0
    assert (tmp_path / "there.html").exists()
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("study", "results", "message"),
    [
        ("another", [], "lacks title, findings, summary"),
        ("anomalies", None, "result.json must list its results; was it written by another program?"),
        ("anomalies", [1], "result.json must list its results"),
    ],
)
def test_mistakes_are_reported_in_one_line(make, capsys, study, results, message):
    assert main(["report", str(make(study, results=results))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_reproduced_figure_is_not_a_study(make, tmp_path):
    assert not is_study(make("anomalies", title="a figure of the paper"))
    (tmp_path / "result.json").write_text("{")
    assert not is_study(tmp_path)
    assert not is_study(tmp_path / "nowhere")
