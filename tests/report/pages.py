"""Runs with everything a page can show, small enough to be made in seconds."""

import base64
import json
from dataclasses import replace

import pytest
import torch

from cascadice.applications.reward.contributions import Entry
from cascadice.applications.reward.ledger import by_round, enter, read_ledger
from cascadice.applications.reward.payouts import pay
from cascadice.runs import train as runs
from cascadice.runs.ask import ask
from cascadice.runs.folder import fingerprint
from cascadice.runs.question import Question
from cascadice.runs.recipes import demo

# a PNG of one pixel
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
RADII = "JSON.stringify([...document.querySelectorAll('#graph .body')].map(c => c.getAttribute('r')))"
HOSTILE = "</script><img src=x onerror=alert(1)>"
CONFIG = replace(
    demo(), nodes=6, model_options=("hidden=[8]",), epochs=None, rounds=8, eval_every=2, record="all",
    corruptions=("flip-labels:2:0.8",), behaviours=("free-rider:4",),
)  # fmt: skip


def train(folder, config=CONFIG):
    """A run without pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda _: None)
        runs.run(config, folder, quiet=True)
    return folder


def ask_everything(folder):
    """Cascades with the truth beside them, and every sample's share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
        ask(folder, Question(("truth", "first-order"), hops=2, every=3, eval_samples=50), quiet=True)
        shares = Question(("shares",), hops=1, samples=True, every=3, eval_samples=50)
        ask(folder, shares, folder / "samples", quiet=True)


def write_section(folder, name, config=CONFIG, **more):
    """Write what the command of an application would have written."""
    content = {
        "command": name,
        "run": fingerprint(config),
        "title": f"The {name} title {HOSTILE}",
        "findings": [f"A finding {HOSTILE}"],
        "table": {"columns": ["participant", "evidence", HOSTILE], "rows": [[2, 0.5, HOSTILE], [4, -1.25, True]]},
        **more,
    }
    (folder / name).mkdir()
    (folder / name / f"{name}.json").write_text(json.dumps(content))


def write_everything(folder):
    """What `detect` and `reward` would have written, with a picture, a chart and a ledger."""
    write_section(folder, "detect", votes=[[0, 0, 1, 0, 0, 0]], figure="detect.png")
    (folder / "detect" / "detect.png").write_bytes(base64.b64decode(PIXEL))
    contributions = [[-1.0, 0.1 * t, 0.5, 0, 0, 0] for t in range(-1, 2)]
    entries = [Entry(t, torch.tensor(values)) for t, values in enumerate(contributions)]
    enter(folder / "ledger", {"run": fingerprint(CONFIG), "kind": "shares, 1 hop"}, entries)
    ledger = read_ledger(folder / "ledger")
    payments = pay(by_round(ledger), 6.0).payment.tolist()
    columns, rows = ["participant", "payment", HOSTILE], [[node, each, HOSTILE] for node, each in enumerate(payments)]
    paid = {
        "budget": 6.0, "floor": 0.0, "clawback": 1.0, "rounds": ledger.rounds, "seal": ledger.seal,
        "ledger": str(ledger.folder), "payments": payments, "contributions": contributions,
        "table": {"columns": columns, "rows": rows},
    }  # fmt: skip
    write_section(folder, "reward", **paid)
