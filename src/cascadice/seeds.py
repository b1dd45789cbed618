"""Randomness without global state: every draw has its own generator, found by name.

A run draws its batches, graphs, noise and initial parameters as pure functions of (seed, what, when, who).
Round 700 can therefore be drawn without drawing rounds 0 to 699: resuming, replaying a light cone and splitting
the participants over processes need no saved generator state.
"""

from hashlib import blake2b

import torch


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for the draw named by `path`, e.g. `derive(seed, "batches", node, epoch)`."""
    digest = blake2b(repr((int(seed), *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for the draw named by `path`; the same draw on every device."""
    return torch.Generator().manual_seed(derive(seed, *path))
