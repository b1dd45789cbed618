"""What a model draws on its way (dropout): drawn again, the same, in every pass of a local step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

GeneratorState = tuple[Tensor, ...]
"""The state of torch's generator on the CPU and, where participants live there, on CUDA."""

Start = int | tuple[GeneratorState, ...]
"""Where a participant's draws begin: a seed for all its local steps, or the generator's state before each of them."""


class Masks:
    """The generator's state at the start of each local step of the participant that is running.

    A step is passed through several times: replayed, pushed through, pulled back. Each pass rewinds the generator.
    """

    def __init__(self) -> None:
        self._states: list[GeneratorState] = []
        self._step, self._device = 0, torch.device("cpu")

    @contextmanager
    def of(self, start: Start | None, device: torch.device) -> Iterator[None]:
        """Within, a participant runs that draws from `start`; afterwards the generator is as it was before."""
        with seeded(start if isinstance(start, int) else None if start is None else 0, device):
            if start is not None:
                self._states = [state_of(device)] if isinstance(start, int) else list(start)
                self._step, self._device = 0, device
            try:
                yield
            finally:
                self._states = []

    def step(self, i: int) -> None:
        """Local step i begins; the first time, it draws on from where the step before it ended."""
        if self._states and i == len(self._states):
            self._states.append(state_of(self._device))
        self._step = i

    def rewind(self) -> None:
        """A pass of the present step begins."""
        if self._states:
            cpu, *cuda = self._states[self._step]
            torch.set_rng_state(cpu)
            for state in cuda:
                torch.cuda.set_rng_state(state, self._device)


def state_of(device: torch.device) -> GeneratorState:
    """The state of the generator that a model on this device draws from."""
    cpu = torch.get_rng_state()
    return (cpu, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (cpu,)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Dropout and the like draw from torch's global generator: lend it a seed, then put it back as it was."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
