"""Connections by twos: a process that dies takes no other connection with it, and can come back.

Each pair of processes has a group of its own. Which one is agreed upon in a store that outlives them (that of
torchrun's agent): each side counts how often it asked for a connection, both numbers together name the group, and when
both sides have read the same name they connect.
"""

import threading
from datetime import timedelta
from typing import Any

import torch.distributed
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

dist: Any = torch.distributed  # its types leave out what is needed here

CONNECTING, LONGEST = 2.0, 30.0  # seconds that an attempt to connect may take: the first, and after many
LOOK_EVERY = 0.02  # seconds


class Pairs:
    """Sends to and receives from other processes, as a process group does, and connects again when asked.

    Example:
        >>> store = dist.TCPStore("127.0.0.1", 29500, is_master=False)
        >>> exchange = Messages(mine, parts, rank, Pairs(store, rank), policy="carry-on")
    """

    def __init__(self, store: Any, rank: int, interface: str = "lo") -> None:
        self._store, self._rank, self._interface = store, rank, interface
        self._groups: dict[int, Any] = {}
        self._closed = threading.Event()

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        return self._groups[peer].send(tensors, int(peer > self._rank), tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        return self._groups[peer].recv(tensors, int(peer > self._rank), tag)

    def connect(self, peer: int) -> bool:
        """Wait until this peer can be talked to, for the first time or again; False if that will never be."""
        low, high = sorted((self._rank, peer))
        try:
            # a connection of its own: a store answers one thread at a time, and may wait
            store = PrefixStore(f"pair-{low}-{high}", self._store.clone())
            store.add(f"asked-{self._rank}", 1)
            timeout = CONNECTING
            while not self._closed.wait(LOOK_EVERY):
                asked = [store.add(f"asked-{rank}", 0) for rank in (low, high)]
                name = f"{asked[0]}.{asked[1]}"
                store.set(f"read-{self._rank}", name)
                if all(asked) and store.check([f"read-{peer}"]) and store.get(f"read-{peer}").decode() == name:
                    if group := self._group(PrefixStore(name, store), peer, timeout):
                        self._groups[peer] = group
                        return True
                    store.add(f"asked-{self._rank}", 1)
                    timeout = min(2 * timeout, LONGEST)
        except RuntimeError:  # the store is gone, and with it the way to find each other
            pass
        return False

    def close(self) -> None:
        """Stop looking for peers."""
        self._closed.set()

    def _group(self, store: Any, peer: int, timeout: float) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=self._interface)]
        options._timeout = timedelta(seconds=timeout)
        try:
            return gloo(store, int(self._rank > peer), 2, options)
        except RuntimeError:
            return None
