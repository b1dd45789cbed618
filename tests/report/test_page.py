"""A page's data are those of the run, in whatever state it is; the page holds them and needs no network."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report.pages import CONFIG, HOSTILE, train, write_section

from cascadice import files
from cascadice.cli import main
from cascadice.data import DataSet, Samples, pydoc
from cascadice.engine import simulate
from cascadice.engine.networks import load
from cascadice.influence.cascade import Cascade
from cascadice.influence.tables import (
    concatenate,
    read_table,
    table_of,
    table_of_drawn,
    table_of_participants,
    write_part,
)
from cascadice.influence.uncertainty import bounds_of_sums
from cascadice.report.page import collect, mixing, page, samples, sentences
from cascadice.report.page.writing import LARGEST, json_in_html
from cascadice.runs import store
from cascadice.runs.config import build, to_json
from cascadice.runs.folder import fingerprint
from cascadice.runs.summary import SampleScore, read_summary, summarise


def columns(found, kind="truth"):
    return {name: np.array(values) for name, values in found["influence"]["cascades"][kind].items()}


def test_the_numbers_are_those_of_the_summary(asked):
    data, summary = collect(asked), read_summary(asked / "influence", asked, build(CONFIG))
    assert data["influence"]["kinds"] == ["truth", "first order"]
    assert data["influence"]["rounds"] == [0, 3, 6]
    assert data["injected"] == {"2": "flip-labels", "4": "free-rider"}
    np.testing.assert_allclose(data["influence"]["totals"]["truth"], summary.participants["truth"], rtol=1e-4)
    np.testing.assert_allclose(data["influence"]["decay"]["truth"], summary.by_hop["truth"], rtol=1e-4)
    ranks, within = data["influence"]["within"]["first order"], summary.within_rounds["first order"]
    np.testing.assert_allclose(ranks, within, rtol=1e-4)
    np.testing.assert_allclose(
        data["influence"]["points"]["values"]["first order"], summary.updates["first order"].ravel(), rtol=1e-4
    )
    given = np.zeros((6, 6))
    rows = columns(data)
    for t, source, hop, receiver, value in zip(*rows.values(), strict=True):
        given[source, receiver] += value * (t == -1 and hop > 0)
    np.testing.assert_allclose(given, summary.matrix["truth"], rtol=1e-3, atol=1e-9)


def test_sums_over_rounds_are_sums_of_the_rounds(asked):
    rows = columns(collect(asked))
    total, single = rows["round"] == -1, rows["round"] >= 0
    assert set(rows["round"][single]) == {0, 3, 6}
    for hop in (0, 1, 2):
        of = rows["hop"] == hop
        np.testing.assert_allclose(rows["value"][total & of].sum(), rows["value"][single & of].sum(), rtol=1e-3)


def test_the_table_has_every_row_of_every_folder(asked):
    table = collect(asked)["table"]
    folders, rows = np.array(table["values"][0]), np.array(table["values"][-1], dtype=float)
    assert table["words"]["folder"] == ["influence", "samples"]
    for place, name in enumerate(table["words"]["folder"]):
        np.testing.assert_allclose(rows[folders == place], read_table(asked / name).value, rtol=1e-4)
    assert table["note"] == ""


def test_curves_are_what_was_measured(asked):
    curves, measures = collect(asked)["training"], store.read_metrics(asked)
    np.testing.assert_allclose(np.array(curves["loss"]["each"]).T, [m.train_loss for m in measures], rtol=1e-4)
    assert curves["accuracy"]["rounds"] == [1, 3, 5, 7]
    np.testing.assert_allclose(curves["consensus"]["mean"], [float(m.consensus) for m in measures], rtol=1e-4)


def test_metrics_that_the_manifest_does_not_count_yet_are_not_shown(bare):
    before, metrics = collect(bare), store.read_metrics(bare)
    store.write_metrics(bare, [*metrics, metrics[-1]._replace(t=len(metrics))])  # what a live run writes first
    assert collect(bare) == before


def test_many_participants_are_a_band(tmp_path):
    folder = train(tmp_path / "run", replace(CONFIG, nodes=70, rounds=2, record="none", batch_size=4))
    data = collect(folder)
    assert {"least", "greatest"} <= data["training"]["loss"].keys()
    assert "each" not in data["training"]["loss"]
    assert len(data["shown"]) == 64


def test_samples_come_with_thumbnails(asked):
    found = collect(asked)["samples"]
    scored = read_summary(asked / "samples", asked, build(CONFIG)).samples["shares, 2 points"]
    assert [one["sample"] for one in found["helped"]] == [one.sample for one in scored[: len(found["helped"])]]
    assert all(one["value"] > 0 for one in found["harmed"])
    assert all(one["picture"].startswith("data:image/png;base64,") for one in found["helped"] + found["harmed"])


def test_texts_are_shown_without_their_padding():
    tokens, mask = torch.tensor([[2, 1, 0, 0], [0, 1, 2, 1]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    held = Samples({"input_ids": tokens, "attention_mask": mask}, tokens)
    data = DataSet("texts", held, held, ("<pad>", "ever", "for"))
    texts = [samples._sample(SampleScore(0, sample, 2, -1.0, -1.5, -0.5), data)["text"] for sample in (0, 1)]
    assert texts == ["for ever", "<pad> ever for ever"]


@pytest.mark.parametrize("sees_scale", [True, False])
def test_only_clear_samples_are_said_to_have_helped_or_harmed(sees_scale):
    uses = torch.tensor([[-0.5, 0.3, -0.1, 0.2], [-0.6, 0.4, 0.3, 0.2], [-0.55, 0.35, -0.1, 0.2]]).double()
    drawn = torch.tensor([[7, 1, 2, 3]])
    rows = concatenate(table_of_drawn("whole-run", t, drawn, scores[None]) for t, scores in enumerate(uses))
    updates = table_of_participants("whole-run", 0, torch.ones(3))
    summary = summarise(concatenate([rows, updates]), 3, sees_scale=sees_scale)
    shown = samples.samples(CONFIG, [summary], [], Path(), whole=False)
    helped, harmed = ([one["sample"] for one in shown[side]] for side in ("helped", "harmed"))
    text = sentences._samples(summary)
    if sees_scale:
        assert (helped, harmed, shown["caution"]) == ([7], [1, 3], "")
        group, rounds = np.tile(np.arange(4), 3), np.repeat(np.arange(3), 4)
        bounds = bounds_of_sums(uses.numpy().ravel(), group, rounds, np.zeros(4, dtype=int))
        assert shown["helped"][0]["half"] == pytest.approx(bounds.high[0] + 1.65, abs=1e-4)
        assert shown["clear"].startswith("Of 4 samples used more than once, 1 clearly helped and 2 clearly harmed")
        assert text == ["Of the 2 samples with the largest clear harm (whole-run), 2 belong to participant 0."]
    else:  # Adam: no order means anything
        assert (helped, harmed, shown["clear"], text) == ([7], [1, 3, 2], "", [])


def test_samples_show_the_labels_that_faults_gave_them(asked):
    network, scored = build(CONFIG), collect(asked)["samples"]
    cards = [one for one in scored["harmed"] + scored["helped"] if one["node"] == 2]
    assert cards
    for one in cards:
        labels = []
        for t in scored["rounds"]:
            drawn = store.load_draw(asked, t)
            labels += load(network, drawn).y[2][drawn.batch[2] == one["sample"]].tolist()
        wrong = [label for label in labels if str(label) != one["label"]]
        assert sum(times for _, times in one.get("became", [])) == len(wrong)
        assert {label for label, _ in one.get("became", [])} == set(map(str, wrong))
    assert any("became" in one for one in cards)
    assert not any("became" in one for one in scored["harmed"] + scored["helped"] if one["node"] != 2)


def test_absent_data_leave_samples_without_pictures(asked, monkeypatch):
    def absent(name, root):
        raise FileNotFoundError("digits was not found.")

    monkeypatch.setattr(samples, "_load", absent)
    data = collect(asked)
    assert "picture" not in data["samples"]["helped"][0]
    assert data["notes"] == ["Samples are shown without pictures: digits was not found."]


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (torch.arange(12, dtype=torch.uint8).view(3, 2, 2), "picture"),
        (torch.zeros(1, 3, 3), "picture"),
        (torch.zeros(2, 3, 3), None),
        (torch.zeros(5), None),
    ],
)
def test_only_pictures_are_drawn(x, shape):
    assert (samples._picture(x) is not None) == (shape == "picture")


def test_texts_are_shown_as_they_begin():
    data = pydoc()
    shown = samples._sample(samples.SampleScore(0, 3, 1, -0.5), data)
    assert shown["picture"] is None
    assert len(shown["text"]) == samples.LETTERS
    assert shown["label"] is None


def test_a_tokenizers_batches_are_shown_as_their_tokens():
    tokens = torch.tensor([[2, 0, 11]])
    texts = Samples({"input_ids": tokens, "attention_mask": tokens > 0}, tokens)
    data = DataSet("texts", texts, texts, tuple(map(str, range(12))))
    shown = samples._sample(samples.SampleScore(0, 0, 1, -0.5), data)
    assert (shown["text"], shown["label"], shown["picture"]) == ("2 11", None, None)


def test_the_network_is_the_one_of_each_round_and_its_hops(tmp_path):
    config = replace(CONFIG, topology="one-peer-exponential", rounds=4, behaviours=("absent:1@2-3",), record="2-3")
    folder = train(tmp_path / "run", config)
    found, network = collect(folder)["mixing"], build(config)
    assert list(found["of"]) == ["0", "1", "2", "3"]
    for t in range(4):
        (place,) = found["of"][str(t)]
        matrix = found["matrices"][place]
        W = torch.zeros(6, 6, dtype=torch.float64)
        W[matrix["receiver"], matrix["source"]] = torch.tensor(matrix["weight"], dtype=torch.float64)
        torch.testing.assert_close(W, network.mixing(t).double(), rtol=1e-4, atol=1e-6)


def test_the_network_of_a_recorded_round_is_the_one_that_was_used(bare):
    alone = torch.eye(6)
    (done,) = simulate(build(CONFIG), 1)
    store.save_round(bare, done._replace(draw=done.draw._replace(W=alone)))
    found = collect(bare)["mixing"]
    (place,) = found["of"]["0"]
    assert found["matrices"][place]["receiver"] == found["matrices"][place]["source"] == list(range(6))
    assert found["of"]["1"] != found["of"]["0"]


def test_rounds_that_are_not_drawn_are_noted_if_the_network_changes(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(mixing, "ROUNDS", 4)
    assert collect(bare)["notes"] == []
    changing = train(tmp_path / "run", replace(CONFIG, topology="one-peer-exponential"))
    assert collect(changing)["notes"] == ["The network is drawn for 4 of 8 rounds."]


def test_a_run_without_influence_offers_the_commands(bare, capsys):
    data = collect(bare)
    assert (data["influence"], data["samples"], data["table"], data["sections"]) == (None, None, None, [])
    assert data["mixing"]["of"]
    names = [entry["name"] for entry in data["commands"]]
    assert names == ["whole-run", "influence", "samples", "detect", "choose", "reward", "forget", "validate"]
    assert main(["report", str(bare)]) == 0
    assert f"this adds it: cascadice influence {bare} --kind whole-run-shares" in capsys.readouterr().out


def test_a_run_that_was_not_recorded_must_be_trained_again(bare):
    shutil.rmtree(bare / "rounds")
    final, paid, entry = collect(bare)["commands"]
    assert paid["command"].startswith("cascadice reward ")
    assert final["command"] == f"cascadice influence {bare} --kind whole-run-shares --samples"
    assert entry["command"].startswith(
        f"cascadice run {bare} --record all --out {bare}-recorded && cascadice influence"
    )


def test_a_run_that_has_just_started_has_a_page(tmp_path):
    files.write_json(tmp_path / "config.json", to_json(CONFIG))
    data = collect(tmp_path)
    assert data["training"] is None
    assert data["notes"] == ["Nothing has been measured yet: the first checkpoint will write the first metrics."]
    assert "6 participants" in page(data)


@pytest.mark.parametrize(("status", "note"), [("interrupted", "was interrupted"), ("running", "was killed")])
def test_a_run_that_ended_early_is_said_to(bare, tmp_path, status, note):
    folder = shutil.copytree(bare, tmp_path / "early")
    manifest = files.read_json(folder / "manifest.json")
    files.write_json(folder / "manifest.json", {**manifest, "status": status, "rounds": 2})
    notes = collect(folder)["notes"]
    assert notes[0].startswith(f"The run ended early: it {note} after 2 of ")
    assert notes[0].endswith(f"Continue it with: cascadice run --resume --out {folder}")
    assert not any("ended early" in note for note in collect(bare)["notes"])


def test_what_is_shown_already_is_not_offered(run):
    write_section(run, "detect")
    assert [entry["name"] for entry in collect(run)["commands"]] == [
        "whole-run",
        "choose",
        "reward",
        "forget",
        "validate",
    ]


def test_sections_are_what_commands_found(run):
    write_section(run, "choose")
    write_section(run, "detect", votes=[[1, 0, 0], [0.0, None, 0.4, 0.5, 1.0]], figure="detect.png")
    write_section(run, "curious", table={"columns": ["x"], "rows": [[float("nan")], [[1]]] + [[i] for i in range(600)]})
    (run / "detect" / "detect.png").write_bytes(b"\x89PNG and so on")
    data = collect(run)
    detect, choose, curious = data["sections"]
    assert [section["name"] for section in data["sections"]] == ["detect", "choose", "curious"]
    assert data["flagged"] == [3, 4]
    assert detect["picture"].startswith("data:image/png;base64,")
    assert choose["picture"] is None
    assert choose["rows"] == [[2, 0.5, HOSTILE], [4, -1.25, True]]
    assert (curious["count"], len(curious["rows"]), curious["rows"][0]) == (602, 500, [None])


def test_results_of_another_run_are_noted_and_not_shown(run):
    write_section(run, "detect", config=replace(CONFIG, seed=1))
    note = json.loads((run / "influence" / "influence.json").read_text())
    files.write_json(run / "influence" / "influence.json", note | {"run": "another"})
    data = collect(run)
    assert data["sections"] == []
    assert data["influence"]["folder"] == "samples"
    assert data["notes"] == [
        "The influence in influence is not shown: it belongs to another run.",
        "The results in detect are not shown: it belongs to another run.",
    ]


def test_results_that_do_not_hold_are_noted_and_not_shown(bare):
    write_section(bare, "forget", models="../models.bin", models_digest="0" * 64)
    data = collect(bare)
    assert data["sections"] == []
    assert data["notes"][0].startswith("The results in forget are not shown: ")


@pytest.mark.parametrize("content", ["no JSON", '{"run": "RUN", "table": {"columns": 3}}', "[1]"])
def test_sections_that_cannot_be_read_are_noted(bare, content):
    (bare / "detect").mkdir()
    (bare / "detect" / "detect.json").write_text(content.replace("RUN", fingerprint(CONFIG)))
    data = collect(bare)
    assert data["sections"] == []
    assert data["notes"][0].startswith("The results in detect are not shown: ")


def test_damage_is_noted_and_the_rest_is_shown(run):
    next((run / "influence").glob("part-*")).write_bytes(b"half")
    (run / "metrics.parquet").write_bytes(b"half")
    (run / "rounds" / "000000.safetensors").write_bytes(b"half")
    data = collect(run)
    assert data["training"] is None
    assert data["mixing"] is None
    assert data["influence"]["folder"] == "samples"
    assert [note.split(":")[0] for note in data["notes"]] == [
        f"{run / 'metrics.parquet'} is damaged",
        "The influence in influence is not shown",
        "Samples are shown without the labels they were trained with",
        "Who gossiped with whom is not shown",
    ]


def test_collecting_changes_nothing_and_is_the_same_each_time(asked):
    before = sorted((path, path.stat().st_mtime_ns) for path in asked.rglob("*"))
    assert json_in_html(collect(asked)) == json_in_html(collect(asked))
    assert sorted((path, path.stat().st_mtime_ns) for path in asked.rglob("*")) == before


def test_too_many_rows_are_summed_to_fit_the_page(tmp_path):
    config, nodes = replace(CONFIG, nodes=96, corruptions=(), behaviours=(), topology="complete"), 96
    files.write_json(tmp_path / "config.json", to_json(config))
    note = {"run": fingerprint(config)}
    draw = torch.Generator().manual_seed(0)
    sums = np.zeros(nodes)
    for t in range(6):
        value = torch.randn(3, nodes, nodes, generator=draw, dtype=torch.float64)
        made = concatenate(table_of(Cascade(kind, t, tuple(range(nodes)), value)) for kind in ("truth", "first order"))
        write_part(tmp_path / "influence", made, t, note)
        sums += value.sum((0, 2)).numpy()
    data = collect(tmp_path)
    assert len(data["shown"]) == 64
    assert set(data["shown"]) == set(np.argsort(-np.abs(sums))[:64])
    assert 0 < len(data["influence"]["rounds"]) < 6
    assert data["table"]["note"].startswith("Summed over rounds, the 20,000 largest only, because the table has ")
    rows = columns(data)
    of = rows["round"] == -1
    for node in data["shown"]:  # receivers that are not drawn are not lost
        np.testing.assert_allclose(rows["value"][of & (rows["source"] == node)].sum(), sums[node], rtol=1e-2, atol=1e-2)
    assert len(page(data).encode()) < LARGEST


def test_the_command_writes_the_page_where_asked(asked, tmp_path, capsys):
    out = tmp_path / "deep" / "page.html"
    assert main(["report", str(asked), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "6 participants trained mlp on digits together for 8 rounds" in said
    assert f"wrote {out}" in said
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nowhere"],
            r"nowhere does not exist\. Name a folder that `cascadice run`",
        ),
        (
            ["folder.html"],
            r"folder\.html holds neither a run \(config\.json\) nor a result \(result\.json\)\. Name a",
        ),
        (["RUN", "--out", "page.pdf"], r"a page must end in \.html; found 'page\.pdf'"),
        (["RUN", "--out", "folder.html"], r"folder\.html is a folder; a page is a file\."),
    ],
)
def test_mistakes_are_reported_in_one_line(trained, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    assert main(["report", *(str(trained) if part == "RUN" else part for part in arguments)]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert said.count("\n") == 1
