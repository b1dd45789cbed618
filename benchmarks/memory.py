"""What commands were forecast to take, beside what they took: python benchmarks/memory.py

Each case runs in a process of its own. Both columns are beyond what Python, torch and Matplotlib take themselves: the
forecast as `cascadice.runs.memory.check` was given it, and the peak that Linux noted (VmHWM).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MLP = ["--model-options", "hidden=[1500,1500]", "--nodes", "16", "--rounds", "3"]
SMALL = ["--model-options", "hidden=[256]", "--nodes", "1000", "--partition", "with-replacement", "--per-node", "64"]
SWEPT = [*SMALL, "--rounds", "3", "--batch-size", "32"]
FEW = ["--model-options", "hidden=[700]", "--nodes", "16", "--rounds", "6"]
CASES: dict[str, list[list[str]]] = {
    "mlp, small": [["run", "--model-options", "hidden=[600,600]", "--nodes", "16", "--rounds", "1"]],
    "mlp": [["run", *MLP]],
    "mlp, adam": [["run", *MLP, "--optimizer", "adam"]],
    "mlp, own initial parameters": [["run", *MLP, "--init", "own"]],
    "mlp, float64": [["run", *MLP, "--dtype", "float64"]],
    "mlp, recorded": [["run", *MLP, "--record", "all"]],
    "mlp, 4 hops of samples": [["run", *MLP[:-1], "6", "--hops", "4", "--samples"]],
    "a thousand, vectorised": [["run", *SWEPT]],
    "a thousand, momentum": [["run", *SWEPT, "--optimizer", "momentum"]],
    "resnet18, large batches": [["run", "--model", "resnet18", "--nodes", "4", "--batch-size", "256", "--rounds", "1"]],
    "2,000 local steps": [["run", "--nodes", "16", "--local-steps", "2000", "--rounds", "1", "--batch-size", "64"]],
    "truth, 2 hops": [["run", *FEW, "--kind", "truth", "--hops", "2"]],
    "first order, 2 hops": [["run", *FEW, "--hops", "2"]],
    "shares, 3 hops": [["run", *FEW, "--kind", "shares", "--hops", "3"]],
    "influence of a recording": [["run", *MLP, "--record", "all"], ["influence", "RUN", "--hops", "2", "--samples"]],
    "whole run": [["run", *MLP[:-1], "12"], ["influence", "RUN", "--kind", "whole-run", "--samples"]],
    "validate": [["run", *FEW], ["validate", "RUN", "--subsets", "8", "--kinds", "whole-run"]],
}


def status(name: str) -> int:
    """A number that Linux notes about this process, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == f"{name}:")


def work(commands: list[list[str]]) -> None:
    """Run the commands; print what the last was forecast to take, and what it took."""
    import matplotlib.figure  # noqa: F401

    from cascadice.applications.validate import findings  # noqa: F401
    from cascadice.cli import main as cascadice
    from cascadice.report import page  # noqa: F401
    from cascadice.runs import memory, train  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        forecasts: list[int] = []

        def noted(what: str, needs: Any, device: Any) -> None:
            forecasts.append(status("VmRSS") + sum(need.bytes for need in needs))

        if len(commands) > 1:
            before = [sys.executable, "-m", "cascadice", *commands[0], "--quiet", "--out", folder]
            subprocess.run(before, check=True)
        memory.check = noted
        start, last = status("VmRSS"), [folder if word == "RUN" else word for word in commands[-1]]
        where = ["--out", folder] if len(commands) == 1 else []
        assert cascadice([*last, "--quiet", *where]) == 0
        print(json.dumps([max(forecasts) - start, status("VmHWM") - start]))


def main() -> None:
    """Print a table of all cases, or of those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)} (all)")
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return work(CASES[args.one])
    print(f"{'':28} {'forecast':>10} {'taken':>10} {'ratio':>6}")
    for name in args.names or CASES:
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name:28} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        forecast, taken = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:28} {forecast / 1e6:7.0f} MB {taken / 1e6:7.0f} MB {forecast / taken:6.2f}", flush=True)
    return None


if __name__ == "__main__":
    main()
