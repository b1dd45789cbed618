"""Who is late, who is waited for and for how long, with messages that are put into a process by hand."""

import threading
from queue import Queue
from time import sleep
from types import SimpleNamespace

import pytest
import torch

from cascadice import data, models, network
from cascadice.engine import DivergedError, Operator, simulate
from cascadice.engine.exchange.attendance import Attendance
from cascadice.engine.exchange.frames import GOODBYE, HEADER, MODEL, STILL_WAITING, Frame, notice, pack
from cascadice.engine.exchange.messages import Messages, PeerError
from cascadice.engine.exchange.post import MissingError, Post, _reason
from cascadice.engine.networks import draw
from cascadice.engine.parts import part_of, split

NODES, RANKS = 4, 3
PARTS = split(NODES, RANKS)  # (0, 1), (2,), (3,)
COLUMNS = 64 * 4 + 4 + 4 * 10 + 10


@pytest.fixture(scope="module")
def mine():
    mixing = torch.full((NODES, NODES), 1 / NODES, dtype=torch.float64)
    model = models.mlp((64,), 10, hidden=(4,), activation="gelu")
    whole = network(model, data.digits(), nodes=NODES, batch_size=4, lr=0.1, dtype="float64", mixing=mixing)
    return part_of(whole, PARTS[0])


class ByHand:
    """A process group whose messages are put into it by hand; `sent` is called with what would be sent."""

    def __init__(self, sent=lambda peer, data: None):
        self.sent, self.came = sent, {peer: Queue() for peer in range(1, RANKS)}

    def put(self, exchange, peer, step, t=None, value=0.0):
        """Let the message of a peer with this number come, and wait until it is there."""
        nodes = torch.tensor(PARTS[peer])
        rows = torch.full((len(nodes), COLUMNS), value, dtype=torch.float64)
        self.came[peer].put(pack(Frame(MODEL, step, step if t is None else t, nodes, rows)))
        while exchange.post.last_step(peer) != step:
            sleep(0.001)

    def send(self, tensors, peer, tag):
        self.sent(peer, tensors[0])
        return SimpleNamespace(wait=lambda timeout: None)

    def recv(self, tensors, peer, tag):
        def wait(timeout):
            data = self.came[peer].get()
            tensors[0][: len(data)] = data

        return SimpleNamespace(wait=wait)


def by_hand(mine):
    group = ByHand()
    return group, Messages(mine, PARTS, 0, group, policy="carry-on", patience=5.0)


def test_the_slowest_of_those_who_wait_for_one_another_is_not_late(mine):
    group, exchange = by_hand(mine)
    sent = [threading.Semaphore(0), threading.Semaphore(0)]
    group.sent = lambda peer, data: sent[peer - 1].release()
    for peer in (1, 2):
        group.put(exchange, peer, 0)
    for round_ in simulate(mine, 8, operator=Operator(mine, exchange)):
        for peer in (1, 2):  # the others had waited for this message alone, and send their next ones at once
            assert sent[peer - 1].acquire(timeout=5)
            group.put(exchange, peer, round_.t + 1)
        assert exchange.behind() == 0
        assert not exchange.incomplete


def test_who_is_overtaken_twice_leaves_rounds_out(mine):
    group, exchange = by_hand(mine)
    found = []
    for peer in (1, 2):
        group.put(exchange, peer, 0)
        group.put(exchange, peer, 1)
    for round_ in simulate(mine, 2, operator=Operator(mine, exchange)):
        found.append(exchange.behind())
        for peer in (1, 2):
            group.put(exchange, peer, round_.t + 2)
    assert found == [0, 2]  # it would be the next one's turn, and comes two before the others


def test_one_peer_is_believed_if_the_other_sends_nothing_that_can_be_used(mine):
    group, exchange = by_hand(mine)
    for step in (0, 4):
        group.put(exchange, 1, step)
    for step in (0, 1):
        group.put(exchange, 2, step, value=float("nan"))
    next(simulate(mine, 1, operator=Operator(mine, exchange)))
    assert exchange.behind() > 0


def test_a_newcomer_does_not_believe_a_message_that_lies_about_its_round(mine):
    group, exchange = by_hand(mine)
    group.put(exchange, 1, 3, t=4)
    group.put(exchange, 2, 3)
    heard = exchange.listen(mine.initial, timeout=5.0)
    assert (heard.t, heard.start) == (3, 5)
    assert bool((heard.W[:2, 2] == 0).all())
    assert bool((heard.W[:2, 3] == 1).all())


@pytest.mark.parametrize("says", [True, False])
def test_who_waits_for_a_third_and_says_so_is_waited_for_longer(mine, says):
    group, exchange = by_hand(mine)
    exchange.attendance.patience = 0.6
    for peer in (1, 2):
        group.put(exchange, peer, 0)
    rounds = simulate(mine, 2, operator=Operator(mine, exchange))
    next(rounds)
    if says:
        group.came[1].put(notice(STILL_WAITING, 0))
        late = threading.Timer(0.65, group.put, (exchange, 1, 1))  # before twice the patience is over
        group.sent = lambda peer, data: late.start() if peer == 1 and not late.is_alive() else None
    group.put(exchange, 2, 1)
    next(rounds)
    assert exchange.incomplete != says


def test_who_waits_for_long_says_so_once(mine):
    group, exchange = by_hand(mine)
    exchange.attendance.patience, sent = 0.4, []
    group.sent = lambda peer, data: sent.append((peer, HEADER.unpack(data[: HEADER.size].numpy().tobytes())[2]))
    next(simulate(mine, 1, operator=Operator(mine, exchange)))  # nobody sends anything
    assert sorted(sent) == [(peer, kind) for peer in (1, 2) for kind in (MODEL, STILL_WAITING)]


@pytest.mark.parametrize(("last", "waits"), [(6, 0.2), (5, 0.0), (7, 0.0)])
def test_who_is_late_by_less_than_a_round_is_waited_for_a_little(last, waits):
    post = Post(None, {}, lambda peer, data: None)
    post.last_arrival, post.last_step, post.gone = lambda peer: 0.0, lambda peer: last, lambda peer: ""
    attendance = Attendance(post, patience=2.0, stops=False)
    assert attendance.until(1, [1, 2], 100.0, 7) == 102.0
    attendance.missing(1, "its parameters", MissingError("nothing came in time", late=True))
    assert attendance.until(1, [1, 2], 100.0, 7) == 100.0 + waits
    attendance.came(1)
    assert attendance.until(1, [1, 2], 100.0, 7) == 102.0


class Reconnecting:
    """A group whose first connection fails: to the receiver at once, to the sender when it is told to."""

    def __init__(self):
        self.connected, self.failing, self.sent = 0, threading.Event(), Queue()

    def connect(self, peer):
        self.connected += 1
        return self.connected <= 2

    def send(self, tensors, peer, tag):
        first = self.connected == 1
        self.sent.put(self.connected)
        return SimpleNamespace(wait=lambda timeout: self._fail(self.failing) if first else None)

    def recv(self, tensors, peer, tag):
        sending = self.sent.get if self.connected == 1 else threading.Event().wait
        return SimpleNamespace(wait=lambda timeout: self._fail(SimpleNamespace(wait=sending)))

    def _fail(self, event):
        event.wait()
        raise RuntimeError("connection closed")


@pytest.mark.parametrize("fails", [True, False])  # or is stuck
def test_who_has_come_back_is_not_taken_for_gone_by_a_message_to_its_earlier_self(fails):
    group = Reconnecting()
    post = Post(group, {1: 100}, lambda peer, data: None, lossy=True)
    assert post.send(1, torch.zeros(1, dtype=torch.uint8))
    while group.connected < 2 or post.gone(1):
        sleep(0.001)
    if fails:
        group.failing.set()
        sleep(0.05)
    assert post.send(1, torch.zeros(1, dtype=torch.uint8))
    assert group.sent.get(timeout=5) == 2
    assert post.gone(1) == ""


def test_who_sends_again_is_named_once(caplog):
    attendance = Attendance(Post(None, {}, lambda peer, data: None), patience=2.0, stops=False)
    for _ in range(2):
        attendance.missing(1, "its parameters", MissingError("nothing came in time", late=True))
        attendance.came(1)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "process 1 did not send its parameters",
        "process 1 is sending again.",
    ]


def test_gloo_s_reasons_are_told_without_its_source_and_addresses():
    text = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:39212\nmore"
    assert _reason(RuntimeError(text)) == "Connection closed by peer"
    assert _reason(RuntimeError("")) == "its connection failed"
    text = "[../gloo/transport/tcp/pair.cc:547] Read error [127.0.0.1]:39212: Connection reset by peer. GLHF! 🏖️"
    assert _reason(RuntimeError(text)) == "Read error: Connection reset by peer"


@pytest.mark.parametrize("stopped", [0, 1])
@pytest.mark.parametrize("diverged", [True, False])
def test_who_diverged_does_not_blame_those_who_stopped_because_of_it(mine, diverged, stopped):
    """Also where they stop a round later, when all participants of this process have what one of them sent."""
    group = ByHand()
    exchange = Messages(mine, PARTS, 0, group, policy="stop", patience=5.0)
    for peer in (1, 2):
        if stopped:
            group.put(exchange, peer, 0)
        group.came[peer].put(notice(GOODBYE))
    here = mine.initial._replace(theta=mine.initial.theta.clone())
    here.theta[1, 7] = torch.nan if diverged else 0.0
    rounds = Operator(mine, exchange).train((draw(mine, t) for t in range(2)), here, None, False, None)
    said = "participant 1 sent parameters that became NaN or infinite in round 0"
    error, said = (DivergedError, said) if diverged else (PeerError, "it has finished. Its own error")
    with pytest.raises(error, match=said):
        list(rounds)
