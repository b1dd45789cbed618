"""Two real processes, of which one is killed on the way and all are started again, train what one process does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cascadice.runs import journal, store, train
from cascadice.runs.config import Config

CONFIG = Config(
    nodes=3, per_node=40, rounds=6, epochs=None, batch_size=8, dtype="float64", checkpoint_every=2,
    model_options=("hidden=[8]",), record="all",
)  # fmt: skip
FLAGS = [
    "--nodes=3", "--per-node=40", "--rounds=6", "--batch-size=8", "--dtype=float64", "--checkpoint-every=2",
    "--model-options", "hidden=[8]", "--record=all", "--policy=restart", "--timeout=40",
]  # fmt: skip


STARTERS = {
    "forked": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"],
}


@pytest.mark.parametrize("starter", ["forked", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_processes_of_which_one_is_killed_train_as_one_that_is_not(tmp_path, monkeypatch, starter):
    dying = ["-m", "chaos.dying", "run", *FLAGS, "--out", str(tmp_path / "two")]
    path = os.pathsep.join([str(Path(train.__file__).parents[2]), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, *STARTERS[starter], *dying], env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as started:  # fmt: skip
        monkeypatch.setattr(journal, "plot", lambda journal: None)
        train.run(CONFIG, tmp_path / "one", quiet=True)
        try:
            said, _ = started.communicate(timeout=120)
        finally:
            started.kill()
    assert started.returncode == 0, said
    assert said.count("3 participants (2 of them in this process)") == 2  # one speaks for all, each time
    places = [tmp_path / "two" / rank for rank in ("rank-000", "rank-001")]
    thetas = [store.load_checkpoint(place).participants.theta for place in places]
    expected = store.load_checkpoint(tmp_path / "one").participants.theta
    torch.testing.assert_close(torch.cat(thetas), expected, rtol=0, atol=1e-10)
    losses = [torch.cat([m.train_loss for m in store.read_metrics(place)]) for place in (tmp_path / "one", *places)]
    assert [len(each) for each in losses] == [18, 12, 6]
    assert all(store.saved_rounds(place) == list(range(6)) for place in places)


@pytest.mark.slow
def test_the_example_prints_the_same_in_two_processes_as_in_one():
    here = Path(__file__).parents[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(here / "src")}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    example = str(here / "examples" / "torchrun_cascade.py")
    one, two = (
        subprocess.run([sys.executable, *how, example], env=environment, capture_output=True, text=True, timeout=120)
        for how in ([], torchrun)
    )
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    pattern = r"participant (\d): loss (\S+), influence (\S+)"
    numbers = [sorted(re.findall(pattern, each.stdout)) for each in (one, two)]
    assert len(numbers[0]) == len(numbers[1]) == 8
    for alone, together in zip(*numbers, strict=True):
        assert [float(x) for x in together] == pytest.approx([float(x) for x in alone], abs=2e-3)
    assert two.stdout.count(" MB, models and adjoints.") == 2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_several_participants_and_processes_share_a_gpu(processes):
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (processes > 1)
    here = Path(__file__).parent
    path = os.pathsep.join([str(Path(train.__file__).parents[2]), str(here)])
    command = [sys.executable, *torchrun, str(here / "several_per_device.py"), "cuda"]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True, timeout=300)
