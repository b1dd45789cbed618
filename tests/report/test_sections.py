"""Each application's section is built from the JSON of its command; runs of the predecessor are shown too."""

import json
from pathlib import Path

import pytest

from cascadice import files
from cascadice.report.page import collect
from cascadice.report.page.sections import SECTIONS, build_section

PREDECESSOR = Path(__file__).parents[1] / "predecessor" / "run-0.1.0"


WRITTEN = [name for name in SECTIONS if name != "validate"]  # by the predecessor, which did not know all commands


@pytest.mark.parametrize("name", WRITTEN)
def test_a_section_shows_what_its_command_wrote_and_says_what_it_means(name):
    results = files.read_json(PREDECESSOR / name / f"{name}.json")
    if name == "detect":  # in which nobody could judge
        results["votes"] = [[0.0] * len(votes) for votes in results["votes"]]
    section = build_section(results, PREDECESSOR / name)
    assert (section["name"], section["title"]) == (name, results["title"])
    assert section["findings"] == results["findings"]
    assert section["columns"] == results["table"]["columns"]
    assert section["count"] == len(section["rows"]) == len(results["table"]["rows"])
    assert section["lead"].endswith(".")
    assert all(chart["traces"] and chart["label"] and chart["title"] for chart in section["charts"])
    assert len(section["charts"]) == {"detect": 2}.get(name, 3)
    assert json.loads(json.dumps(section["charts"], allow_nan=False)) == section["charts"]
    without = build_section({key: results[key] for key in ("title", "findings", "table")}, PREDECESSOR / name)
    assert without["charts"] == []  # then the page shows the picture


def test_contributions_within_noise_are_grey_and_have_their_intervals(tmp_path):
    table = {"columns": ["participant"], "rows": [[0], [1], [2]]}
    results = {"title": "Who helped", "findings": [], "table": table, "contributions": [-1.0, 0.1, 0.5]}
    ends = [[-1.2, -0.8], [-0.2, 0.4], [0.3, 0.7]]
    section = build_section({**results, "intervals": ends}, tmp_path / "contribution")
    (bars,) = section["charts"][0]["traces"]
    assert bars["marker"]["color"] == ["--helped", "--grey", "--harmed"]
    assert bars["error_x"]["array"] == pytest.approx([0.2, 0.3, 0.2])
    assert "95 % interval" in section["lead"]
    for older in ({}, {"intervals": [[None, None]] * 3}):  # of earlier versions, and of one round
        (bars,) = build_section({**results, **older}, tmp_path / "contribution")["charts"][0]["traces"]
        assert bars["marker"]["color"] == ["--helped", "--harmed", "--harmed"]
        assert "error_x" not in bars


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([[1, 1, 1], [0.0, None, 0.5]], [2]),
        ([[0.49, 0.51]], [1]),
        ([], []),
        (None, []),
    ],
)
def test_flagged_is_who_half_of_its_receivers_flag_in_the_last_round(tmp_path, votes, expected):
    flagged = {name: build_section({"votes": votes}, tmp_path / name)["flagged"] for name in SECTIONS}
    assert flagged == {"detect": expected, "choose": None, "reward": None, "forget": None, "validate": None}


def test_the_page_of_a_run_of_the_predecessor_shows_all_of_it():
    data = collect(PREDECESSOR)
    assert [section["name"] for section in data["sections"]] == WRITTEN
    assert data["notes"] == []
    assert [one["name"] for one in data["commands"]] == ["whole-run", "samples", "validate"]
    assert data["influence"]["kinds"][0] == "truth"
    assert data["training"]["accuracy"] is not None
    assert data["findings"][2].endswith("0, participant 2 and participant 3 (flip-labels).")  # all within noise


def test_commands_ask_the_questions_of_the_sections(tmp_path):
    run = tmp_path / "run"
    files.write_json(run / "config.json", files.read_json(PREDECESSOR / "config.json"))
    (run / "rounds").symlink_to(PREDECESSOR / "rounds")
    offered = {one["name"]: one for one in collect(run)["commands"]}
    for name, section in SECTIONS.items():
        assert offered[name]["what"] == section.question
        assert offered[name]["command"] == section.command.format(run=run)
        assert offered[name]["command"].startswith(f"cascadice {name} ")
