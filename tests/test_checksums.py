"""The list of checksums: what was changed, removed or planted is noticed, and a process may die at any moment."""

import json
import os

import pytest

from cascadice import checksums, files
from cascadice.checksums import LIST, list_for, problem, unlisted, verify, verify_none_missing


@pytest.fixture
def folder(tmp_path):
    """A folder with a list and two files that were written into it."""
    files.keep_checksums(tmp_path)
    files.write_json(tmp_path / "one.json", {"n": 1})
    files.write_json(tmp_path / "rounds" / "two.json", {"n": 2})
    return tmp_path


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
    with pytest.raises(ValueError, match=r"one.json is damaged: its content was changed"):
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
    found, now = list_for(folder / "one.json"), checksums._digest_now

    def meanwhile(path):
        digest = now(path)
        if monkeypatch_once:
            monkeypatch_once.pop()
            with (folder / LIST).open("a") as file:  # another process
                for name, number in (("one.json", 3), ("rounds/two.json", 4)):
                    (folder / name).write_text(json.dumps({"n": number}))
                    entry = {"file": name, **checksums._digest(folder / name)._asdict()}
                    file.write(json.dumps(entry) + "\n")
        return digest

    monkeypatch_once = [True]
    monkeypatch.setattr(checksums, "_digest_now", meanwhile)
    assert problem(found, folder / "one.json") is None


def test_existing_files_are_listed_from_now_on(tmp_path):
    for name in ("kept.json", ".hidden", "chain.jsonl"):
        (tmp_path / name).write_text("{}")
    files.keep_checksums(tmp_path, tmp_path.iterdir())
    assert set(list_for(tmp_path / "kept.json").files) == {"kept.json"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense\n", r"has a line that is no checksum: b'nonsense'"),
        (b"[1]\n", r"no checksum"),
        (b'{"sha256": "ab"}\n', r"no checksum"),
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
