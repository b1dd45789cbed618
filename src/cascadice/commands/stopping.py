"""Signals that stop a command as Ctrl-C does, with its work kept."""

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
    """The signal that stopped a command, and when; Ctrl-C until one arrives."""

    signal: int = signal.SIGINT
    at: float = -inf

    @property
    def code(self) -> int:
        """The exit code: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal


@contextmanager
def stoppable(stop: Stop) -> Iterator[None]:
    """Raise KeyboardInterrupt inside this block when a signal asks to stop, and note the signal in `stop`.

    Signals that are already ignored or handled are left alone.
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
