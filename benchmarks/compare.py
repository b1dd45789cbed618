"""Two versions of the library against each other: time taken by the new one, relative to the old one.

    python benchmarks/compare.py OLD_SRC NEW_SRC
    python benchmarks/compare.py OLD_SRC NEW_SRC --cases mlp-vmap --workloads training truth --repeats 31

OLD_SRC and NEW_SRC are folders that hold the package `cascadice`. Each version runs in a process of its own
(compare_worker.py). The two take turns, so that only one computes at a time and both see the same machine. Every turn
gives a ratio new / old; the table shows the median of the ratios and their quartiles. On a CPU, times are processor
seconds of the process, which other processes on the machine hardly change; on a GPU they are by the clock. Recording,
which also waits for the disk, is shown by both. `apart` is the relative difference of what the two versions computed.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = ("mlp-vmap", "mlp-loop", "cnn-loop")
WORKLOADS = ("training", "one hop", "further hop", "truth", "shares", "full horizon", "recording")
SHORTEST = 0.1  # seconds of a turn; faster workloads run several times in a turn


class Worker:
    """A process that runs one version of the library and answers one request at a time."""

    def __init__(self, source: Path, device: str, threads: int) -> None:
        if not (source / "cascadice" / "__init__.py").exists():
            raise SystemExit(f"{source} must hold the package cascadice; found no {source}/cascadice/__init__.py.")
        script = Path(__file__).with_name("compare_worker.py")
        command = [sys.executable, str(script), str(source), device, str(threads)]
        self.source = source
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, request: str, **details: Any) -> Any:
        """Send a request and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"request": request, **details}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker of {self.source} ended; its error is above.")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def compare(
    old: Worker, new: Worker, case: str, workload: str, repeats: int, clocks: list[str]
) -> Iterator[dict[str, Any]]:
    """Time one workload of one case by both versions, taking turns; one row for each of these clocks."""
    first = [worker.ask("prepare", case=case, workload=workload) for worker in (old, new)]
    times = max(1, math.ceil(SHORTEST / min(answer[clocks[0]] for answer in first)))
    turns: dict[Worker, list[dict[str, float]]] = {old: [], new: []}
    for turn in range(repeats):
        for worker in (old, new) if turn % 2 else (new, old):
            turns[worker].append(worker.ask("time", times=times))
    values = [answer["value"] for answer in first]
    for clock in clocks:
        before, after = ([taken[clock] / times for taken in turns[worker]] for worker in (old, new))
        ratios = sorted(b / a for a, b in zip(before, after, strict=True))
        yield {
            "case": case, "workload": workload, "times": times, "timed_by": clock,
            "old_ms": 1e3 * statistics.median(before), "new_ms": 1e3 * statistics.median(after),
            "ratio": statistics.median(ratios), "low": ratios[len(ratios) // 4], "high": ratios[(3 * len(ratios)) // 4],
            "apart": abs(values[1] - values[0]) / max(abs(values[0]), 1e-30),
        }  # fmt: skip


def rows(old: Worker, new: Worker, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for case in arguments.cases:
        for workload in arguments.workloads:
            clocks = ["clock"] if arguments.device == "cuda" else ["processor"]
            if workload == "recording":
                clocks = ["clock", "processor"]
            for row in compare(old, new, case, workload, arguments.repeats, clocks):
                print(
                    f"{case:10} {workload:13} {row['timed_by']:10} {row['old_ms']:10.2f} {row['new_ms']:10.2f}   "
                    f"{row['ratio']:6.3f} ({row['low']:.3f}–{row['high']:.3f})   {row['apart']:.1e}",
                    flush=True,
                )
                yield row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("old", type=Path, metavar="OLD_SRC")
    options.add_argument("new", type=Path, metavar="NEW_SRC")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options.add_argument("--repeats", type=int, default=15, help="turns of each version [15]")
    options.add_argument("--threads", type=int, default=1, help="threads of each version [1]")
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = options.parse_args()
    old, new = (Worker(source, arguments.device, arguments.threads) for source in (arguments.old, arguments.new))
    print(f"{'case':10} {'workload':13} {'timed by':10} {'old ms':>10} {'new ms':>10}   new/old (quartiles)   apart")
    try:
        measured = list(rows(old, new, arguments))
    finally:
        for worker in (old, new):
            worker.close()
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in measured))
    print(f"geometric mean of the ratios: {mean:.3f}")
    if arguments.json:
        print(json.dumps({"benchmark": "compare", "mean": mean, "threads": arguments.threads, "rows": measured}))


if __name__ == "__main__":
    main()
