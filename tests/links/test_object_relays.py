"""A process of one host at the object store of another: real sockets, a net in memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from actorgrid.actors.links import line_door, object_relays
from actorgrid.actors.links.object_relays import OBJECTS, ObjectRelays
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.object_frames import encode_far_line
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from tests.transports.peer_conformance import QUICK

BIG = bytes(range(256)) * 20_000


class Rig:
    """Two hosts; the store of the second is a socket that a test answers at."""

    def __init__(self, folder: Path) -> None:
        self.loop = InlineNode(real_time=True)
        self.network = FaultyNetwork(self.loop, seed=1, limits=QUICK)
        self.store = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.store.bind(str(folder / "store"))
        self.store.listen(4)
        self.path = folder / "relay"
        self.near, self.far = self._relays("near", folder / "none"), self._relays("far", folder / "store")
        self.near.listen(self.path)

    def _relays(self, name: str, store: Path) -> ObjectRelays:
        def take(stream: Stream) -> None:
            assert stream.target == OBJECTS
            (self.far if name == "far" else self.near).take(stream)

        net = FaultyNet(self.network, name, on_call=lambda call: None, on_cast=lambda *told: None, on_stream=take)
        return ObjectRelays(self.loop, store, net.open_stream)

    def connect(self, said: bytes) -> socket.socket:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.setblocking(False)
        local.connect(str(self.path))
        local.send(said)
        return local

    def accepted(self) -> socket.socket:
        found: list[socket.socket] = []

        def accept() -> bool:
            with suppress(BlockingIOError):
                found.append(self.store.accept()[0])
            return bool(found)

        self.until(accept)
        found[0].setblocking(False)
        return found[0]

    def until(self, true: Callable[[], bool]) -> None:
        self.loop.run_until(true)

    def carry(self, source: socket.socket, sink: socket.socket, data: bytes) -> bytes:
        left, got = memoryview(data), bytearray()

        def step() -> bool:
            nonlocal left
            with suppress(BlockingIOError):
                left = left[source.send(left) :] if left else left
            with suppress(BlockingIOError):
                got.extend(sink.recv(2**20))
            return len(got) >= len(data)

        self.until(step)
        return bytes(got)

    def ends(self, sink: socket.socket) -> bool:
        try:
            return sink.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.near.close()
    rig.far.close()
    rig.store.close()


def test_what_comes_behind_the_line_goes_to_that_hosts_store_and_its_answers_come_back(rig: Rig) -> None:
    with closing(rig.connect(encode_far_line("far") + b"hello")) as process, closing(rig.accepted()) as store:
        assert rig.carry(process, store, b"") == b""
        got = bytearray()

        def hello() -> bool:
            with suppress(BlockingIOError):
                got.extend(store.recv(100))
            return len(got) >= 5

        rig.until(hello)
        assert got == b"hello"
        assert rig.carry(store, process, BIG) == BIG
        assert rig.carry(process, store, BIG[::-1]) == BIG[::-1]
        assert len(rig.near) == len(rig.far) == 1


def test_the_store_hears_of_the_end_of_a_process(rig: Rig) -> None:
    process = rig.connect(encode_far_line("far") + b"hello")
    with closing(rig.accepted()) as store:
        process.close()
        rig.until(lambda: rig.ends(store) or rig.ends(store))
    rig.until(lambda: not len(rig.near) and not len(rig.far))


def test_a_line_may_come_in_parts(rig: Rig) -> None:
    with closing(rig.connect(b"fa")) as process:
        rig.until(lambda: len(rig.near._door._strangers) == 1)
        process.send(b"r\nx")
        with closing(rig.accepted()) as store:
            rig.until(lambda: len(rig.far) == 1)
            assert rig.carry(process, store, b"y") in (b"x", b"xy")


@pytest.mark.parametrize("said", [b"\n", b"\xff\xfe\n", b"x" * 512], ids=range(3))
def test_who_names_no_host_is_hung_up_on(rig: Rig, said: bytes) -> None:
    with closing(rig.connect(said)) as process:
        rig.until(lambda: rig.ends(process))
    assert len(rig.near) == 0


def test_a_host_without_a_store_ends_the_connection(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "store").unlink()
    with closing(rig.connect(encode_far_line("far"))) as process:
        rig.until(lambda: rig.ends(process))
    rig.until(lambda: not len(rig.near))


def test_one_that_stays_silent_gives_way(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_door, "STRANGERS_MAX", 3)
    with closing(rig.connect(b"f")) as first:
        rig.until(lambda: len(rig.near._door._strangers) == 1)
        others = [rig.connect(b"f") for _ in range(3)]
        rig.until(lambda: rig.ends(first))
        assert len(rig.near._door._strangers) == 3
        for other in others:
            other.close()


@pytest.mark.parametrize("bound", ["STREAMS_MAX", "STREAMS_OF_HOST_MAX"])
def test_so_many_connections_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(object_relays, bound, 1)
    with closing(rig.connect(encode_far_line("far"))), closing(rig.accepted()):
        rig.until(lambda: len(rig.near) == 1)
        with closing(rig.connect(encode_far_line("far"))) as second:
            rig.until(lambda: rig.ends(second))
