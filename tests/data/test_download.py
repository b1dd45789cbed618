"""Downloads, from a server on this machine."""

import hashlib
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cascadice import data
from cascadice.data import catalogue, download
from cascadice.data.download import Archive, fetch, unpack

CONTENT = bytes(range(256)) * 4000  # several chunks
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """What is served, and what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/good.bin": CONTENT}
        self.cut: set[str] = set()
        self.says_how_long = True
        self.asked: list[str] = []
        self.address = ""


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            if self.path not in served.files:
                self.send_error(404)
                return
            content = served.files[self.path]
            self.send_response(200)
            if served.says_how_long:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path in served.cut else content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    served.address = f"http://127.0.0.1:{listening.server_port}"
    yield served
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture(autouse=True)
def no_proxy_and_no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "CASCADICE_DATA", "CASCADICE_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_file_of_unknown_length_arrives_whole(server: Server, tmp_path: Path) -> None:
    server.says_how_long = False
    fetch(server.address + "/good.bin", tmp_path / "good.bin", digest=MD5)
    assert (tmp_path / "good.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("digest", [MD5, hashlib.sha256(CONTENT).hexdigest()])
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_good_file_arrives_whole(server: Server, tmp_path: Path, digest: str, size: int | None) -> None:
    target = tmp_path / "new" / "good.bin"
    fetch(server.address + "/good.bin", target, digest=digest, size=size)
    assert target.read_bytes() == CONTENT
    assert [p.name for p in target.parent.iterdir()] == ["good.bin"]
    assert target.stat().st_mode & 0o444 == 0o444


def test_the_bar_is_drawn_only_on_a_terminal(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(server.address + "/good.bin", tmp_path / "a", digest=MD5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fetch(server.address + "/good.bin", tmp_path / "b", digest=MD5, quiet=True)
    assert capsys.readouterr() == ("", "")
    fetch(server.address + "/good.bin", tmp_path / "c", digest=MD5)
    assert "good.bin" in capsys.readouterr().err


def test_failures_keep_nothing_and_say_why(server: Server, tmp_path: Path) -> None:
    server.files["/cut.bin"] = CONTENT
    server.cut.add("/cut.bin")
    half = len(CONTENT) // 2
    cases = [
        ("/good.bin", "0" * 32, len(CONTENT), ValueError, rf"should have md5 0+; found {MD5}\. Nothing was kept"),
        ("/good.bin", "0" * 64, None, ValueError, "should have sha256 0+; found"),
        ("/good.bin", MD5, 1000, ValueError, "should be 1000 bytes; it is longer"),
        ("/good.bin", MD5, 2 * len(CONTENT), OSError, f"ended after {len(CONTENT)} of {2 * len(CONTENT)} bytes"),
        ("/cut.bin", MD5, None, OSError, rf"ended after {half} of {len(CONTENT)} bytes\. Try again"),
        ("/absent.bin", MD5, None, OSError, "the server said 404 Not Found. Try again, or set CASCADICE_MIRROR"),
    ]
    for path, digest, size, kind, complaint in cases:
        with pytest.raises(kind, match=complaint) as caught:
            fetch(server.address + path, tmp_path / "target", digest=digest, size=size)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []
    server.cut.clear()
    fetch(server.address + "/cut.bin", tmp_path / "target", digest=MD5)
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_a_failed_download_leaves_the_old_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    with pytest.raises(ValueError, match="should have md5"):
        fetch(server.address + "/good.bin", tmp_path / "target", digest="0" * 32)
    assert (tmp_path / "target").read_text() == "old"


def test_no_server_and_no_http(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"could not download http://127\.0\.0\.1:9/x: .*refused"):
        fetch("http://127.0.0.1:9/x", tmp_path / "target", digest=MD5)
    with pytest.raises(ValueError, match="http:// or https:// address; found 'file:///etc/passwd'"):
        fetch("file:///etc/passwd", tmp_path / "target", digest=MD5)


def tar_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_archives_unpack_whole(tmp_path: Path, pack: object) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(pack({"things/a": b"1", "things/deep/b": b"2"}))  # type: ignore[operator]
    unpack(archive, tmp_path / "things")
    assert (tmp_path / "things" / "deep" / "b").read_bytes() == b"2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "things"]


def test_what_was_unpacked_is_flushed_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[bool] = []
    monkeypatch.setattr("os.sync", lambda: named.append((tmp_path / "things").exists()))
    (tmp_path / "archive").write_bytes(tar_of({"things/a": b"1"}))
    unpack(tmp_path / "archive", tmp_path / "things")
    assert named == [False]


def linked_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("things/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(member)
    return packed.getvalue()


def encrypted_zip() -> bytes:
    """A zip file that says of its member that it needs a password."""
    content = bytearray(zip_of({"things/a": b"1"}))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (tar_of({"things/a": b"1", "../evil": b"2"}), "outside the destination"),
        (zip_of({"things/a": b"1", "things/../../evil": b"2"}), r"outside its own folder, to things/\.\./\.\./evil"),
        (zip_of({"things/a": b"1", "/evil": b"2"}), "outside its own folder, to /evil"),
        (zip_of({"things/a": b"1", "..\\evil": b"2"}), "outside its own folder"),
        (linked_tar(), "link"),
        (tar_of({"other/a": b"1"}), "expected a folder things inside, found none"),
        (tar_of({"things/a": CONTENT})[:-200], ".+"),
        (b"nonsense", ".+"),
        (encrypted_zip(), "encrypted"),
    ],
    # not the content, which has the time in it: two processes would collect different tests
    ids=[
        "tar up",
        "zip up",
        "zip to root",
        "zip with backslashes",
        "link",
        "other folder",
        "cut off",
        "no archive",
        "encrypted",
    ],
)
def test_bad_archives_leave_nothing(tmp_path: Path, content: bytes, complaint: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "archive").write_bytes(content)
    with pytest.raises(ValueError, match=f"archive could not be unpacked: .*{complaint}.* Delete it and download"):
        unpack(inner / "archive", inner / "things")
    assert [p.name for p in inner.iterdir()] == ["archive"]
    assert [p.name for p in tmp_path.iterdir()] == ["inner"]


def test_load_downloads_what_is_missing_and_only_that(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = download.ARCHIVES["mnist"]
    served = []
    for archive in files:
        content = small_idx(3 if "images" in archive.file else 1)
        server.files[f"/mirror/{archive.file}"] = content
        served.append(archive._replace(md5=hashlib.md5(content).hexdigest(), size=len(content)))
    table = {"mnist": served}
    monkeypatch.setattr(catalogue, "fetch_archives", lambda *a, **k: download.download(*a, **k, archives=table))
    monkeypatch.setenv("CASCADICE_MIRROR", server.address + "/mirror/")
    with pytest.raises(FileNotFoundError, match="Use --download"):
        data.load("mnist", tmp_path / "root")
    assert server.asked == []
    assert len(data.load("mnist", tmp_path / "root", download=True).train) == 2
    assert len(server.asked) == 4
    (tmp_path / "root" / "mnist" / files[2].file).unlink()
    data.load("mnist", tmp_path / "root", download=True)
    assert server.asked[4:] == [f"/mirror/{files[2].file}"]
    data.load("mnist", tmp_path / "root", download=True)
    assert len(server.asked) == 5


def small_idx(dimensions: int) -> bytes:
    import gzip
    import struct

    shape = (2, 28, 28)[:dimensions]
    header = struct.pack(f">HBB{dimensions}I", 0, 8, dimensions, *shape)
    return gzip.compress(header + bytes(2 * 784 if dimensions == 3 else 2))


def test_archives_are_unpacked_on_download_and_removed(server: Server, tmp_path: Path) -> None:
    packed = tar_of({"things/a": b"1"})
    server.files["/things.tar.gz"] = packed
    archive = Archive("http://unused/things.tar.gz", hashlib.md5(packed).hexdigest(), len(packed), "things")
    table = {"toy": [archive]}
    for left in ("things0a1b2c3d.part/half", ".tmp-7-0a1b-things.tar.gz"):  # by somebody who was killed
        (tmp_path / "toy" / left).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / left).write_text("half")
    folder = download.download("toy", tmp_path, mirror=server.address, archives=table)
    assert folder == tmp_path / "toy"
    assert [p.name for p in folder.iterdir()] == ["things"]
    download.download("toy", tmp_path, mirror=server.address, archives=table)
    assert server.asked == ["/things.tar.gz"]


def test_only_published_data_can_be_downloaded() -> None:
    with pytest.raises(ValueError, match="unknown downloadable data set 'digits'"):
        download.download("digits")
    with pytest.raises(ValueError, match="unknown data set"):
        data.load("nothing", download=True)
    assert set(download.ARCHIVES) < set(data.DATASETS)
