"""What is kept of messages that nobody asked for is bounded, whatever a peer sends."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from influence.cases import small

from cascadice.engine.exchange.attendance import REASONS, Attendance
from cascadice.engine.exchange.frames import ADJOINT, MODEL, Frame, FrameError, pack
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.exchange.post import AHEAD, FINISHED, MissingError, Post, Received
from cascadice.engine.parts import part_of


class Silent:
    """A process group in which nobody says anything."""

    def recv(self, *what):
        return self

    def wait(self, timeout):
        threading.Event().wait()


def frame(step):
    return Frame(MODEL, step, step, torch.tensor([0]), torch.zeros(1, 1))


def heard(*steps):
    """Who has received messages of these numbers from process 1."""
    post = Post(Silent(), {1: 64}, lambda peer, data: frame(0), lossy=True)
    for step in steps:
        post._accept(1, (MODEL, step), Received(frame(step), 100 + step))
    return post


def test_only_the_latest_messages_are_kept():
    post = heard(*range(AHEAD + 3))
    assert len(post._peers[1].messages) == AHEAD
    assert post.receive(1, MODEL, 3, end=0.0).step == 3
    assert post.refused["process 1 was ahead by more messages than are kept"] == 3


def test_bytes_are_counted_when_their_message_is_used():
    """Not when they come, which may be a round earlier: so two equal runs count the same in each round."""
    post = heard(3, 4)
    assert post.received[1] == 0
    post.newest(1, near=3)
    for step, counted in ((3, 103), (4, 103 + 104)):
        post.receive(1, MODEL, step, end=0.0)
        assert post.received[1] == counted


def test_a_number_far_ahead_is_forgotten_when_the_next_message_comes():
    post = heard(1 << 40)
    assert post.newest(1, near=0) is None
    post._accept(1, (MODEL, 0), Received(frame(0)))
    assert [step for _, step in post._peers[1].messages] == [0]


def test_a_number_far_ahead_does_not_stand_for_those_before_it():
    with pytest.raises(MissingError, match="nothing came in time"):
        heard(1 << 40).receive(1, MODEL, 3, end=0.0)
    with pytest.raises(MissingError, match="it sent a later message, but not this one"):
        heard(4).receive(1, MODEL, 3, end=0.0)


def test_a_message_that_came_before_its_time_is_past_is_stale():
    post = heard(0, 1)
    assert post.receive(1, MODEL, 1, end=0.0).step == 1
    assert post.refused["process 1 sent messages that were stale"] == 1
    with pytest.raises(MissingError, match="nothing came in time"):
        post.receive(1, MODEL, 2, end=0.0)


def test_who_leaves_early_leaves_no_thread_that_waits():
    """A thread that waits for a message as its process ends makes gloo abort the process."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=20)), range(2)))
    leaving, staying = (Post(group, {1 - rank: 64}, lambda peer, data: frame(0)) for rank, group in enumerate(groups))
    assert leaving.meet(5.0)
    assert staying.meet(5.0)
    leaving.close(20.0)
    assert not any(thread.is_alive() for thread in leaving._threads)
    assert staying.gone(0) == FINISHED
    staying.close()


def test_reasons_are_told_apart_up_to_a_number():
    attendance = Attendance(heard(), 1.0, stops=False)
    for number in range(REASONS + 5):
        attendance.missing(1, "its parameters", MissingError(f"it sent {number}"))
    assert len(attendance.missed) == REASONS + 1
    assert attendance.missed[1, "other reasons"] == 5


def test_nobody_sends_rows_of_others():
    """Parameters are the sender's own; adjoints are of the receiver's participants."""
    network, parts = small(), [(0, 1), (2,), (3,)]
    post = Messages(part_of(network, parts[0]), parts, 0, Silent()).post
    rows = torch.zeros(1, network.learner.size, dtype=torch.float64)

    def read(kind, node):
        return post._read(1, pack(Frame(kind, 0, 0, torch.tensor([node]), rows))).nodes.tolist()

    assert (read(MODEL, 2), read(ADJOINT, 0)) == ([2], [0])
    for kind, node in ((MODEL, 0), (MODEL, 3), (ADJOINT, 2), (ADJOINT, 3)):
        with pytest.raises(FrameError, match="not its own to send"):
            read(kind, node)
