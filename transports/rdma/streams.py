"""Streams over RDMA: ``open_stream`` gives one where the host's pair is up; else TLS is what there is."""

from __future__ import annotations

from typing import Any

from actorgrid.errors import ActorGridError

from ..paths import PathKind
from ..peer.calls import OnStream, Stream
from ..peer.limits import PeerLimits, Refusal
from .end import RdmaEnd
from .net import RdmaNet, RdmaPeer


class StreamsPeer(RdmaPeer):
    """Another host, and the streams over its path."""

    def __init__(self, net: RdmaStreams, host_id: str) -> None:
        super().__init__(net, host_id)
        self._net = net
        self.end = self._new_end()

    def _new_end(self) -> RdmaEnd:
        net = self._net
        return RdmaEnd(
            self.host_id,
            net.host_id < self.host_id,
            net.peer_limits,
            net.on_stream,
            net.loop.monotonic,
            lambda: self.path.has_room,
            self.path.send,
        )

    def on_path_message(self, data: bytes) -> None:
        """As ``RdmaPeer``."""
        # What it is for has bounds of its own: the windows of the streams, and what they keep unsent.
        self.path.consumed()
        try:
            self.end.received(data)
        except ActorGridError as error:
            self.end.close(Refusal.MALFORMED, error.message)
            raise

    def on_path_room(self) -> None:
        """As ``RdmaPeer``."""
        self.end.has_room_again()

    def on_path_reset(self) -> None:
        """As ``RdmaPeer``."""
        ended, self.end = self.end, self._new_end()
        ended.close(Refusal.GONE, f"the RDMA path to {self.host_id} was lost")


class RdmaStreams(RdmaNet[StreamsPeer]):
    """See the module. *on_stream* and *peer_limits*: as a net's."""

    def __init__(self, *arguments: Any, on_stream: OnStream, peer_limits: PeerLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_stream, self.peer_limits = on_stream, peer_limits

    def _new_peer(self, host_id: str) -> StreamsPeer:
        return StreamsPeer(self, host_id)

    def is_up(self, host_id: str) -> bool:
        """Whether there is a pair with that host now. Any thread may ask."""
        peer = self.peer(host_id)
        return peer is not None and peer.path.fast

    def open_stream(self, host_id: str, target: str, head: bytes) -> Stream | None:
        """A stream over RDMA; ``None`` where there is no pair with that host now, or no room for another stream.

        Then the path is begun, for the next time.
        """
        peer = self.peer(host_id)
        if peer is None:
            self.want(host_id)
            return None
        peer.path.begin()
        if not peer.path.fast or not peer.end.usable:
            return None
        stream = Stream(host_id, target, head)
        stream.carrier = PathKind.RDMA
        try:
            peer.end.open(stream, False)
        except ActorGridError:  # as many are open as may be
            return None
        return stream
