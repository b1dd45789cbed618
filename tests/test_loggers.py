"""Loggers: what they write, read back with the real packages; and callbacks that raise."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine.cases import make
from runs.distributed.worlds import fit_for_threads, together

import cascadice as cd
from cascadice import cli, loggers
from cascadice.cli import main
from cascadice.commands.run import _loggers
from cascadice.runs.config import Config
from cascadice.runs.question import Question
from cascadice.runs.train import run

WITHOUT = "is not installed: make loggers"
assert fit_for_threads  # a fixture
TINY = Config(nodes=3, topology="complete", per_node=8, batch_size=4, rounds=3, epochs=None, eval_every=2)
SEVERAL = replace(TINY, dtype="float64")


class Diary:
    """A callback that keeps what it is told."""

    def __init__(self):
        self.told, self.rounds = [], {}

    def start(self, about):
        self.told.append(about)

    def round(self, t, metrics):
        self.rounds.setdefault(t, {}).update(metrics)

    def end(self, status):
        self.told.append(status)


class Breaks(Diary):
    def __init__(self, event):
        super().__init__()
        self.event = event

    def round(self, t, metrics):
        super().round(t, metrics)
        if self.event == "round" and t == 1:
            raise OSError("disk full\nmore")

    def end(self, status):
        super().end(status)
        if self.event == "end":
            raise KeyError("gone")


def test_simulate_tells_every_round(one_thread):
    diary, network = Diary(), make()
    rounds = list(cd.simulate(network, 3, callbacks=[diary]))
    about, status = diary.told
    assert (about["participants"], about["rounds"], status) == (4, 3, "finished")
    assert list(diary.rounds) == [0, 1, 2]
    assert diary.rounds[2]["train_loss/3"] == float(rounds[2].loss[3])
    assert diary.rounds[2]["train_loss/mean"] == pytest.approx(float(rounds[2].loss.mean()))
    assert diary.rounds[1]["consensus"] == float(cd.consensus(rounds[1].after.theta))


def test_how_it_ended(one_thread):
    stopped, failed = Diary(), Diary()
    training = cd.simulate(make(), callbacks=[stopped])
    next(training), training.close()
    assert stopped.told[1] == "stopped"
    with pytest.raises(cd.DivergedError):
        list(cd.simulate(make(lr=1e200), 5, callbacks=[failed]))
    assert failed.told[1] == "failed"


@pytest.mark.parametrize("event", ["round", "end"])
def test_a_callback_that_raises_is_left_out_and_training_goes_on(event, one_thread):
    broken, whole = Breaks(event), Diary()
    reason = {"round": "its round raised OSError: disk full$", "end": "its end raised KeyError: 'gone'$"}[event]
    with pytest.warns(RuntimeWarning, match=f"callback Breaks is disabled, because {reason}") as said:
        assert len(list(cd.simulate(make(), 4, callbacks=[broken, whole]))) == 4
    assert len(said) == 1
    assert list(whole.rounds) == [0, 1, 2, 3]
    assert list(broken.rounds) == ([0, 1] if event == "round" else [0, 1, 2, 3])


def test_what_is_no_callback_is_refused():
    refused = "must have the methods start, round and end; <built-in function print> does not"
    with pytest.raises(TypeError, match=refused), loggers.telling([print], {}):
        pass
    with pytest.raises(TypeError, match=r"callbacks must be a list; found Diary\. Use callbacks=\["):
        next(iter(cd.simulate(make(), 1, callbacks=Diary())))


def test_a_run_tells_metrics_and_influence_and_says_who_raised(tmp_path, capsys, monkeypatch, one_thread):
    for picture in ("runs.journal.plot", "runs.train.conclude"):  # which take longer than the run
        monkeypatch.setattr(f"cascadice.{picture}", lambda *_: None)
    diary, broken = Diary(), Breaks("round")
    question = Question(("first-order", "shares"), sources=(0, 2))
    run(TINY, tmp_path / "run", quiet=True, question=question, callbacks=[diary, broken])
    about, status = diary.told
    assert (about["nodes"], status) == (3, "finished")
    metrics = cd.store.read_metrics(tmp_path / "run")
    assert diary.rounds[1]["test_accuracy/2"] == float(metrics[1].test.accuracy[2])
    assert "test_loss/mean" not in diary.rounds[0]
    assert {name for name in diary.rounds[2] if name.startswith("influence")} == {
        f"influence/{kind}/{which}" for kind in ("first-order", "shares") for which in ("mean", 0, 2)
    }
    assert capsys.readouterr().err.count("warning: the callback Breaks is disabled") == 1


def test_of_several_processes_each_tells_its_own_callbacks_of_its_own_participants(tmp_path, fit_for_threads):
    diaries, alone = [[Diary(), Breaks("round")], [Diary()]], Diary()
    question = Question(("shares",), hops=1)

    def work(world):
        run(SEVERAL, tmp_path / "two", quiet=True, world=world, question=question, callbacks=diaries[world.rank])

    _, errors = together(2, work)
    assert errors == [None, None]
    run(SEVERAL, tmp_path / "one", quiet=True, question=question, callbacks=[alone])
    for (diary, *_), own in zip(diaries, ((0, 1), (2,)), strict=True):
        assert (diary.told[0]["nodes"], diary.told[1]) == (3, "finished")
        assert list(diary.rounds) == [0, 1, 2]
        for t, metrics in diary.rounds.items():
            for name in ("train_loss", "test_loss", "influence/shares"):
                told = {
                    key: value for key, value in metrics.items() if key.startswith(f"{name}/") and key[-1].isdigit()
                }
                all_told = {
                    f"{name}/{k}": alone.rounds[t][f"{name}/{k}"] for k in own if f"{name}/0" in alone.rounds[t]
                }
                assert told == pytest.approx(all_told, rel=1e-6, abs=1e-12)
        assert diary.rounds[1]["bytes_sent"] > 0
    assert list(diaries[0][1].rounds) == [0, 1]  # it raised, and only it was left out


def test_processes_name_their_logs_after_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "LOGGERS", {"diary": lambda logs, name: (logs, name)})
    asked = SimpleNamespace(log="diary", log_to=None)
    (made,) = _loggers(asked, tmp_path / "mine", tmp_path / "mine" / "rank-001")
    assert made == (tmp_path / "logs", "mine-rank-001")


def test_many_participants_have_no_curve_each():
    assert set(loggers.of_participants("loss", [0.0] * 65)) == {"loss/mean", "loss/min", "loss/max"}
    assert loggers.of_participants("loss", [1.0, 3.0], (7, 9)) == {"loss/mean": 2.0, "loss/7": 1.0, "loss/9": 3.0}


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"wandb is not installed .*pip install wandb, or .*cascadice\[loggers\]"):
        loggers.WandB(tmp_path)
    with pytest.raises(ValueError, match=r"unknown logger 'tensorbord'\. Did you mean 'tensorboard'"):
        loggers.build(["tensorbord"], tmp_path, "run")


def test_the_command_line_makes_them(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr("cascadice.runs.train.run", lambda config, out, **options: asked.append(options["callbacks"]))
    monkeypatch.setattr(loggers, "LOGGERS", {"diary": lambda logs, name: (logs, name)})
    where = ["run", "demo", "--out", str(tmp_path / "mine")]
    assert main([*where, "--log", "diary"]) == main([*where, "--log", "diary", "--log-to", "there"]) == main(where) == 0
    assert asked == [[(tmp_path / "logs", "mine")], [(Path("there"), "mine")], []]
    assert main([*where, "--log", "dairy"]) == 2
    assert main([*where, "--log-to", "there"]) == 2
    monkeypatch.setitem(loggers.LOGGERS, "wandb", loggers.WandB)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main([*where, "--log", "wandb"]) == 2
    said = capsys.readouterr().err.splitlines()
    beginnings = ("unknown logger 'dairy'. Did you mean 'diary'?", "--log-to says where loggers write", "wandb is not")
    assert all(line.startswith(f"cascadice: {begins}") for line, begins in zip(said, beginnings, strict=True))


TOLD = {0: {"train_loss/mean": 0.5, "train_loss/1": 0.25}, 1: {"train_loss/mean": 0.125}}


def follow(logger):
    with loggers.telling([logger], {"nodes": 3, "data": "digits"}) as tell:
        for t, metrics in TOLD.items():
            tell(t, lambda metrics=metrics: metrics)
        tell(0, lambda: {"influence/first-order/1": -0.5})  # of an earlier round


def test_tensorboard(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=f"tensorboard {WITHOUT}"
    )
    follow(loggers.TensorBoard(tmp_path, "first"))
    written = events.EventAccumulator(str(tmp_path / "first")).Reload()
    assert [(e.step, e.value) for e in written.Scalars("train_loss/mean")] == [(0, 0.5), (1, 0.125)]
    assert [(e.step, e.value) for e in written.Scalars("influence/first-order/1")] == [(0, -0.5)]
    assert {"settings/text_summary", "status/text_summary"} <= set(written.Tags()["tensors"])


def test_mlflow(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking", reason=f"mlflow-skinny {WITHOUT}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    follow(loggers.MLflow(tmp_path / "store", "first"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = tracking.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    (done,) = client.search_runs([client.get_experiment_by_name("cascadice").experiment_id])
    assert (done.info.run_name, done.info.status, done.data.params["nodes"]) == ("first", "FINISHED", "3")
    history = client.get_metric_history(done.info.run_id, "train_loss/mean")
    assert [(m.step, m.value) for m in history] == [(0, 0.5), (1, 0.125)]


def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason=f"wandb {WITHOUT}")
    for name, value in {"HOME": str(tmp_path), "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(name, value)
    follow(loggers.WandB(tmp_path, "first"))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (log,) = folder.glob("run-*.wandb")
    rows, until = [], time.monotonic() + 20
    while len(rows) < 3 and time.monotonic() < until:  # another process writes the file
        rows = history(log)
    assert [row["round"] for row in rows] == [0, 1, 0]
    assert rows[0]["train_loss/1"] == 0.25
    assert rows[2]["influence/first-order/1"] == -0.5


def history(log):
    """What was logged, from the file of an offline run: a header, then records of checksum, length, kind and bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, rows = log.read_bytes()[7:], []
    assert len(content) < 32_000  # one block
    while len(content) > 7 and len(content) >= 7 + (size := int.from_bytes(content[4:6], "little")):
        record, content = Record.FromString(content[7 : 7 + size]), content[7 + size :]
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows


def test_no_flag_is_one_that_torchrun_takes_for_an_abbreviation_of_its_own():
    from torch.distributed.run import get_args_parser

    (commands,) = (action.choices for action in cli._parser()._actions if hasattr(action.choices, "values"))
    ours = [action.option_strings[0] for one in commands.values() for action in one._actions if action.option_strings]
    theirs = [name for action in get_args_parser()._actions for name in action.option_strings]
    assert "--loggers" in ours
    assert [one for one in ours if one != "-h" and any(name.startswith(one) for name in theirs)] == []


def test_processes_create_an_experiment_in_turn(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking", reason=f"mlflow-skinny {WITHOUT}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    create = tracking.MlflowClient.create_experiment
    # between looking for the experiment and creating it, the other one has time to look, too
    monkeypatch.setattr(tracking.MlflowClient, "create_experiment", lambda *given: (time.sleep(0.3), create(*given))[1])
    made = [loggers.MLflow(tmp_path, f"rank-{rank}") for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda one: one.start({}), made)) == [None, None]
    assert len(list(tmp_path.glob("*/*/metrics"))) == 2


@pytest.mark.slow
def test_under_torchrun_every_process_writes_logs_of_its_own(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=f"tensorboard {WITHOUT}"
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "cascadice"]
    flags = [
        "--nodes=3",
        "--per-node=8",
        "--batch-size=4",
        "--rounds=3",
        "--out",
        "two",
        "--loggers",
        "tensorboard,mlflow",
    ]
    path = {"PYTHONPATH": str(Path(cd.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *torchrun, "run", *flags], cwd=tmp_path, env=os.environ | path, check=True, timeout=120
    )
    for rank, own in enumerate(((0, 1), (2,))):
        (folder,) = (tmp_path / "logs" / "tensorboard" / f"two-rank-00{rank}").iterdir()
        written = events.EventAccumulator(str(folder)).Reload()
        curves = {name for name in written.Tags()["scalars"] if name.startswith("train_loss/")}
        assert curves == {"train_loss/mean", *(f"train_loss/{k}" for k in own)}
        assert [event.step for event in written.Scalars("train_loss/mean")] == [0, 1, 2]
    assert len(list((tmp_path / "logs" / "mlflow").glob("*/*/metrics"))) == 2
