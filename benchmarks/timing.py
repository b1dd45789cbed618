"""Fair comparisons on noisy machines: interleaved in one process, medians, ratios."""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def interleaved(contenders: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, list[float]]:
    """Seconds of each call, the contenders taking turns `repeats` times after one untimed turn each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, call in contenders.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--precision", choices=["highest", "high"], default="highest", help="float32; high: TF32")
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--json", action="store_true", help="print one JSON object last")
    return options


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ratio(slow: list[float], fast: list[float]) -> dict[str, float]:
    """How many times faster, by medians, with the quartiles of the ratios of neighbouring turns."""
    turns = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return {
        "ratio": round(statistics.median(slow) / statistics.median(fast), 3),
        "low": round(turns[len(turns) // 4], 3),
        "high": round(turns[(3 * len(turns)) // 4], 3),
    }


def matmul_rate(device: str, size: int) -> float:
    """Floating-point operations per second of a large float32 product on random data: the machine's ceiling."""
    a, b = torch.randn(2, size, size, device=device)
    seconds = interleaved({"product": lambda: a @ b}, 5, device)["product"]
    return 2 * size**3 / statistics.median(seconds)


def machine(device: str) -> dict[str, Any]:
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return {"device": device, "name": name, "torch": torch.__version__, "python": platform.python_version()}


def finish(result: dict[str, Any], as_json: bool) -> None:
    """The last thing a benchmark prints is one JSON object, if it was asked for."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
