"""Signals that ask a command to stop: it stops as on Ctrl-C, and keeps what it has done."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from threading import current_thread, main_thread
from time import monotonic
from types import FrameType

STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
PATIENCE = 5.0  # seconds to write a checkpoint; `timeout` and some supervisors send their signal twice


@dataclass
class Stop:
    """The signal that asked a command to stop, and when; Ctrl-C until there was one."""

    signal: int = signal.SIGINT
    at: float = -inf

    @property
    def code(self) -> int:
        """The exit code that says so: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal


@contextmanager
def stoppable(stop: Stop) -> Iterator[None]:
    """Raise KeyboardInterrupt inside this block when asked to stop; signals that are ignored or handled stay so.

    `stop` is told which signal it was.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if monotonic() - stop.at > PATIENCE:
            stop.signal, stop.at = number, monotonic()
            raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}.")

    asked = STOPPING if current_thread() is main_thread() else []  # other threads cannot set handlers
    ours = [one for one in asked if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
