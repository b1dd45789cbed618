"""Archives made to escape, to overwrite, to fill the disk or to confuse: nothing may be left outside, or half done."""

import io
import os
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from torture.children import start, wait
from torture.mutations import BYTES, drawn
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage

NAMES = [
    "things/a", "things/deep/b", "../evil", "/tmp/cascadice-evil", "things/../../evil", "things\\..\\..\\evil",
    "C:\\evil", "things/\x1b[31m", "things/" + "x" * 300, "things/a/b", "things", "", ".", "..", "things/a\x00b",
    "./things/a",
]  # fmt: skip
TYPES = [
    tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
]  # fmt: skip
MEMBER = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(TYPES),
    st.sampled_from(["/etc/passwd", "..", "../evil", "a", "things/a", ""]),
    st.sampled_from([0o644, 0o4755, 0o000, 0o777]),
)


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """Archives of hostile members, some of them damaged as well."""
    strategy = st.tuples(
        st.sampled_from(["tar", "tar.gz", "zip", "encrypted zip"]),
        st.lists(MEMBER, min_size=1, max_size=4),
        st.one_of(st.none(), BYTES),
    )
    for kind, members, damage in drawn(strategy, seed):
        content = _zip(members, kind) if "zip" in kind else _tar(members, kind)
        if damage is not None:
            content = damage[1](content)
        yield _attack(stage, content, f"{kind} of {members!r}, {damage[2] if damage else 'whole'}")


def _tar(members: list[Any], kind: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz" if kind == "tar.gz" else "w") as archive:
        for name, form, target, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = form, target, mode
            member.size = 4 if form == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"evil"))
    return packed.getvalue()


def _zip(members: list[Any], kind: str) -> bytes:
    packed = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(packed, "w") as archive:
        for name, form, target, mode in members:
            member = zipfile.ZipInfo(name or "_")
            member.external_attr = (mode | (0o120000 if form == tarfile.SYMTYPE else 0)) << 16
            archive.writestr(member, target)
    content = bytearray(packed.getvalue())
    if kind == "encrypted zip":
        content[6] |= 1
        content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def _attack(stage: Stage, content: bytes, what: str) -> Attempt:
    from cascadice.data.download import unpack

    with stage.empty() as place:
        inner = place / "inner"
        inner.mkdir()
        (inner / "archive").write_bytes(content)

        def work() -> int:
            try:
                unpack(inner / "archive", inner / "things")
            except (ValueError, OSError) as error:
                print(error)
                return 2
            return 0

        ended = wait(start(work))
        outside = [path.name for path in place.iterdir() if path.name != "inner"]
        left = {path.name for path in inner.iterdir()} - {"archive"} - ({"things"} if ended.code == 0 else set())
        escaped = [path for path in (inner / "things").rglob("*") if _escapes(path, inner)]
        planted = Path("/tmp/cascadice-evil").exists()
    if ended.crashed:
        return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
    if outside or planted or escaped:
        return Attempt(what, Outcome.LOST, f"written outside: {outside}, {escaped}")
    return Attempt(what, Outcome.LOST if left else Outcome.HELD, f"left behind: {left}" if left else ended.last_line)


def _escapes(path: Path, folder: Path) -> bool:
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
