"""Clients of a worker that come over a network: a thread carries their streams, over as many connections as it takes.

The worker, or an actor, has one end of a socket pair for each and reads and writes that as it would the client's own
socket; it notices nothing when the connection breaks and the client comes back (transports/kept_stream.py). A stream
ends with the worker's end of the pair, when the client says so, or with the process.

The thread sleeps while nothing moves, and is only there when there was such a client.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, Overloaded, PeerRefused, TransportError
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.kept_stream import (
    FIRST_FRAME_BYTES,
    Keep,
    KeptStream,
    encode_keep_refused,
    encode_kept,
    parse_keep,
)

from .client_hello import is_secret

READ_BYTES = 256 * 1024
MAX_STRANGERS = 16
MAX_STREAMS = 1000
EXIT_TOO_LATE = 75


class HandedOver(NamedTuple):
    """What another program in this process needs to go on with the one stream; nothing, where there is none."""

    state: dict[str, Any]
    ends: dict[str, socket.socket]


class _Carried:
    """One client's stream, and the present connection, if there is one."""

    __slots__ = ("alone_since", "connection", "inner", "keep", "over", "stream", "to_inner")

    def __init__(self, keep: Keep, inner: socket.socket) -> None:
        self.keep = keep
        self.inner = inner
        self.stream = KeptStream()
        self.connection: socket.socket | None = None
        self.to_inner = bytearray()  # came, and was not taken by the worker yet
        self.over = False  # the worker's end is closed: what is left goes out, and then the connection
        self.alone_since = monotonic()  # when there was no connection any more


class KeptConnections:
    """The thread. *is_over*: whether our time is over, so that nothing we say counts any more.

    ``adopt`` and ``attach`` take connections whose first frame was read, and its secret checked; ``listen`` has the
    thread take those of known streams itself, while nobody else looks at the listener. A stream ends that has had no
    connection for *patience_s*: where nothing else ends those of clients that were killed.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: False, patience_s: float | None = None) -> None:
        self._is_over = is_over
        self._patience_s = patience_s
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Be nobody's: also in a process that was forked by a task, where there is no thread."""
        self._lock = threading.Lock()
        self._streams: dict[str, _Carried] = {}
        self._strangers: dict[int, tuple[socket.socket, FrameDecoder]] = {}
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._emptier = threading.Condition(self._lock)

    # -- for the worker's main thread

    def adopt(self, connection: socket.socket, keep: Keep) -> socket.socket:
        """Begin a stream with that connection; gives what the worker reads and writes.

        Raises Overloaded, or MalformedBody for one that goes on with what never began.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with self._lock:
            if len(self._streams) >= MAX_STREAMS:
                ours.close()
                theirs.close()
                raise Overloaded(f"{MAX_STREAMS} processes are connected from other machines already")
            carried = _Carried(keep, ours)
            try:
                self._connect(carried, connection, keep)
            except ActorGridError:
                ours.close()
                theirs.close()
                raise
            self._streams[keep.stream_id] = carried
        self._start()
        return theirs

    def attach(self, connection: socket.socket, keep: Keep) -> bool:
        """Go on with a known stream over that connection; ``False`` when there is none of that id.

        Raises MalformedBody when the client has seen what was never sent.
        """
        with self._lock:
            carried = self._streams.get(keep.stream_id)
            if carried is None or carried.over:
                return False
            self._connect(carried, connection, keep)
        self._wake()
        return True

    def send_last(self, timeout_s: float) -> None:
        """Wait until what is over was said to those who are connected."""
        with self._lock:
            self._emptier.wait_for(lambda: not any(each.connection for each in self._streams.values()), timeout_s)

    def listen(self, listener: socket.socket) -> None:
        """Take connections for the streams that there are, until ``leave_listener``; all others are refused."""
        with self._lock:
            self._listener = listener
        self._wake()

    def leave_listener(self) -> None:
        """Let somebody else look at the listener again."""
        with self._lock:
            self._listener = None
        self._wake()

    @contextlib.contextmanager
    def handing_over(self) -> Iterator[HandedOver]:
        """Stand still, for this process to execute another program, in which ``take_over`` goes on."""
        with self._lock:
            carried = next(iter(self._streams.values()), None)
            if carried is None:
                yield HandedOver({}, {})
                return
            state = {"keep": list(carried.keep), "stream": carried.stream.to_plain(), "came": bytes(carried.to_inner)}
            ends = {"kept_inner": carried.inner}
            if carried.connection is not None:
                ends["kept_connection"] = carried.connection
            yield HandedOver(state, ends)

    def take_over(self, state: dict[str, Any], ends: dict[str, socket.socket], listener: socket.socket) -> bool:
        """Go on with what was handed over, and take connections for it; ``False`` when it was nothing."""
        if not state:
            return False
        keep = Keep(*state["keep"])
        carried = _Carried(keep, ends["kept_inner"])
        carried.inner.setblocking(False)
        carried.stream, carried.to_inner = KeptStream.of_plain(state["stream"]), bytearray(state["came"])
        carried.connection = ends.get("kept_connection")
        if carried.connection is not None:
            carried.connection.setblocking(False)
        with self._lock:
            self._streams[keep.stream_id] = carried
            self._listener = listener
        self._start()
        return True

    # -- inside

    def _start(self) -> None:
        if self._thread is not None:
            self._wake()
            return
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="actorgrid-kept", daemon=True)
        # Signals are the main thread's: one that came here would not interrupt what a task waits in.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _connect(self, carried: _Carried, connection: socket.socket, keep: Keep) -> None:
        connection.setblocking(False)
        carried.stream.connect(keep.received)
        carried.to_inner.clear()  # which is not confirmed, and comes again
        if carried.connection is not None:
            carried.connection.close()  # the client is here, so this one leads nowhere
        carried.connection = connection
        carried.stream.out[:0] = encode_kept(carried.stream.received)

    def _run(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._wake_fd, select.POLLIN)
            with self._lock:
                for carried in list(self._streams.values()):
                    self._watch(poll, carried)
                for stranger, _ in self._strangers.values():
                    poll.register(stranger, select.POLLIN)
                if self._listener is not None:
                    poll.register(self._listener, select.POLLIN)
                wait_ms = self._expire()
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            with self._lock:
                if self._listener is not None and self._listener.fileno() in ready:
                    self._accept(self._listener)
                for fd in ready & self._strangers.keys():
                    self._hear(fd)
                for carried in list(self._streams.values()):
                    self._carry(carried, ready)

    def _expire(self) -> float | None:
        """End the streams that nobody came back to; how many ms it may take until that is to be looked at again."""
        if self._patience_s is None:
            return None
        alone = [carried for carried in self._streams.values() if carried.connection is None]
        for carried in alone:
            if monotonic() - carried.alone_since > self._patience_s:
                self._forget(carried)
        return 1000.0 * self._patience_s / 10 if alone else None

    def _watch(self, poll: select.poll, carried: _Carried) -> None:
        # Of what is registered, the kernel tells the end, too, again and again: only what would be dealt with.
        if not carried.over:
            mask = (select.POLLIN if carried.stream.room else 0) | (select.POLLOUT if carried.to_inner else 0)
            if mask:
                poll.register(carried.inner, mask)
        if carried.connection is not None:
            poll.register(carried.connection, select.POLLIN | (select.POLLOUT if carried.stream.out else 0))

    def _carry(self, carried: _Carried, ready: set[int]) -> None:
        """Move what can be moved, in all directions."""
        connection = carried.connection
        if connection is not None and connection.fileno() in ready:
            self._read(carried, connection)
        if not carried.over and carried.inner.fileno() in ready:
            self._read_inner(carried)
        if carried.to_inner and not carried.over:
            try:
                sent = carried.inner.send(carried.to_inner)
                del carried.to_inner[:sent]
                carried.stream.taken(sent)
            except BlockingIOError:
                pass
            except OSError:
                self._inner_ended(carried)
        if carried.stream.ended and not carried.to_inner and not carried.over:
            with contextlib.suppress(OSError):
                carried.inner.shutdown(socket.SHUT_WR)  # the worker reads the end, and closes its side
        self._send(carried)
        if carried.over and (carried.connection is None or not carried.stream.out):
            self._forget(carried)

    def _read(self, carried: _Carried, connection: socket.socket) -> None:
        try:
            data = connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect(carried)
            return
        try:
            carried.to_inner += carried.stream.feed(data)
            if carried.over:  # nobody reads it any more
                carried.stream.taken(len(carried.to_inner))
                carried.to_inner.clear()
        except ActorGridError:
            self._forget(carried)  # it broke protocol: nobody can say what it has

    def _read_inner(self, carried: _Carried) -> None:
        room = carried.stream.room
        if not room:
            return
        try:
            data = carried.inner.recv(min(room, READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            carried.stream.write(data)
        else:
            self._inner_ended(carried)

    def _inner_ended(self, carried: _Carried) -> None:
        carried.inner.close()
        carried.to_inner.clear()
        carried.stream.end()
        carried.over = True

    def _send(self, carried: _Carried) -> None:
        if carried.connection is None or not carried.stream.out:
            return
        if self._is_over():
            os._exit(EXIT_TOO_LATE)  # we were paused past our deadline: others may have begun what we did
        try:
            del carried.stream.out[: carried.connection.send(carried.stream.out)]
        except BlockingIOError:
            return
        except OSError:
            self._disconnect(carried)

    def _disconnect(self, carried: _Carried) -> None:
        if carried.connection is not None:
            carried.connection.close()
            carried.connection, carried.alone_since = None, monotonic()

    def _forget(self, carried: _Carried) -> None:
        self._disconnect(carried)
        carried.over = True
        carried.inner.close()
        self._streams.pop(carried.keep.stream_id, None)
        self._emptier.notify_all()

    # -- those who come while the worker is busy

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers)))[0].close()  # who said nothing yet gives way
        self._strangers[connection.fileno()] = connection, FrameDecoder(FIRST_FRAME_BYTES)

    def _hear(self, fd: int) -> None:
        connection, decoder = self._strangers[fd]
        try:
            frames = decoder.feed(data := connection.recv(FIRST_FRAME_BYTES))
            if data and not frames:
                return
            del self._strangers[fd]
            keep = parse_keep(frames[0]) if frames else None
            carried = self._streams.get(keep.stream_id) if keep is not None else None
            if keep is None or carried is None or not is_secret(keep.secret, carried.keep.secret.encode()):
                raise PeerRefused("the worker serves another client")
            self._connect(carried, connection, keep)
        except BlockingIOError:
            return
        except OSError:
            connection.close()
            self._strangers.pop(fd, None)
        except (ActorGridError, TransportError) as error:
            self._strangers.pop(fd, None)
            with contextlib.suppress(OSError):  # it left: there is nobody to tell
                connection.send(encode_keep_refused(error))
            connection.close()
