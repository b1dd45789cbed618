"""Keep Ctrl-C, and signals treated like it, recognisable when they interrupt library code."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def recognised() -> Iterator[None]:
    """Raise KeyboardInterrupt again if it caused a RuntimeError in this block, as torch does when interrupted."""
    try:
        yield
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__context__
        raise error if cause is None else cause from None
