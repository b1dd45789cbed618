"""The files of a run belong together: one that was changed, taken away or brought from elsewhere is named."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import save_file

from cascadice import data, files
from cascadice.files import checksums
from cascadice.files.tensors import FORMAT_1, read_tensors, write_tensors
from cascadice.influence import tables
from cascadice.report.page import collect
from cascadice.runs import store, train
from cascadice.runs.ask import ask
from cascadice.runs.config import Config
from cascadice.runs.journal import versions
from cascadice.runs.question import Question, check_note, question_note
from cascadice.runs.recording import open_recording

SMALL = Config(nodes=3, model_options=("hidden=[4]",), epochs=None, rounds=4, record="all", checkpoint_every=2)
ASKED = Question(eval_samples=20)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    monkeypatch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("binding") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        patch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
        train.run(SMALL, folder, quiet=True)
        ask(folder, ASKED, quiet=True)
    return folder


@pytest.fixture(params=["listed", "unlisted"])
def folder(request, recorded, tmp_path):
    """A copy of the run; without a list, what files say about themselves must do."""
    copy = shutil.copytree(recorded, tmp_path / "run")
    return copy if request.param == "listed" else without_list(copy)


def without_list(run):
    """Let a run be of the format that kept no list."""
    (run / checksums.LIST).unlink()
    edit(run / "manifest.json", format=None)
    return run


@pytest.fixture
def listed(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "run")


@pytest.fixture
def unlisted(listed):
    return without_list(listed)


def edit(path, **changes):
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def edit_metadata(path, **changes):
    with safe_open(path, "pt") as file:
        content = {**json.loads(file.metadata()["cascadice"]), **changes}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = {name: value for name, value in content.items() if value is not None}
    save_file(tensors, path, metadata={"cascadice": json.dumps(content)})


def resume(folder, rounds=6):
    return train.run(replace(SMALL, rounds=rounds), folder, resume=True, quiet=True)


def all_rounds(folder):
    return open_recording(folder).consecutive_rounds()


def test_changed_settings_are_refused(folder):
    edit(folder / "config.json", lr=0.7)
    with pytest.raises(ValueError, match=r"config.json (is damaged|disagrees with manifest.json: the f)") as refused:
        ask(folder, ASKED, folder / "other", quiet=True)
    assert "Restore the settings that the run was trained with" in str(refused.value)
    assert "--overwrite" not in str(refused.value)


def test_a_changed_mixing_file_is_named(tmp_path):
    W = tmp_path / "W.csv"
    W.write_text("0.5,0.5\n0.5,0.5\n")
    run = train.run(replace(SMALL, nodes=None, mixing=str(W), rounds=1), tmp_path / "run", quiet=True).folder
    W.write_text("0.25,0.75\n0.75,0.25\n")
    with pytest.raises(ValueError, match=r"config.json or the file .*W.csv disagrees with manifest.json"):
        open_recording(run)


def test_a_checkpoint_of_another_round_is_refused(folder):
    edit_metadata(folder / store.CHECKPOINT, t="2")
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is damaged: (it was|the checksum of its meta)"):
        resume(folder)


def test_other_shapes_are_noticed(tmp_path):
    path = tmp_path / "array.safetensors"
    write_tensors(path, {"a": torch.arange(6.0).reshape(2, 3)}, {})
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"shape":[2,3]', b'"shape":[3,2]'))
    with pytest.raises(ValueError, match=r"damaged: the checksum of a is wrong"):
        read_tensors(path, None)


@pytest.mark.parametrize("name", ["t", "checksums"])
def test_a_checkpoint_that_lacks_something_is_damaged(unlisted, name):
    edit_metadata(unlisted / store.CHECKPOINT, **{name: None, "format": FORMAT_1})
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is damaged"):
        resume(unlisted)


def test_a_round_in_the_place_of_another_is_refused(folder):
    shutil.copy(folder / "rounds" / "000001.safetensors", folder / "rounds" / "000002.safetensors")
    with pytest.raises(ValueError, match=r"000002.safetensors (is damaged|must be round 2; it is round 1)"):
        list(open_recording(folder).load_rounds())
    with pytest.raises(ValueError, match=r"000002.safetensors (is damaged|must be round 2; it is round 1)"):
        store.load_draw(folder, 2)


def test_a_round_of_another_run_is_refused(folder, tmp_path):
    train.run(replace(SMALL, seed=1, rounds=2), tmp_path / "other", quiet=True)
    shutil.copy(tmp_path / "other" / "rounds" / "000001.safetensors", folder / "rounds" / "000001.safetensors")
    with pytest.raises(ValueError, match=r"000001.safetensors (is damaged|belongs to another run: its fingerprint)"):
        list(open_recording(folder).load_rounds())


@pytest.mark.parametrize("how", [resume, lambda folder: ask(folder, ASKED, folder / "new", quiet=True), all_rounds])
def test_a_missing_round_is_noticed(listed, how):
    (listed / "rounds" / "000003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"000003.safetensors is missing"):
        how(listed)


def test_a_damaged_round_is_noticed_when_the_run_is_resumed(folder):
    path = folder / "rounds" / "000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # in a tensor, so that its checksum alone tells
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"000001.safetensors is damaged: the checksum of .* is wrong"):
        resume(folder)
    assert store.load_checkpoint(folder).t == 4


def test_a_part_that_was_changed_or_removed_is_named(listed):
    path = listed / "influence" / "part-00000001.parquet"
    rows = parquet.read_table(path)
    parquet.write_table(
        rows.set_column(6, rows.schema.field("value"), [[2.0 * v.as_py() for v in rows["value"]]]), path
    )
    with pytest.raises(ValueError, match=r"part-00000001.parquet is damaged"):
        tables.read_table(listed / "influence")
    path.unlink()
    with pytest.raises(ValueError, match=r"part-00000001.parquet is missing"):
        tables.read_table(listed / "influence")
    assert "part-00000001.parquet is missing" in collect(listed)["notes"][0]
    ask(listed, ASKED, quiet=True)
    assert len(tables.parts(listed / "influence")) == 4


def test_a_part_in_the_place_of_another_is_refused(unlisted):
    parts = tables.parts(unlisted / "influence")
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ValueError, match=r"part-00000002.parquet must hold round 2; found round 1"):
        tables.read_table(unlisted / "influence")


def test_influence_of_another_run_is_not_added_to(tmp_path):
    note = question_note(ASKED, "one")
    files.write_json(tmp_path / tables.NOTE, note)
    assert check_note(tmp_path, note, overwrite=False) == note
    with pytest.raises(ValueError, match="holds influence with other settings: run is 'one' there, 'other' here"):
        check_note(tmp_path, question_note(ASKED, "other"), overwrite=False)


def test_a_table_elsewhere_has_checksums_too(listed, tmp_path):
    ask(listed, ASKED, tmp_path / "table", quiet=True)
    (tmp_path / "table" / "part-00000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"part-00000000.parquet is damaged: it has 4 bytes"):
        tables.read_table(tmp_path / "table")
    ask(listed, ASKED, tmp_path / "table", overwrite=True, quiet=True)


def other_digits():
    digits = data.digits()
    x = digits.train.x.clone()
    x[7, 0, 3, 3] += 1
    return replace(digits, train=replace(digits.train, x=x))


@pytest.mark.parametrize("how", [resume, open_recording])
def test_other_data_are_refused(folder, monkeypatch, how):
    monkeypatch.setitem(data.DATASETS, "digits", data.catalogue.Source(lambda root: other_digits(), ""))
    with pytest.raises(ValueError, match=r"the data set digits is not the one that the run in .* was trained on: its"):
        how(folder)


def test_a_run_of_a_later_version_is_not_resumed(unlisted):
    edit(unlisted / "manifest.json", versions={"cascadice": "9.9.9"})
    with pytest.raises(
        ValueError, match=r"was trained with cascadice 9.9.9, which is later than .* Resume it with that"
    ):
        resume(unlisted)


def test_other_versions_of_libraries_are_named_and_kept(unlisted, capsys):
    now = versions()
    then = {**now, "torch": "1.13.0", "numpy": "1.0.0"}
    edit(unlisted / "manifest.json", versions=then)
    resume(unlisted)
    (said,) = capsys.readouterr().err.splitlines()
    each = f"torch 1.13.0 (now {now['torch']}) and numpy 1.0.0 (now {now['numpy']})"
    assert said.startswith(f"warning: a part of the run was trained with {each}: its bits may differ")
    resume(unlisted, 8)
    manifest = json.loads((unlisted / "manifest.json").read_text())
    assert (manifest["versions"], manifest["earlier_versions"]) == (now, [then])
    assert capsys.readouterr().err == ""  # said once


def test_a_manifest_without_times_is_resumed(unlisted):
    edit(unlisted / "manifest.json", seconds=None, started=None)
    assert resume(unlisted).rounds == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": "long"}, r"seconds in .*manifest.json must be a number, at least 0; found 'long'"),
        ({"rounds": -1}, r"rounds in .* must be a number, at least 0; found -1"),
        ({"fingerprint": 7}, r"fingerprint in .* must be a string; found 7"),
    ],
)
def test_a_damaged_manifest_is_named(unlisted, changes, said):
    edit(unlisted / "manifest.json", **changes)
    with pytest.raises(ValueError, match=said):
        resume(unlisted)
    assert any("must be a" in note for note in collect(unlisted)["notes"])


def test_too_few_nodes_in_a_manifest_hide_a_table_and_say_why(unlisted):
    edit(unlisted / "manifest.json", nodes=2)
    (note,) = collect(unlisted)["notes"]
    assert "source in a table of influence must be from 0 to 1; found 2" in note


def test_missing_rows_of_metrics_are_noticed(unlisted):
    path = unlisted / store.METRICS
    for keep in (slice(0, -1), slice(1, None)):
        rows = parquet.read_table(path)
        changed = rows.take(list(range(len(rows)))[keep])
        parquet.write_table(changed, path)
        with pytest.raises(ValueError, match=r"metrics.parquet is damaged: rows are missing"):
            store.read_metrics(unlisted)
        parquet.write_table(rows, path)


def test_influence_does_not_replace_a_ledger(listed):
    files.write_json(listed / "ledger" / "part-00000000.parquet", {})
    with pytest.raises(ValueError, match=r"ledger holds other tables, such as a ledger"):
        ask(listed, ASKED, listed / "ledger", overwrite=True, quiet=True)
    assert (listed / "ledger" / "part-00000000.parquet").exists()


def test_a_run_without_a_list_has_one_once_it_is_resumed(unlisted):
    resume(unlisted)
    found = checksums.list_for(unlisted / "config.json")
    assert {"rounds/000001.safetensors", "rounds/000005.safetensors", "checkpoint.safetensors"} <= set(found.files)
    assert [path for name in found.files if checksums.problem(found, path := unlisted / name)] == []
    assert list(checksums.unlisted(found)) == []
