"""Standard output that may be closed, warnings, unexpected errors, and memory that runs out."""

import errno
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

TRACEBACK = "CASCADICE_TRACEBACK"  # set to 1, unexpected errors are shown in full


class _Output:
    """A stream that may fail: what is written afterwards is discarded, and the command goes on.

    `failure` is the error, unless the reader left, as `head` does, or the stream was closed from the start.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        with self._discarding_on_failure():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._discarding_on_failure():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _discarding_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EBADF):
                self.failure = self.failure or error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def standard_output() -> Iterator[None]:
    """Let the command inside finish even if standard output fails, which is raised at the end, or its reader leaves."""
    for stream in range(3):  # the next file opened would take the number of a closed stream, and be printed into
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    output = _Output(stdout)
    with redirect_stdout(output):
        yield
        output.flush()
    if output.failure is not None:
        raise OSError(output.failure.errno, output.failure.strerror, "standard output")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings without the place in the code where they were raised, which says nothing to a command's user."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


def last_resort(error: Exception) -> str:
    """One line about an unexpected error, whose full text goes into a file.

    The file is in the folder for temporary files, because the run's folder may be what is broken.
    """
    if os.environ.get(TRACEBACK) == "1":
        raise error
    text = "".join(traceback.format_exception(error))
    first = (str(error).strip() or "no message").splitlines()[0]
    where = "set CASCADICE_TRACEBACK=1 to see where"
    with suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="cascadice-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        where = f"the full text is in {path}"
    return f"an error that cascadice did not expect, {type(error).__name__}: {first[:300].rstrip('.')}; {where}."


def out_of_memory(error: Exception) -> str | None:
    """One line about an error that means memory ran out; None for other errors.

    Torch raises a RuntimeError on a CPU, and its subclass OutOfMemoryError on a GPU.
    """
    words = " ".join(str(error).split())
    if not isinstance(error, MemoryError) and "allocate memory" not in words and "out of memory" not in words:
        return None
    detail = f": {words[:200].rstrip('.')}" if words else ""
    return f"out of memory{detail}. Use fewer participants, a smaller model or smaller batches."
