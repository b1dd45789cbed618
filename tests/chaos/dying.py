"""`cascadice`, in which process 1 is killed as it begins to save its second checkpoint; when started again it lives.

`torchrun -m chaos.dying run …`; or `python -m chaos.dying run …`, which starts two processes as torchrun does, but from
one that has imported everything, which is much faster.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import Any

import torch

from cascadice import data
from cascadice.cli import main
from cascadice.runs import journal, store
from chaos.__main__ import serve, start

PROCESSES, ATTEMPTS = 2, 2
saved = store.save_checkpoint


def killed(folder: Any, t: int, *rest: Any, **more: Any) -> None:
    if t == 4 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    saved(folder, t, *rest, **more)


def restarting() -> int:
    """Start the processes, and all again when one dies; how many times they were started."""
    data.digits()  # imports more, as does a first derivative
    torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 2))
    port, keeper = serve()
    agent = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= agent | {"WORLD_SIZE": str(PROCESSES)}
    try:
        for attempt in range(ATTEMPTS):
            started = {start(lambda rank=rank: process(rank, attempt)) for rank in range(PROCESSES)}  # type: ignore[misc]  # noqa: B023
            while started:
                pid, status = os.waitpid(-1, 0)
                started.discard(pid)
                for other in started if status else ():
                    with suppress(ProcessLookupError):
                        os.kill(other, signal.SIGTERM)
                failed = bool(status)
            if not failed:
                return attempt + 1
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
    return 0


def process(rank: int, attempt: int) -> int:
    os.environ |= {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
    return main()


if __name__ == "__main__":
    store.save_checkpoint = killed
    journal.plot = lambda journal: None  # takes as long as the rest
    if "RANK" in os.environ:
        sys.exit(main())
    print(f"started {(times := restarting())} times")
    sys.exit(0 if times == ATTEMPTS else 1)
