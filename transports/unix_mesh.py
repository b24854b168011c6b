"""The sockets of one process of an actor system: whom it listens to, whom it sends to, one persistent epoll.

Every process listens on one AF_UNIX stream socket, called by the process's name, in the boot's 0700 directory.
It keeps one connection for sending to each peer, and takes one from each peer that sends to it. Frames are
``length (4, big-endian) | kind (1) | payload``; they arrive in the order they were posted, or not at all: when a
peer dies, what was not handed to the kernel is reported undelivered, what was may be lost unread.

Bounds: a frame holds 64 MiB. 100,000 frames or 256 MiB wait for one peer, then ``post`` raises MailboxFull.
64 connections may be unproven at a time, each for 5 s and 161 bytes (``unix_handshake``); one more closes the oldest,
and a peer it happens to tries again, for 10 s.
Received frames are bounded by reading no socket again before the inbox is empty: at most 128 KiB of small
frames, or one large frame, for each peer.

Single-threaded, except ``interrupt``, which signal handlers and threads may call too.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from actorgrid.errors import FrameTooLarge, MailboxFull, PeerGone

from . import unix_handshake as handshake

FRAME_BYTES_MAX = 64 * 2**20
QUEUED_FRAMES_MAX = 100_000
QUEUED_BYTES_MAX = 256 * 2**20
UNPROVEN_MAX = 64
UNPROVEN_S = 5.0
HANDSHAKE_S = 10.0
BACKLOG = 512

_HEADER = struct.Struct(">IB")
_SCRATCH_BYTES = 128 * 1024
_LARGE_BYTES_A_TURN = 4 * 2**20
_JOIN_BELOW_BYTES = 16 * 1024
_GATHER_FRAMES = 128
_GATHER_BYTES = 512 * 1024
_BUFFER_BYTES = 1 << 20  # the kernel caps it at net.core.wmem_max
_RETRY_S = 0.005
_EVENTS_A_TURN = 64
_REST_TURNS = 64

Done = Callable[[bool], None]
log = logging.getLogger("actorgrid.transport")


def listen(path: Path) -> socket.socket:
    """A listening socket at *path*. Whoever makes a process makes its socket first, so it can be sent to at once."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class _Outgoing:
    """Our connection to one peer, and what waits to be sent over it."""

    __slots__ = (
        "armed",
        "connection",
        "dialled_at",
        "nonce",
        "peer",
        "queue",
        "queued_bytes",
        "received",
        "server_nonce",
        "state",
    )

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.connection: socket.socket | None = None
        self.state = "connecting"  # connecting -> greeting -> proving -> ready
        self.queue: deque[tuple[memoryview, Done | None]] = deque()
        self.queued_bytes = 0
        self.received = b""
        self.nonce = b""
        self.server_nonce = b""
        self.armed = False
        self.dialled_at = monotonic()


class _Incoming:
    """A connection from a peer; ``peer`` is empty until it has proven who it is."""

    __slots__ = ("connection", "deadline", "filled", "head", "kind", "large", "nonce", "peer")

    def __init__(self, connection: socket.socket, nonce: bytes, deadline: float) -> None:
        self.connection = connection
        self.peer = ""
        self.nonce = nonce
        self.deadline = deadline
        self.head = b""
        self.large: bytearray | None = None
        self.filled = 0
        self.kind = 0


class Mesh:
    """See the module. Received frames are appended to ``inbox`` as (peer, kind, payload)."""

    def __init__(self, folder: Path, key: bytes, name: str, listener: socket.socket | None = None) -> None:
        self.folder = folder
        self.name = name
        self.inbox: deque[tuple[str, int, Any]] = deque()
        self.ready_watches: list[int] = []
        self.on_peer_lost: Callable[[str], None] | None = None
        self.pending = 0
        self.refused = 0
        self._key = key
        self._path = folder / name
        self._listener = listener if listener is not None else listen(self._path)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._outgoing: dict[str, _Outgoing] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._incoming: set[_Incoming] = set()
        self._unproven: dict[_Incoming, None] = {}  # oldest first
        self._retry: set[_Outgoing] = set()
        self._watched: dict[int, int] = {}
        self._own_fds: set[int] = set()
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._register(self._listener.fileno(), select.EPOLLIN, self._accept)
        self._register(self._wake, select.EPOLLIN, self._woken)

    # -- sending

    def post(self, peer: str, kind: int, payload: bytes | bytearray, done: Done | None = None) -> None:
        """Send one frame; *done* is told ``True`` when the kernel has it, ``False`` when the peer died first.

        Raises FrameTooLarge, MailboxFull, or PeerGone when no process of that name lives; *done* is not called then.
        """
        size = len(payload)
        if size > FRAME_BYTES_MAX:
            raise FrameTooLarge(
                f"a message of {size} bytes is over the limit of {FRAME_BYTES_MAX}",
                asked=f"send to {peer}",
                hint="pass large data through files in the data directory and send its name",
            )
        if peer == self.name:
            self.inbox.append((peer, kind, payload))
            if done is not None:
                done(True)
            return
        link = self._outgoing.get(peer)
        if link is None:
            link = self._connect(peer)
        header = _HEADER.pack(size, kind)
        if link.state != "ready" or link.queue:
            self._enqueue(link, memoryview(header + payload), done)
            return
        connection = link.connection
        if connection is None:
            raise AssertionError(f"the link to {peer} is ready without a connection")
        try:
            if size < _JOIN_BELOW_BYTES:
                sent = connection.send(header + payload)
            else:
                sent = connection.sendmsg((header, payload))
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(link)
            raise PeerGone(f"{peer} closed its socket", found=str(error)) from None
        if sent == size + _HEADER.size:
            if done is not None:
                done(True)
        elif sent < _HEADER.size:
            self._enqueue(link, memoryview(header + payload)[sent:], done)
        else:
            self._enqueue(link, memoryview(payload)[sent - _HEADER.size :], done)

    def reach(self, peer: str) -> None:
        """Have a connection to *peer*, with nothing to send."""
        if peer not in self._outgoing and peer != self.name:
            self._connect(peer)

    def forget(self, peer: str) -> None:
        """Drop the connection to a dead peer; what waited for it is undelivered."""
        link = self._outgoing.get(peer)
        if link is not None:
            self._lose(link)

    def _connect(self, peer: str) -> _Outgoing:
        link = _Outgoing(peer)
        self._dial(link)
        self._outgoing[peer] = link
        return link

    def _dial(self, link: _Outgoing) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.connect(str(self.folder / link.peer))
        except BlockingIOError:  # its backlog is full: there is no event to wait for, so ask again soon
            connection.close()
            self._retry.add(link)
            return
        except OSError as error:
            connection.close()
            raise PeerGone(f"no process listens as {link.peer}", found=error.strerror or str(error)) from None
        if handshake.peer_uid(connection) != os.geteuid():
            connection.close()
            raise PeerGone(f"the socket of {link.peer} belongs to another user")
        link.connection = connection
        link.state = "greeting"
        self._register(connection.fileno(), select.EPOLLIN, lambda events: self._outgoing_ready(link, events))

    def _enqueue(self, link: _Outgoing, data: memoryview, done: Done | None) -> None:
        full = len(link.queue) >= QUEUED_FRAMES_MAX or link.queued_bytes + len(data) > QUEUED_BYTES_MAX
        if link.state == "ready" and (full or len(link.queue) % _GATHER_FRAMES == _GATHER_FRAMES - 1):
            self._flush(link)
            if self._outgoing.get(link.peer) is not link:
                raise PeerGone(f"{link.peer} closed its socket")
            full = len(link.queue) >= QUEUED_FRAMES_MAX or link.queued_bytes + len(data) > QUEUED_BYTES_MAX
        if full:
            raise MailboxFull(
                f"{len(link.queue)} messages ({link.queued_bytes} bytes) wait for {link.peer} already",
                hint="it is slow or stuck; send less, or wait for its answers",
            )
        link.queue.append((data, done))
        link.queued_bytes += len(data)
        self.pending += 1
        self._arm(link)

    def _arm(self, link: _Outgoing) -> None:
        wanted = link.state == "ready" and bool(link.queue)
        if wanted != link.armed and link.connection is not None:
            link.armed = wanted
            events = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
            self._epoll.modify(link.connection.fileno(), events)

    def _flush(self, link: _Outgoing) -> None:
        connection, queue = link.connection, link.queue
        if connection is None:
            return
        while queue:
            buffers, total = [], 0
            for data, _ in queue:
                buffers.append(data)
                total += len(data)
                if len(buffers) >= _GATHER_FRAMES or total >= _GATHER_BYTES:
                    break
            try:
                sent = connection.sendmsg(buffers)
            except BlockingIOError:
                break
            except OSError:
                self._lose(link)
                return
            link.queued_bytes -= sent
            complete = sent == total
            while sent:
                data, done = queue[0]
                if sent < len(data):
                    queue[0] = (data[sent:], done)
                    break
                sent -= len(data)
                queue.popleft()
                self.pending -= 1
                if done is not None:
                    done(True)
            if not complete:
                break
        self._arm(link)

    def _outgoing_ready(self, link: _Outgoing, events: int) -> None:
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not self._answered(link):
            if link.state == "ready" or monotonic() > link.dialled_at + HANDSHAKE_S:
                self._lose(link)
            else:
                self._hang_up(link)
            return
        if events & select.EPOLLOUT or link.state == "ready":
            self._flush(link)

    def _answered(self, link: _Outgoing) -> bool:
        """Take what a listener says: its greeting, its proof, then nothing but its end."""
        if link.connection is None:
            return False
        wanted = {"greeting": handshake.GREETING_BYTES, "proving": handshake.PROOF_BYTES}.get(link.state, 0)
        try:
            data = link.connection.recv(max(1, wanted - len(link.received)))
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or not wanted:
            return False
        link.received += data
        if len(link.received) < wanted:
            return True
        answer, link.received = link.received, b""
        if link.state == "greeting":
            nonce = handshake.read_greeting(answer)
            if nonce is None:
                return False
            link.server_nonce, link.nonce, link.state = nonce, os.urandom(handshake.NONCE_BYTES), "proving"
            try:
                link.connection.send(handshake.claim(self._key, nonce, link.nonce, self.name, link.peer))
            except OSError:
                return False
            return True
        if not handshake.check_listener(self._key, link.nonce, link.server_nonce, answer, link.peer, self.name):
            return False
        link.state = "ready"
        return True

    def _hang_up(self, link: _Outgoing) -> None:
        """The listener closed before we were proven: it is dead, which the next dial shows, or it was crowded."""
        if link.connection is not None:
            self._close(link.connection)
            link.connection = None
        link.state, link.received, link.armed = "connecting", b"", False
        self._retry.add(link)

    def _lose(self, link: _Outgoing) -> None:
        if self._outgoing.get(link.peer) is not link:
            return
        del self._outgoing[link.peer]
        self._retry.discard(link)
        link.state = "lost"
        if link.connection is not None:
            self._close(link.connection)
            link.connection = None
        undelivered, link.queue = link.queue, deque()
        self.pending -= len(undelivered)
        for _, done in undelivered:
            if done is not None:
                done(False)
        if self.on_peer_lost is not None:
            self.on_peer_lost(link.peer)

    # -- receiving

    def _accept(self, _events: int) -> None:
        for _ in range(_EVENTS_A_TURN):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    log.warning("%s cannot take a connection: %s", self.name, error)
                    return
                raise
            if handshake.peer_uid(connection) != os.geteuid():
                self.refused += 1
                connection.close()
                continue
            if len(self._unproven) >= UNPROVEN_MAX:
                self._refuse(next(iter(self._unproven)), "too many connections have not proven who they are")
            connection.setblocking(False)
            link = _Incoming(connection, os.urandom(handshake.NONCE_BYTES), monotonic() + UNPROVEN_S)
            try:
                connection.send(handshake.greeting(link.nonce))
            except OSError:
                connection.close()
                continue
            self._incoming.add(link)
            self._unproven[link] = None
            self._register(connection.fileno(), select.EPOLLIN, self._reader(link))

    def _reader(self, link: _Incoming) -> Callable[[int], None]:
        return lambda _events: self._read(link) if link.peer else self._prove(link)

    def _prove(self, link: _Incoming) -> None:
        wanted = handshake.claim_length(link.head) or handshake.CLAIM_BYTES_MIN
        try:
            data = link.connection.recv(wanted - len(link.head))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._refuse(link, "it left before it had proven who it is")
            return
        link.head += data
        length = handshake.claim_length(link.head)
        if length is not None and length > handshake.CLAIM_BYTES_MAX:
            self._refuse(link, "its claim is malformed")
            return
        if length is None or len(link.head) < length:
            return
        checked = handshake.check_claim(self._key, link.nonce, link.head, self.name)
        if checked is None:
            self._refuse(link, "it does not have this boot's key")
            return
        link.peer, proof = checked
        link.head = b""
        self._unproven.pop(link, None)
        try:
            link.connection.send(proof)
        except OSError:
            self._drop(link)

    def _refuse(self, link: _Incoming, why: str) -> None:
        self.refused += 1
        log.warning("%s refused a connection: %s", self.name, why)
        self._drop(link)

    def _drop(self, link: _Incoming) -> None:
        self._unproven.pop(link, None)
        self._incoming.discard(link)
        self._close(link.connection)

    def _read(self, link: _Incoming) -> None:
        budget = _LARGE_BYTES_A_TURN
        while link.large is not None and budget > 0:
            with memoryview(link.large) as whole, whole[link.filled :] as rest:
                count = self._receive(link, rest)
            if count <= 0:
                return
            budget -= count
            link.filled += count
            if link.filled == len(link.large):
                self.inbox.append((link.peer, link.kind, link.large))
                link.large = None
                return
        if link.large is not None:
            return
        start = len(link.head)
        self._scratch[:start] = link.head
        count = self._receive(link, self._scratch_view[start:])
        if count > 0:
            link.head = b""
            self._parse(link, start + count)

    def _receive(self, link: _Incoming, into: memoryview) -> int:
        try:
            count = link.connection.recv_into(into)
        except BlockingIOError:
            return -1
        except OSError:
            count = 0
        if count == 0:
            self._drop(link)
        return count

    def _parse(self, link: _Incoming, end: int) -> None:
        view, inbox, peer, at = self._scratch_view, self.inbox, link.peer, 0
        while end - at >= _HEADER.size:
            size, kind = _HEADER.unpack_from(view, at)
            start = at + _HEADER.size
            if end - start >= size:
                at = start + size
                inbox.append((peer, kind, bytes(view[start:at])))
                continue
            if size > FRAME_BYTES_MAX:
                log.error("%s announced a frame of %d bytes; its connection is closed", peer, size)
                self._drop(link)
                return
            link.large, link.kind, link.filled = bytearray(size), kind, end - start
            link.large[: link.filled] = view[start:end]
            return
        link.head = bytes(view[at:end])

    # -- the loop

    def poll(self, timeout_s: float | None) -> None:
        """Wait for events, at most *timeout_s* (``None``: as long as it takes), and deal with them."""
        if self.inbox:
            timeout_s = 0.0
        if self._retry:
            timeout_s = _RETRY_S if timeout_s is None else min(timeout_s, _RETRY_S)
        if self._unproven:
            timeout_s = UNPROVEN_S if timeout_s is None else min(timeout_s, UNPROVEN_S)
        for fd, events in self._epoll.poll(timeout_s, _EVENTS_A_TURN):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
            elif fd in self._watched:
                self.ready_watches.append(fd)
        if self._retry:
            self._redial()
        if self._unproven:
            now = monotonic()
            for link in [link for link in self._unproven if link.deadline <= now]:
                self._refuse(link, f"it did not prove who it is in {UNPROVEN_S:g} s")

    def poll_sending(self, timeout_s: float) -> None:
        """As ``poll``, for connections with something to send alone: nothing is received, however much comes."""
        poller = select.poll()
        for link in self._outgoing.values():
            if link.connection is not None and link.queue:
                poller.register(link.connection, select.POLLIN | (select.POLLOUT if link.state == "ready" else 0))
        wait_s = min(timeout_s, _RETRY_S) if self._retry else timeout_s
        for fd, events in poller.poll(wait_s * 1000):  # the event bits of poll and epoll are the same
            self._handlers[fd](events)
        self._redial()

    def read_rest(self, peer: str) -> None:
        """Receive what a process that has ended left behind. Bounded: it was a full socket buffer at most."""
        for _ in range(_REST_TURNS):
            if not any(link.peer == peer for link in self._incoming):
                return
            self.poll(0.0)

    def _redial(self) -> None:
        for link in list(self._retry):
            self._retry.discard(link)
            try:
                self._dial(link)
            except PeerGone:
                self._lose(link)

    def watch_only(self, fds: list[int]) -> None:
        """Report readiness to read of exactly these descriptors, in ``ready_watches``. One that epoll cannot watch
        (closed, or a regular file) is left out with a warning."""
        wanted = set(fds)
        if wanted == self._watched.keys():
            return
        for fd in self._watched.keys() - wanted:
            del self._watched[fd]
            self._unregister(fd)
        for fd in wanted - self._watched.keys():
            try:
                self._epoll.register(fd, select.EPOLLIN)
            except OSError as error:
                log.warning("descriptor %d cannot be watched: %s", fd, error)
                continue
            self._watched[fd] = select.EPOLLIN

    def interrupt(self) -> None:
        """Make a waiting ``poll`` return."""
        os.eventfd_write(self._wake, 1)

    def _woken(self, _events: int) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return

    def _register(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def _unregister(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOENT):
                raise

    def _close(self, connection: socket.socket) -> None:
        fd = connection.fileno()
        if fd >= 0:
            self._handlers.pop(fd, None)
            self._unregister(fd)
        connection.close()

    # -- the end

    def close(self, unlink: bool = True) -> None:
        """Close everything and remove our socket file. What is still queued is undelivered."""
        if self._epoll.closed:
            return
        self.on_peer_lost = None
        for link in list(self._outgoing.values()):
            self._lose(link)
        for incoming in list(self._incoming):
            self._drop(incoming)
        self._listener.close()
        self._epoll.close()
        os.close(self._wake)
        if unlink:
            self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """In a forked child: close our copies of the parent's descriptors and touch nothing else."""
        # Closing an epoll here leaves the parent's registrations alone: they go with the last copy of each socket.
        self._epoll.close()
        for link in self._outgoing.values():
            if link.connection is not None:
                link.connection.close()
        for incoming in self._incoming:
            incoming.connection.close()
        self._listener.close()
        os.close(self._wake)
        self._outgoing.clear()
        self._incoming.clear()
        self._unproven.clear()
