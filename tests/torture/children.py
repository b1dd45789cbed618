"""Commands in processes of their own, forked from one that has everything imported: a few milliseconds each."""

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from cascadice.cli import main
from torture.outcomes import Attempt, Outcome

CRASHED = 70
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COMMANDS = main.__code__.co_filename
PATIENCE = 60.0  # seconds after which a command is said to hang
MEMORY = 6 << 30  # bytes of address space for each command


class Ended(NamedTuple):
    """How a command ended: its exit code (negative: the signal), all that it printed, and its answer."""

    code: int
    said: str
    answer: Any = None
    hung: bool = False

    @property
    def last_line(self) -> str:
        return (self.said.strip().splitlines() or [""])[-1]

    @property
    def crashed(self) -> bool:
        """Whether it ended in a way that no user should see."""
        unforeseen = "Traceback (most recent call last)" in self.said or "did not expect" in self.said
        return self.hung or unforeseen or self.code == CRASHED or self.code in (-signal.SIGSEGV, -signal.SIGABRT)


class Child(NamedTuple):
    """A command that is running."""

    pid: int
    output: Path


def start(work: Callable[[], Any], *, before: Callable[[], None] = lambda: None, memory: int | None = MEMORY) -> Child:
    """Run `work` in a child: an int is its exit code, anything else its answer."""
    descriptor, name = tempfile.mkstemp(prefix="said-")
    sys.stdout.flush()
    sys.stderr.flush()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child can take them
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.close(descriptor)
        return Child(pid, Path(name))
    code = CRASHED
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", 1, errors="backslashreplace") for fd in (1, 2))
        faulthandler.register(signal.SIGUSR1, sys.stderr)  # to be asked where it hangs
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        os.environ["CASCADICE_TRACEBACK"] = "1"  # what nobody foresaw is shown in full
        before()
        code = _finish(work, Path(f"{name}.answer"))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        code = _uncaught(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 1
        os._exit(code & 0xFF)


def _uncaught(error: BaseException) -> int:
    """What Python would do, but for a signal that came before the command began."""
    inside = any(frame.f_code.co_filename == COMMANDS for frame, _ in traceback.walk_tb(error.__traceback__))
    if isinstance(error, KeyboardInterrupt) and not inside:
        return 130
    traceback.print_exception(error)
    return CRASHED


def _finish(work: Callable[[], Any], answer: Path) -> int:
    result = work()
    if isinstance(result, int):
        return result
    code, value = result
    answer.write_text(json.dumps(value))
    return int(code)


def wait(child: Child, patience: float = PATIENCE) -> Ended:
    """Wait for a child; one that takes too long is killed, with all its own children."""
    descriptor = os.pidfd_open(child.pid)
    try:
        hung = not select.select([descriptor], [], [], patience)[0]
    finally:
        os.close(descriptor)
    if hung:
        os.kill(child.pid, signal.SIGUSR1)
        sleep(0.5)
        os.killpg(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    said = child.output.read_text(errors="replace")
    answer = Path(f"{child.output}.answer")
    value = json.loads(answer.read_text()) if answer.exists() else None
    child.output.unlink()
    answer.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(status), said, value, hung)


def command(*arguments: object, then: Callable[[], Any] | None = None) -> Callable[[], Any]:
    """The work of a command line; `then` gives its answer, asked for if it ends well."""

    def work() -> Any:
        code = main([str(argument) for argument in arguments])
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # to read the answer may take more
        return (code, then()) if then is not None and code == 0 else code

    return work


def call(*arguments: object, then: Callable[[], Any] | None = None, patience: float = PATIENCE, **how: Any) -> Ended:
    """Run a command line to its end."""
    return wait(start(command(*arguments, then=then), **how), patience)


def interrupted(child: Child, seconds: float, number: int) -> None:
    """Send a signal after so many seconds; nothing if it has ended by then."""
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        sleep(min(left, 0.05))
    with suppress(ProcessLookupError):
        os.kill(child.pid, number)


def judged(what: str, ended: Ended, right: Any) -> Attempt:
    """An attempt that had to give the right answer, or none and one line about it."""
    if ended.crashed:
        return Attempt(what, Outcome.TRACEBACK, f"{'hung ' * ended.hung}{ended.said[-1500:]}")
    if ended.code == 0:
        wrong = ended.answer != right
        return Attempt(what, Outcome.SILENT if wrong else Outcome.HELD, f"{ended.answer} for {right}" if wrong else "")
    return Attempt(what, Outcome.HELD, ended.last_line)
