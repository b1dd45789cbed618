"""Numbers that overflow, divide by nothing or fill the memory: a result is finite, or there is none."""

import math
import os
import random
import resource
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torture.children import call
from torture.outcomes import Attempt, Outcome
from torture.stage import QUESTIONS, Stage, ask

RUN = "run demo --rounds 3 --per-node 8 --batch-size 4 --model-options hidden=[3] --eval-every 1 --record all --quiet"
EXTREMES = ["0", "1e-320", "1e-45", "1e-8", "0.5", "1", "1e3", "1e18", "1e38", "1e39", "1e150", "1e308", "1.7e308"]
ENTRIES = [
    "0",
    "1",
    "0.5",
    "-1",
    "1e308",
    "1e-320",
    "nan",
    "inf",
    "-inf",
    "",
    "x",
    "1e999",
    "0.333333333333",
    "½",
    "1;0",
    "1e",
    "--",
]
SWITCHES = ["noise:0:{}", "noise-sender:1:{}", "sign-flipper:1:{}", "flip-labels:0:{}", "noise-sender:0-2:{}@1-"]
SIZES = ["1", "2", "1000", "100000", "10000000", str(10**12), str(10**18), str(10**30)]


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """By turns: extreme settings, strange matrices, huge sizes, and little memory."""
    rng = random.Random(seed)
    while True:
        for attack in (_settings, _matrix, _sizes, _memory):
            yield attack(stage, rng)


def _settings(stage: Stage, rng: random.Random) -> Attempt:
    flags = ["--nodes", "3", "--dtype", rng.choice(["float32", "float64", "bfloat16"])]
    for flag in rng.sample(["--lr", "--clip", "--weight-decay", "--alpha", "--link-loss"], 2):
        flags += [flag, rng.choice(EXTREMES)]
    if rng.random() < 0.7:
        fault = rng.choice(SWITCHES).format(rng.choice(EXTREMES))
        flags += ["--corruptions" if fault.startswith(("noise:", "flip")) else "--behaviours", fault]
    flags += ["--optimizer", rng.choice(["sgd", "momentum", "adam", "adamw"])]
    return _trained(stage, flags)


def _matrix(stage: Stage, rng: random.Random) -> Attempt:
    rows = [[rng.choice(ENTRIES) for _ in range(rng.choice([3, 3, 3, 2]))] for _ in range(rng.choice([3, 3, 0, 5]))]
    if rng.random() < 0.3:
        rows = [["1" if i == j else "0" for j in range(3)] for i in range(3)]
        rows[rng.randrange(3)][rng.randrange(3)] = rng.choice(ENTRIES)
    text = "\n".join(",".join(row) for row in rows)
    return _trained(stage, ["--mixing", "MATRIX", *(["--normalize"] if rng.random() < 0.5 else [])], text)


def _sizes(stage: Stage, rng: random.Random) -> Attempt:
    flag = rng.choice(["--nodes", "--batch-size", "--local-steps", "--rounds", "--per-node", "--eval-every", "hidden"])
    size = rng.choice(SIZES)
    if flag == "hidden":
        return _trained(stage, ["--nodes", "3", "--model-options", f"hidden=[{size},{size}]"])
    if flag in ("--local-steps", "--rounds") and int(size) > 2:  # what fits into memory may still take for ever
        size = str(10**12) if flag == "--local-steps" else "2"
    return _trained(stage, ["--nodes", "3", flag, size])


def _trained(stage: Stage, flags: list[str], matrix: str = "") -> Attempt:
    """Train with these settings, then ask; every number that comes out must be finite."""
    what = f"run {' '.join(flags)} {matrix!r}"
    with stage.empty() as place:
        (place / "matrix.csv").write_text(matrix)
        words = [str(place / "matrix.csv") if word == "MATRIX" else word for word in flags]
        ended = call(*RUN.split(), *words, "--out", place / "run", then=partial(finite, place / "run"))
        if ended.code == 0 and ended.answer is True:
            later = ask("influence again", place, before=lambda: None)
            if later.code == 0 and not finite(place / "run" / "influence"):
                return Attempt(f"{what}; influence", Outcome.SILENT, "NaN or infinite scores")
            ended = later if later.crashed else ended._replace(answer=True)
    if ended.crashed:
        return Attempt(what, Outcome.TRACEBACK, f"{'hung ' * ended.hung}{ended.said[-1500:]}")
    if ended.code == 0 and ended.answer is not True:
        return Attempt(what, Outcome.SILENT, "NaN or infinite numbers in the run")
    return Attempt(what, Outcome.HELD, ended.last_line)


def _memory(stage: Stage, rng: random.Random) -> Attempt:
    """Ask a question with little memory left."""
    question, megabytes = rng.choice(list(QUESTIONS)), rng.choice([0, 1, 2, 4, 8, 16, 32, 64, 128])
    what = f"{question} with {megabytes} MiB of memory left"
    with stage.copy() as place:
        ended = ask(question, place, memory=None, before=partial(_leave, megabytes << 20))
        if ended.code == -signal.SIGABRT and "Traceback" not in ended.said:  # a library gave up, as if it were killed
            ended = ask(question, place)
    if ended.crashed:
        return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
    noted = question == "report" and "note:" in ended.said  # a page says what it lacks
    wrong = ended.code == 0 and ended.answer != stage.answers[question] and not noted
    return Attempt(what, Outcome.SILENT if wrong else Outcome.HELD, ended.last_line)


def _leave(left: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + left
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def finite(folder: Path) -> bool:
    """Whether all numbers in the checkpoint, the metrics and the tables of a folder are finite; NaN means no metric."""
    from pyarrow import parquet
    from safetensors import safe_open

    for path in folder.rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            if not all(bool(file.get_tensor(name).isfinite().all()) for name in file.keys()):  # noqa: SIM118
                return False
    tables = (parquet.read_table(path, use_threads=False) for path in folder.rglob("*.parquet"))
    return all(_finite(name, values) for table in tables for name, values in table.to_pydict().items())


def _finite(name: str, values: list[Any]) -> bool:
    numbers = [value for value in values if isinstance(value, float)]
    absent = name.startswith("eval")  # not every round is evaluated
    return all(math.isfinite(value) or (absent and math.isnan(value)) for value in numbers)
