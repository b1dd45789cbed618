"""JSON that may be damaged, and files of JSON lines that grow.

A killed writer leaves an unfinished last line, which is ignored and overwritten by the next writer.
"""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def parse(text: str | bytes) -> Any:
    """Parse JSON; anything wrong with the text raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None


def check_format(path: Path, found: object, known: str) -> None:
    """Refuse a file in a format that this version does not know, such as that of a later version."""
    if found != known:
        raise ValueError(
            f"{path} must be of format {known}; found {found}. Read it with the version of cascadice that wrote it."
        )


def complete(content: bytes) -> bytes:
    """The lines of a file without an unfinished last one."""
    return content[: content.rfind(b"\n") + 1]


def append(path: Path, entry: Mapping[str, Any], end: int, sync: bool = True) -> int:
    """Add a line where the complete ones end, and return where they end then.

    Without `sync` the line need not survive a loss of power.
    """
    line = json.dumps(entry).encode() + b"\n"
    with path.open("r+b", buffering=0) as file:
        if file.seek(0, os.SEEK_END) != end:
            file.truncate(end)
            file.seek(end)
        if file.write(line) != len(line):  # a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if sync:
            os.fsync(file.fileno())
    return end + len(line)
