"""Runs in which messages were missing or a process was away: what was really mixed is known and used."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from chaos.faults import Faulty
from runs.distributed.worlds import CONFIG, fit_for_threads, parameters, together

from cascadice.applications.neighbours import receive
from cascadice.engine import evaluate_on, simulate
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.exchange.pairs import Pairs
from cascadice.influence import own_data, reverse_gossip
from cascadice.influence.reverse_gossip import by_participant
from cascadice.influence.tables import read_table
from cascadice.influence.whole_run_shares import whole_run_shares
from cascadice.report.page import collect
from cascadice.runs import store, train
from cascadice.runs.ask import ask
from cascadice.runs.config import build
from cascadice.runs.distributed import processes
from cascadice.runs.distributed.departures import Departures, read_departures, really
from cascadice.runs.distributed.gathering import gathered_metrics, places_of
from cascadice.runs.distributed.processes import World, folder_name
from cascadice.runs.question import Question
from cascadice.runs.recording import open_recording

assert fit_for_threads  # a fixture
pytestmark = pytest.mark.usefixtures("fit_for_threads")
WHEN, OWN = 2, ([0, 1, 2], [3, 4])


def checked(results):
    values, errors = results
    assert errors == [None] * len(errors), errors
    return values


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, fit_for_threads):
    """A run in which process 1 sent NaN as numbers of participant 4 in one round, recorded and not."""
    home = tmp_path_factory.mktemp("faulty")

    def pairs(exchange_store, rank, interface):
        found = Pairs(exchange_store, rank, interface)
        return Faulty(found, {WHEN: "NaN"}) if rank == 1 else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "Pairs", pairs)
        for record in ("all", "none"):
            config = replace(CONFIG, record=record, checkpoint_every=6)
            options = {"policy": "carry-on", "patience": 20.0}
            checked(
                together(
                    2, lambda world, c=config, out=home / record: train.run(c, out, quiet=True, world=world), **options
                )
            )
    return home


@pytest.fixture(scope="module")
def simulated(faulty):
    """The simulator with the W that really happened."""
    network = build(replace(CONFIG, record="none"))
    rows = [read_departures(faulty / "all" / folder_name(rank)).rows for rank in (0, 1)]
    return replace(network, mixing=really(network.mixing, rows))


def test_what_was_missing_is_written_down(faulty, simulated):
    planned, W = build(CONFIG).mixing(WHEN).to_dense(), simulated.mixing(WHEN)
    heard = int((planned[:3, 4] != 0).sum())
    assert heard > 0
    assert [len(read_departures(faulty / "all" / folder_name(rank)).rows) for rank in (0, 1)] == [heard, 0]
    assert not bool((W[:3, 4] != 0).any())  # the one whose numbers were NaN; the other one of its process is heard
    assert torch.equal(W[:3, 3] != 0, planned[:3, 3] != 0)
    torch.testing.assert_close(W.sum(1), planned.sum(1))
    assert torch.equal(W[3:], planned[3:])
    assert torch.equal(simulated.mixing(WHEN + 1).to_dense(), build(CONFIG).mixing(WHEN + 1).to_dense())


def test_the_numbers_are_the_simulator_s_with_that_W(faulty, simulated):
    *_, last = simulate(simulated, CONFIG.rounds)
    for record in ("all", "none"):
        torch.testing.assert_close(parameters(faulty / record), last.after.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("record", ["all", "none"])
def test_whole_run_influence_follows_the_W_that_really_happened(faulty, simulated, record):
    question = Question(("whole-run-shares",), points=1, eval_samples=50)
    checked(together(2, lambda world: ask(faulty / record, question, quiet=True, world=world)))
    evaluation = evaluate_on(simulated, simulated.data.test.subset(torch.arange(50)))
    expected = whole_run_shares(simulated, CONFIG.rounds, evaluation, points=1, samples=False).participants
    for rank, own in enumerate(OWN):
        rows = read_table(faulty / record / folder_name(rank) / "whole-run")
        found = torch.stack([torch.tensor(rows.select(source=[k]).value).sum() for k in own])
        torch.testing.assert_close(found, expected[own], rtol=0, atol=1e-10)


def test_reverse_gossip_and_detection_follow_it_too(faulty, simulated):
    question = Question(hops=2, eval_samples=50)
    checked(together(2, lambda world: ask(faulty / "all", question, quiet=True, world=world)))
    evaluation = evaluate_on(simulated, simulated.data.test.subset(torch.arange(50)))
    rounds = list(simulate(simulated, CONFIG.rounds))
    expected = by_participant(rounds[1], reverse_gossip(simulated, rounds[1:3], evaluation))
    for rank, own in enumerate(OWN):
        rows = read_table(faulty / "all" / folder_name(rank) / "influence").select(round=[1])
        torch.testing.assert_close(torch.tensor(rows.value), expected[own], rtol=0, atol=1e-10)

    def seen(world):
        recording = open_recording(faulty / "all" / folder_name(world.rank), world=world)
        with world.exchange(recording.network) as exchange:
            evaluation = evaluate_on(recording.network, own_data(recording.network, 20))
            rounds = recording.load_rounds()
            return [receive(recording.network, round_, evaluation, exchange).heard for round_ in rounds]

    for heard in zip(*checked(together(2, seen)), strict=True):
        assert bool((heard[0] & heard[1]).sum() == 0)
    one, other = checked(together(2, seen))
    assert torch.equal(one[WHEN] | other[WHEN], neighbours(simulated.mixing(WHEN)).T)


def test_a_process_that_comes_back_goes_on_with_the_others(tmp_path, monkeypatch):
    config, entered = replace(CONFIG, rounds=80, record="none", eval_every=80, checkpoint_every=12), train.enter
    back = threading.Event()

    def slowly(journal, round_, last):
        if journal.world.rank == 1 and round_.t == 14 and not journal.world.again:
            raise OSError("no space left")
        if journal.world.again:
            back.set()
        # however long it takes to connect again, there are rounds left to come back into
        time.sleep(0.4 if round_.t > 14 and not back.is_set() else 0.005)
        entered(journal, round_, last)

    def work(world):
        try:
            return train.run(config, tmp_path, quiet=True, world=world)
        except OSError:
            more = (world.policy, world.patience, world.interface, True, True)
            again = World(world.rank, world.size, None, world.store, world.timeout, *more)
            return train.run(config, tmp_path, quiet=True, world=again)

    monkeypatch.setattr(train, "enter", slowly)
    checked(together(2, work, policy="carry-on", patience=5.0))
    one, other = ([m.t for m in store.read_metrics(tmp_path / folder_name(rank))] for rank in (0, 1))
    assert one == list(range(80))
    away = read_departures(tmp_path / folder_name(1)).away
    assert away[0] == 12  # it took part in rounds 12 and 13, but kept no checkpoint of them
    assert sorted([*other, *away]) == one
    _, errors = together(2, lambda world: ask(tmp_path, Question(("whole-run-shares",)), quiet=True, world=world))
    assert all("rank-001 lacks round 12. Score" in str(error) for error in errors)
    gathered = gathered_metrics(places_of(tmp_path), 5)
    assert [m.t for m in gathered] == one
    losses = {m.t: m.train_loss for m in store.read_metrics(tmp_path / folder_name(1))}
    for m in gathered:
        assert bool(m.train_loss[OWN[1]].isnan().all()) == (m.t in away)
        if m.t not in away:
            assert torch.equal(m.train_loss[OWN[1]], losses[m.t].double())
    page = collect(tmp_path)
    (note,) = (note for note in page["notes"] if "was away" in note)
    assert note.startswith(f"rank-001 has no record of {len(away)} rounds between 12 and {away[-1]}: it was away, or ")
    assert page["commands"] == []


def test_departures_before_a_checkpoint_are_kept():
    departures = Departures([(1, 0, []), (3, 0, [])], [2, 4])
    assert departures.before(3) == Departures([(1, 0, [])], [2])
