"""Messages over RDMA: one path to each host, with the promises of every path for messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from actorgrid.errors import ActorGridError, MailboxFull, PeerGone
from actorgrid.transports.paths import PathKind
from actorgrid.transports.rdma.net import RdmaNet, RdmaPeer


def _nothing() -> None:
    return


def _ignore(_error: ActorGridError) -> None:
    return


class RdmaMessagePath(RdmaPeer):
    """The messages of one host. What is not taken is not consumed, so that the other side stops at its bound."""

    kind = PathKind.RDMA

    def __init__(self, net: RdmaNet[RdmaMessagePath], host_id: str) -> None:
        super().__init__(net, host_id)
        self.on_message: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self.on_end: Callable[[ActorGridError], None] = _ignore
        self.largest_bytes = net.limits.message_bytes
        self._came: deque[bytes] = deque()
        self._short = False
        self._ended: ActorGridError | None = None
        self._closed = False

    @property
    def ended(self) -> bool:
        """Whether the path ended, other than by ``close``."""
        return self._ended is not None

    def send(self, message: bytes | bytearray | memoryview) -> bool:
        """Send one message; False where there is no credit for it. Raises FrameTooLarge, and what ended the path."""
        if self._ended is not None or self._closed:
            raise self._ended or PeerGone("this end of the path is closed")
        try:
            self.path.send(bytes(message))
        except MailboxFull:
            self._short = True
            return False
        return True

    def take(self) -> bytes | None:
        """The next message; None when there is none. Raises what ended the path when all that came is taken."""
        if self._came:
            message = self._came.popleft()
            if self._ended is None:
                self.path.consumed()
            return message
        if self._ended is not None:
            raise self._ended
        return None

    def close(self) -> None:
        """End the path; the other side's ends, too."""
        if not self._closed:
            self._closed = True
            self.path.close("the other side closed the path")

    def on_path_message(self, data: bytes) -> None:
        """As ``RdmaPeer``."""
        first = not self._came
        self._came.append(data)
        if first:
            self.on_message()

    def on_path_room(self) -> None:
        """As ``RdmaPeer``."""
        if self._short:
            self._short = False
            self.on_room()

    def on_path_reset(self) -> None:
        """As ``RdmaPeer``."""
        if self._ended is None and not self._closed:
            self._ended = PeerGone(f"the RDMA path to {self.host_id} was lost")
            self.on_message()  # whoever takes all that came hears of the end
            self.on_end(self._ended)


class RdmaMessages(RdmaNet[RdmaMessagePath]):
    """RDMA to other hosts, for messages."""

    def _new_peer(self, host_id: str) -> RdmaMessagePath:
        return RdmaMessagePath(self, host_id)
