"""Random draws inside a model (dropout), repeated exactly in every pass of the same local step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

GeneratorState = tuple[Tensor, ...]
"""The state of torch's generator on the CPU and, if participants are there, on CUDA."""

DropoutStart = int | tuple[GeneratorState, ...]
"""Where a participant's draws start: one seed for its local steps, or the generator's state before each step."""


class Masks:
    """The generator's state at the start of each local step of the participant being run.

    A step is computed several times: replayed, pushed through, pulled through. Each pass rewinds the generator.
    """

    def __init__(self) -> None:
        self._states: list[GeneratorState] = []
        self._step, self._device = 0, torch.device("cpu")

    @contextmanager
    def of(self, start: DropoutStart | None, device: torch.device) -> Iterator[None]:
        """Within, run a participant that draws from `start`; afterwards the generator is as before."""
        with seeded(start if isinstance(start, int) else None if start is None else 0, device):
            if start is not None:
                self._states = [state_of(device)] if isinstance(start, int) else list(start)
                self._step, self._device = 0, device
            try:
                yield
            finally:
                self._states = []

    def step(self, i: int) -> None:
        """Begin local step i; the first time, it continues where the previous step ended."""
        if self._states and i == len(self._states):
            self._states.append(state_of(self._device))
        self._step = i

    def rewind(self) -> None:
        """Begin a pass of the current step."""
        if self._states:
            cpu, *cuda = self._states[self._step]
            torch.set_rng_state(cpu)
            for state in cuda:
                torch.cuda.set_rng_state(state, self._device)


def state_of(device: torch.device) -> GeneratorState:
    """The state of the generator that a model on this device draws from."""
    cpu = torch.get_rng_state()
    return (cpu, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (cpu,)


def state_from(seed: int, device: torch.device) -> GeneratorState:
    """The state of that generator at the start of `seeded`."""
    places = ("cpu", device) if device.type == "cuda" else ("cpu",)
    return tuple(torch.Generator(place).manual_seed(seed).get_state() for place in places)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Within, torch's global generator, which dropout draws from, starts from this seed; afterwards it is as before."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
