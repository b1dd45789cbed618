"""Ctrl-C, and signals that stop a command as it does, where they hit code of others."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def recognised() -> Iterator[None]:
    """Let an interrupt inside this block remain one: torch fails with an error of its own where it is hit halfway."""
    try:
        yield
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__context__
        raise error if cause is None else cause from None
