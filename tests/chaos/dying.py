"""`cascadice`, in which process 1 is killed as it begins to save its second checkpoint; when started again it lives."""

import os
import signal
import sys
from typing import Any

from cascadice.cli import main
from cascadice.runs import journal, store

saved = store.save_checkpoint


def killed(folder: Any, t: int, *rest: Any, **more: Any) -> None:
    if t == 4 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    saved(folder, t, *rest, **more)


store.save_checkpoint = killed
journal.plot = lambda journal: None  # takes as long as the rest
sys.exit(main())
