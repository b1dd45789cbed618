"""A ledger keeps the axioms of fair division, keeps what was entered, and says what it has lost."""

import json

import numpy as np
import pytest
import torch
from influence.cases import CLOSE, data, small, smooth
from torch.testing import assert_close

from cascadice import influence, topology
from cascadice.applications.reward import ledger as ledgers
from cascadice.applications.reward.ledger import (
    ALL,
    CHAIN,
    Entry,
    by_horizon,
    by_round,
    by_shares,
    enter,
    read_ledger,
    totals,
)
from cascadice.engine import Behaviour, mix, play, simulate
from cascadice.engine.fast.rows import local_work
from cascadice.engine.networks import draw
from cascadice.influence.evaluation import values

NOTE = {"run": "cafe", "kind": "shares, 1 hop"}
SHARED = {"mixing": topology.build("ring", 4)(0), "init": "shared", "q": [0.25] * 4}


def mean_loss(network, evaluation, participants):
    each = values(network, evaluation, participants.theta, participants.buffers, range(network.nodes))
    return (network.weights * each).sum().double()


def replayed(network, rounds):
    """The rounds again, had nobody worked in the first: by the engine itself."""
    now = mix(rounds[0].W, rounds[0].before)
    after = [now]
    for done in rounds[1:]:
        now = play(network, local_work("loop", network.learner), draw(network, done.t), now).after
        after.append(now)
    return after


@pytest.mark.parametrize("hops", [1, 3])
def test_efficiency_shares_sum_to_what_the_work_of_the_round_changed(hops):
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 2 + hops))[2:]
    found = by_shares(network, rounds, evaluation, points=4).participants
    without = replayed(network, rounds)
    change = sum(
        mean_loss(network, evaluation, done.after) - mean_loss(network, evaluation, other)
        for done, other in zip(rounds, without, strict=True)
    )
    assert_close(found.sum(), change, rtol=1e-7, atol=1e-9)
    assert found.abs().sum() > 1e-3


def test_efficiency_of_a_run_work_and_gossip_add_up_to_the_change_of_the_loss(tmp_path):
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 6))
    enter(tmp_path, NOTE, (by_shares(network, [done], evaluation, points=4) for done in rounds))
    gossip = sum(
        mean_loss(network, evaluation, mix(done.W, done.before)) - mean_loss(network, evaluation, done.before)
        for done in rounds
    )
    change = mean_loss(network, evaluation, rounds[-1].after) - mean_loss(network, evaluation, rounds[0].before)
    assert_close(by_round(read_ledger(tmp_path)).sum() + gossip, change, rtol=1e-7, atol=1e-9)
    assert gossip.abs() > 1e-4


def test_it_is_shares_without_what_a_step_does_to_oneself_before_gossip():
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 5))[2:]
    first = rounds[0]
    direct = network.weights * (
        values(network, evaluation, first.half.theta, {}, range(4))
        - values(network, evaluation, first.before.theta, {}, range(4))
    )
    whole = influence.shares(network, rounds, evaluation, points=4)
    assert_close(by_shares(network, rounds, evaluation, points=4).participants, whole - direct, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_samples_sum_to_their_participant_where_nothing_else_moves_it(optimizer):
    network = small(optimizer=optimizer)
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 3))
    entry = by_shares(network, rounds[:1], evaluation, samples=True)  # old momentum is 0 in the first round
    assert_close(entry.samples.sum(1), entry.participants, **CLOSE)
    assert torch.equal(entry.draw, rounds[0].draw.batch.flatten(1))


def test_symmetry_the_same_data_at_the_same_place_in_the_graph_earn_the_same():
    part = list(range(12)), list(range(12, 24))
    # batches of everything: the order in which they are drawn does not matter
    network = small(**SHARED, partition=[part[0], part[1], part[0], part[1]], batch_size=12)
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 4))
    a, b, c, d = by_shares(network, rounds, evaluation).participants
    assert_close(a, c, **CLOSE)
    assert_close(b, d, **CLOSE)
    assert abs(a - b) > 1e-4
    first = [*by_horizon(network, reversed(rounds), evaluation)][-1].participants
    assert_close(first[0], first[2], **CLOSE)


def test_null_player_a_free_rider_is_entered_with_nothing(tmp_path):
    network = small(behaviours=[Behaviour("free-rider", (2,))])
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 3))
    enter(tmp_path / "shares", NOTE, [by_shares(network, rounds, evaluation, samples=True)])
    enter(tmp_path / "horizon", NOTE, by_horizon(network, reversed(rounds), evaluation, samples=True))
    for folder in ("shares", "horizon"):
        rows = read_ledger(tmp_path / folder).rows
        mine = rows["value"][rows["participant"] == 2]
        assert len(mine) > 4
        assert not mine.any()
        assert rows["value"].any()


def test_additivity_over_measures():
    network = small()
    rounds = list(simulate(network, 2))
    test = network.data.test

    def found(measure):
        return by_shares(network, rounds, influence.evaluate_on(network, test, measure), samples=True)

    def margin(outputs, y):
        return influence.measures.negative_margin(outputs, y)

    loss = network.learner.loss
    both = found(lambda outputs, y: loss(outputs, y) + 2 * margin(outputs, y))
    assert_close(both.participants, found(loss).participants + 2 * found(margin).participants, **CLOSE)
    assert_close(both.samples, found(loss).samples + 2 * found(margin).samples, **CLOSE)


def test_the_horizon_is_that_of_the_sweep_and_names_its_samples():
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 4))
    scored = {s.t: s for s in influence.full_horizon(network, reversed(rounds), evaluation)}
    for entry in by_horizon(network, reversed(rounds), evaluation, samples=True):
        assert_close(entry.participants, scored[entry.round].participants, rtol=0, atol=0)
        assert_close(entry.samples, scored[entry.round].samples, rtol=0, atol=0)
        assert torch.equal(entry.draw, rounds[entry.round].draw.batch.flatten(1))
    assert {entry.samples for entry in by_horizon(network, reversed(rounds), evaluation)} == {None}


def made_up(t, nodes=3, batch=4):
    draw = torch.Generator().manual_seed(t)
    samples = torch.randn(nodes, batch, generator=draw, dtype=torch.float64)
    return Entry(t, samples.sum(1), samples, torch.randint(20, (nodes, batch), generator=draw))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "ledger"
    enter(place, NOTE, map(made_up, range(5)))
    return place


def test_totals_are_those_of_a_slow_sum(folder):
    entries, found = [made_up(t) for t in range(5)], read_ledger(folder)
    assert not found.problems
    assert found.rounds == [0, 1, 2, 3, 4]
    assert_close(by_round(found), torch.stack([entry.participants for entry in entries]), rtol=0, atol=0)
    for node, value in enumerate(totals(found, "participant")["value"]):
        assert value == pytest.approx(sum(float(entry.participants[node]) for entry in entries))
    for t, value in enumerate(totals(found, "round")["value"]):
        assert value == pytest.approx(float(entries[t].participants.sum()))
    samples = totals(found, "sample")
    for sample, uses, value in zip(samples["sample"], samples["entries"], samples["value"], strict=True):
        here = [entry.draw == sample for entry in entries]
        assert uses == sum(int(there.sum()) for there in here)
        assert value == pytest.approx(
            sum(float(e.samples[there].sum()) for e, there in zip(entries, here, strict=True))
        )
    pairs = totals(found, "participant", "sample")
    assert pairs["value"].sum() == pytest.approx(totals(found)["value"][0])
    assert len(pairs["value"]) == len(set(zip(pairs["participant"], pairs["sample"], strict=True)))


def test_other_programs_can_read_the_parts(folder):
    import pandas as pd

    frame = pd.concat(pd.read_parquet(path) for path in sorted(folder.glob("part-*.parquet")))
    assert list(frame.columns) == ["round", "participant", "sample", "value"]
    whole = frame[frame["sample"] == ALL].groupby("participant")["value"].sum()
    np.testing.assert_allclose(whole, totals(read_ledger(folder), "participant")["value"])


def test_goes_on_where_it_was_and_a_seal_kept_elsewhere_still_fits(folder):
    seal = read_ledger(folder).seal
    enter(folder, NOTE, [made_up(9)])
    assert read_ledger(folder, NOTE, seal).rounds == [0, 1, 2, 3, 4, 9]
    assert read_ledger(folder).seal != seal


def test_a_truncated_part_is_named_and_the_rest_kept(folder):
    path = folder / "part-00000002.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    found = read_ledger(folder)
    assert list(found.problems) == [2]
    assert found.problems[2].startswith("part-00000002.parquet is truncated: ")
    assert found.rounds == [0, 1, 3, 4]
    enter(folder, NOTE, [made_up(2)])
    again = read_ledger(folder)
    assert not again.problems
    assert by_round(again).shape == (5, 3)
    assert len(again.links) == 6  # both entries of round 2 can be seen


def test_a_removed_or_altered_part_is_noticed(folder):
    (folder / "part-00000001.parquet").unlink()
    path = folder / "part-00000003.parquet"
    path.write_bytes(path.read_bytes().replace(b"P", b"Q", 1))
    found = read_ledger(folder)
    assert found.problems == {
        1: "part-00000001.parquet is missing",
        3: "part-00000003.parquet was altered after it was entered",
    }
    assert found.rounds == [0, 2, 4]


@pytest.mark.parametrize("change", ["remove", "alter", "swap"])
def test_an_altered_chain_is_refused(folder, change):
    header, one, two, *rest = (folder / CHAIN).read_text().splitlines()
    other = json.dumps(json.loads(one) | {"round": 7})
    lines = {"remove": [two], "alter": [other, two], "swap": [two, one]}[change]
    (folder / CHAIN).write_text("\n".join([header, *lines, *rest]) + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*chain.jsonl does not follow from those before it"):
        read_ledger(folder)


def test_lines_missing_at_the_end_are_noticed_by_a_seal(folder):
    seal = read_ledger(folder).seal
    lines = (folder / CHAIN).read_text().splitlines()
    (folder / CHAIN).write_text("\n".join(lines[:-1]) + "\n")
    assert read_ledger(folder).rounds == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"does not contain what was sealed by .*: parts at its end were removed"):
        read_ledger(folder, seal=seal)


def test_another_runs_ledger_is_refused(folder):
    with pytest.raises(ValueError, match="is the ledger of another run: run is 'cafe' there, 'beef' here"):
        enter(folder, NOTE | {"run": "beef"}, [made_up(9)])
    with pytest.raises(ValueError, match="is the ledger of other settings: kind is 'shares, 1 hop' there, 'x' here"):
        read_ledger(folder, NOTE | {"kind": "x"})
    assert not (folder / "part-00000009.parquet").exists()


def test_a_header_that_was_changed_is_noticed(folder):
    text = (folder / CHAIN).read_text()
    (folder / CHAIN).write_text(text.replace("cafe", "beef", 1))
    with pytest.raises(ValueError, match=r"line 2 of .* does not follow"):
        read_ledger(folder)


@pytest.mark.parametrize("moment", ["before the line", "within the line"])
def test_killed_while_entering_it_goes_on(folder, monkeypatch, moment):
    def killed(chain, line):
        if moment == "within the line":
            with chain.open("a") as file:
                file.write(line[:20])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledgers, "_append", killed)
        with pytest.raises(KeyboardInterrupt):
            enter(folder, NOTE, [made_up(5)])
    assert read_ledger(folder).rounds == [0, 1, 2, 3, 4]
    enter(folder, NOTE, [made_up(5), made_up(6)])
    found = read_ledger(folder)
    assert found.rounds == [0, 1, 2, 3, 4, 5, 6]
    assert not found.problems


def test_what_is_not_a_ledger_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no ledger: chain.jsonl is not there"):
        read_ledger(tmp_path)
    (tmp_path / CHAIN).write_text('{"some": "thing"}\n')
    with pytest.raises(ValueError, match="must begin with a ledger's header of format cascadice-ledger-1"):
        read_ledger(tmp_path)
    (tmp_path / CHAIN).write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"line 1 of .* is not readable"):
        read_ledger(tmp_path)


def test_entries_must_be_numbers(tmp_path):
    with pytest.raises(ValueError, match="takes finite contributions; found nan in round 3"):
        enter(tmp_path, NOTE, [Entry(3, torch.tensor([0.0, torch.nan]))])


def test_questions_that_cannot_be_answered(tmp_path, folder):
    with pytest.raises(ValueError, match="unknown column 'node'"):
        totals(read_ledger(folder), "node")
    enter(tmp_path / "plain", NOTE, [Entry(0, torch.ones(3))])
    with pytest.raises(ValueError, match=r"has no such entries to sum\. Enter some with --samples"):
        totals(read_ledger(tmp_path / "plain"), "sample")


def test_recordings_of_another_network_are_refused():
    network, other = small(), small(smooth(width=5))
    with pytest.raises(ValueError, match="parameters"):
        by_shares(other, list(simulate(network, 1)), influence.evaluate_on(other, data().test))
