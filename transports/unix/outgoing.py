"""The connections of a process to the peers it sends to, and what waits to be sent over them.

A frame goes out at once when nothing waits before it, else it is queued; several go out in one system call. A large one
(``large.py``) is offered as a file when it is the first of the queue, and what is behind it waits until the peer
says that it has the file; a peer that could not take it (it is out of descriptors) says so and gets a stream.

Bounds, for each peer: 100,000 frames or 256 MiB wait, then ``post`` raises MailboxFull; ``when_capacity`` says when
half of it has gone out. Memory is what waits and little more (``queue.py``). One file is on its way at a time.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from actorgrid.errors import MailboxFull, PeerGone

from . import handshake, large
from .loop import UnixLoop
from .queue import Chunks, Done, SendQueue

QUEUED_FRAMES_MAX = 100_000
QUEUED_BYTES_MAX = 256 * 2**20
HANDSHAKE_S = 10.0

HEADER = struct.Struct(">IB")
AS_FILE = 0x80  # with a frame's kind: its payload is in the file that comes with the header
TAKEN, REFUSED = b"A", b"S"  # what a peer answers to such a frame
_JOIN_BELOW_BYTES = 16 * 1024
_FLUSH_FRAMES = 128
_GATHER_BYTES = 512 * 1024
_BUFFER_BYTES = 1 << 20  # the kernel caps it at net.core.wmem_max
_RETRY_S = 0.005
_SHORT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class OutgoingConnection:
    """Our connection to one peer, and what waits to be sent over it."""

    __slots__ = (
        "armed",
        "capacity_waiters",
        "connection",
        "dialled_at",
        "nonce",
        "offered",
        "peer",
        "queue",
        "received",
        "server_nonce",
        "state",
    )

    def __init__(self, peer: str, chunks: Chunks) -> None:
        self.peer = peer
        self.connection: socket.socket | None = None
        self.state = "connecting"  # connecting -> greeting -> proving -> ready -> lost
        self.queue = SendQueue(chunks)
        self.received = b""
        self.nonce = b""
        self.server_nonce = b""
        self.armed = False
        self.offered = False  # the first of the queue is a file, and the peer has not said yet that it has it
        self.capacity_waiters: list[Callable[[], None]] = []
        self.dialled_at = monotonic()

    @property
    def has_capacity(self) -> bool:
        """Whether at least half of the bounds is free."""
        return self.queue.frames * 2 < QUEUED_FRAMES_MAX and self.queue.bytes * 2 < QUEUED_BYTES_MAX

    def is_full(self, size: int) -> bool:
        """Whether a frame of *size* bytes is over the bounds."""
        return self.queue.frames >= QUEUED_FRAMES_MAX or self.queue.bytes + size > QUEUED_BYTES_MAX


class OutgoingConnections:
    """The outgoing connections of one process."""

    def __init__(self, loop: UnixLoop, folder: Path, key: bytes, name: str) -> None:
        self.links: dict[str, OutgoingConnection] = {}
        self.pending = 0
        self.on_lost: Callable[[str], None] | None = None
        self._loop = loop
        self._folder = folder
        self._key = key
        self._name = name
        self._retry: dict[OutgoingConnection, None] = {}
        self._chunks = Chunks()

    # -- sending

    def post(self, peer: str, kind: int, payload: bytes | bytearray, done: Done | None) -> None:
        """See ``Mesh.post``."""
        size = len(payload)
        link = self.links.get(peer)
        if link is None:
            link = self.connect(peer)
        if size >= large.LARGE_BYTES_MIN:
            self._make_room(link, HEADER.size + size)
            link.queue.add_large(large.Large(kind, payload), HEADER.size + size, done)
            self._queued(link)
            if link.queue.large is not None and link.state == "ready":
                self._flush(link)
            return
        header = HEADER.pack(size, kind)
        # Behind what waits: sent at once it would overtake that, and frames arrive in the order in which they were
        # posted.
        if link.state != "ready" or link.queue:
            self._make_room(link, HEADER.size + size)
            link.queue.add((header, payload), done)
            self._queued(link)
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
        if sent == size + HEADER.size:
            if done is not None:
                done(True)
            return
        rest = (header[sent:], payload) if sent < HEADER.size else (memoryview(payload)[sent - HEADER.size :],)
        link.queue.add(rest, done)  # whatever the bounds: a part of it is gone
        self._queued(link)

    def connect(self, peer: str) -> OutgoingConnection:
        """The link to *peer*, dialled if there was none. Raises PeerGone; MailboxFull when descriptors are out."""
        link = self.links.get(peer)
        if link is None:
            link = OutgoingConnection(peer, self._chunks)
            self._dial(link)
            # Not before it is dialled: that raises for a peer which is not there, and its link would stay.
            self.links[peer] = link
        return link

    def when_capacity(self, peer: str, callback: Callable[[], None]) -> None:
        """See ``Mesh.when_capacity``."""
        link = self.links.get(peer)
        if link is None or link.has_capacity:
            callback()
        else:
            link.capacity_waiters.append(callback)

    def forget(self, peer: str) -> None:
        """Drop the connection to a dead peer; what waited for it is undelivered."""
        link = self.links.get(peer)
        if link is not None:
            self._lose(link)

    def _make_room(self, link: OutgoingConnection, size: int) -> None:
        """Send something now and then, also while a handler sends much. Raises PeerGone or MailboxFull."""
        queue = link.queue
        full = link.is_full(size)
        if link.state == "ready" and (full or queue.frames % _FLUSH_FRAMES == _FLUSH_FRAMES - 1):
            self._flush(link)
            # It may have been lost just now: what is queued on a lost link is never sent, and nobody is told so.
            if self.links.get(link.peer) is not link:
                raise PeerGone(f"{link.peer} closed its socket")
            full = link.is_full(size)
        if full:
            raise MailboxFull(
                f"{queue.frames} messages ({queue.bytes} bytes) wait for {link.peer} already",
                hint="it is slow or stuck; send less, or wait for its answers",
            )

    def _queued(self, link: OutgoingConnection) -> None:
        self.pending += 1
        self._arm(link)

    def _arm(self, link: OutgoingConnection) -> None:
        # To hear that it can be written to only while there is something to write: else that is so all the time, and
        # the loop never waits.
        wanted = link.state == "ready" and bool(link.queue) and not link.offered
        if wanted != link.armed and link.connection is not None:
            link.armed = wanted
            self._loop.change(link.connection.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def _flush(self, link: OutgoingConnection) -> None:
        while link.queue and not link.offered and link.state == "ready":
            message = link.queue.large
            if not (self._send(link) if message is None else self._offer(link, message)):
                break
        self._arm(link)
        if link.capacity_waiters and link.has_capacity:
            waiters, link.capacity_waiters = link.capacity_waiters, []
            # Not from here: they post, and that may flush this very queue.
            for callback in waiters:
                self._loop.soon(callback)

    def _send(self, link: OutgoingConnection) -> bool:
        """Send frames up to the first large one; ``False`` when the kernel took less than that, or the link is lost."""
        connection, queue = link.connection, link.queue
        if connection is None:
            return False
        views = queue.views(_GATHER_BYTES)
        try:
            sent = connection.sendmsg(views)
        except BlockingIOError:
            return False
        except OSError:
            self._lose(link)
            return False
        complete = sent == sum(map(len, views))
        frames = queue.frames
        told = queue.sent(sent)
        self.pending -= frames - queue.frames
        for done in told:
            done(True)
        return complete

    def _offer(self, link: OutgoingConnection, message: large.Large) -> bool:
        """Hand the peer the file of a large message, or put its stream into its place; ``False``: try later."""
        if link.connection is None:
            return False
        header = HEADER.pack(len(message.payload), message.kind | AS_FILE)
        if message.fd < 0:
            message.fd = large.seal(message.payload)
        if message.fd >= 0:
            try:
                large.offer(link.connection, header, message.fd)
                link.offered = True
                message.close()
                return True
            except BlockingIOError:
                return False
            except OSError as error:
                message.close()
                if error.errno not in (errno.ETOOMANYREFS, *_SHORT_OF_DESCRIPTORS):
                    self._lose(link)
                    return False
        link.queue.stream_large(HEADER.pack(len(message.payload), message.kind))
        return True

    def _offer_answered(self, link: OutgoingConnection, answer: bytes) -> bool:
        told: list[Done] = []
        link.offered = False
        if answer == TAKEN:
            told = link.queue.large_sent()
            self.pending -= 1
        elif answer == REFUSED:
            link.queue.stream_large(b"")
        else:
            return False
        for done in told:
            done(True)
        self._flush(link)
        return True

    # -- making and losing connections

    def _dial(self, link: OutgoingConnection) -> None:
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise MailboxFull(
                f"there is no descriptor for a connection to {link.peer}; nothing was sent",
                found=str(error),
                hint="raise the limit of open files (ulimit -n), or close some",
            ) from None
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.connect(str(self._folder / link.peer))
        except BlockingIOError:  # its backlog is full: there is no event to wait for, so ask again soon
            connection.close()
            self._redial_later(link)
            return
        except OSError as error:
            connection.close()
            raise PeerGone(f"no process listens as {link.peer}", found=error.strerror or str(error)) from None
        if handshake.peer_uid(connection) != os.geteuid():
            connection.close()
            raise PeerGone(f"the socket of {link.peer} belongs to another user")
        link.connection, link.state = connection, "greeting"
        self._loop.add(connection.fileno(), select.EPOLLIN, lambda events: self._ready(link, events))

    def _redial_later(self, link: OutgoingConnection) -> None:
        if not self._retry:
            self._loop.after(_RETRY_S, self.redial)
        self._retry[link] = None

    def redial(self) -> None:
        """Dial the peers again that closed on us because too many were dialling them."""
        retry, self._retry = self._retry, {}
        for link in retry:
            if link.state == "lost":
                continue
            try:
                self._dial(link)
            except PeerGone:
                self._lose(link)
            except MailboxFull:  # it was dialled once; descriptors may come back before its time is over
                if monotonic() > link.dialled_at + HANDSHAKE_S:
                    self._lose(link)
                else:
                    self._redial_later(link)

    def _ready(self, link: OutgoingConnection, events: int) -> None:
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not self._answered(link):
            if link.state == "ready" or monotonic() > link.dialled_at + HANDSHAKE_S:
                self._lose(link)
            else:
                self._hang_up(link)
            return
        if events & select.EPOLLOUT or link.state == "ready":
            self._flush(link)

    def _answered(self, link: OutgoingConnection) -> bool:
        """Take what a listener says: its greeting, its proof, then answers to offers, and its end."""
        if link.connection is None:
            return False
        wanted = {"greeting": handshake.GREETING_BYTES, "proving": handshake.PROOF_BYTES}.get(link.state, 0)
        try:
            data = link.connection.recv(max(1, wanted - len(link.received)))
        except BlockingIOError:
            return True
        except OSError:
            return False
        if link.offered and data:
            return self._offer_answered(link, data)
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
                link.connection.send(handshake.claim(self._key, nonce, link.nonce, self._name, link.peer))
            except OSError:
                return False
            return True
        if not handshake.check_listener(self._key, link.nonce, link.server_nonce, answer, link.peer, self._name):
            return False
        link.state = "ready"
        return True

    def _hang_up(self, link: OutgoingConnection) -> None:
        """Deal with a listener that closed before we were proven: it is dead, as the next dial shows, or crowded."""
        self._close(link)
        link.state, link.received, link.armed = "connecting", b"", False
        self._redial_later(link)

    def _lose(self, link: OutgoingConnection) -> None:
        if self.links.get(link.peer) is not link:
            return
        # First: who is told below that its message was not sent may post again, which has to dial anew.
        del self.links[link.peer]
        self._retry.pop(link, None)
        link.state = "lost"
        self._close(link)
        self.pending -= link.queue.frames
        for done in link.queue.clear():
            done(False)
        for callback in link.capacity_waiters:
            self._loop.soon(callback)
        on_lost = self.on_lost
        if on_lost is not None:
            self._loop.soon(lambda: on_lost(link.peer))

    def _close(self, link: OutgoingConnection) -> None:
        connection, link.connection = link.connection, None
        if connection is not None:
            self._loop.remove(connection.fileno())
            connection.close()

    # -- other turns and ends

    def poll(self, timeout_s: float) -> None:
        """Send what waits and nothing else, for at most *timeout_s*."""
        poller = select.poll()
        for link in self.links.values():
            if link.connection is not None and link.queue:
                wanted = link.state == "ready" and not link.offered
                poller.register(link.connection, select.POLLIN | (select.POLLOUT if wanted else 0))
        wait_s = min(timeout_s, _RETRY_S) if self._retry else timeout_s
        for fd, events in poller.poll(wait_s * 1000):  # the event bits of poll and epoll are the same
            self._loop.handle(fd, events)
        # Alarms do not fire in this poll: the dial that waits for one would not be made before it ends.
        self.redial()

    def close(self) -> None:
        """Drop all connections; nobody is told of their loss but the waiting senders."""
        self.on_lost = None
        for link in list(self.links.values()):
            self._lose(link)

    def abandon(self) -> None:
        """In a forked child: close our copies of the parent's descriptors and touch nothing else."""
        for link in self.links.values():
            if link.connection is not None:
                link.connection.close()
            link.queue.clear()
        self.links.clear()
