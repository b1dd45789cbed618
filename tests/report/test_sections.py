"""Each application's section is built from the JSON of its command; runs of the predecessor are shown too."""

import json
from pathlib import Path

import pytest

from cascadice import files
from cascadice.applications.reward.findings import merge
from cascadice.report.page import collect
from cascadice.report.page.sections import SECTIONS, build_section, read_sections

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


def contribution(members, on=None, run="abc"):
    rows = [[k, -0.1 * k, 0.01, 0.1 * k, "keep", ""] for k in reversed(members)]
    return {
        "run": run, "title": "Who helped the final models", "findings": [], "table": {"columns": [], "rows": rows},
        "on": on, "points": 3, "nodes": 4, "total": -0.6, "members": members, "untrained": 2.0, "trained": 1.0,
        "contributions": [-0.1 * k for k in members], "intervals": [[-0.1 * k - 1, -0.1 * k + 1] for k in members],
    }  # fmt: skip


def processes(tmp_path, *parts):
    """The sections and notes of a page of processes that wrote these results."""
    folders, notes = [tmp_path / f"rank-{rank:03d}" for rank in range(len(parts))], []
    for folder, part in zip(folders, parts, strict=True):
        (folder / "contribution").mkdir(parents=True)
        files.write_json(folder / "contribution" / "contribution.json", part)
    return read_sections(folders, "abc", notes), notes


def test_what_processes_wrote_is_one_section(tmp_path):
    (section,), notes = processes(tmp_path, contribution([0, 1]), contribution([2, 3]))
    assert section["title"] == "Who helped the final models"
    assert [row[0] for row in section["rows"]] == [3, 2, 1, 0]
    assert section["findings"][0].startswith("Clearly helped the final models, the largest share first: 3, 2, 1, 0.")
    assert len(section["findings"]) == 2
    assert notes == []


def test_processes_whose_results_cannot_be_believed_are_named_and_the_others_shown(tmp_path):
    parts = contribution([0]), contribution([1, 2], run="other"), contribution([3])
    (section,), notes = processes(tmp_path, *parts)
    assert section["findings"][0] == "This is about participants 0, 3."
    assert notes == [
        "The results in contribution of rank-001 are not shown: it belongs to another run."
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (contribution([2, 3], on=1), "'on' differs between processes. Ask all of them again, with --overwrite."),
        ({"run": "abc"}, "'title' differs between processes. Ask all of them again, with --overwrite."),
        (
            {k: v for k, v in contribution([2, 3]).items() if k != "members"},
            "those of all processes cannot be put together: KeyError 'members'. Ask them again, with --overwrite.",
        ),
    ],
)
def test_results_that_do_not_fit_together_are_not_shown(tmp_path, other, why):
    sections, (note,) = processes(tmp_path, contribution([0, 1]), other)
    assert sections == []
    assert note == f"The results in contribution are not shown: {why}"


def test_ledgers_of_different_rounds_are_not_paid_together():
    with pytest.raises(ValueError, match="hold different rounds"):
        merge([{"rounds": [0, 1]}, {"rounds": [0, 2]}])
