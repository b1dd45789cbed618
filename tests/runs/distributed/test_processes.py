"""Several processes train one network into folders of their own: what one process trains, to rounding.

Processes are threads here; tests/test_torchrun.py starts real ones.
"""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from runs.distributed.worlds import CONFIG, fit_for_threads, parameters, together, trained

from cascadice.applications.detect.idea import detect
from cascadice.applications.neighbours import own_samples, receive
from cascadice.cli import main
from cascadice.influence.tables import read_table
from cascadice.report.page import collect, page
from cascadice.runs import ask as asking
from cascadice.runs import journal, store, train
from cascadice.runs.ask import ask
from cascadice.runs.distributed.processes import World, folder_name
from cascadice.runs.distributed.together import point_to_all
from cascadice.runs.question import Question
from cascadice.runs.recording import open_recording
from cascadice.runs.summary import MOST, read_training_change

assert fit_for_threads  # a fixture
pytestmark = pytest.mark.usefixtures("fit_for_threads")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, fit_for_threads):
    home = tmp_path_factory.mktemp("runs")
    train.run(CONFIG, home / "one", quiet=True)
    trained(home / "two")
    return home


def test_each_process_trains_its_participants_as_one_process_would(runs):
    expected = store.load_checkpoint(runs / "one").participants.theta
    torch.testing.assert_close(parameters(runs / "two"), expected, rtol=0, atol=1e-10)
    one, *parts = [store.read_metrics(place) for place in (runs / "one", *sorted(runs.glob("two/rank-*")))]
    for t, metrics in enumerate(one):
        losses = torch.cat([part[t].train_loss for part in parts])
        torch.testing.assert_close(losses, metrics.train_loss, rtol=0, atol=1e-10)
        if metrics.test is not None:
            tests = torch.cat([part[t].test.loss for part in parts])
            torch.testing.assert_close(tests, metrics.test.loss, rtol=0, atol=1e-10)


def test_each_process_records_its_own_rounds_and_participants(runs):
    from pyarrow import parquet

    whole = store.load_round(runs / "one", 3)
    parts = [store.load_round(place, 3) for place in sorted(runs.glob("two/rank-*"))]
    assert [len(part.loss) for part in parts] == [3, 2]
    assert all(part.rule is None and torch.equal(part.W, whole.W) for part in parts)
    torch.testing.assert_close(torch.cat([part.after.theta for part in parts]), whole.after.theta, rtol=0, atol=1e-10)
    table = parquet.read_table(runs / "two" / "rank-001" / store.METRICS)
    assert set(table["node"].to_pylist()) == {3, 4}
    manifest = json.loads((runs / "two" / "rank-001" / "manifest.json").read_text())
    assert manifest["process"] == {"rank": 1, "of": 2, "members": [3, 4]}


def test_what_one_process_sends_the_other_receives(runs):
    one, other = (store.read_metrics(place) for place in sorted(runs.glob("two/rank-*")))
    assert [m.traffic for m in one] == [m.traffic[::-1] for m in other]  # in the same round
    assert min(one[0].traffic) > 8 * store.load_checkpoint(runs / "one").participants.theta.shape[1]


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(runs, tmp_path, monkeypatch):
    def killed(folder, t, *rest, name=store.CHECKPOINT, **more):
        if folder.name == "rank-001" and t == 4 and name == store.CHECKPOINT:
            raise ConnectionError("killed while it saved")
        saved(folder, t, *rest, name=name, **more)

    saved = store.save_checkpoint
    monkeypatch.setattr(store, "save_checkpoint", killed)
    with pytest.raises(ConnectionError):
        trained(tmp_path / "run")
    monkeypatch.setattr(store, "save_checkpoint", saved)
    assert [store.load_checkpoint(tmp_path / "run" / rank).t for rank in ("rank-000", "rank-001")] == [4, 2]
    trained(tmp_path / "run", resume=True)
    assert torch.equal(parameters(tmp_path / "run"), parameters(runs / "two"))
    for rank in ("rank-000", "rank-001"):
        assert store.saved_rounds(tmp_path / "run" / rank) == list(range(6))
        assert [m.t for m in store.read_metrics(tmp_path / "run" / rank)] == list(range(6))


@pytest.mark.parametrize(("fails", "drawn"), [(True, 0), (False, 2)])
def test_a_process_that_stops_early_draws_no_figures_while_the_others_wait(tmp_path, monkeypatch, fails, drawn):
    plotted, entered = [], train.enter

    def enter(journal, round_, last):
        if fails:
            raise OSError("no space left")
        entered(journal, round_, last)

    monkeypatch.setattr(train, "enter", enter)
    monkeypatch.setattr(journal, "plot", plotted.append)
    config = replace(CONFIG, nodes=2, rounds=1, per_node=8)
    _, errors = together(2, lambda world: train.run(config, tmp_path, quiet=True, world=world))
    assert ([bool(error) for error in errors], len(plotted)) == ([fails, fails], drawn)


def test_processes_that_were_told_different_things_say_what_and_who(tmp_path):
    def work(world):
        train.run(replace(CONFIG, lr=0.1 + world.rank // 2), tmp_path / "run", quiet=True, world=world)

    _, errors = together(3, work)
    assert {str(error) for error in errors} == {
        "all processes must agree; lr is 1.1 in process 2, 0.1 in process 0. Start them all alike."
    }
    assert not list(tmp_path.iterdir())


def test_a_folder_of_other_processes_is_refused(runs, tmp_path):
    with pytest.raises(
        ValueError, match=r"rank-000 must belong to process 0 of 3; it is that of process 0 of 2. Start 2 "
    ):
        trained(runs / "two", replace(CONFIG, rounds=8), count=3, resume=True)
    with pytest.raises(ValueError, match=r"one of 2 processes, which compute together. Use: torchrun --nproc-per-node"):
        train.run(replace(CONFIG, rounds=8), runs / "two" / "rank-000", quiet=True, resume=True)
    with pytest.raises(ValueError, match="is the folder of a run in one process"):
        trained(runs / "one", resume=True)


def test_what_needs_everybody_in_one_place_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="the rule 'krum' needs all messages in one place"):
        trained(tmp_path / "run", replace(CONFIG, rule="krum", record="none"))
    with pytest.raises(ValueError, match=r"found 6 processes for 5. Start at most 5"):
        trained(tmp_path / "run", count=6)
    assert not list(tmp_path.iterdir())


def test_one_process_says_where_the_others_wrote(capsys):
    for rank in (0, 1):
        point_to_all(World(rank, 2, None, dist.HashStore()), "runs/two", None, quiet=False)
    page = "all on one page: cascadice report runs/two"
    assert capsys.readouterr().out == (
        f"each of the 2 processes wrote about its own participants, into rank-000 to rank-001; {page}\n"
    )
    point_to_all(World(0, 2, None, dist.HashStore()), "runs/two", "elsewhere", quiet=False)
    assert "report" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "shown"), [("no data here", "no data here"), ("\x1b]0;mine\x07", "\\x1b]0;mine\\x07")]
)
def test_a_process_that_fails_is_named_by_those_that_wait(said, shown):
    """Whatever it says cannot control their terminal."""

    def work(world):
        if world.rank == 1:
            raise ValueError(said)
        world.tell(1)

    _, (waited, _) = together(2, work)
    assert str(waited) == f"process 1 failed: {shown}"


def test_one_process_that_never_speaks_is_not_waited_for_long():
    _, (waited, _) = together(2, lambda world: None if world.rank else replace(world, timeout=0.2).tell(1))
    assert "process 1 did not answer for 0.2 s" in str(waited)


def asked(runs, question, ask, name, **world):
    alone = runs / f"{name}-of-one"
    options = {"quiet": True, "overwrite": True}
    ask(runs / "one", question, alone, **options)
    results, errors = together(2, lambda world: ask(runs / "two", question, **options, world=world), **world)
    if any(errors):
        raise next(error for error in errors if error)
    places = [place / name for place in sorted((runs / "two").glob("rank-*"))]
    return read_table(alone), [read_table(place) for place in places], results


def same_rows(whole, parts, members):
    """The rows of one process are those of its own participants, with the values of the run in one process."""
    for part, own in zip(parts, members, strict=True):
        expected = whole.select(source=own)
        assert len(part) == len(expected) > 0
        for name, column in part.columns.items():
            if name == "value":
                np.testing.assert_allclose(column, expected.value, rtol=0, atol=1e-10)
            else:
                assert column.tolist() == expected.columns[name].tolist()


@pytest.mark.parametrize("kind", ["first-order", "shares"])
def test_influence_between_processes_is_that_in_one(runs, kind):
    question = Question((kind,), hops=2, samples=True, eval_samples=100)
    whole, parts, results = asked(runs, question, ask, "influence")
    same_rows(whole, parts, [[0, 1, 2], [3, 4]])
    totals = next(iter(results[1].participants.values()))
    assert np.isnan(totals).tolist() == [True, True, True, False, False]


def test_whole_run_influence_between_processes_is_that_in_one(runs, monkeypatch):
    question = Question(("whole-run", "whole-run-shares"), points=2, samples=True, eval_samples=100)
    printed = []
    labels = []
    monkeypatch.setattr(
        asking, "print_summary",
        lambda console, summary, classes, known, *more: (printed.append(summary), labels.append(known)),
    )  # fmt: skip
    whole, parts, results = asked(runs, question, ask, "whole-run", tells_samples=True)
    one, *of_all = printed
    for each in of_all:  # each process could print what one would
        for kind in one.participants:
            np.testing.assert_allclose(each.participants[kind], one.participants[kind], rtol=0, atol=1e-10)
            np.testing.assert_allclose(each.bounds[kind], one.bounds[kind], rtol=0, atol=1e-10)
            for ends in ((0, MOST), (-MOST, None)):
                strongest = [[score[:3] for score in some.samples[kind][slice(*ends)]] for some in (each, one)]
                assert all(labels[1][sample] == labels[0][sample] for _, sample, _ in strongest[0])
                assert strongest[0] == strongest[1]
            assert each.verdicts[kind] == one.verdicts[kind]
        assert [result[:2] for result in each.test_results] == [result[:2] for result in one.test_results]
        assert [r.mean for r in each.test_results] == pytest.approx([r.mean for r in one.test_results], abs=1e-10)
    same_rows(whole, parts, [[0, 1, 2], [3, 4]])
    drawn = collect(runs / "two" / "rank-001")["final"]
    assert sorted(row[0] for row in drawn["rows"]) == [3, 4]
    assert drawn["charts"][0]["traces"][0]["y"] == [3, 4]
    change = read_training_change(runs / "whole-run-of-one")
    assert [result.training_change for result in results] == pytest.approx([change, change], abs=1e-12)


@pytest.mark.parametrize("on", ["all", 3])
def test_slopes_too_large_to_believe_are_doubted_once_and_as_in_one_process(tmp_path, on):
    rough = replace(CONFIG, lr=3.0, rounds=10, record="none", init="own")
    train.run(rough, tmp_path / "one", quiet=True)
    trained(tmp_path / "two", rough)
    question = Question(("whole-run",), on=on)
    with pytest.warns(RuntimeWarning, match="the slope of participant") as alone:
        ask(tmp_path / "one", question, quiet=True)
    with pytest.warns(RuntimeWarning, match="the slope of participant") as several:
        _, errors = together(2, lambda world: ask(tmp_path / "two", question, quiet=True, world=world))
    assert errors == [None, None]
    assert [str(one.message) for one in several] == [str(one.message) for one in alone]
    sentence = f"T{str(alone[0].message)[1:]}"
    for folder in ("one", "two", "two/rank-000", "two/rank-001"):
        assert sentence in collect(tmp_path / folder)["findings"]


def test_scores_of_samples_stay_in_their_process_unless_they_are_asked_for(runs, monkeypatch):
    told, printed, tell = [], [], World.tell
    monkeypatch.setattr(World, "tell", lambda world, value: told.append(value) or tell(world, value))
    monkeypatch.setattr(asking, "print_summary", lambda *what: printed.append(what))
    asked(runs, Question(samples=True, every=6, eval_samples=20), ask, "influence")
    summaries = [value for value in told if isinstance(value, dict) and "verdicts" in value]
    assert [value["samples"] for value in summaries] == [{}, {}]
    for _, summary, *_, whose in printed[1:]:
        (samples,) = summary.samples.values()
        assert {one.node for one in samples} in ({0, 1, 2}, {3, 4})
        assert "--tell-samples shows those of all" in whose
    assert printed[0][-1] == ""


def test_the_page_of_one_process_shows_its_own_and_that_of_the_run_everybody(runs):
    asked(runs, Question(samples=True, every=6, eval_samples=20), ask, "influence")
    whole, own = collect(runs / "two"), collect(runs / "two" / "rank-001")
    assert (whole["nodes"], own["nodes"]) == (5, 5)
    assert [None in line for line in whole["training"]["loss"]["each"]] == [False] * 5
    assert [None in line for line in own["training"]["loss"]["each"]] == [True, True, True, False, False]
    totals = whole["influence"]["totals"]["first order"]
    assert None not in totals
    assert own["influence"]["totals"]["first order"] == [None, None, None, *totals[3:]]
    assert (whole["notes"], own["notes"]) == ([], [])
    assert (whole["members"], own["members"]) == (None, [3, 4])
    assert (whole["training"]["consensus"], own["training"]["consensus"]) == (None, None)  # nobody has all models
    assert whole["commands"][-1]["command"] == f"torchrun --nproc-per-node 2 -m cascadice detect {runs / 'two'}"
    assert collect(runs / "one")["training"]["loss"] == whole["training"]["loss"]
    assert "participants" in page(own)


def test_every_process_s_files_are_checked(runs, capsys):
    assert main(["check", str(runs / "two")]) == 0
    said = capsys.readouterr().out
    assert "rank-000 training" in said
    assert "rank-001 rounds" in said


def test_several_processes_say_what_kind_of_folder_they_were_given(runs):
    for place, said in (
        (runs / "one", "it is the run of a single process. Leave out torchrun."),
        (runs / "two" / "rank-000", f"it is the part of one process. Name the folder above it: {runs / 'two'}."),
    ):
        _, errors = together(2, lambda world, place=place: ask(place, Question(), quiet=True, world=world))
        assert {str(error) for error in errors} == {f"{place} must be the run of 2 processes; {said}"}


def test_questions_that_need_everybody_are_refused_by_name(runs):
    for question, why in (
        (Question(("truth",)), "truth needs every participant's model, and no single process has them all"),
        (Question(hops=0), "needs at least 1 hop; found 0"),
        (Question(sources=(1,)), "all participants are scored at once"),
    ):
        _, errors = together(2, lambda world, asked=question: ask(runs / "two", asked, quiet=True, world=world))
        assert all(why in str(error) for error in errors)
    _, errors = together(
        2, lambda world: ask(runs / "two", Question(("whole-run-shares",), on="average"), quiet=True, world=world)
    )
    assert all("no single process has the average model" in str(error) for error in errors)
    with pytest.raises(ValueError, match="Use: torchrun --nproc-per-node 2 -m cascadice"):
        ask(runs / "two" / "rank-000", Question(), quiet=True)
    with pytest.raises(ValueError, match=r"two holds the run of 2 processes, which compute together. Use: torchrun"):
        ask(runs / "two", Question(), quiet=True)


def test_detection_from_what_processes_receive_is_that_in_one(runs):
    def seen(world):
        recording = open_recording(runs / "two" / folder_name(world.rank), world=world)
        evaluation, samples = own_samples(recording.network, 30, world)
        with world.exchange(recording.network) as exchange:
            options = {"allowance": 0.5, "samples": samples, "look": partial(receive, exchange=exchange)}
            return list(detect(recording.network, recording.load_rounds(), evaluation, **options))[-1]

    results, errors = together(2, seen)
    assert errors == [None, None]
    recording = open_recording(runs / "one")
    evaluation, samples = own_samples(recording.network, 30)
    expected = list(detect(recording.network, recording.load_rounds(), evaluation, allowance=0.5, samples=samples))[-1]
    for verdict, own in zip(results, ([0, 1, 2], [3, 4]), strict=True):
        assert torch.equal(verdict.heard[:, own], expected.heard[:, own])
        assert verdict.heard.sum() == expected.heard[:, own].sum()
        torch.testing.assert_close(verdict.deviation[:, :, own], expected.deviation[:, :, own], rtol=0, atol=1e-9)


def test_processes_of_another_version_or_network_are_refused(runs):
    _, errors = together(2, lambda world: world.agree({"the version of torch": f"2.{world.rank}"}))
    assert {str(error) for error in errors} == {
        "all processes must agree; the version of torch is '2.1' in process 1, '2.0' in process 0. "
        "Start them all alike."
    }
    with pytest.raises(ValueError, match="must keep its settings; nodes is 5 in"):
        trained(runs / "two", replace(CONFIG, nodes=6), resume=True)


def test_questions_during_training_need_every_round(tmp_path):
    _, errors = together(
        2, lambda world: train.run(CONFIG, tmp_path, question=Question(), quiet=True, world=world), policy="restart"
    )
    assert all("--policy restart may lose some" in str(error) for error in errors)
