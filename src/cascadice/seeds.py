"""Randomness without global state: every draw has its own generator, seeded by the draw's name.

A run draws its batches, graphs, noise and initial parameters as pure functions of (seed, what, when, who).
Round 700 can therefore be drawn without drawing rounds 0 to 699: resuming, replaying a few participants and
splitting them over processes need no saved generator state. Draws of real numbers state their dtype, because
torch.set_default_dtype would otherwise change them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


def derive(seed: int, *path: int | str) -> int:
    """Derive a 63-bit seed for a named draw.

    Args:
        seed: The seed of the run.
        *path: The name of the draw, e.g. "batches", node, epoch.

    Returns:
        The seed.

    Example:
        >>> derive(0, "batches", 3, 1) == derive(0, "batches", 3, 1) != derive(0, "batches", 3, 2)
        True
    """
    digest = blake2b(repr((int(seed), *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def of_step(step: int) -> tuple[int, ...]:
    """The end of the name of a draw in this local step, where steps draw separately: none for the first.

    A participant that makes one step thus draws the same as where one draw serves all steps.

    Args:
        step: The number of the step in its round, from 0.

    Returns:
        What to append to the path.

    Example:
        >>> derive(0, "dropout", 7, 3, *of_step(0)) == derive(0, "dropout", 7, 3)
        True
    """
    return (step,) if step else ()


def generator(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for a named draw: the same numbers, whatever device they are moved to.

    Args:
        seed: The seed of the run.
        *path: The name of the draw, e.g. "batches", node, epoch.

    Returns:
        The generator.

    Example:
        >>> int(torch.randint(100, (), generator=generator(0, "batches", 3))) == int(
        ...     torch.randint(100, (), generator=generator(0, "batches", 3))
        ... )
        True
    """
    return torch.Generator().manual_seed(derive(seed, *path))


@contextmanager
def initialisation(seed: int, *path: int | str) -> Iterator[None]:
    """Seed torch's global generator inside a block, for nn.Module constructors: on the CPU, in float32.

    The global generator and the default dtype are restored afterwards.

    Args:
        seed: The seed of the run.
        *path: The name of the draw, e.g. "batches", node, epoch.

    Yields:
        Nothing; constructors draw from the seed inside the block.

    Example:
        >>> with initialisation(0, "model"):
        ...     one = torch.nn.Linear(2, 2)
        >>> with initialisation(0, "model"):
        ...     torch.equal(one.weight, torch.nn.Linear(2, 2).weight)
        True
    """
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # not torch.manual_seed, which would seed the accelerators' generators too
        torch.default_generator.manual_seed(derive(seed, *path))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
