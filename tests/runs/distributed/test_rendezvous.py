"""How processes find one another: torchrun's variables, the store, and who comes when."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from runs.distributed.worlds import fit_for_threads

from cascadice.runs.distributed import processes, rendezvous
from cascadice.runs.distributed.processes import ONE_PROCESS, joined

assert fit_for_threads  # a fixture
pytestmark = pytest.mark.usefixtures("fit_for_threads")


def started(monkeypatch, **variables):
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} | variables
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_without_torchrun_there_is_one_process(monkeypatch):
    with joined() as world:
        assert world is ONE_PROCESS
        assert world.members(4) == ()
    started(monkeypatch, WORLD_SIZE="1")
    with joined() as world:
        assert world is ONE_PROCESS
        assert world.members(4) == ()
    with pytest.raises(ValueError, match="--interface, --policy: only for processes"), joined("lo", policy="stop"):
        pass


def test_a_port_that_is_taken_is_said(monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started(monkeypatch, MASTER_PORT=str(port))
        with (
            pytest.raises(ConnectionError, match=rf"cannot listen at 127.0.0.1:{port}: .*in use.*MASTER_PORT"),
            joined(),
        ):
            pass


def test_an_unreachable_rendezvous_ends_in_time(monkeypatch):
    started(monkeypatch, RANK="1", MASTER_PORT="1")
    late = r"the other processes could not be reached at 127.0.0.1:1 within 0.3 s"
    with pytest.raises(ConnectionError, match=late), joined(timeout=0.3):
        pass


def test_a_server_that_is_no_store_is_not_waited_for_long(monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        started(monkeypatch, RANK="1", MASTER_PORT=str(silent.getsockname()[1]))
        late = r"within 0.3 s: something listens there, but it is not a torchrun store"
        with pytest.raises(ConnectionError, match=late), joined(timeout=0.3):
            pass


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "two"}, "RANK, .* must be whole numbers; found RANK='two'"),
        ({"RANK": "2"}, "RANK must be below WORLD_SIZE"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT must be from 1 to 65535; found 99999"),
        ({"MASTER_PORT": "99999", "RANK": "1"}, "MASTER_PORT must be from 1 to 65535; found 99999"),
    ],
)
def test_variables_that_make_no_sense_are_refused(monkeypatch, variables, said):
    started(monkeypatch, **variables)
    with pytest.raises(ValueError, match=said), joined(timeout=0.3):
        pass


def test_an_unknown_interface_is_said(monkeypatch):
    started(monkeypatch)
    with pytest.raises(ValueError, match=r"unknown network interface 'nowhere0'\. Known: .*lo"), joined("nowhere0"):
        pass
    with pytest.raises(ConnectionError, match="over the interface 'nowhere0'"):
        rendezvous.make_group(dist.HashStore(), 0, 1, "nowhere0", 1.0)


def arrived(lasting, policies, timeout=5.0, alone=False):
    """Processes that come at the same time, each with a policy."""

    def work(rank):
        try:
            return rendezvous.arrive(lasting, rank, len(policies), timeout, policies[rank], alone)
        except (ValueError, ConnectionError) as error:
            return str(error)

    with ThreadPoolExecutor(len(policies)) as threads:
        return list(threads.map(work, range(len(policies))))


def test_processes_that_are_started_again_meet_under_another_name_and_resume_if_all_had_begun():
    store = dist.HashStore()
    assert arrived(store, ["restart"] * 3) == [("1.1.1", False, False)] * 3
    store.set(rendezvous.begun_key(0), b"")
    store.add("came/2", 1)  # one that died before the others came
    assert arrived(store, ["restart"] * 3) == [("2.2.3", True, False)] * 3
    for rank in (1, 2):
        store.set(rendezvous.begun_key(rank), b"")
    assert arrived(store, ["restart"] * 3) == [("3.3.4", True, True)] * 3


def test_where_others_carry_on_nobody_waits_for_them():
    store = dist.HashStore()
    assert arrived(store, ["carry-on"] * 2, alone=True) == [("all", False, False)] * 2
    store.set(rendezvous.begun_key(1), b"")
    assert rendezvous.arrive(store, 1, 2, 0.2, "carry-on", True) == ("all", True, True)


def test_processes_with_different_policies_or_missing_ones_are_named():
    assert set(arrived(dist.HashStore(), ["stop", "stop", "restart"])) <= {
        "all processes must agree; --policy is 'restart' in process 2, 'stop' in process 0. Start them all alike.",
        "all processes must agree; --policy is 'restart' in process 2, 'stop' in process 1. Start them all alike.",
        "all processes must agree; --policy is 'stop' in process 0, 'restart' in process 2. Start them all alike.",
        "all processes must agree; --policy is 'stop' in process 1, 'restart' in process 2. Start them all alike.",
    }
    with pytest.raises(ConnectionError, match=r"process 1 did not arrive within 0.1 s"):
        rendezvous.arrive(dist.HashStore(), 0, 2, 0.1, "stop", False)


def test_processes_that_were_told_of_different_numbers_of_processes_say_so():
    """Otherwise each would wait for somebody who never comes."""
    store = dist.HashStore()
    with pytest.raises(ConnectionError, match="process 1 did not arrive"):
        rendezvous.arrive(store, 0, 2, 0.1, "stop", False)
    with pytest.raises(ValueError, match="WORLD_SIZE is '2' in process 0, '3' in process 1"):
        rendezvous.arrive(store, 1, 3, 5.0, "stop", False)


def test_process_0_which_keeps_the_store_lets_the_others_see_that_they_disagree(monkeypatch):
    store, pauses = dist.HashStore(), []
    monkeypatch.setattr(rendezvous.time, "sleep", pauses.append)
    for rank, policy, pause in ((1, "restart", 0), (0, "stop", rendezvous.SETTLING)):
        store.set(f"--policy/{1 - rank}", b"other")
        with pytest.raises(ValueError, match="--policy is 'other'"):
            rendezvous.arrive(store, rank, 2, 5.0, policy, False)
        assert pauses.pop() == pause


class Gone:
    """A store whose process has ended."""

    def set(self, *what):
        raise dist.DistNetworkError("Connection reset by peer\nand many frames")

    add = set


@pytest.mark.parametrize("asked", ["arrive", "tell", "begin"])
def test_a_store_that_is_gone_is_said_in_one_sentence(monkeypatch, asked):
    started(monkeypatch, RANK="1")
    monkeypatch.setattr(processes, "connect", lambda *where: dist.HashStore() if asked != "arrive" else Gone())
    monkeypatch.setattr(processes.dist, "PrefixStore", lambda name, store: store)
    world = processes.World(1, 2, None, Gone(), lasting=Gone())
    asks = {"arrive": lambda: processes._joined("lo", 1.0, "stop", None), "tell": lambda: world.tell(1)}
    with pytest.raises(ConnectionError, match=r"store .* is gone: Connection reset by peer\. The error of the process"):
        asks.get(asked, world.begin)()


def test_processes_that_are_to_stop_are_not_started_again(monkeypatch):
    store = dist.HashStore()
    started(monkeypatch, WORLD_SIZE="1")
    monkeypatch.setattr(processes, "connect", lambda *where: store)
    assert not processes._joined("lo", 1.0, "carry-on", 0.5).again
    with pytest.raises(ValueError, match="Use --policy restart to continue from the last checkpoint"):
        processes._joined("lo", 1.0, "stop", None)
    with pytest.raises(ValueError, match="--patience above 0"):
        processes._joined("lo", 1.0, "stop", 0.0)
    with pytest.raises(ValueError, match="policy 'hope'"):
        processes._joined("lo", 1.0, "hope", None)
