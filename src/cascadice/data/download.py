"""Download the official archives, check their digests, and leave no partial files behind."""

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from cascadice.data.source_files import Root, reading, search_path
from cascadice.files import locks, remove, remove_drafts, replacing, sync
from cascadice.names import lookup

CHUNK = 1 << 18
TIMEOUT = 60.0  # seconds without a byte


class Archive(NamedTuple):
    """One published file; `unpacks_to` is the folder inside it, empty for a file that is not an archive."""

    url: str
    md5: str
    size: int
    unpacks_to: str = ""

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_TINY = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

Archives = Mapping[str, Sequence[Archive]]
ARCHIVES: Archives = {
    "mnist": [
        Archive(_MNIST + "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
        Archive(_MNIST + "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28881),
        Archive(_MNIST + "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1648877),
        Archive(_MNIST + "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4542),
    ],
    "cifar10": [
        Archive(_CIFAR + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071, "cifar-10-batches-py")
    ],
    "cifar100": [
        Archive(_CIFAR + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169001437, "cifar-100-python")
    ],
    "tiny-imagenet": [Archive(_TINY, "90528d7ca1a48142e341f4ef8d21d0de", 248100043, "tiny-imagenet-200")],
}


def download(
    name: str, root: Root = None, *, mirror: str | None = None, quiet: bool = False, archives: Archives = ARCHIVES
) -> Path:
    """Download and unpack the official files of a data set into its own folder in `root`, and return that folder.

    `root` defaults to $CASCADICE_DATA, or the cache; `mirror`, the URL of a folder with the same files, to
    $CASCADICE_MIRROR, or the official one.
    """
    wanted = lookup(archives, name, "downloadable data set")
    folder, base = search_path(root)[0] / name, mirror or os.environ.get("CASCADICE_MIRROR")
    with locks.locked(folder):
        remove_drafts(folder)
        for archive in wanted:
            for unfinished in folder.glob(f"{archive.unpacks_to}????????.part") if archive.unpacks_to else ():
                remove(unfinished)
            target, packed = folder / (archive.unpacks_to or archive.file), folder / archive.file
            if target.exists():
                continue
            url = f"{base.rstrip('/')}/{archive.file}" if base else archive.url
            fetch(url, packed, digest=archive.md5, size=archive.size, quiet=quiet)
            if archive.unpacks_to:
                unpack(packed, target)
                packed.unlink()
    return folder


def fetch(url: str, destination: Path, *, digest: str, size: int | None = None, quiet: bool = False) -> None:
    """Stream `url` into a temporary file, which is renamed to `destination` once its size and digest are right.

    `digest` is an md5 or a sha256 in hexadecimal, distinguished by length.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"downloads need an http:// or https:// address; found {url!r}.")
    hasher = hashlib.sha256() if len(digest) == 64 else hashlib.md5(usedforsecurity=False)
    try:
        with replacing(destination) as draft, draft.open("wb") as file, urlopen(url, timeout=TIMEOUT) as response:
            promised = size if size is not None else int(response.headers.get("Content-Length") or 0) or None
            name = url.rpartition("/")[2]
            with _progress(quiet) as bar:
                task = bar.add_task(name, total=promised)
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    hasher.update(chunk)
                    bar.advance(task, len(chunk))
                    if promised is not None and file.tell() > promised:
                        raise ValueError(f"{url} should be {promised} bytes; it is longer. Nothing was kept.")
            if promised is not None and file.tell() < promised:
                ended = f"the connection ended after {file.tell()} of {promised} bytes"
                raise OSError(f"could not download {url}: {ended}. {_HINT}")
            if hasher.hexdigest() != digest:
                raise ValueError(
                    f"{url} should have {hasher.name} {digest}; found {hasher.hexdigest()}. Nothing was kept."
                )
    except HTTPError as cause:
        cause.close()
        raise OSError(f"could not download {url}: the server said {cause.code} {cause.reason}. {_HINT}") from None
    except (URLError, HTTPException, ConnectionError, TimeoutError) as cause:
        reason = getattr(cause, "reason", cause)
        raise OSError(f"could not download {url}: {reason}. {_HINT}") from cause


_HINT = "Try again, or set CASCADICE_MIRROR to a server that holds the file."


def _progress(quiet: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, *speed, console=console, disable=quiet or not console.is_terminal)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar or zip file into a temporary folder, then move the folder named like `target` into place."""
    beside = TemporaryDirectory(dir=target.parent, prefix=target.name, suffix=".part", ignore_cleanup_errors=True)
    with reading(archive, "could not be unpacked"), beside as temporary:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for member in zipped.namelist():
                    path = PurePosixPath(member.replace("\\", "/"))
                    if path.is_absolute() or ".." in path.parts:
                        raise ValueError(f"it would write outside its own folder, to {member}")
                zipped.extractall(temporary)
        else:
            with tarfile.open(archive) as tarred:
                tarred.extractall(temporary, filter="data")
        if not (unpacked := Path(temporary, target.name)).is_dir():
            raise ValueError(f"expected a folder {target.name} inside, found none")
        if hasattr(os, "sync"):  # not on Windows
            os.sync()  # once for all; flushing a hundred thousand pictures one by one takes minutes
        unpacked.replace(target)
        sync(target.parent)
