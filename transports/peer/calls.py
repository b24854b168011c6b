"""What one sees of other hosts: answers to await, requests to answer, streams; whatever net carries them.

``PeerNet`` (sockets) and ``FaultyNet`` (memory, with faults) give and take these objects, and mean the same by them:

* A call is carried out at most once. When its answer fails with CallTimeout, PeerGone or HostUnreachable of a host that
  was asked, whether it was carried out is unknown.
* A cast comes at most once and after those cast before it on the same link, or not at all; nothing tells.
* A stream comes whole and in order up to where it was lost, and then its loss is told.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from actorgrid.errors import ActorGridError, PeerGone, TaskCancelled

from ..paths import PathKind

Bytes = bytes | bytearray | memoryview


class Cancellable(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Cancel the callback; harmless when it was called already."""


class NetLoop(Protocol):
    """What a net needs of the process it lives in (a server's ``Runtime`` has it). All in one thread."""

    def after(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        """Call back once, no earlier than *delay_s* from now."""

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """Call back while *fd* is ready (level-triggered); replaces an earlier watch of the same fd."""

    def unwatch(self, fd: int) -> None:
        """Forget *fd*; harmless when it was not watched."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back."""


class PendingAnswer:
    """The answer of one call: await it in a server's handler, or take ``on_done`` and ``result``."""

    __slots__ = ("_body", "_callback", "_error", "_on_cancel", "_on_settled", "done")

    def __init__(self) -> None:
        self.done = False
        self._on_settled: Callable[[], None] | None = None
        self._body = b""
        self._error: ActorGridError | None = None
        self._callback: Callable[[], None] | None = None
        self._on_cancel: Callable[[], object] | None = None

    def set(self, body: bytes) -> None:
        """Give the answer; a second one is ignored."""
        self._settle(body, None)

    def fail(self, error: ActorGridError) -> None:
        """Fail the call with *error*; ignored after an answer."""
        self._settle(b"", error)

    def cancel(self) -> None:
        """Stop waiting: the call fails with TaskCancelled, and the other side is told, if it was asked."""
        self.expire(TaskCancelled("the call was cancelled by its caller"))

    def expire(self, error: ActorGridError) -> None:
        """Stop waiting: the call fails with *error*, and the other side is told, if it was asked."""
        on_cancel = self._on_cancel
        if not self.done:
            self._settle(b"", error)
            if on_cancel is not None:
                on_cancel()

    def when_cancelled(self, callback: Callable[[], object]) -> None:
        """Set what is called when the caller stops waiting; replaces an earlier one. For nets."""
        self._on_cancel = callback

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Set what is called, before ``on_done``, when there is an answer or a failure. For nets."""
        self._on_settled = callback

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back when answered (at once if it was already)."""
        if self.done:
            callback()
        else:
            self._callback = callback

    def result(self) -> bytes:
        """The answer; raises the error if there is one instead."""
        if self._error is not None:
            raise self._error
        return self._body

    def _settle(self, body: bytes, error: ActorGridError | None) -> None:
        if self.done:
            return
        self.done, self._body, self._error = True, body, error
        self._on_cancel = None
        if self._on_settled is not None:
            self._on_settled()
        if self._callback is not None:
            self._callback()

    def __await__(self) -> Generator[PendingAnswer, None, bytes]:
        if not self.done:
            yield self
        return self.result()


class IncomingCall:
    """A request of another host. Answer it once, now or later, with ``reply`` or ``fail``."""

    __slots__ = ("_answer", "_on_cancel", "answered", "body", "cancelled", "host_id", "target")

    def __init__(
        self, host_id: str, target: str, body: bytes, answer: Callable[[bytes | ActorGridError], None]
    ) -> None:
        self.host_id = host_id
        self.target = target
        self.body = body
        self.answered = False
        self.cancelled = False
        self._answer = answer
        self._on_cancel: Callable[[], object] | None = None

    def reply(self, body: bytes) -> None:
        """Answer with *body*. Harmless when nobody waits any more. Raises FrameTooLarge, and answers nothing then."""
        if not self.answered:
            self._answer(body)
            self.answered = True

    def fail(self, error: ActorGridError) -> None:
        """Answer with *error*, which is raised at the caller."""
        if not self.answered:
            self.answered = True
            self._answer(error)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call back when the caller cancels, or is lost, before the answer (at once if so already)."""
        if self.cancelled:
            callback()
        else:
            self._on_cancel = callback

    def cancel(self) -> None:
        """Take note that nobody waits for the answer any more. For nets."""
        if not self.answered and not self.cancelled:
            self.cancelled = True
            if self._on_cancel is not None:
                self._on_cancel()


class StreamPort(Protocol):
    """Where a stream's bytes go: for nets."""

    def write_stream(self, stream_id: int, data: Bytes) -> int:
        """As ``Stream.write``."""

    def stream_capacity(self, stream_id: int) -> int:
        """As ``Stream.capacity``."""

    def stream_consumed(self, stream_id: int, count: int) -> None:
        """As ``Stream.consumed``."""

    def end_stream(self, stream_id: int) -> None:
        """As ``Stream.end``."""

    def reset_stream(self, stream_id: int, error: ActorGridError) -> None:
        """As ``Stream.reset``."""


class Stream:
    """Bytes both ways between two hosts. ``attach`` to it at once: what comes before that is lost.

    That all was sent does not say that it was read: who must know has the reader write so, or end its direction.
    """

    __slots__ = (
        "_id",
        "_on_capacity",
        "_on_data",
        "_on_end",
        "_port",
        "_wants_end",
        "carrier",
        "head",
        "host_id",
        "over",
        "target",
    )

    def __init__(self, host_id: str, target: str, head: bytes) -> None:
        self.host_id = host_id
        self.target = target
        self.head = head
        self.carrier = PathKind.TLS
        """What carries its bytes."""
        self.over = False
        """Whether it was lost or reset."""
        self._port: StreamPort | None = None
        self._id = 0
        self._wants_end = False
        self._on_data: Callable[[bytes], None] | None = None
        self._on_capacity: Callable[[], None] | None = None
        self._on_end: Callable[[ActorGridError | None], None] | None = None

    def attach(
        self,
        on_data: Callable[[bytes], None],
        on_end: Callable[[ActorGridError | None], None],
        on_capacity: Callable[[], None] | None = None,
    ) -> None:
        """Set the callbacks of this stream.

        *on_data*: a piece came; call ``consumed`` when done with it.
        *on_end*: the other side writes no more (``None``), or the stream is lost (an error, perhaps after a ``None``;
        then nothing more comes).
        *on_capacity*: after ``write`` did not take all, or before the other side had the stream, it takes more.
        An ActorGridError that *on_data* or *on_capacity* raises resets the stream.
        """
        self._on_data, self._on_end, self._on_capacity = on_data, on_end, on_capacity

    @property
    def capacity(self) -> int:
        """How many bytes ``write`` takes now; none before the other side has it."""
        return 0 if self._port is None or self.over else self._port.stream_capacity(self._id)

    def write(self, data: Bytes) -> int:
        """Send as much of *data* as there is room for; how much, 0 included. *on_capacity* follows if it is not all.

        Raises PeerGone when the stream is lost, or ended by us.
        """
        if self.over or self._wants_end:
            raise PeerGone(f"the stream to {self.host_id} is over")
        return 0 if self._port is None else self._port.write_stream(self._id, data)

    def consumed(self, count: int) -> None:
        """Say that *count* received bytes are dealt with: as many more may come."""
        if self._port is not None and not self.over:
            self._port.stream_consumed(self._id, count)

    def end(self) -> None:
        """Write no more; what was written still goes, and the other direction goes on."""
        if not self._wants_end:
            self._wants_end = True
            if self._port is not None and not self.over:
                self._port.end_stream(self._id)

    def reset(self, error: ActorGridError) -> None:
        """End the stream both ways at once; the other side's *on_end* gets the error, ours is not called."""
        if not self.over:
            self.over = True
            if self._port is not None:
                self._port.reset_stream(self._id, error)

    # -- for nets

    def bind(self, port: StreamPort, stream_id: int) -> None:
        """Take the net's number for this stream, and do what was asked of it meanwhile."""
        self._port, self._id = port, stream_id
        if self._wants_end:
            port.end_stream(stream_id)

    def received(self, data: bytes) -> None:
        """Hand on a piece that came."""
        if self._on_data is not None and not self.over:
            self._on_data(data)

    def capacity_freed(self) -> None:
        """Tell the owner that the stream takes more."""
        if self._on_capacity is not None and not self.over and not self._wants_end:
            self._on_capacity()

    def ended(self, error: ActorGridError | None) -> None:
        """Tell the owner that the other side writes no more, or that the stream is lost."""
        if self.over:
            return
        self.over = error is not None
        if self._on_end is not None:
            self._on_end(error)


OnCall = Callable[[IncomingCall], None]
"""A request came. An ActorGridError that this raises is its answer."""
OnCast = Callable[[str, str, bytes], None]
"""(host id, target, body): a message without an answer came. An ActorGridError that this raises is logged."""
OnStream = Callable[[Stream], None]
"""A stream was opened by another host: attach to it, or reset it. An ActorGridError that this raises resets it."""
