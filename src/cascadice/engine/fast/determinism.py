"""The same bits in every run on CUDA: no algorithm whose sums depend on which thread finishes first.

Used around every training step and compiled sweep on CUDA; CPU kernels are deterministic as they are.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def deterministic() -> Iterator[None]:
    """Run cuDNN without benchmarks, and compiled code without atomic sums (an embedding's gradient has them).

    Where torch has no deterministic algorithm, it uses the usual one and its warning is silenced.
    """
    was = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    filled, tf32 = settings.fill_uninitialized_memory, torch.backends.cudnn.allow_tf32
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False  # filling costs a pass over every new tensor
    try:
        with (
            warnings.catch_warnings(),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32),
        ):
            warnings.filterwarnings("ignore", message=".*deterministic.*", category=UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=only_warned)
        settings.fill_uninitialized_memory = filled
