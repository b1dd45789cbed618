"""Folders that somebody died in, and disks that are full."""

import errno
import os
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest

from cascadice import files
from cascadice.files.locks import LOCK
from cascadice.runs import store, train
from cascadice.runs.folder import CONFIG, MANIFEST, locked_for_writing, resuming
from cascadice.runs.recipes import demo
from cascadice.runs.train import run

TINY = replace(demo(), nodes=3, model_options=("hidden=[4]",))
SMALL = replace(TINY, rounds=4, epochs=None, eval_every=2, record="all", checkpoint_every=2)


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Without figures, and with each network built once."""
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    monkeypatch.setattr(train, "build", build)


build = cache(train.build)


def final(folder):
    return (folder / store.CHECKPOINT).read_bytes()


UNFINISHED = {
    "settings alone": ("config.json",),
    "manifest alone": ("manifest.json", "checksums.jsonl"),
    "manifest and a file of mine": ("manifest.json", "checksums.jsonl", "notes.txt"),
    "half cleared": ("manifest.json", "checksums.jsonl", "config.json", "rounds"),
}


def test_a_run_is_not_begun_inside_another(tmp_path):
    run(SMALL, tmp_path / "run", quiet=True)
    for inside in ("influence", "mine/deep"):
        with pytest.raises(ValueError, match=r"is inside the run in .*/run\. Choose an --out that is outside"):
            run(SMALL, tmp_path / "run" / inside, quiet=True)
        assert not (tmp_path / "run" / inside).exists()


@pytest.mark.parametrize("record", ["all", "none"])
@pytest.mark.parametrize("put_there", [False, True])
def test_a_run_whose_folder_is_moved_while_it_trains_fails(tmp_path, monkeypatch, record, put_there):
    entered, folder = train.enter, tmp_path / "run"

    def moving(journal, round, last):
        if round.t == 2:
            folder.rename(tmp_path / "moved")
            if put_there:
                folder.mkdir()
                (folder / LOCK).touch()  # of whoever writes there
        entered(journal, round, last)

    monkeypatch.setattr(train, "enter", moving)
    config = replace(SMALL, record=record, checkpoint_every=2)
    with pytest.raises(ValueError, match=r"run was moved or removed while this process wrote to it\. Move it back to"):
        run(config, folder, quiet=True)
    assert folder.exists() == put_there
    assert store.load_checkpoint(tmp_path / "moved").t == 2
    assert not put_there or (folder / LOCK).exists()


@pytest.mark.parametrize("kept", UNFINISHED)
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_folder_that_somebody_died_in_can_be_used(tmp_path, kept, how):
    config = replace(SMALL, rounds=2)
    run(config, tmp_path / "whole", quiet=True)
    run(config, tmp_path / "a", quiet=True)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    for path in (tmp_path / "a").iterdir():
        if path.name not in UNFINISHED[kept]:
            files.remove(path)
    run(config, tmp_path / "a", quiet=True, **{how: True})
    assert final(tmp_path / "a") == final(tmp_path / "whole")
    assert (tmp_path / "a" / "notes.txt").exists() == ("notes.txt" in UNFINISHED[kept])


def test_a_run_that_has_lost_its_list_can_be_overwritten(tmp_path):
    run(replace(SMALL, rounds=2), tmp_path, quiet=True)
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("checksums.jsonl", "config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"checksums.jsonl is missing"):
        run(replace(SMALL, rounds=2), tmp_path, quiet=True, resume=True)
    run(replace(SMALL, rounds=2), tmp_path, quiet=True, overwrite=True)
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize("manifest", ['{"name": "an app"}', "[]", "no JSON"])
def test_a_manifest_of_something_else_makes_no_run(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "index.html").write_text("")
    with pytest.raises(ValueError, match=r"holds files that do not belong to a run"):
        run(SMALL, tmp_path, quiet=True, overwrite=True)
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_a_link_is_replaced_and_what_it_leads_to_is_left(tmp_path):
    config = replace(SMALL, rounds=2)
    run(config, tmp_path / "a", quiet=True)
    (tmp_path / "a" / "rounds").rename(tmp_path / "elsewhere")
    (tmp_path / "a" / "rounds").symlink_to(tmp_path / "elsewhere")
    run(config, tmp_path / "a", quiet=True, overwrite=True)
    assert not (tmp_path / "a" / "rounds").is_symlink()
    assert store.saved_rounds(tmp_path / "a") == [0, 1]
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


def test_a_run_whose_rounds_lead_into_another_run_is_not_resumed(tmp_path):
    """Resuming removes rounds from after the checkpoint: here they would be the other's."""
    for name in "ab":
        run(SMALL, tmp_path / name, quiet=True)
    run(replace(SMALL, rounds=6), tmp_path / "b", quiet=True, resume=True)
    shutil.rmtree(tmp_path / "a" / "rounds")
    (tmp_path / "a" / "rounds").symlink_to(tmp_path / "b" / "rounds")
    with pytest.raises(ValueError, match=r"a/rounds is a link into the run in .*/b\. Put a folder of its own there\."):
        run(replace(SMALL, rounds=5), tmp_path / "a", quiet=True, resume=True)
    assert store.saved_rounds(tmp_path / "b") == [0, 1, 2, 3, 4, 5]
    run(SMALL, tmp_path / "a", quiet=True, overwrite=True)
    assert store.saved_rounds(tmp_path / "b") == [0, 1, 2, 3, 4, 5]


def test_results_that_lead_into_another_run_are_not_written(tmp_path):
    for name in "ab":
        files.write_json(tmp_path / name / "config.json", {})
        files.write_json(tmp_path / name / "manifest.json", {})
    (tmp_path / "b" / "influence").mkdir()
    (tmp_path / "a" / "influence").symlink_to(tmp_path / "b" / "influence")
    with (
        pytest.raises(ValueError, match=r"a/influence is a link into the run in"),
        locked_for_writing(tmp_path / "a/influence"),
    ):
        pass


@pytest.mark.parametrize("way", ["detect", "mine/deep", "link"])
def test_whoever_writes_inside_a_run_locks_the_run(tmp_path, way):
    home = tmp_path / "run"
    files.write_json(home / "config.json", {})
    files.write_json(home / "manifest.json", {})
    (tmp_path / "link").symlink_to(home / "detect")
    with locked_for_writing(tmp_path / "link" if way == "link" else home / way):
        assert (home / LOCK).exists()


@pytest.mark.parametrize("below", ["", "b"])
def test_a_link_to_nowhere_is_named(tmp_path, below):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"loop is a link that leads nowhere"):
        run(SMALL, tmp_path / "loop" / below, quiet=True)


@pytest.mark.parametrize("place", ["config.json", "manifest.json", "000001", "metrics", "checkpoint"])
def test_a_full_disk_is_no_success(tmp_path, monkeypatch, place):
    """Wherever it becomes full, the run fails; once there is room, it goes on to the same bits."""
    run(SMALL, tmp_path / "whole", quiet=True)
    write = files.replacing

    @contextmanager
    def full(path, durable=True):
        with write(path, durable) as draft:
            yield draft
            if place in path.name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "replacing", full)
        patch.setattr("cascadice.files.tensors.replacing", full)
        patch.setattr("cascadice.runs.round_metrics.replacing", full)
        with pytest.raises(OSError, match=r"No space left on device"):
            run(SMALL, tmp_path / "cut", quiet=True)
    if (tmp_path / "cut" / "manifest.json").exists():
        assert files.read_json(tmp_path / "cut" / "manifest.json")["status"] != "finished"
    run(SMALL, tmp_path / "cut", resume=True, quiet=True)
    assert final(tmp_path / "cut") == final(tmp_path / "whole")
    assert not list((tmp_path / "cut").rglob(".tmp*"))


def test_a_disk_on_which_no_large_file_fits(tmp_path):
    """The system itself refuses: every library that writes says so in its own way, and none is believed to have."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    config = replace(SMALL, rounds=2)
    for most in (1_200, 4_000, 7_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(OSError, match=r"File too large"):
                run(config, tmp_path / str(most), quiet=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_who_writes_removes_what_a_killed_writer_left_but_follows_no_link(tmp_path):
    home = tmp_path / "run"
    left = [home / ".tmp-1-0-a", home / "influence" / ".tmp-1-0-b", home / "whole-run" / "unfinished" / ".tmp-1-0-c"]
    left += [home / "mine" / ".tmp-1-0-f"]
    others = [
        home / "config.json",
        home / "manifest.json",
        home / "others" / ".tmp-1-0-d",
        tmp_path / "far" / ".tmp-1-0-e",
    ]
    for path in (*left, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (home / "rounds").symlink_to(tmp_path / "far")
    with locked_for_writing(home / "mine"):
        assert [path for path in (*left, *others) if path.exists()] == others


def test_a_run_of_several_processes_is_continued_by_all_of_them(tmp_path):
    part = tmp_path / "rank-001"
    files.write_json(part / CONFIG, {})
    assert resuming(part, {}) == f"cascadice run --resume --out {part}"
    for place in (part, tmp_path):
        expected = f"torchrun --nproc-per-node 3 -m cascadice run --resume --out {tmp_path}"
        assert resuming(place, {"process": {"of": 3}}) == expected


def test_a_part_of_a_run_that_is_a_link_to_another_run_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for part in (CONFIG, MANIFEST):
            (tmp_path / name / part).write_text("{}")
    (tmp_path / "a/reward").symlink_to(tmp_path / "b")
    with (
        pytest.raises(ValueError, match=r"a/reward is a link into the run in"),
        locked_for_writing(tmp_path / "a/reward"),
    ):
        pass
