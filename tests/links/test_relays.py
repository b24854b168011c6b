"""A client's socket on one host, its worker's on another, and what is between them: real sockets, a net in memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from actorgrid.actors.links.pieces import unpack_fields
from actorgrid.actors.links.relays import Relays
from actorgrid.errors import UnknownAllocation
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from tests.transports.peer_conformance import QUICK

BIG = bytes(range(256)) * 20_000  # ten windows of a stream


class Rig:
    """Two hosts; the worker of lease "l1" on the second."""

    def __init__(self, folder: Path) -> None:
        self.loop = InlineNode(real_time=True)
        self.network = FaultyNetwork(self.loop, seed=1, limits=QUICK)
        self.near, self.far = self._relays(folder / "near", "near"), self._relays(folder / "far", "far")
        self.worker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.worker.bind(str(folder / "worker"))
        self.worker.listen(4)
        self.far.serves("l1", str(folder / "worker"))

    def _relays(self, folder: Path, name: str) -> Relays:
        folder.mkdir()
        net = FaultyNet(
            self.network,
            name,
            on_call=lambda call: None,
            on_cast=lambda *told: None,
            on_stream=lambda stream: self.take(stream),
        )
        return Relays(self.loop, folder, net.open_stream)

    def take(self, stream: Stream) -> None:
        self.far.take(stream, str(unpack_fields(stream.head)["lease_id"]))

    def until(self, true: Callable[[], bool]) -> None:
        self.loop.run_until(true)

    def connect(self, lease_id: str = "l1") -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.setblocking(False)
        client.connect(self.near.open("far", lease_id))
        return client

    def accepted(self) -> socket.socket:
        self.worker.setblocking(False)
        found: list[socket.socket] = []

        def accept() -> bool:
            try:
                found.append(self.worker.accept()[0])
            except BlockingIOError:
                return False
            return True

        self.until(accept)
        found[0].setblocking(False)
        return found[0]

    def carry(self, source: socket.socket, sink: socket.socket, data: bytes) -> bytes:
        left, got = memoryview(data), bytearray()

        def step() -> bool:
            nonlocal left
            if left:
                with suppress(BlockingIOError):
                    left = left[source.send(left) :]
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


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.near.close_all()
    rig.far.close_all()
    rig.worker.close()


def test_bytes_go_both_ways_whole_and_each_direction_ends_by_itself(rig: Rig) -> None:
    with closing(rig.connect()) as client, closing(rig.accepted()) as worker:
        assert rig.carry(client, worker, BIG) == BIG
        assert rig.carry(worker, client, BIG[::-1]) == BIG[::-1]
        client.shutdown(socket.SHUT_WR)
        rig.until(lambda: rig.ends(worker))
        assert rig.carry(worker, client, b"last words") == b"last words"
        worker.close()
        rig.until(lambda: rig.ends(client))
        rig.until(lambda: not len(rig.near) and not len(rig.far))


def test_a_client_that_does_not_read_stops_the_worker_and_holds_a_window_at_most(rig: Rig) -> None:
    with closing(rig.connect()) as client, closing(rig.accepted()) as worker:
        sent = 0

        def full() -> bool:
            nonlocal sent
            try:
                sent += worker.send(zeros)
            except BlockingIOError:
                quiet.append(sent)
            return len(quiet) > 200 and len(set(quiet[-200:])) == 1

        quiet: list[int] = []
        zeros = bytes(2**20)
        rig.until(full)
        # The windows of stream and sockets, and not the 50 MB that a worker could have sent meanwhile.
        assert sent < 4 * 2**20
        got = bytearray()

        def drained() -> bool:
            with suppress(BlockingIOError):
                got.extend(client.recv(2**20))
            return len(got) >= sent

        rig.until(drained)
        assert got == bytes(sent)


def test_a_lease_that_is_over_ends_its_connections_and_its_socket(rig: Rig) -> None:
    with closing(rig.connect()) as client, closing(rig.accepted()) as worker:
        rig.near.ended("l1")
        rig.until(lambda: rig.ends(worker) and rig.ends(client))
    path = rig.near.open("far", "l1")
    assert path == rig.near.open("far", "l1")
    assert (rig.near.leases, rig.far.leases) == ({"l1"}, {"l1"})
    rig.near.ended("l1")
    assert not Path(path).exists()
    rig.near.ended("l1")
    assert rig.near.leases == set()


def test_a_worker_that_is_not_there_ends_the_clients_connection(rig: Rig) -> None:
    with closing(rig.connect("other")) as client:
        rig.until(lambda: rig.ends(client))
    rig.far.ended("l1")
    with closing(rig.connect()) as client:
        rig.until(lambda: rig.ends(client))
    with pytest.raises(UnknownAllocation):
        rig.far.take(Stream("near", "worker", b""), "l1")


def test_a_host_that_is_lost_ends_both_sides(rig: Rig) -> None:
    with closing(rig.connect()) as client, closing(rig.accepted()) as worker:
        assert rig.carry(client, worker, b"hello") == b"hello"
        rig.network.crash("far")
        rig.until(lambda: rig.ends(client))
