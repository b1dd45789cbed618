"""A real `torchrun` of two processes trains what one process does, to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from cascadice.runs import journal, store, train
from cascadice.runs.config import Config

CONFIG = Config(
    nodes=3, per_node=40, rounds=4, epochs=None, batch_size=8, dtype="float64", model_options=("hidden=[8]",)
)
FLAGS = [
    "--nodes=3", "--per-node=40", "--rounds=4", "--batch-size=8", "--dtype=float64", "--model-options", "hidden=[8]"
]  # fmt: skip


def test_two_real_processes_train_as_one(tmp_path, monkeypatch):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "cascadice",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(train.__file__).parents[2])}
    arguments = ["run", *FLAGS, "--out", str(tmp_path / "two"), "--timeout", "40"]
    with subprocess.Popen(
        [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as started:
        monkeypatch.setattr(journal, "plot", lambda journal: None)
        train.run(CONFIG, tmp_path / "one", quiet=True)
        try:
            said, _ = started.communicate(timeout=120)
        finally:
            started.kill()
    assert started.returncode == 0, said
    assert said.count("3 participants (2 of them in this process)") == 1  # one speaks for all
    thetas = [store.load_checkpoint(tmp_path / "two" / rank).participants.theta for rank in ("rank-000", "rank-001")]
    expected = store.load_checkpoint(tmp_path / "one").participants.theta
    torch.testing.assert_close(torch.cat(thetas), expected, rtol=0, atol=1e-10)
