"""The list of checksums: what was changed, removed or planted is noticed, and a process may die at any moment."""

import json
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cascadice import files
from cascadice.files import checksums, flock
from cascadice.files.checksums import LIST, list_for, problem, unlisted, verify, verify_none_missing
from cascadice.files.digests import Digest
from cascadice.report.page.writing import _write as write_page


@pytest.fixture
def folder(tmp_path):
    """A folder with a list and two files that were written into it."""
    files.keep_checksums(tmp_path)
    files.write_json(tmp_path / "one.json", {"n": 1})
    files.write_json(tmp_path / "rounds" / "two.json", {"n": 2})
    return tmp_path


@contextmanager
def soon():
    """What is done inside must end."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it never ends"))
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def forget_what_was_read():
    """As in another process."""
    checksums._lists.clear()


def lines(folder):
    return [json.loads(line) for line in (folder / LIST).read_text().splitlines()]


def test_every_file_that_is_written_is_listed(folder):
    assert [line.get("file") for line in lines(folder)] == [None, None, "one.json", None, "rounds/two.json", None]
    verify(folder / "one.json")
    verify(folder / "rounds" / "two.json")
    verify_none_missing(folder / "rounds")


@pytest.mark.parametrize("name", ["one.json", "rounds/two.json"])
def test_a_run_that_has_lost_its_list_is_refused(folder, name):
    files.write_json(folder / "manifest.json", {"format": "cascadice-run-2"})
    verify(folder / name)
    (folder / LIST).unlink()
    with pytest.raises(ValueError, match=r"checksums.jsonl is missing, so nothing shows .* Restore it from a copy"):
        verify(folder / name, foreign=True)
    files.write_json(folder / "manifest.json", {"versions": {"cascadice": "0.1.0"}})
    verify(folder / name)


@pytest.mark.parametrize("fresh", [False, True])
def test_what_was_changed_removed_or_planted_is_refused(folder, fresh):
    (folder / "one.json").write_text('{"n": 12}')
    (folder / "rounds" / "two.json").unlink()
    (folder / "planted.safetensors").write_text("{}")
    if fresh:
        forget_what_was_read()
    with pytest.raises(ValueError, match=r"one.json is damaged: it has 9 bytes, not \d+. Restore it from a copy, or"):
        verify(folder / "one.json")
    with pytest.raises(ValueError, match=r"two.json is missing. Restore it .* `cascadice check .*` says what else"):
        verify_none_missing(folder / "rounds")
    with pytest.raises(ValueError, match=r"planted.safetensors is not listed in checksums.jsonl"):
        verify(folder / "planted.safetensors")
    verify(folder / "planted.safetensors", foreign=True)
    assert list(unlisted(list_for(folder / LIST))) == [folder / "planted.safetensors"]


def test_a_changed_byte_is_noticed(folder):
    content = bytearray((folder / "one.json").read_bytes())
    content[5] ^= 1
    (folder / "one.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"one.json is damaged: it was changed"):
        files.read_json(folder / "one.json")


def test_what_is_removed_is_struck_from_the_list(folder):
    files.remove(folder / "one.json")
    files.remove(folder / "rounds")
    forget_what_was_read()
    verify_none_missing(folder)
    verify_none_missing(folder / "rounds")
    assert list_for(folder / "one.json").files == {}


@pytest.mark.parametrize("how", ["written", "removed"])
def test_a_process_that_dies_after_the_line_leaves_a_file_that_is_right(folder, monkeypatch, how):
    def die(*_, **__):
        raise KeyboardInterrupt

    act = {"written": lambda path: files.write_json(path, {"n": 7}), "removed": files.remove}[how]
    with monkeypatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(os, name, die)
        with pytest.raises(KeyboardInterrupt):
            act(folder / "one.json")
    forget_what_was_read()
    assert files.read_json(folder / "one.json") == {"n": 1}
    files.write_json(folder / "three.json", {})  # the next writer says how the file is
    forget_what_was_read()
    assert files.read_json(folder / "one.json") == {"n": 1}
    (folder / "one.json").unlink()
    with pytest.raises(ValueError, match=r"one.json is missing"):
        verify(folder / "one.json")


def test_an_unfinished_line_is_written_over(folder):
    with (folder / LIST).open("a") as file:
        file.write('{"file": "one.js')
    forget_what_was_read()
    verify(folder / "one.json")
    files.write_json(folder / "three.json", {})
    assert [line.get("file") for line in lines(folder)][-2:] == ["three.json", None]


def test_a_file_that_is_written_while_it_is_checked_is_looked_at_again(folder, monkeypatch):
    found, now = list_for(folder / "one.json"), checksums.digest_if_there

    def meanwhile(path):
        digest = now(path)
        if monkeypatch_once:
            monkeypatch_once.pop()
            with (folder / LIST).open("a") as file:  # another process
                for name, number in (("one.json", 3), ("rounds/two.json", 4)):
                    (folder / name).write_text(json.dumps({"n": number}))
                    entry = {"file": name, **checksums.digest(folder / name)._asdict()}
                    file.write(json.dumps(entry) + "\n")
        return digest

    monkeypatch_once = [True]
    monkeypatch.setattr(checksums, "digest_if_there", meanwhile)
    assert problem(found, folder / "one.json") is None


def test_existing_files_are_listed_from_now_on(tmp_path):
    for name in ("kept.json", ".hidden", "chain.jsonl"):
        (tmp_path / name).write_text("{}")
    files.keep_checksums(tmp_path, tmp_path.iterdir())
    assert set(list_for(tmp_path / "kept.json").files) == {"kept.json"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense\n", r"has a line that is not a checksum: b'nonsense'"),
        (b"[1]\n", r"not a checksum"),
        (b'{"sha256": "ab"}\n', r"not a checksum"),
    ],
)
def test_a_damaged_list_is_named(folder, line, said):
    with (folder / LIST).open("ab") as file:
        file.write(line)
    with pytest.raises(ValueError, match=said):
        verify(folder / "one.json")


def test_a_list_of_another_format_is_refused(tmp_path):
    (tmp_path / LIST).write_text('{"format": "cascadice-checksums-99"}\n')
    with pytest.raises(ValueError, match=r"must be of format cascadice-checksums-1; found cascadice-checksums-99"):
        verify(tmp_path / "one.json")


def test_without_a_list_nothing_is_checked(tmp_path):
    files.write_json(tmp_path / "one.json", {})
    (tmp_path / "one.json").write_text('{"n": 3}')
    assert files.read_json(tmp_path / "one.json") == {"n": 3}


@pytest.mark.parametrize("listed", [True, False])
def test_what_never_ends_is_not_read(tmp_path, listed):
    if listed:
        files.keep_checksums(tmp_path)
    files.write_json(tmp_path / "a.json", {"x": 1})
    (tmp_path / "a.json").unlink()
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.json must be a file; found a folder, a pipe or a device"):
        files.read_json(tmp_path / "a.json")


def test_a_file_that_cannot_be_written_leaves_no_folder(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match="full"), files.replacing(tmp_path / "there" / "new" / "page" / "a.html"):
        raise OSError("full")
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


def test_what_the_system_says_is_about_the_file_not_its_draft(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        files.write_json(tmp_path / "a.json", {})
    assert caught.value.filename == str(tmp_path / "a.json")


def test_who_is_stopped_while_announcing_may_go_on_writing(folder, monkeypatch):
    def stopped(handle):
        if os.path.samestat(os.fstat(handle), (folder / LIST).stat()):
            raise KeyboardInterrupt
        fsync(handle)

    fsync = os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stopped)
        with pytest.raises(KeyboardInterrupt):
            files.write_json(folder / "one.json", {"n": 3})
    files.write_json(folder / "three.json", {"n": 3})
    assert files.read_json(folder / "one.json") == {"n": 1}
    forget_what_was_read()
    assert files.read_json(folder / "one.json") == {"n": 1}


def test_what_is_removed_does_not_come_back(folder, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "sync", flushed.append)
    files.remove(folder / "one.json")
    assert flushed == [folder]
    files.remove(folder / "missing" / "one.json")
    assert flushed == [folder]


def test_two_writers_keep_each_others_lines(folder):
    first, second = (checksums.ChecksumList(folder, 0) for _ in range(2))
    for writer in (first, second):
        writer.refresh()
    first.announce("three.json", Digest(1, "3"))
    second.announce("four.json", Digest(1, "4"))
    first.append({})
    assert lines(folder)[-2:] == [{"file": "four.json", "bytes": 1, "sha256": "4"}, {}]


def test_a_writer_settles_what_another_left_when_it_died(folder):
    mine = list_for(folder / "one.json")
    mine.reconcile()
    other = checksums.ChecksumList(folder, 0)
    other.refresh()
    other.announce("one.json", Digest(1, "7"))  # and dies
    files.write_json(folder / "three.json", {})
    forget_what_was_read()
    assert files.read_json(folder / "one.json") == {"n": 1}


@pytest.mark.parametrize("replaced", [False, True])
def test_who_adds_to_a_list_waits_for_the_other_writer(folder, replaced):
    with ThreadPoolExecutor(1) as pool, flock.turn(folder / LIST):
        writing = pool.submit(files.write_json, folder / "three.json", {"n": 3})
        with pytest.raises(TimeoutError):
            writing.result(0.05)
        assert not (folder / "three.json").exists()
        with (folder / LIST).open("ab") as file:  # another process
            file.write(b'{"file": "four.json", "bytes": 1, "sha256": "4"}\n{}\n')
        if replaced:  # by a shorter one, as `keep_checksums` does
            first, *_, four, confirmed = (folder / LIST).read_text().splitlines(keepends=True)
            (folder / "copy").write_text(first + four + confirmed)
            (folder / "copy").replace(folder / LIST)
    writing.result()
    assert [line.get("file") for line in lines(folder)][-4:] == ["four.json", None, "three.json", None]


def test_who_is_interrupted_on_the_way_out_does_not_wait_for_itself(folder):
    left = flock.turn(folder / LIST)
    left.__enter__()  # Ctrl-C came before it was left, and the error keeps it alive
    with soon():
        files.write_json(folder / "three.json", {"n": 3})
    left.__exit__(None, None, None)
    assert files.read_json(folder / "three.json") == {"n": 3}


def test_a_list_that_cannot_be_read_is_dropped_and_one_that_can_is_kept(folder):
    checksums.drop_unreadable(folder)
    assert (folder / LIST).exists()
    with (folder / LIST).open("ab") as file:
        file.write(b"[" * 100_000 + b"\n")
    with pytest.raises(ValueError, match="has a line that is not a checksum"):
        verify(folder / "one.json")
    checksums.drop_unreadable(folder)
    assert not (folder / LIST).exists()
    verify(folder / "one.json")


def test_a_file_is_unlisted_if_no_line_is_about_it(folder, tmp_path_factory):
    (folder / "planted.json").touch()
    (folder / ".hidden").touch()
    names = ("one.json", "rounds/two.json", "planted.json", ".hidden")
    assert [name for name in names if checksums.is_unlisted(folder / name)] == ["planted.json"]
    assert not checksums.is_unlisted(tmp_path_factory.mktemp("without a list") / "one.json")


def test_nothing_is_removed_where_the_list_is_a_pipe(folder):
    (folder / LIST).unlink()
    os.mkfifo(folder / LIST)
    with soon(), pytest.raises(ValueError, match="must be a file; found a folder, a pipe or a device"):
        files.remove(folder / "one.json")
    assert (folder / "one.json").exists()


@pytest.mark.parametrize("left", [b"", b'{"format": "casc'])
def test_a_list_without_its_first_line_is_damaged(folder, left):
    forget_what_was_read()
    (folder / LIST).write_bytes(left)
    with pytest.raises(ValueError, match=r"checksums.jsonl is damaged: its first line is missing"):
        files.remove(folder / "one.json")
    assert (folder / "one.json").exists()
    checksums.drop_unreadable(folder)
    files.keep_checksums(folder)  # as --overwrite does
    files.write_json(folder / "one.json", {"n": 2})
    verify(folder / "one.json")


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder):
    (folder / "rounds" / "two.json").unlink()
    os.mkfifo(folder / "rounds" / "two.json")
    with soon():
        files.flush(folder / "rounds", [folder / "rounds" / "two.json"])
        with pytest.raises(ValueError, match="must be a file; found a folder, a pipe or a device"):
            verify(folder / "rounds" / "two.json")


def test_a_draft_that_somebody_writes_is_left_alone(tmp_path):
    abandoned = tmp_path / ".tmp-1-0-report.html"
    abandoned.touch()
    with files.replacing(tmp_path / "report.html") as draft:
        files.remove_drafts(tmp_path)
        assert draft.exists()
        assert not abandoned.exists()
        draft.write_text("page")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_list_begins_anew_when_nobody_adds_to_it(folder):
    with ThreadPoolExecutor(1) as pool, flock.turn(folder / LIST):
        keeping = pool.submit(files.keep_checksums, folder)
        with pytest.raises(TimeoutError):
            keeping.result(0.05)
        with (folder / LIST).open("ab") as file:  # another process
            file.write(b'{"file": "four.json", "bytes": 1, "sha256": "4"}\n{}\n')
    keeping.result()
    assert [line["file"] for line in lines(folder) if "file" in line] == ["one.json", "rounds/two.json", "four.json"]


def test_a_page_is_written_into_a_run_that_trains(folder):
    with warnings.catch_warnings(action="ignore"):  # Python dislikes to fork where there are threads
        child = os.fork()
    if not child:
        for number in range(20):
            write_page(f"<p>{number}</p>", folder, None)
        os._exit(0)
    for number in range(100):
        with files.replacing(folder / "rounds" / f"{number}.json", durable=False) as draft:
            draft.write_text("{}")
    assert os.waitpid(child, 0)[1] == 0
    forget_what_was_read()
    found = list_for(folder / LIST)
    assert len(found.files) == 103
    assert [name for name in found.files if problem(found, folder / name)] == []
