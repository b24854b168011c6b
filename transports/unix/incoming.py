"""The connections of the peers that send to a process: who they are, and the frames they send.

Bounds: 64 connections may be unproven at a time, each for 5 s and 161 bytes (``handshake.py``); one more waits until
the oldest has had 0.5 s, then closes that; a peer it happens to tries again, for 10 s. A turn takes at most 128 KiB of
small frames, or one large frame, from each peer. Without a free descriptor the listener rests for 50 ms, and who dials
waits.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import select
import socket
from collections import deque
from time import monotonic
from typing import Any

from . import handshake, large
from .loop import EVENTS_A_TURN, UnixLoop
from .outgoing import AS_FILE, HEADER, REFUSED, TAKEN

FRAME_BYTES_MAX = 64 * 2**20
UNPROVEN_MAX = 64
UNPROVEN_S = 5.0
CROWD_S = 0.5
CROWD_PAUSE_S = 0.002
PAUSE_S = 0.05

_SCRATCH_BYTES = 128 * 1024
_LARGE_BYTES_A_TURN = 4 * 2**20
_REST_TURNS = 64

log = logging.getLogger("actorgrid.transport")


class IncomingConnection:
    """A connection from a peer; ``peer`` is empty until it has proven who it is."""

    __slots__ = ("connection", "deadline", "files", "filled", "head", "kind", "large", "nonce", "peer")

    def __init__(self, connection: socket.socket, nonce: bytes, deadline: float) -> None:
        self.connection = connection
        self.peer = ""
        self.nonce = nonce
        self.deadline = deadline
        self.head = b""
        self.large: bytearray | None = None
        self.filled = 0
        self.kind = 0
        self.files: list[int] = []  # received, and their header not read yet; one, or the peer is not one of ours


class IncomingConnections:
    """The incoming connections of one process. Received frames are appended to *inbox* as (peer, kind, payload)."""

    def __init__(
        self, loop: UnixLoop, listener: socket.socket, key: bytes, name: str, inbox: deque[tuple[str, int, Any]]
    ) -> None:
        self.links: set[IncomingConnection] = set()
        self.unproven: dict[IncomingConnection, None] = {}  # oldest first
        self.refused = 0
        self.pauses = 0
        self._loop = loop
        self._listener = listener
        self._key = key
        self._name = name
        self._inbox = inbox
        self._short = False
        # Mapped, so that an idle process has none of it.
        self._scratch = mmap.mmap(-1, _SCRATCH_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._scratch_view = memoryview(self._scratch)
        loop.add(listener.fileno(), select.EPOLLIN, self._accept)

    # -- taking connections

    def _accept(self, _events: int) -> None:
        for _ in range(EVENTS_A_TURN):
            if self._crowded():
                self._rest(CROWD_PAUSE_S)
                return
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(error)
                    return
                raise
            self._welcome(connection)

    def _pause(self, error: OSError) -> None:
        # The backlog keeps the listener readable: without a pause the loop would spin until a descriptor is free.
        self.pauses += 1
        if not self._short:
            log.warning("%s cannot take connections and tries again every %g s: %s", self._name, PAUSE_S, error)
        self._short = True
        self._rest(PAUSE_S)

    def _crowded(self) -> bool:
        """Whether as many as may be are proving who they are, and had little time so far: the next wait their turn.

        Without that, hundreds of children that start at once push each other out, for ever.
        """
        if len(self.unproven) < UNPROVEN_MAX:
            return False
        oldest = next(iter(self.unproven))
        return oldest.deadline - monotonic() > UNPROVEN_S - CROWD_S

    def _rest(self, pause_s: float) -> None:
        self._loop.change(self._listener.fileno(), 0)
        self._loop.after(pause_s, lambda: self._loop.change(self._listener.fileno(), select.EPOLLIN))

    def _welcome(self, connection: socket.socket) -> None:
        if handshake.peer_uid(connection) != os.geteuid():
            self.refused += 1
            connection.close()
            return
        self._short = False
        # The oldest makes room: connections that say nothing would keep out who has the key, for 5 s each.
        if len(self.unproven) >= UNPROVEN_MAX:
            self._refuse(next(iter(self.unproven)), "too many connections have not proven who they are")
        connection.setblocking(False)
        link = IncomingConnection(connection, os.urandom(handshake.NONCE_BYTES), monotonic() + UNPROVEN_S)
        try:
            connection.send(handshake.greeting(link.nonce))
            self._loop.add(connection.fileno(), select.EPOLLIN, lambda _events: self._ready(link))
        except OSError:
            connection.close()
            return
        self.links.add(link)
        if not self.unproven:
            self._loop.after(UNPROVEN_S, self._expire)
        self.unproven[link] = None

    def _expire(self) -> None:
        now = monotonic()
        for link in [link for link in self.unproven if link.deadline <= now]:
            self._refuse(link, f"it did not prove who it is in {UNPROVEN_S:g} s")
        if self.unproven:
            self._loop.after(max(0.0, next(iter(self.unproven)).deadline - now), self._expire)

    def _ready(self, link: IncomingConnection) -> None:
        if link.peer:
            self._read(link)
        else:
            self._prove(link)

    def _prove(self, link: IncomingConnection) -> None:
        # No more than its claim, whose length is checked before the rest is read: whoever has not proven who it is
        # costs no more memory than that.
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
        checked = handshake.check_claim(self._key, link.nonce, link.head, self._name)
        if checked is None:
            self._refuse(link, "it does not have this boot's key")
            return
        link.peer, proof = checked
        link.head = b""
        self.unproven.pop(link, None)
        try:
            link.connection.send(proof)
        except OSError:
            self._drop(link)

    def _refuse(self, link: IncomingConnection, why: str) -> None:
        self.refused += 1
        log.warning("%s refused a connection: %s", self._name, why)
        self._drop(link)

    def _drop(self, link: IncomingConnection) -> None:
        if link not in self.links:
            return
        self.unproven.pop(link, None)
        self.links.discard(link)
        for fd in link.files:
            os.close(fd)
        link.files = []
        # Before it is closed: a closed socket does not tell its number, and its handler would stay for whoever gets the
        # number next.
        self._loop.remove(link.connection.fileno())
        link.connection.close()

    # -- frames

    def _read(self, link: IncomingConnection) -> bool:
        """Read for one turn; ``False`` when there was nothing more."""
        if link.large is not None:
            return self._read_large(link, link.large)
        start = len(link.head)
        self._scratch[:start] = link.head
        try:
            count, ancillary, _flags, _address = link.connection.recvmsg_into(
                (self._scratch_view[start:],), large.FD_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            count, ancillary = 0, []
        if ancillary:
            link.files += large.received_files(ancillary)
        if count == 0 or len(link.files) > 1:
            self._drop(link)
            return False
        link.head = b""
        self._parse(link, start + count)
        return True

    def _read_large(self, link: IncomingConnection, message: bytearray) -> bool:
        budget = _LARGE_BYTES_A_TURN
        with memoryview(message) as whole:
            while budget > 0 and link.filled < len(message):
                try:
                    count = link.connection.recv_into(whole[link.filled :])
                except BlockingIOError:
                    return False
                except OSError:
                    count = 0
                if count == 0:
                    self._drop(link)
                    return False
                budget -= count
                link.filled += count
        if link.filled == len(message):
            self._inbox.append((link.peer, link.kind, message))
            link.large = None
        return True

    def _parse(self, link: IncomingConnection, end: int) -> None:
        view, inbox, peer, at = self._scratch_view, self._inbox, link.peer, 0
        while end - at >= HEADER.size:
            size, kind = HEADER.unpack_from(view, at)
            start = at + HEADER.size
            if kind & AS_FILE or size > FRAME_BYTES_MAX:
                self._take_file(link, kind & ~AS_FILE, size, kind & AS_FILE and start == end)
                return
            if end - start >= size:
                at = start + size
                inbox.append((peer, kind, bytes(view[start:at])))
                continue
            link.large, link.kind, link.filled = bytearray(size), kind, end - start
            link.large[: link.filled] = view[start:end]
            return
        link.head = bytes(view[at:end])

    def _take_file(self, link: IncomingConnection, kind: int, size: int, is_last: int) -> None:
        """Take a payload that comes as a file, as its header says. Its sender sends nothing more before we answer."""
        if size > FRAME_BYTES_MAX or not is_last:
            log.error("%s sent a header that cannot be (%d bytes); its connection is closed", link.peer, size)
            self._drop(link)
            return
        answer = REFUSED  # no descriptor was free, here or in the kernel's hand: let it come as a stream
        if link.files:
            try:
                payload = large.take(link.files.pop(), size)
            except OSError as error:
                log.warning("%s cannot map a message of %d bytes and asks for a stream: %s", self._name, size, error)
            else:
                if payload is None:
                    log.error("%s sent a file that is not sealed or not of its size; it is disconnected", link.peer)
                    self._drop(link)
                    return
                self._inbox.append((link.peer, kind, payload))
                answer = TAKEN
        if answer == REFUSED:
            link.large, link.kind, link.filled = bytearray(size), kind, 0
        try:
            link.connection.send(answer)
        except OSError:  # it is gone; what it left is ours
            return

    def read_rest(self, peer: str) -> None:
        """Receive what a process that has ended left behind. Bounded: it was a full socket buffer at most."""
        for link in [link for link in self.links if link.peer == peer]:
            for _ in range(_REST_TURNS):
                if not self._read(link):
                    break

    # -- the end

    def close(self) -> None:
        """Close everything."""
        for link in list(self.links):
            self._drop(link)
        self._loop.remove(self._listener.fileno())
        self._listener.close()

    def abandon(self) -> None:
        """In a forked child: close our copies of the parent's descriptors and touch nothing else."""
        for link in self.links:
            link.connection.close()
            for fd in link.files:
                os.close(fd)
        self._listener.close()
        self.links.clear()
        self.unproven.clear()
