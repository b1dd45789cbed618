"""How much memory is free, and a check that a computation fits into it."""

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

VARIABLE = "CASCADICE_MEMORY"  # gigabytes that a command may take, instead of those that are free; inf: do not check
GIGABYTE = 10**9
CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
# the limit, what is used, and what of that can be dropped, because it is on disk: version 2 of cgroups, then version 1
LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class Need(NamedTuple):
    """One part of a computation's memory: what it is for, how many bytes it takes, and how to reduce it."""

    name: str
    bytes: int
    remedy: str


def check(what: str, needs: Sequence[Need], device: torch.device) -> None:
    """Raise ValueError if what is about to be computed needs more than the free memory of the device."""
    needed, there = sum(need.bytes for need in needs), free(device)
    if needed <= there:
        return
    largest = max(needs, key=lambda need: need.bytes)
    share = "" if len(needs) == 1 else f", of which {largest.name} take{_in_words(largest.bytes)}"
    where = "of the GPU's memory" if device.type == "cuda" else "of memory"
    found = f"{what} would take about{_in_words(needed)} {where}{share};{_in_words(int(there))} are free"
    raise ValueError(f"{found}. {largest.remedy}; or, to try anyway, set {VARIABLE}=inf.")


def device_named(name: str) -> torch.device:
    """The device of this name; the CPU if there is none, because building the network will report that."""
    cuda = name.startswith("cuda") and torch.cuda.is_available()
    return torch.device(name if cuda else "cpu")


def _in_words(count: int) -> str:
    return f" {count / GIGABYTE:,.3g} GB" if count < 1000 * GIGABYTE else f" {count / GIGABYTE:,.0f} GB"


def free(device: torch.device) -> float:
    """The bytes that this process may still allocate: $CASCADICE_MEMORY, or what the machine and its limits allow."""
    if given := os.environ.get(VARIABLE):
        with suppress(ValueError):
            if (allowed := float(given)) >= 0:
                return allowed * GIGABYTE
        raise ValueError(f"{VARIABLE} must be a number of gigabytes, at least 0, or inf; found {given!r}.")
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    return min([*_of_machine(), *_of_cgroups()], default=float("inf"))


def _of_machine() -> Iterator[float]:
    """What is available, and what is left under `ulimit -v`."""
    with suppress(OSError, ValueError, KeyError):
        yield _fields(MEMINFO)["MemAvailable:"] * 1024.0
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield float(most - pages * resource.getpagesize())


def _of_cgroups() -> Iterator[float]:
    """The bytes that the cgroups of this process may still allocate."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            top = CGROUPS / "memory" if "memory" in kinds else CGROUPS
            group = top / path.strip("/")
            for folder in (group, *group.parents):
                for limit, used, droppable in LIMITS:
                    with suppress(OSError, ValueError, KeyError):
                        most, now = (int((folder / name).read_text()) for name in (limit, used))
                        yield float(most - now + _fields(folder / "memory.stat")[droppable])
                if folder == top:
                    break


def _fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
