"""Networks that were built in Python, as runs: every command works on them, here and in another process."""

import json
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from influence.own_loops import Loop, batch
from torch import nn

import cascadice as cd
from cascadice.cli import main
from cascadice.engine import draw
from cascadice.engine.exchange.robust import trimmed_mean
from cascadice.engine.weighting import with_weights
from cascadice.files.tensors import read_tensors, write_tensors
from cascadice.report.page import compare
from cascadice.runs import saved, store
from cascadice.runs.config import Config, build
from cascadice.runs.folder import NETWORK, read_config
from cascadice.runs.recording import build_recorded, open_recording
from cascadice.runs.train import run

COMMANDS = (
    "influence RUN --hops 2 --samples",
    "influence RUN --kind whole-run",
    "detect RUN",
    "choose RUN",
    "reward RUN --budget 100",
    "forget RUN --participant 1",
    "validate RUN --subsets 5",
    "report RUN",
    "check RUN",
)

AT_HOME = """
import torch
from torch import nn
from cascadice.data import from_tensors
from {tests} import smoothed

def model(shape, classes): return nn.Linear(shape[0], classes)
def data():
    x = torch.arange(80.0).sin().view(40, 2)
    return from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 1] > 0).long())
def number(): return 3
def many(a, b, c): pass
"""


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    """Drawing takes longer than training."""
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    for place in ("influence", "topology", "panels"):  # the last one last: those imported after it would keep its stub
        monkeypatch.setattr(f"cascadice.pictures.{place}.save", lambda *_, **__: None, raising=False)


@pytest.fixture
def elsewhere(monkeypatch):
    """As in another process: no network is known that was saved here."""
    monkeypatch.setattr(saved, "_living", {})
    monkeypatch.setattr(saved, "remember", lambda digest, network: None)


def mine():
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    return cd.data.from_tensors(x[:72], y[:72], x[72:], y[72:], name="mine")


@pytest.fixture(scope="module")
def data():
    return mine()


def make():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def smoothed(outputs, targets):
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


def own(data, **more):
    options = {"nodes": 4, "mixing": "ring", "batch_size": 4, "lr": 0.2, "loss": smoothed}
    return cd.network(make, data, **(options | more))


def commands(folder, lines=COMMANDS):
    return {line: main([*line.replace("RUN", str(folder)).split(), "--quiet"]) for line in lines}


def test_a_saved_network_has_the_bits_of_a_run(tmp_path):
    config = Config(
        data=f"{__name__}:mine",
        nodes=3,
        model_options=("hidden=[4]",),
        batch_size=4,
        epochs=None,
        rounds=3,
        record="all",
    )
    run(config, tmp_path / "run", quiet=True)
    network = build(config)
    cd.save(network, cd.simulate(network, 3), tmp_path / "saved")
    for t in range(3):
        one, other = (store.load_round(tmp_path / name, t) for name in ("run", "saved"))
        assert torch.equal(one.half.theta, other.half.theta)
        assert torch.equal(one.draw.batch, other.draw.batch)
    metrics = [store.read_metrics(tmp_path / name)[-1].test.loss for name in ("run", "saved")]
    assert torch.equal(*metrics)
    made = read_config(tmp_path / "saved")
    assert (made.model, made.model_options, made.data, made.rounds) == ("mlp", ("hidden=[4]",), "mine", 3)


@pytest.mark.usefixtures("elsewhere")
def test_every_command_works_in_another_process(data, tmp_path):
    network = own(
        data, corruptions=[cd.Corruption("flip-labels", (1,), range(2), 0.5)], partition="dirichlet", alpha=0.5
    )
    cd.save(network, list(cd.simulate(network, 4)), tmp_path / "run")
    assert set(commands(tmp_path / "run").values()) == {0}
    config = read_config(tmp_path / "run")
    assert (config.model, config.loss) == (f"{__name__}:make", f"{__name__}:smoothed")
    assert config.corruptions == ("flip-labels:1:0.5@0-1",)


def dropping():
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.3), nn.Linear(4, 3))
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("here", [True, False])
def test_commands_work_on_what_a_recorder_watched(data, here, tmp_path, request):
    optimizer, more = (torch.optim.RMSprop, {}) if here else (torch.optim.SGD, {"momentum": 0.5})
    if not here:
        request.getfixturevalue("elsewhere")
    loop = Loop(
        cd.network(dropping, data, nodes=4, mixing="ring", batch_size=4, loss=smoothed), optimizer, lr=0.1, **more
    )
    recorder = loop.recorder()
    for t in range(3):
        loop.round(recorder, t)
    network = recorder.network
    cd.save(network, recorder.rounds, tmp_path / "run", model=None if here else dropping)
    assert set(commands(tmp_path / "run", COMMANDS[:3]).values()) == {0}
    again = build_recorded(tmp_path / "run", read_config(tmp_path / "run"))
    states = [each.generators[2][0][0] for each in (draw(again, 1), recorder.rounds[1].draw)]
    assert torch.equal(*states)  # from which dropout is drawn when the run is played at another weight


def test_a_watched_loop_with_parameter_groups_and_uneven_work_has_a_page_and_payments(data, tmp_path):
    loop, W = Loop(own(data), lr=0.1), cd.topology.build("ring", 4)(0).float()
    for k, model in enumerate(loop.models):
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
        loop.optimizers[k] = torch.optim.SGD(groups, lr=0.1)
    recorder = loop.recorder()
    for t in range(3):
        with recorder.round(W) as step:
            for k in (k for k in (0, 1, 1, 2, 3) if k != t):  # one sits out, and 1 makes two steps
                x, y = batch(loop, k, t)
                step(k, x, y, loop.local(k, x, y))
            loop.gossip(W)
    network = recorder.network
    told = told_by(cd.report(network, recorder.rounds, tmp_path / "run", samples=True, hops=2))
    losses = told["training"]["loss"]
    assert [[value is None for value in each[:3]] for each in losses["each"]] == torch.eye(4, 3).bool().tolist()
    assert losses["mean"][0] == pytest.approx(float(recorder.rounds[0].loss.sum()) / 3, rel=1e-4)
    assert "used once" in told["samples"]["caution"]  # and nothing about Adam: all groups are plain SGD
    assert max(one["hops"] for one in told["influence"]["scored"].values()) == 2  # samples do not hide whom it reached
    assert main(["reward", str(tmp_path / "run"), "--budget", "10", "--quiet"]) == 0


@pytest.mark.usefixtures("elsewhere")
def test_it_is_built_again_as_it_was(data, tmp_path):
    clipped = cd.optimizers.clip(cd.optimizers.adam((0.8, 0.99)), 0.5)
    ways = [clipped, "sgd", cd.optimizers.momentum(0.5), "momentum"]
    noisy = cd.Behaviour("noise-sender", (1,), range(1, sys.maxsize), 0.1)
    network = own(
        data, optimizer=ways, lr=[0.01, 0.1, 0.1, 0.1], batch_size=[4, 8, 4, 4], local_steps=[1, 1, 2, 1],
        q=[0.1, 0.2, 0.3, 0.4], compression="8-bit", behaviours=[noisy],
    )  # fmt: skip
    network = with_weights(network, samples=torch.linspace(0, 1, 72))
    rounds = list(cd.simulate(network, 3))
    cd.save(network, rounds, tmp_path / "run")
    recording = open_recording(tmp_path / "run")
    again = recording.network
    assert again is not network
    evaluations = [cd.influence.evaluate_on(each) for each in (network, again)]
    truths = [
        cd.influence.truth(*one).total
        for one in zip((network, again), (rounds, list(recording.load_rounds())), evaluations, strict=True)
    ]
    torch.testing.assert_close(*truths, rtol=1e-4, atol=1e-7)
    assert [group.nodes for group in again.groups] == [group.nodes for group in network.groups]


def test_here_the_network_itself_is_used(data, tmp_path):
    network = own(data, loss=lambda outputs, targets: smoothed(outputs, targets))
    cd.save(network, cd.simulate(network, 2), tmp_path / "run")
    found = build_recorded(tmp_path / "run", read_config(tmp_path / "run"))
    assert found.learner is network.learner


@pytest.mark.usefixtures("elsewhere")
def test_what_nothing_can_build_again_is_said(data, tmp_path, capsys):
    network = cd.network(make(), data, nodes=4, mixing="ring", batch_size=4)
    cd.save(network, cd.simulate(network, 2), tmp_path / "run")
    assert main(["influence", str(tmp_path / "run")]) == 2
    assert (
        "the model 'Sequential' was built in Python, and this process does not know how to build it"
        in capsys.readouterr().err
    )
    assert main(["influence", str(tmp_path / "run"), "--model", f"{__name__}:make", "--quiet"]) == 0
    assert main(["influence", str(tmp_path / "run"), "--loss", "mse", "--model", f"{__name__}:make"]) == 2
    assert "in round 0 gives different parameters" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_the_file_of_another_network_is_refused(data, tmp_path):
    for name, nodes in (("one", 4), ("other", 3)):
        network = own(data, nodes=nodes)
        cd.save(network, cd.simulate(network, 2), tmp_path / name)
    (tensors, metadata), (others, _) = (read_tensors(tmp_path / name / NETWORK, None) for name in ("one", "other"))
    facts = json.loads(metadata["network"])
    moved = tensors | {"initial.theta": tensors["initial.theta"] + 1}
    for given, said in ((others, facts), (moved, facts), (tensors, facts | {"name": "theirs"})):
        write_tensors(tmp_path / "one" / NETWORK, given, {"network": json.dumps(said)})
        with pytest.raises(ValueError, match="belongs to another run"):
            open_recording(tmp_path / "one")


@pytest.mark.usefixtures("elsewhere")
def test_only_what_differs_from_the_default_is_written(data, tmp_path):
    network = own(data)
    cd.save(network, cd.simulate(network, 2), tmp_path / "run")
    written = json.loads(read_tensors(tmp_path / "run" / NETWORK, None)[1]["network"])
    assert written == {"format": saved.FORMAT, "name": "mine", "classes": ["0", "1", "2"]}


EARLIER = {
    "every fact": saved.FACTS,
    "fewer facts than there are now": {name: saved.FACTS[name] for name in ("compression", "shape", "outputs")},
}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("known", EARLIER.values(), ids=EARLIER)
def test_files_of_earlier_versions_are_read(known, data, tmp_path):
    """They name no format, hold facts at their defaults too, and their digest is of all that they hold."""
    network, folder = own(data), tmp_path / "run"
    cd.save(network, cd.simulate(network, 2), folder)
    tensors, metadata = read_tensors(folder / NETWORK, None)
    facts = dict(known) | json.loads(metadata["network"])
    del facts["format"]
    write_tensors(folder / NETWORK, tensors, {"network": json.dumps(facts)})
    config = replace(read_config(folder), saved=saved.SavedNetwork(tensors, facts).digest)
    again = saved.network_of(folder, config)
    assert again is not network
    assert torch.equal(again.initial.theta, network.initial.theta)
    assert (again.data.name, again.data.classes) == (network.data.name, network.data.classes)
    assert saved.read(folder, config).facts == saved.kept_of(network, with_data=True).facts


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (
            {"format": "cascadice-network-3"},
            r"format cascadice-network-2; found cascadice-network-3\. Read it",
        ),
        ({"weather": "fine"}, r"has unknown entries: weather\. Read it with the version"),
    ],
)
def test_a_saved_network_of_a_later_version_is_refused(later, reason, data, tmp_path):
    network, folder = own(data), tmp_path / "run"
    cd.save(network, cd.simulate(network, 2), folder)
    tensors, metadata = read_tensors(folder / NETWORK, None)
    facts = json.loads(metadata["network"]) | later
    write_tensors(folder / NETWORK, tensors, {"network": json.dumps(facts)})
    with pytest.raises(ValueError, match=reason):
        open_recording(folder)


@pytest.mark.usefixtures("elsewhere")
def test_rounds_that_are_missing_are_named(data, tmp_path, capsys):
    network = own(data)
    cd.save(network, list(cd.simulate(network, 4))[2:], tmp_path / "run")
    assert main(["influence", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["influence", str(tmp_path / "run"), "--kind", "whole-run"]) == 2
    assert "lacks round 0. Save it with all of them" in capsys.readouterr().err
    assert main(["run", "--resume", "--out", str(tmp_path / "run")]) == 2
    assert "this network was built in Python and can only be trained there" in capsys.readouterr().err


def test_what_cannot_be_saved_is_refused(data, tmp_path):
    network = own(data)
    rounds = list(cd.simulate(network, 3))
    for wrong, reason in ((rounds[::2], "must be consecutive"), ([], "at least one round")):
        with pytest.raises(ValueError, match=reason):
            cd.save(network, wrong, tmp_path / reason[:4])
    other = list(cd.simulate(network, 3, participants=rounds[-1].after))
    with pytest.raises(ValueError, match="round 1 does not start with the parameters after round 0"):
        cd.save(network, [rounds[0], *other[1:]], tmp_path / "spliced")
    with pytest.raises(ValueError, match="must belong to this network"):
        cd.save(own(data, nodes=3), rounds, tmp_path / "other")
    with pytest.raises(ValueError, match="a function that other processes can import"):
        cd.save(network, rounds, tmp_path / "lambda", model=lambda: None)
    cd.save(network, rounds[:1], tmp_path / "twice")
    with pytest.raises(ValueError, match=r"already holds a run\. Replace it with overwrite=True, or choose"):
        cd.save(network, rounds[:1], tmp_path / "twice")
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    for place, why in (
        ("file", "is a file; a run needs a folder"),
        ("mine", "holds files that do not belong to a run"),
    ):
        with pytest.raises(ValueError, match=rf"{why}\. Choose another( folder)?\.$"):  # without flags
            cd.save(network, rounds, tmp_path / place)


@pytest.mark.parametrize("write", [cd.save, cd.report])
def test_one_round_is_not_a_list_to_save(write, data, tmp_path, unchecked):
    network = own(data)
    with pytest.raises(TypeError, match=r"must come in a list or from a generator; found one Round\. Use \[round\]"):
        write(network, next(cd.simulate(network, 1)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def told_by(page):
    return json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])


def test_a_page_from_python(data, tmp_path):
    network = own(data, loss=lambda outputs, targets: smoothed(outputs, targets))
    page = cd.report(network, cd.simulate(network, 3), tmp_path / "run", samples=True, applications="detect")
    told = told_by(page)
    assert told["influence"] is not None
    assert told["final"] is not None
    assert told["samples"]["count"] > 0
    assert [section["name"] for section in told["sections"]] == ["detect"]
    assert told["notes"] == []
    assert told["title"] == f"4 participants train {__name__}:make on {data.name}"
    assert all(one["command"].endswith(" --loss package.module:name") for one in told["commands"])


TRAINS_AGAIN = (
    "influence RUN --kind whole-run",
    "influence RUN --kind whole-run --at 0.5",
    "influence RUN --kind whole-run-shares",
    "influence RUN --kind pairs",
    "reward RUN --budget 100",
    "choose RUN --by contribution",
    "validate RUN --subsets 5",
)


@pytest.mark.parametrize("late", [False, True])
def test_rounds_mixed_by_a_rule_that_does_not_average_are_not_trained_again_by_w(late, data, tmp_path, capsys):
    """Only the rounds in memory hold the rule; `late`: it mixed one round alone, and not the last."""
    network, mean = own(data, mixing="complete"), trimmed_mean(0.4)
    W = network.mixing(0)
    rounds = list(cd.simulate(network, 3, rule=lambda draw, *both: mean(draw, *both) if draw.t == 1 or not late else W))
    assert [round.rule is not None for round in rounds] == ([False, True, False] if late else [True] * 3)
    cd.save(network, rounds, tmp_path / "run")
    assert set(commands(tmp_path / "run", TRAINS_AGAIN).values()) == {2}
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(TRAINS_AGAIN)
    why = f"round {int(late)} was mixed by a rule that does not average, and a recording does not hold the rule"
    assert all(f"cannot be trained again: {why}" in error for error in errors)
    assert not [*(tmp_path / "run").rglob("whole-run*")]
    assert cd.score(network, rounds).updates.shape == (3, 4)  # as the message advises


def test_the_page_of_rounds_mixed_by_a_rule_says_why_it_has_no_influence(data, tmp_path, capsys):
    network = own(data)
    rounds = cd.simulate(network, 3, rule=trimmed_mean(0.4))
    told = told_by(cd.report(network, rounds, tmp_path / "run", samples=True, applications="detect"))
    line = "the page has no influence: round 0 was mixed by a rule that does not average, and a recording does not"
    assert capsys.readouterr().out.startswith(line)
    assert told["influence"] is None
    assert told["commands"] == []
    assert told["notes"][0].startswith("Commands compute nothing from this recording: round 0 was mixed by a rule")


def test_without_test_data_it_is_said_what_to_give(data, tmp_path, capsys):
    recorder = Loop(own(data), lr=0.1).run(2, test=None)
    network, rounds, message = recorder.network, recorder.rounds, "there is no test data to measure influence on. Pass"
    with pytest.raises(ValueError, match=rf"{message} test=Samples\(x, y\) to the Recorder, or evaluation="):
        cd.score(network, rounds)
    given = cd.influence.evaluate_on(network, data.test)
    assert cd.score(network, rounds, evaluation=given).updates.shape == (2, 4)
    told = told_by(cd.report(network, rounds, tmp_path / "run"))
    assert capsys.readouterr().out.startswith(f"the page has no influence: {message}")
    assert told["influence"] is None
    for line in ("influence RUN", "influence RUN --kind whole-run", "validate RUN", "reward RUN --budget 10"):
        assert commands(tmp_path / "run", [line]) == {line: 2}
        assert message in capsys.readouterr().err


def test_runs_of_the_same_data_are_compared_whatever_their_names(data, tmp_path):
    renamed, other = replace(data, name="renamed"), replace(data, test=data.train)
    for name, held in (("one", data), ("renamed", renamed), ("other", other)):
        network = own(held)
        cd.save(network, cd.simulate(network, 2), tmp_path / name)
    findings = compare(tmp_path / "one", tmp_path / "renamed")["findings"]
    assert findings[1] == f"Settings that differ (one, renamed): data ({data.name}, renamed)."
    with pytest.raises(ValueError, match=f"both called {data.name} but hold different samples"):
        compare(tmp_path / "one", tmp_path / "other")


def test_own_models_and_data_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "at_home.py").write_text(AT_HOME.format(tests=__name__))
    own = ["--model", "at_home:model", "--data", "at_home:data", "--loss", "at_home:smoothed"]
    size = ["--nodes", "2", "--batch-size", "4", "--quiet"]
    assert main(["run", "--out", "run", "--rounds", "2", "--record", "all", *own, *size]) == 0
    assert main(["run", "--out", "whole", "--rounds", "4", "--record", "all", *own, *size]) == 0
    assert main(["run", "--out", "run", "--rounds", "4", "--resume", "--quiet"]) == 0
    final = [store.load_checkpoint(name).participants.theta for name in ("run", "whole")]
    assert torch.equal(*final)
    assert main(["influence", "run", "--kind", "whole-run", "--quiet"]) == 0
    for given, reason in {
        ("--model", "at_home:number"): "must return an nn.Module; it returned int",
        ("--model", "at_home:many"): "must take nothing, or (shape, classes); it needs a, b, c",
        ("--data", "at_home:number"): "the data at_home:number cannot be used: data must be a DataSet",
        ("--loss", "at_home:nothing"): "the loss at_home:nothing must exist",
        ("--model", "at_home:model", "--model-options", "a=1"): "options are for named models",
    }.items():
        assert main(["run", "--out", "wrong", *own, *given]) == 2
        assert reason in capsys.readouterr().err
