"""Two ends of a relay in memory: what is written while the end handles its own events goes out with them."""

from __future__ import annotations

from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.relay_end import RelayEnd
from tests.transports.peer_conformance import Writer

LIMITS = PeerLimits(stream_window_bytes=8 * 2**20, stream_unsent_bytes=512 * 1024)


class MemoryRelay(RelayEnd):
    """Its connection takes all that there is; the test carries it."""

    def __init__(self, name: str, dialled: bool) -> None:
        self.out: list[bytes] = []
        self.came: list[Stream] = []
        self.read = bytearray()
        self.ends: list[object] = []
        super().__init__(name, dialled, LIMITS, self._stream_came, lambda _end, _down: None, lambda: 100.0)

    def _stream_came(self, stream: Stream) -> None:
        self.came.append(stream)
        stream.attach(self.read.extend, self.ends.append)

    def _send(self) -> None:
        while (data := self.session.next_bytes()) is not None:
            self.out.append(data)

    def _put_last(self, data: bytes) -> None:
        self.out.append(data)

    def _hang_up(self) -> None:
        pass


def test_what_a_writer_adds_when_it_is_told_of_room_goes_at_once() -> None:
    client, gateway = MemoryRelay("gateway", True), MemoryRelay("client", False)
    stream = Stream("gateway", "bulk", b"")
    client.open(stream, False)
    data = bytes(range(256)) * (3 * LIMITS.stream_unsent_bytes // 256) + b"rest"
    writer = Writer(stream, data)
    gateway.receive(b"".join(client.out))
    client.out.clear()
    client.receive(b"".join(gateway.out))  # the grant: nothing else comes from there, and no tick
    assert not writer.left
    gateway.receive(b"".join(client.out))
    assert bytes(gateway.read) == data
    assert gateway.ends == [None]
