"""Payments and ledgers forged by somebody who may write to the folder but lacks the key: `check --seal` notices."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cascadice.files import checksums, keep_checksums
from torture.children import call, start, wait
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage

KEY, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
PAY = "--kind shares --hops 1 --eval-samples 40 --quiet"
Json = dict[str, Any]
Forge = Callable[[Path, random.Random], None]


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """One or two forgeries at a time, with checksums that fit; then the run is checked with the key."""
    rng = random.Random(seed)
    made, sealed = stage.home / "made", stage.home / "sealed"
    for name, key in (("key", KEY), ("other", OTHER)):
        (stage.home / name).write_text(key)
    shutil.copytree(stage.run, made)
    for folder in ("reward", "ledger"):
        shutil.rmtree(made / folder)
    _must(call("reward", made, "--budget", "100", "--seal", stage.home / "key", *PAY.split()))
    made.rename(sealed)  # the ledger is no longer where payments say it was made
    _list_anew(sealed)
    _must(call("check", sealed, "--seal", stage.home / "key", "--quiet"))
    while True:
        yield _attack(stage, sealed, rng.sample([*FORGERIES], rng.randint(1, 2)), rng)


def _attack(stage: Stage, sealed: Path, names: list[str], rng: random.Random) -> Attempt:
    what = f"forged: {', then '.join(names)}"
    with stage.copy(sealed) as place:
        before = _content(place / "run")
        # in a child: some forgeries pay, which starts threads, and children of this process would wait for them
        _must(wait(start(partial(_forge, names, place / "run", random.Random(rng.random())))))
        if _content(place / "run") == before:
            return Attempt(what, Outcome.HELD, "nothing changed")
        ended = call("check", place / "run", "--seal", stage.home / "key", "--quiet")
        if ended.crashed:
            return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        return Attempt(what, Outcome.SILENT if ended.code == 0 else Outcome.HELD, ended.last_line or "nothing is said")


def _forge(names: list[str], run: Path, rng: random.Random) -> int:
    for name in names:
        FORGERIES[name](run, rng)
    _list_anew(run)
    return 0


def _must(ended: Any) -> None:
    if ended.code != 0:
        raise AssertionError(f"what is not forged must pass; exit {ended.code}: {ended.said[-2000:]}")


def _content(run: Path) -> dict[str, bytes]:
    places = [path for folder in ("reward", "ledger") for path in (run / folder).glob("*") if path.suffix != ".png"]
    return {str(path.relative_to(run)): path.read_bytes() for path in places}


def _list_anew(run: Path) -> None:
    """Make the list of checksums fit whatever is there."""
    (run / checksums.LIST).unlink()
    keep_checksums(run, (path for path in run.rglob("*") if path.is_file()))


def _payments(change: Callable[[Json, random.Random], Json]) -> Forge:
    """Change what is in reward.json."""

    def forge(run: Path, rng: random.Random) -> None:
        path = run / "reward" / "reward.json"
        if path.exists():
            path.write_text(json.dumps(change(json.loads(path.read_text()), rng)))

    return forge


def _scaled(results: Json, factor: float) -> Json:
    rows = [[node, factor * payment, *rest] for node, payment, *rest in results["table"]["rows"]]
    payments = [factor * payment for payment in results["payments"]]
    return results | {"payments": payments, "table": results["table"] | {"rows": rows}}


def _other_budget(results: Json, rng: random.Random) -> Json:
    factor = rng.choice([0.5, 2.0, 10.0])
    return _scaled(results, factor) | {"budget": results["budget"] * factor}


def _moved(results: Json, rng: random.Random) -> Json:
    """Give what one participant is paid to another."""
    a, b = rng.sample(range(len(results["payments"])), 2)
    payments = list(results["payments"])
    payments[b], payments[a] = payments[a] + payments[b] + 1.0, 0.0
    rows = [[row[0], payments[row[0]], *row[2:]] for row in results["table"]["rows"]]
    return results | {"payments": payments, "table": results["table"] | {"rows": rows}}


def _lines(change: Callable[[list[Json], random.Random], list[Json]], resealed: bool = True) -> Forge:
    """Change the lines of the chain, and make each follow from those before it."""

    def forge(run: Path, rng: random.Random) -> None:
        path = run / "ledger" / "chain.jsonl"
        if path.exists():
            header, *lines = (json.loads(line) for line in path.read_text().splitlines())
            _write_chain(path, header, change(lines, rng), resealed)

    return forge


def _write_chain(path: Path, header: Json, lines: list[Json], resealed: bool) -> None:
    from cascadice.applications.reward.ledger import _digest, _header, _sealed

    seal, written = _digest(_header(header["note"]).encode()), [json.dumps(header, sort_keys=True)]
    for line in lines:
        seal = _sealed(seal, line["round"], line["bytes"], line["sha256"]).seal if resealed else line["seal"]
        written.append(json.dumps(line | {"seal": seal}))
    path.write_text("".join(f"{line}\n" for line in written))


def _other_part(run: Path, rng: random.Random) -> None:
    """Change the contributions of a round, and its line in the chain."""
    import pyarrow as pa
    from pyarrow import parquet

    from cascadice.applications.reward.ledger import _digest

    parts = sorted((run / "ledger").glob("part-*.parquet"))
    if not parts:
        return
    part = rng.choice(parts)
    columns = parquet.read_table(part, use_threads=False).to_pydict()
    columns["value"] = [value * rng.uniform(-2, 2) - 1.0 for value in columns["value"]]
    parquet.write_table(pa.table(columns), part)
    content, t = part.read_bytes(), int(part.stem.partition("-")[2])
    said = {"bytes": len(content), "sha256": _digest(content)}
    _lines(lambda lines, _: [line | said if line["round"] == t else line for line in lines])(run, rng)


def _paid_again(run: Path, rng: random.Random, *more: str, key: str | None = None) -> None:
    """Pay from a new ledger of one's own, in the place of the sealed one."""
    from cascadice.cli import main

    for folder in ("ledger", "reward"):
        shutil.rmtree(run / folder, ignore_errors=True)
    _list_anew(run)
    seal = ["--seal", str(run.parent.parent / key)] if key else []
    main(["reward", str(run), "--budget", str(rng.choice([50, 100])), *PAY.split(), *seal, *more])


def _without(*names: str) -> Callable[[list[Json], random.Random], list[Json]]:
    return lambda lines, _: [{name: value for name, value in line.items() if name not in names} for line in lines]


FORGERIES: Mapping[str, Forge] = {
    "payments of another budget": _payments(_other_budget),
    "payments moved": _payments(_moved),
    "another floor": _payments(lambda results, rng: results | {"floor": rng.choice([1.0, 5.0])}),
    "another clawback": _payments(lambda results, rng: results | {"clawback": rng.choice([0.0, 3.0])}),
    "another payout rule": _payments(lambda results, rng: results | {"payout": "equal"}),
    "others are paid": _payments(lambda results, rng: results | {"others": 2, "others_weight": rng.uniform(0, 9)}),
    "terms not sealed": _payments(lambda results, rng: {k: v for k, v in results.items() if k != "terms_hmac"}),
    "a ledger elsewhere": _payments(lambda results, rng: results | {"ledger": "nowhere/mine"}),
    "ledger removed": lambda run, rng: shutil.rmtree(run / "ledger", ignore_errors=True),
    "lines cut off": _lines(lambda lines, rng: lines[: rng.randrange(len(lines))]),
    "lines in another order": _lines(lambda lines, rng: rng.sample(lines, len(lines))),
    "signatures removed": _lines(_without("hmac")),
    "signatures swapped": _lines(
        lambda lines, rng: [line | {"hmac": rng.choice(lines).get("hmac", "")} for line in lines]
    ),
    "contributions changed": _other_part,
    "paid again without a key": _paid_again,
    "paid again with another key": partial(_paid_again, key="other"),
}
