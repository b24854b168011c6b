"""The streams of a peer over its RDMA path: the frames and credits of every link, in messages instead of TLS."""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.errors import MalformedMessage, PeerGone

from ..peer.calls import IncomingCall, OnStream
from ..peer.end import SessionEnd
from ..peer.frames import PeerDecoder
from ..peer.limits import PeerLimits, Refusal
from ..peer.session import PeerSession


class RdmaEnd(SessionEnd):
    """One end of such a link. *send* and *has_room* are the path's. It only carries streams."""

    def __init__(
        self,
        host_id: str,
        dialled: bool,
        limits: PeerLimits,
        on_stream: OnStream,
        monotonic: Callable[[], float],
        has_room: Callable[[], bool],
        send: Callable[[bytes], None],
    ) -> None:
        super().__init__(
            PeerSession(dialled, limits), (_no_call, _no_cast, on_stream), lambda _end: None, lambda _end, _event: None
        )
        self._monotonic, self._path_has_room, self._path_send = monotonic, has_room, send
        self._decoder = PeerDecoder()
        self._decoder.open_up()
        self.session.start(host_id, monotonic())

    def received(self, data: bytes) -> None:
        """A message came: a frame, or some small ones. Raises MalformedMessage, FrameTooLarge."""
        if self._ended:
            return
        self.bytes_in += len(data)
        self.session.received(self._monotonic())
        self._decoder.feed(data)
        while not self._ended and (frame := self._decoder.next()) is not None:
            self.session.take(frame)
            self._go_on()
        if self._decoder.pending_bytes:
            raise MalformedMessage("a message with half a frame", found=f"{self._decoder.pending_bytes} bytes")

    def has_room_again(self) -> None:
        """The path takes messages again."""
        self._go_on()

    def tick(self) -> None:
        """Nothing: whether the other side lives, the path says, which has a link with pings."""

    def close(self, refusal: Refusal, message: str) -> None:
        """End all streams."""
        self.session.end(refusal, PeerGone(message))
        self._go_on()

    def _send(self) -> bool:
        if self.session.over is not None or not self._path_has_room():
            return False
        data = self.session.next_bytes()
        if data is None:
            return False
        self.bytes_out += len(data)
        self._path_send(data)
        return True


def _no_call(_call: IncomingCall) -> None:
    raise MalformedMessage("a call where only streams go")


def _no_cast(_host_id: str, _target: str, _body: bytes) -> None:
    raise MalformedMessage("a cast where only streams go")
