"""Messages that are missing, late or wrong: processes stop and say why, or carry on and say what they really mixed."""

import logging
import threading
from time import sleep

import pytest
import torch
import torch.distributed as dist
from chaos.faults import HARMLESS, MESSAGE_FAULTS, OF_SEVERAL, Faulty

from cascadice import data, models, network
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.engine.distributed_training import carry_on
from cascadice.engine.exchange import pairs
from cascadice.engine.exchange.messages import Messages, PeerError
from cascadice.engine.exchange.pairs import Pairs
from cascadice.engine.exchange.routes import renormalised
from cascadice.engine.networks import draw
from cascadice.engine.parts import part_of, split
from cascadice.influence import reverse_gossip

NODES, RANKS, ROUNDS = 4, 3, 6
PARTS = split(NODES, RANKS)  # (0, 1), (2,), (3,)
LIAR, WHEN = 2, 2  # who sends a wrong message, and in which round
LONG = 60.0  # seconds that nothing takes, however busy the machine is
MODEL = models.mlp((64,), 10, hidden=(4,), activation="gelu")


@pytest.fixture(scope="module")
def digits():
    return data.digits()


def built(digits):
    mixing = torch.full((NODES, NODES), 1 / NODES, dtype=torch.float64)
    return network(MODEL, digits, nodes=NODES, batch_size=4, lr=0.1, dtype="float64", mixing=mixing)


def together(digits, work, plan=None, liar=LIAR, **options):
    """`work(mine, exchange)` for each process, in threads; the messages of one are changed as planned."""
    store, results, errors = dist.HashStore(), [None] * RANKS, []
    connected = threading.Barrier(RANKS)
    nets = [part_of(built(digits), part) for part in PARTS]

    def runs(rank):
        group = Pairs(store, rank)
        exchange = Messages(nets[rank], PARTS, rank, Faulty(group, plan or {}) if rank == liar else group, **options)
        try:
            assert exchange.post.meet(LONG)
            connected.wait(LONG)
            results[rank] = work(nets[rank], exchange)
        except BaseException as error:
            errors.append(error)
        finally:
            exchange.post.close(timeout=1.0)

    threads = [threading.Thread(target=runs, args=(rank,)) for rank in range(RANKS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "CONNECTING", LONG)  # an attempt given up by one side alone loses what the other sent
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return results


def trained(mine, exchange):
    rounds = list(simulate(mine, ROUNDS, operator=Operator(mine, exchange)))
    return rounds, exchange


def replayed(digits, real):
    """The simulator's rounds with the W that really happened."""
    net = built(digits)
    here, operator, rounds = net.initial, Operator(net), []
    for t, W in enumerate(real):
        rounds.append(operator.apply(draw(net, t)._replace(W=W), here))
        here = rounds[-1].after
    return rounds


def effective(results):
    """Everybody's own rows of W, in each round."""
    rows = [
        [round_.W.to_dense()[list(part)] for round_ in rounds] for part, (rounds, _) in zip(PARTS, results, strict=True)
    ]
    return [torch.cat(each) for each in zip(*rows, strict=True)]


@pytest.mark.parametrize("fault", [*MESSAGE_FAULTS, *OF_SEVERAL])
def test_a_wrong_message_is_left_out_of_its_round(digits, fault, caplog):
    with caplog.at_level(logging.WARNING):
        results = together(digits, trained, {WHEN: fault}, policy="carry-on", patience=LONG)
    real = effective(results)
    torch.testing.assert_close(torch.stack([W.sum(1) for W in real]), torch.ones(ROUNDS, NODES, dtype=torch.float64))
    others = [W[:3, 3] for W in real]
    if fault != "reordered":  # it is used where the one that overtook it was not seen first
        assert bool((others[WHEN] == (0.25 if fault in HARMLESS else 0)).all())
    assert all(bool((others[t] == 0.25).all()) for t in (0, 1, 5))
    for t, round_ in enumerate(replayed(digits, real)):
        mine = torch.cat([rounds[t].after.theta for rounds, _ in results])
        torch.testing.assert_close(mine, round_.after.theta, rtol=0, atol=1e-12)
    missing = any("process 2 did not send" in message for message in caplog.messages)
    assert missing == any(bool((weights == 0).any()) for weights in others)
    if fault in HARMLESS:
        assert any("twice" in what or "stale" in what for what in results[0][1].post.refused)


def test_one_participant_with_nan_costs_the_others_of_its_process_nothing(digits, caplog):
    results = together(digits, trained, {WHEN: "NaN"}, liar=0, policy="carry-on", patience=LONG)
    real = effective(results)
    for k in (2, 3):
        torch.testing.assert_close(real[WHEN][k], torch.tensor([1, 0, 1, 1], dtype=torch.float64) / 3)
    assert bool((real[WHEN][:2] == 0.25).all())  # what a process keeps to itself is not sent
    for t, round_ in enumerate(replayed(digits, real)):
        mine = torch.cat([rounds[t].after.theta for rounds, _ in results])
        torch.testing.assert_close(mine, round_.after.theta, rtol=0, atol=1e-12)
    said = "process 0 did not send all its parameters of round 2: it sent numbers of participant 1 that are NaN"
    assert any(message.startswith(said) for message in caplog.messages)
    with pytest.raises(PeerError, match="it sent numbers of participant 1 that are NaN or infinite"):
        together(digits, trained, {WHEN: "NaN"}, liar=0, policy="stop", patience=LONG)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("NaN", "it sent numbers of participant 3 that are NaN"),
        ("shape", "were expected"),
        ("other round", "of round 3"),
        ("lost", "later message"),
    ],
)
def test_where_it_stops_it_says_who_and_why(digits, fault, said):
    with pytest.raises(PeerError, match=r"process \d did not send its parameters of round") as caught:
        together(digits, trained, {WHEN: fault}, policy="stop", patience=LONG)
    assert said in str(caught.value)
    assert "still running" not in str(caught.value)


def test_a_silent_peer_is_waited_for_once(digits):
    ended, others = threading.Event(), threading.Barrier(2, timeout=30)

    def work(mine, exchange):
        if mine.members[0] == 3:
            ended.wait()
            return None
        until, waits = exchange.attendance.until, []

        def watched(peer, peers, start, step):
            end = until(peer, peers, start, step)
            waits.extend([end - start] if peer == 2 else [])
            return end

        exchange.attendance.until = watched
        list(simulate(mine, 4, operator=Operator(mine, exchange)))
        others.wait()  # if it left before, its neighbours would hear that its connection is closed
        ended.set()
        return waits, exchange.attendance.missed[2, "nothing came in time"]

    assert together(digits, work, policy="carry-on", patience=0.6)[0] == (pytest.approx([0.6, 0, 0, 0]), 4)


def test_adjoints_follow_what_was_really_mixed(digits):
    def work(mine, exchange):
        operator = Operator(mine, exchange)
        rounds = list(simulate(mine, 3, operator=operator))
        adjoint = reverse_gossip(mine, rounds, evaluate_on(mine), operator=operator)
        missed.update(why for _, why in exchange.attendance.missed)
        return rounds, adjoint

    missed = set()
    results = together(digits, work, {1: "NaN"}, policy="carry-on", patience=LONG)
    # and no adjoint is missing: who was not heard is told so
    assert missed == {"it sent numbers of participant 3 that are NaN or infinite"}
    rounds = replayed(digits, effective(results))
    expected = reverse_gossip(built(digits), rounds, evaluate_on(built(digits)))
    torch.testing.assert_close(torch.cat([adjoint.theta for _, adjoint in results]), expected.theta, rtol=0, atol=1e-12)


def test_who_was_held_up_leaves_rounds_out_and_is_heard_again(digits):
    far_ahead = threading.Event()

    def work(mine, exchange):
        rounds = []
        for round_ in carry_on(mine, 100, exchange):
            rounds.append(round_)
            if mine.members[0] == 3 and round_.t == 2:
                far_ahead.wait()
            if mine.members[0] == 0 and round_.t == 20:
                far_ahead.set()
            sleep(0.01)
        return rounds

    first, _, last = together(digits, work, policy="carry-on", patience=0.5)
    missed = set(range(100)) - {round_.t for round_ in last}
    assert missed
    assert [round_.t for round_ in first] == list(range(100))
    heard = [round_.t for round_ in first if float(round_.W[0, 3]) == 0.25]
    assert not missed & set(heard)
    assert max(heard) > max(missed)


def test_a_newcomer_starts_from_what_it_hears(digits):
    store, nets = dist.HashStore(), [part_of(built(digits), part) for part in PARTS]
    rounds, joined = {rank: [] for rank in range(RANKS + 1)}, []

    def survives(rank):
        exchange = Messages(nets[rank], PARTS, rank, Pairs(store, rank), policy="carry-on", patience=2.0)
        for round_ in carry_on(nets[rank], 150, exchange):
            rounds[rank].append(round_)
            # however long it takes to connect again, there are rounds left to come into
            sleep(0.01 if joined or round_.t < 10 else 0.15)
        exchange.post.close(timeout=1.0)

    def dies_and_returns():
        exchange = Messages(nets[2], PARTS, 2, Pairs(store, 2), policy="carry-on", patience=2.0)
        rounds[2] = list(carry_on(nets[2], 5, exchange))
        exchange.post.close(timeout=0.2)
        exchange = Messages(nets[2], PARTS, 2, Pairs(store, 2), policy="carry-on", patience=2.0)
        joined.append(heard := exchange.listen(nets[2].initial, timeout=20.0))
        rounds[3] = list(carry_on(nets[2], 150, exchange, start=heard.start, participants=heard.participants))
        exchange.post.close(timeout=1.0)

    threads = [threading.Thread(target=survives, args=(rank,)) for rank in (0, 1)]
    threads.append(threading.Thread(target=dies_and_returns))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [heard], survivor = joined, {round_.t: round_ for round_ in rounds[0]}
    assert sorted(survivor) == list(range(150))
    half = torch.cat([next(r for r in rounds[rank] if r.t == heard.t).half.theta for rank in (0, 1)])
    torch.testing.assert_close(heard.participants.theta[0], heard.W[3, :3] @ half, rtol=0, atol=1e-12)
    assert float(heard.W[3, :3].sum()) == pytest.approx(1)
    assert any(float(survivor[t].W[0, 3]) == 0.25 for t in range(heard.start, 150))


def test_an_unknown_policy_is_refused(digits):
    with pytest.raises(ValueError, match=r"unknown policy 'go on'\. .*Known: carry-on, stop"):
        Messages(part_of(built(digits), PARTS[0]), PARTS, 0, None, policy="go on")


def test_rows_of_w_keep_their_sums():
    W = torch.tensor([[0.0, 0.5, 0.5], [0.2, 0.3, 0.5]], dtype=torch.float64)
    own, came = torch.tensor([0, 1]), torch.tensor([True, False, False])
    assert renormalised(W, came, own).tolist() == [[1, 0, 0], [1, 0, 0]]
