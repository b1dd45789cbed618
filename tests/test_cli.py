import errno
import json
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

from cascadice import files
from cascadice.cli import main
from cascadice.commands.listing import LISTS
from cascadice.engine import DivergedError
from cascadice.influence.tables import read_note, read_table
from cascadice.runs import store
from cascadice.runs import train as runs
from cascadice.runs.recipes import RECIPES
from cascadice.topology import read_csv, write_csv

TINY = ["--nodes", "3", "--model-options", "hidden=[4]", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)  # takes longer than training


@pytest.fixture
def cascadice(capsys):
    def call(*arguments):
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_everything_there_is_can_be_listed(cascadice):
    code, out, _ = cascadice("list")
    assert code == 0
    for name in (
        *RECIPES,
        "erdos-renyi",
        "tiny-imagenet",
        "resnet18",
        "adamw",
        "by-class",
        "free-rider",
        "vmap",
        "shares",
    ):
        assert name in out
    for name in LISTS:
        assert cascadice("list", name)[1].startswith(name)
    assert cascadice("list", "estimates")[1].count("only if") == 2


def test_help_and_version(capsys):
    for arguments, words in ((["--version"], "cascadice 0."), (["run", "--help"], "--eval-every N")):
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        assert leaving.value.code == 0
        assert words in capsys.readouterr().out


def test_help_does_not_wait_for_torch():
    script = "import sys; sys.modules['torch'] = None; from cascadice.cli import main; main(['run', '--help'])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def test_flags_override_a_recipe(cascadice, tmp_path):
    flags = ["--topology", "ring", "--lr", "0.3", "--per-node", "none", "--connected", "--behaviours", "free-rider:1"]
    code, out, err = cascadice("run", "demo", *TINY, *flags, "--out", "a", "--behaviours", "absent:0@1")
    assert (code, err) == (0, "")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["topology"], config["lr"], config["rounds"], config["epochs"]) == ("ring", 0.3, 2, None)
    assert config["behaviours"] == ["free-rider:1", "absent:0@1"]
    assert config["batch_size"] == RECIPES["demo"]().batch_size
    assert "ring: 6 links" in out


def test_a_run_is_repeated_from_its_folder_or_configuration(cascadice):
    assert cascadice("run", "demo", *TINY, "--out", "a", "--quiet") == (0, "", "")
    for source in ("a", "a/config.json"):
        assert cascadice("run", source, "--out", "b", "--overwrite", "--quiet")[0] == 0
        one, other = (store.load_checkpoint(folder).participants.theta for folder in ("a", "b"))
        assert torch.equal(one, other)


def test_a_run_goes_on_without_repeating_its_settings(cascadice):
    cascadice("run", "demo", *TINY, "--out", "a", "--quiet")
    assert cascadice("run", "--resume", "--out", "a", "--rounds", "4", "--quiet") == (0, "", "")
    assert store.load_checkpoint("a").t == 4


def test_without_a_folder_runs_are_collected(cascadice, tmp_path):
    assert cascadice("run", "demo", *TINY, "--quiet")[0] == 0
    assert (tmp_path / "runs" / "demo" / "manifest.json").exists()


def test_a_mixing_file_can_be_used_from_anywhere(cascadice, tmp_path, monkeypatch):
    write_csv(torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64), "W.csv")
    assert cascadice("run", "demo", *TINY[2:], "--mixing", "W.csv", "--out", "a", "--quiet") == (0, "", "")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert cascadice("run", "../a", "--out", "b", "--quiet") == (0, "", "")


MISTAKES = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "unknown command": (["rn"], "invalid choice: 'rn'"),
    "unknown list": (["list", "topology"], "unknown list 'topology'. Did you mean 'topologies'?"),
    "unknown recipe": (["run", "dem"], "unknown recipe 'dem'. Did you mean 'demo'?"),
    "unknown flag": (["run", "demo", "--topolgy", "ring"], "does not know '--topolgy'. Did you mean --topology?"),
    "not a number": (["run", "demo", "--nodes", "many"], "--nodes must be a whole number or none; found 'many'"),
    "no participants": (["run", "demo", "--nodes", "0"], "nodes must be at least 1; found 0"),
    "both lengths": (["run", "demo", "--rounds", "3", "--epochs", "1"], "give either rounds or epochs"),
    "unknown topology": (["run", "demo", "--topology", "rings"], "unknown topology 'rings'. Did you mean 'ring'?"),
    "unknown data": (["run", "demo", "--data", "digit"], "unknown data set 'digit'. Did you mean 'digits'?"),
    "unknown model": (["run", "demo", "--model", "mpl"], "unknown model 'mpl'. Did you mean 'mlp'?"),
    "unknown option": (["run", "demo", "--model-options", "hiden=[3]"], "Did you mean 'hidden'?"),
    "unknown optimizer": (["run", "demo", "--optimizer", "sdg"], "unknown optimizer 'sdg'"),
    "unknown partition": (["run", "demo", "--partition", "iiid"], "unknown partition 'iiid'"),
    "unknown loss": (["run", "demo", "--loss", "cross"], "of your own, write package.module:function"),
    "own model": (["run", "demo", "--model", "mine"], "of your own, write package.module:function"),
    "own data": (["run", "demo", "--data", "mine"], "of your own, write package.module:function"),
    "unknown strategy": (["run", "demo", "--strategy", "vmp"], "unknown strategy 'vmp'"),
    "unknown dtype": (["run", "demo", "--dtype", "float23"], "unknown dtype 'float23'"),
    "unknown initialisation": (["run", "demo", "--init", "mine"], "unknown initialisation 'mine'"),
    "unknown corruption": (["run", "demo", "--corruptions", "flip:3"], "unknown corruption 'flip'"),
    "stranger": (["run", "demo", "--behaviours", "free-rider:99"], "names participant 99; there are 16"),
    "too many participants": (["run", "demo", "--nodes", "2000"], "more participants (2000) than samples"),
    "large batch": (["run", "demo", "--batch-size", "500"], "a batch must fit into each participant's data"),
    "bad recording": (["run", "demo", "--record", "most"], "record must be none, all, last:N or FROM-TO"),
    "no data": (["run", "demo", "--data", "cifar10"], "CIFAR-10 was not found: looked for"),
    "unconnected": (["run", "demo", "--topology", "alone", "--connected"], "W must be strongly connected"),
    "row sum": (["run", "demo", "--mixing", "row.csv"], "row 1 sums to 0.9"),
    "negative": (["topology", "--mixing", "negative.csv"], "W must not be negative; W[0, 1] is -0.5"),
    "nan": (["topology", "--mixing", "nan.csv"], "W must hold finite numbers; W[0, 0] is nan"),
    "not square": (["topology", "--mixing", "flat.csv"], "W must be square"),
    "no such file": (["topology", "--mixing", "none.csv"], "none.csv: No such file or directory"),
    "no topology": (["topology"], "name a topology, or give --mixing FILE.csv"),
    "two topologies": (["topology", "ring", "--mixing", "row.csv"], "name a topology, or give --mixing FILE.csv"),
    "bad picture": (["topology", "ring", "--plot", "a.gif"], "a figure must end in .png or .svg"),
    "picture nowhere": (["topology", "ring", "--plot", "no/a.png"], "no is not a folder"),
    "no configuration": (["run", "none.json"], "none.json: No such file or directory"),
    "bad configuration": (["run", "bad.json"], "bad.json: unknown setting 'node'"),
    "unknown kind": (["run", "demo", "--kind", "truth,first-ordr"], "Did you mean 'first-order'?"),
    "no run": (["influence", "nowhere"], "nowhere holds no run: config.json does not exist"),
    "nothing to view": (["view", "nowhere"], "Name a folder that `cascadice run` or `cd.save` wrote"),
    "no run named": (["influence"], "the following arguments are required: RUN"),
    "negative hops": (["influence", "nowhere", "--hops", "-1"], "hops must be at least 0; found -1"),
    "hops in words": (["influence", "nowhere", "--hops", "two"], "argument --hops: invalid int value: 'two'"),
    "sources in words": (["influence", "nowhere", "--sources", "all"], "--sources must be whole numbers, e.g. 0,3"),
    "other flag": (["influence", "nowhere", "--hop", "2"], "does not know '--hop'. Did you mean --hops?"),
    "not a folder": (["run", "demo", "--out", "row.csv/x"], "is not a writable folder"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(cascadice, tmp_path, tmp_path_factory, monkeypatch, mistake):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("CASCADICE_DATA", raising=False)
    files = {"row.csv": "0.5,0.5\n0.5,0.4", "negative.csv": "1.5,-0.5\n0,1", "nan.csv": "nan,1\n0,1", "flat.csv": "1,0"}
    for name, content in {**files, "bad.json": '{"node": 3}'}.items():
        (tmp_path / name).write_text(content)
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments, complaint = MISTAKES[mistake]
    code, out, err = cascadice(*arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.startswith("cascadice: ")
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_cuda_that_is_absent(cascadice):
    code, _, err = cascadice("run", "demo", "--device", "cuda")
    assert code == 2
    assert "CUDA was requested, but torch finds no CUDA device" in err


def test_a_diverged_run_fails_with_one_line(cascadice):
    code, _, err = cascadice("run", "demo", *TINY, "--lr", "1e25", "--rounds", "9", "--out", "a", "--quiet")
    assert code == 1
    assert "became NaN or infinite in round 1" in err
    assert err.count("\n") == 1
    assert files.read_json(runs.Path("a") / "manifest.json")["status"] == "diverged"


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (DivergedError(3, 1), 1), (MemoryError("tensor"), 1), (OSError(), 2)],
)
def test_exit_codes(cascadice, monkeypatch, error, code):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(runs, "run", fail)
    assert cascadice("run", "demo")[0] == code


def test_ctrl_c_tells_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "cascadice", "run", "demo", *TINY[:4], "--rounds", "1000000", "--out", "a"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, and inherited, in the background
    process = subprocess.Popen([*command, "--checkpoint-every", "5"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "a" / store.CHECKPOINT).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.decode().strip() == "cascadice: stopped. Continue with: cascadice run --resume --out a"
    assert files.read_json(tmp_path / "a" / "manifest.json")["status"] == "interrupted"


def test_influence_of_a_recorded_run(cascadice, tmp_path):
    cascadice("run", "demo", *TINY[:4], "--rounds", "5", "--record", "all", "--out", "a", "--quiet")
    asked = ["--kind", "truth,first-order", "--hops", "2", "--sources", "0,2", "--every", "3", "--eval-samples", "9"]
    code, out, err = cascadice("influence", "a", *asked)
    assert (code, err) == (0, "")
    for words in ("in 2 rounds from 0 to 3", "the loss within 2 hops (truth", "How close the estimates", "accuracy"):
        assert words in out
    assert read_note("a/influence")["sources"] == "0, 2"
    assert set(read_table("a/influence").source.tolist()) == {0, 2}
    assert (tmp_path / "a" / "influence" / "influence.png").exists()
    assert cascadice("influence", "a", *asked, "--quiet") == (0, "", "")
    code, out, err = cascadice("influence", "a", "--quiet")
    assert (code, out) == (2, "")
    assert "a/influence holds influence with other settings: kinds is 'truth, first-order' there" in err
    assert cascadice("influence", "a", "--samples", "--quiet", "--out", "b", "--data-root", "x") == (0, "", "")
    assert (read_table("b").sample >= 0).any()


def test_influence_while_training(cascadice):
    code, out, err = cascadice("run", "demo", *TINY, "--out", "a", "--hops", "2", "--kind", "shares")
    assert (code, err) == (0, "")
    assert "the loss within 2 hops (shares, 2 points" in out
    assert set(read_table("a/influence").round.tolist()) == {0}
    assert cascadice("run", "demo", *TINY, "--out", "a", "--overwrite", "--quiet")[0] == 0
    assert not runs.Path("a/influence").exists()  # it was of the run that was replaced


def test_a_run_that_was_not_recorded_has_no_influence(cascadice):
    assert cascadice("run", "demo", *TINY, "--out", "a", "--quiet") == (0, "", "")
    code, out, err = cascadice("influence", "a")
    assert (code, out) == (2, "")
    assert err.startswith(
        "cascadice: a has no recorded rounds. Train it with --record all, or compute influence during training"
    )
    assert err.count("\n") == 1


def test_influence_that_is_stopped_says_how_to_go_on(cascadice, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cascadice.runs.ask.ask", stop)
    code, _, err = cascadice("influence", "a")
    assert (code, err) == (130, "cascadice: stopped. Repeat the command without --overwrite to continue.\n")


def test_a_topology_is_described_and_drawn(cascadice, tmp_path):
    code, out, _ = cascadice("topology", "ring", "--nodes", "5", "--plot")
    assert code == 0
    assert "spectral gap" in out
    assert "plotted in ring-5.png" in out
    assert (tmp_path / "ring-5.png").exists()
    code, out, _ = cascadice("topology", "matching", "--nodes", "4", "--rounds", "3", "--plot", "m.svg")
    assert "over 3 rounds" in out
    assert (tmp_path / "m.svg").exists()


def test_a_topology_from_a_file(cascadice):
    write_csv(torch.eye(3, dtype=torch.float64), "W.csv")
    code, out, err = cascadice("topology", "--mixing", "W.csv")
    assert code == 0
    assert "participants        3" in out
    assert "warning: the network is not strongly connected" in err
    assert read_csv("W.csv").shape == (3, 3)


def test_a_reader_that_leaves_early_is_no_error():
    line = f"{sys.executable} -m cascadice topology ring | true"
    assert subprocess.run(["bash", "-c", line], capture_output=True, check=False).stderr == b""


def test_a_full_disk_is_a_failed_run_not_a_mistake(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "metrics.parquet"))

    monkeypatch.setattr("cascadice.runs.store.write_metrics", full)
    assert main(["run", "demo", "--rounds", "2", "--quiet", "--out", str(tmp_path / "run")]) == 1
    assert "metrics.parquet: No space left on device." in capsys.readouterr().err


def test_nothing_to_resume_is_a_mistake(tmp_path, capsys):
    assert main(["run", "--resume", "--out", str(tmp_path / "nowhere")]) == 2
    assert "nowhere holds no run to resume" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--model-options", "hidden=abc"], "the options of mlp do not fit"),
        (["--optimizer", "adam", "--optimizer-options", "betas=3"], "the options of adam do not fit"),
        (["--device", "meta"], "the device must be 'cpu' or 'cuda'"),
    ],
)
def test_options_of_the_wrong_kind(flags, complaint, tmp_path, capsys):
    assert main(["run", "demo", *flags, "--quiet", "--out", str(tmp_path / "run")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_can_be_watched_while_it_trains(cascadice, tmp_path):
    code, out, err = cascadice("run", "demo", *TINY, "--out", "a", "--live", "--quiet")
    assert (code, err) == (0, "")
    assert "http://127.0.0.1:" in out
    assert (tmp_path / "a" / "report.html").exists()
    code, _, err = cascadice("run", "--live", "demo")
    assert code == 2
    assert "a port must be a whole number; found 'demo'; the recipe comes before it" in err


def test_public_names_are_there_and_others_are_not():
    import cascadice as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert package.Recorder.__module__ == "cascadice.engine.recorder"
    with pytest.raises(AttributeError, match="module 'cascadice' has no attribute 'Recording'"):
        _ = package.Recording
    with pytest.raises(ImportError, match=r"cascadice.configuration was renamed to cascadice.runs.config in 0.2.0"):
        from cascadice import configuration  # noqa: F401


def test_warnings_are_one_line_without_a_place_in_the_code(monkeypatch):
    said = []
    warning = (UserWarning("two\n lines"), UserWarning, "some/file.py", 3)
    monkeypatch.setattr("cascadice.commands.listing.run", lambda args: said.append(warnings.formatwarning(*warning)))
    assert main(["list"]) == 0
    assert said == ["warning: two lines\n"]
    assert "some/file.py" in warnings.formatwarning(*warning)  # restored
