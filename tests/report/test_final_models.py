"""Who helped the final models, as the page says it."""

import json
import shutil

import numpy as np
import pytest
from report.pages import CONFIG

from cascadice import files
from cascadice.applications.choose.findings import helped_finally
from cascadice.cli import main
from cascadice.report.page import collect, sections
from cascadice.report.page.sections import explain_disagreement
from cascadice.runs.ask import ask
from cascadice.runs.config import build
from cascadice.runs.question import Question
from cascadice.runs.recording import open_recording
from cascadice.runs.summary import read_summary


@pytest.fixture(scope="module")
def final(trained, tmp_path_factory):
    """A run that was asked who helped its final models, and nothing else."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("final") / "run")
    ask(folder, Question(("whole-run", "whole-run-shares"), points=1, samples=True), quiet=True)
    return folder


def test_who_helped_the_final_models_comes_first(final, tmp_path):
    data, summary = collect(final), read_summary(final / "whole-run", final, build(CONFIG))
    shares = summary.participants["whole-run shares"]
    assert data["findings"][1].startswith("Influence is each participant's share of what train")
    assert f"participant {shares.argmin()}" in data["findings"][2].lower()
    assert "helped the final models most." in data["findings"][2]
    (sentence,) = (text for text in data["findings"] if text.startswith("Shares sum to"))
    sums = f"Shares sum to {shares.sum():+.4f}; training changed the loss by {summary.training_change:+.4f}."
    assert sentence.startswith(f"{sums} The shares miss what training changed by ")  # with one point
    assert "Use more points: repeat the command with --points 2 --overwrite. If" in sentence
    section = data["final"]
    assert section["title"] == "Who helped the final models"
    assert section["columns"] == [
        "participant",
        "whole-run shares",
        "whole-run",
        "95 % interval",
        "verdict",
        "injected",
    ]
    assert [row[0] for row in section["rows"]] == np.argsort(shares).tolist()
    (drawn,) = section["charts"]
    assert drawn["traces"][0]["x"] == pytest.approx(shares, rel=1e-4)
    factor = 2.365 * np.sqrt(CONFIG.rounds)  # Student's t of 7 degrees of freedom
    spread = summary.updates["whole-run shares"].std(0, ddof=1)
    assert drawn["traces"][0]["error_x"]["array"] == pytest.approx(factor * spread, rel=0.01)
    assert data["influence"]["scored"]["whole-run shares"]["half width"] == pytest.approx(factor, rel=0.01)
    assert data["samples"]["kind"] == "whole-run shares"
    assert [entry["name"] for entry in data["commands"]] == [
        "influence", "detect", "choose", "reward", "forget", "validate",
    ]  # fmt: skip
    assert data["influence"]["kinds"] == ["whole-run shares", "whole-run"]


def test_the_page_says_why_shares_of_other_points_have_another_sum(final, tmp_path):
    (alone,) = collect(final)["final"]["findings"]
    assert alone == "Shares are integrals along the updates' weights, approximated with 1 point (--points)."
    folder = shutil.copytree(final, tmp_path / "run")
    results = {"run": files.read_json(folder / "manifest.json")["fingerprint"], "title": "Who helped", "findings": []}
    for points in (1, 3):
        files.write_json(folder / "contribution" / "contribution.json", {**results, "points": points})
        said = collect(folder)["final"]["findings"]
        assert said[:1] == [alone]
        assert len(said) == (1 if points == 1 else 2)
    assert "different --points: contributions with 1, contribution with 3. More points usually bring them" in said[1]


def test_nobody_is_expelled_who_clearly_helped_the_final_models(final):
    section = collect(final)["final"]
    helped = {row[0] for row in section["rows"] if "helped" in row}
    harmed = next(k for k in range(6) if k not in helped)
    assert helped_finally(open_recording(final)) == helped != set()
    advised = [[k, "expel" if k in (min(helped), harmed) else "keep"] for k in range(6)]
    chosen = {"name": "choose", "columns": ["participant", "advice"], "rows": advised, "findings": []}
    explain_disagreement([chosen], section)
    (said,) = chosen["findings"]
    assert said.startswith(
        f"By cosine, participant {min(helped)} would be expelled, but clearly helped the final models"
    )
    explain_disagreement([chosen], None)
    assert len(chosen["findings"]) == 1


def test_the_page_names_the_models_and_the_rounds_that_were_asked_about(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    ask(folder, Question(("whole-run-shares",), points=1, on=1, during=(2, 6)), quiet=True)
    data = collect(folder)
    section, models, updates = data["final"], "1's final model", "the updates of rounds 2 to 5"
    assert models in section["title"]
    assert section["lead"].startswith(
        f"What the test loss of {models} owes to each participant's data, over rounds 2 to 5 together. Shares divide "
        f"what {updates} changed among the participants."
    )
    assert f"share of what {updates} did to the test loss of {models}." in data["findings"][1]
    assert not any("the final models" in text for text in data["findings"])
    assert data["influence"]["models"] == models
    assert data["influence"]["scored"]["whole-run shares"]["summed"] == 4
    expelled = {"name": "choose", "columns": ["participant", "advice"], "findings": []}
    expelled["rows"] = [[k, "expel"] for k in range(6)]
    explain_disagreement([expelled], {**section, "rows": [[0, "helped"]]})
    assert not expelled["findings"]  # who helped the model of one has not helped those of all


def test_cascades_beside_whole_run_influence_say_what_happened_in_rounds(final, asked, tmp_path):
    folder = shutil.copytree(asked, tmp_path / "run")
    shutil.copytree(final / "whole-run", folder / "whole-run")
    files.keep_checksums(folder / "whole-run", (folder / "whole-run").iterdir())
    data, without = collect(folder), collect(asked)
    assert without["final"] is None
    assert data["influence"]["decay"] == without["influence"]["decay"]
    assert next(iter(data["influence"]["cascades"])) == "whole-run shares"  # what the page shows first
    assert data["influence"]["cascades"]["truth"] == without["influence"]["cascades"]["truth"]
    assert data["samples"]["kind"] == "whole-run shares"
    helped = [text for text in data["findings"] if "helped" in text and "most" in text]
    assert all("the final models" in text for text in helped)
    assert any("at hop 1" in text for text in data["findings"])


def test_under_adam_the_page_does_not_rank_samples_as_if_it_meant_something(final, monkeypatch):
    plain = collect(final)
    monkeypatch.setattr("cascadice.report.page.collecting.sees_scale", lambda config, nodes: False)
    warned = collect(final)
    assert plain["samples"]["caution"].startswith("The order of samples may be noise: each was used once")
    assert warned["samples"]["caution"] == warned["table"]["caution"]
    assert warned["table"]["caution"].startswith("Do not choose samples by these scores: Adam")
    assert not any("clear harm" in text for page in (plain, warned) for text in page["findings"])


@pytest.fixture
def unaudited(monkeypatch):
    """Payments are believed, so that a test need not write a ledger."""
    monkeypatch.setitem(sections.SHOWN, "reward", sections.SHOWN["reward"]._replace(audit=lambda *_: []))


def went_on(folder, rounds):
    """Let the manifest say that the run was continued up to so many rounds."""
    files.write_json(folder / "manifest.json", {**files.read_json(folder / "manifest.json"), "rounds": rounds})


def test_influence_on_models_that_are_no_longer_the_final_ones_is_not_shown(final, tmp_path, capsys):
    folder = shutil.copytree(final, tmp_path / "run")
    went_on(folder, CONFIG.rounds + 2)
    data = collect(folder)
    assert (data["final"], data["influence"], data["samples"]) == (None, None, None)
    (note,) = data["notes"]
    wrong = f"it is about the models after {CONFIG.rounds} rounds, but the run now has {CONFIG.rounds + 2}. "
    assert note == f"The influence in whole-run is not shown: {wrong}Repeat the command with --overwrite."
    assert "whole-run" in [entry["name"] for entry in data["commands"]]
    assert main(["check", str(folder)]) != 0
    assert f"{folder / 'whole-run'}: {wrong}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("reward", {"note": {"kind": "whole-run-shares, 3 points, to the end of round {last}"}}),
        ("forget", {"next_round": "{later}", "how": {"repairs": 2}}),
        ("validate", {"rounds": "{rounds}"}),
        ("contribution", {"rounds": "{rounds}"}),
    ],
)
def test_results_about_models_that_are_no_longer_the_final_ones_are_not_shown(bare, unaudited, name, results):
    rounds = CONFIG.rounds
    text = json.dumps(results).replace('"{rounds}"', f"{rounds}").replace('"{later}"', f"{rounds + 2}")
    known = {"run": files.read_json(bare / "manifest.json")["fingerprint"], "title": "results", "findings": []}
    files.write_json(bare / name / f"{name}.json", known | json.loads(text.replace("{last}", f"{rounds - 1}")))
    assert [section["name"] for section in collect(bare)["sections"]] == [name]
    went_on(bare, rounds + 1)
    data = collect(bare)
    assert data["sections"] == []
    assert f"The results in {name} are not shown: it is about the models after {rounds} rounds" in data["notes"][0]


def test_payments_for_effects_on_rounds_stay_when_the_run_goes_on(bare, unaudited):
    known = {"run": files.read_json(bare / "manifest.json")["fingerprint"], "note": {"kind": "shares, 4 hops"}}
    files.write_json(bare / "reward" / "reward.json", known)
    went_on(bare, CONFIG.rounds + 1)
    assert [section["name"] for section in collect(bare)["sections"]] == ["reward"]
