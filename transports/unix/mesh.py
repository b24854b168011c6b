"""The sockets of one process of an actor system: whom it listens to, whom it sends to, one persistent epoll.

Every process listens on one AF_UNIX stream socket, called by the process's name, in the boot's 0700 directory.
It keeps one connection for sending to each peer (``outgoing.py``), and takes one from each peer that sends to it
(``incoming.py``). Frames are ``length (4, big-endian) | kind (1) | payload``; they arrive in the order they were
posted, or not at all: when a peer dies, what was not handed to the kernel is reported undelivered, what was may be lost
unread. Large ones go as files (``large.py``), in the same order.

Bounds: a frame holds 64 MiB; the parts say theirs. Received frames are bounded by reading no socket again before the
inbox is empty.

Single-threaded, except ``interrupt``, which signal handlers and threads may call too.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actorgrid.errors import FrameTooLarge

from .incoming import FRAME_BYTES_MAX, IncomingConnections
from .loop import UnixLoop
from .outgoing import OutgoingConnections
from .queue import Done

BACKLOG = 512
KEPT_FRAMES_MAX = 1_000


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


class Mesh:
    """The sockets of one process. Received frames are appended to ``inbox`` as (peer, kind, payload)."""

    def __init__(self, folder: Path, key: bytes, name: str, listener: socket.socket | None = None) -> None:
        self.folder = folder
        self.name = name
        self.inbox: deque[tuple[str, int, Any]] = deque()
        self.loop = UnixLoop()
        self._path = folder / name
        self.incoming = IncomingConnections(self.loop, listener or listen(self._path), key, name, self.inbox)
        self.outgoing = OutgoingConnections(self.loop, folder, key, name)

    @property
    def pending(self) -> int:
        """The number of frames that wait to be sent, to all peers."""
        return self.outgoing.pending

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Tell *callback*, in the loop, of each peer whose connection was lost: it ended, or refused what we sent."""
        self.outgoing.on_lost = callback

    def post(self, peer: str, kind: int, payload: bytes | bytearray, done: Done | None = None) -> None:
        """Send one frame; *done* is told ``True`` when the kernel has it, ``False`` when the peer died first.

        Raises FrameTooLarge, MailboxFull, or PeerGone when no process of that name lives; *done* is not called then.
        The payload must not change any more.
        """
        if len(payload) > FRAME_BYTES_MAX:
            raise FrameTooLarge(
                f"a message of {len(payload)} bytes is over the limit of {FRAME_BYTES_MAX}",
                asked=f"send to {peer}",
                hint="pass large data through files in the data directory and send its name",
            )
        if peer != self.name:
            self.outgoing.post(peer, kind, payload, done)
            return
        self.inbox.append((peer, kind, payload))
        if done is not None:
            done(True)

    def connect(self, peer: str) -> None:
        """Connect to the peer where there is no connection, so that its end is noticed.

        Raises PeerGone or MailboxFull.
        """
        if peer != self.name:
            self.outgoing.connect(peer)

    def when_capacity(self, peer: str, callback: Callable[[], None]) -> None:
        """Call back once: when less than half of the bounds of the queue to *peer* is used (now, if that is so already)
        or the peer is lost."""
        self.outgoing.when_capacity(peer, callback)

    def forget(self, peer: str) -> None:
        """Drop the connection to a dead peer; what waited for it is undelivered."""
        self.outgoing.forget(peer)

    def poll(self, timeout_s: float | None) -> None:
        """Wait for events, at most *timeout_s* (``None``: as long as it takes), and deal with them."""
        self.loop.poll(0.0 if self.inbox else timeout_s)

    def poll_sending(self, timeout_s: float) -> None:
        """As ``poll``, for connections with something to send alone: nothing is received, however much comes."""
        self.outgoing.poll(timeout_s)

    def read_rest(self, peer: str) -> None:
        """Receive what a process that has ended left behind."""
        self.incoming.read_rest(peer)

    def interrupt(self) -> None:
        """Make a waiting ``poll`` return."""
        self.loop.interrupt()

    def close(self) -> None:
        """Close everything and remove our socket file. What is still queued is undelivered."""
        if self.loop.closed:
            return
        # The loop last: both take their descriptors out of it, which a closed epoll does not allow.
        self.outgoing.close()
        self.incoming.close()
        self.loop.close()
        self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """In a forked child: close our copies of the parent's descriptors and touch nothing else.

        Not even the objects of its connections are touched, so the mesh must be kept (``UnixLoop.abandon``); what waits
        to be sent, and what came of an unfinished large frame, stays in the child's memory. Only with more than
        1,000 frames to send are the objects let go of: their memory is worth more than the pages they are on.
        """
        if self.pending <= KEPT_FRAMES_MAX:
            self.loop.abandon()
            return
        # Closing an epoll here leaves the parent's registrations alone: they go with the last copy of each socket.
        self.loop.close()
        self.outgoing.abandon()
        self.incoming.abandon()
