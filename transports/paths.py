"""What all ways of bytes from one process to another have in common, whatever carries them.

Two kinds, and each carrier may have either: a ``MessagePath`` carries small things fast and in order, a ``BulkPath``
brings a large thing by pieces. ``tests/transports/conformance`` holds every carrier to what is said here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from actorgrid.errors import ActorGridError

Buffer = bytes | bytearray | memoryview


class PathKind(StrEnum):
    """What carries the bytes: the names that are shown, counted and measured by."""

    UNIX = "unix"
    """A stream socket of one host."""
    SHARED_MEMORY = "shared_memory"
    """Two rings in memory that two processes of one host share."""
    TLS = "tls"
    """One connection with mutual TLS, of the links between hosts."""
    TLS_STREAMS = "tls_streams"
    """Several such connections at once, each with a thread of its own."""
    RDMA = "rdma"
    """A queue pair of verbs."""


class MessagePath(Protocol):
    """One end of a path for messages between two processes. Used by one thread, and never blocks.

    * **Order.** Messages come whole and in the order of ``send``, each at most once; what is lost is the end of what
      was sent, and only where the path ends.
    * **Credit.** A path holds a bounded number of bytes. ``send`` is refused beyond it, so that a reader who does not
      ``take`` costs both sides no more; ``on_room`` tells when there is credit again.
    * **Death.** What came before the other side closed, or died, can still be taken. Then ``take`` raises why; so does
      ``send`` at once. ``on_end`` is called once.
    * **Silence.** Between hosts, a side that does not answer for the carrier's limit is taken for dead. On one host it
      is not: a process that is stopped goes on where it was.
    """

    kind: PathKind
    largest_bytes: int
    """The largest message."""
    on_message: Callable[[], None]
    """Called when there is something to ``take``; again only after ``take`` gave ``None``."""
    on_room: Callable[[], None]
    """Called after ``send`` gave ``False``, when it may take more."""
    on_end: Callable[[ActorGridError], None]
    """Called once when the other side is gone, or broke the protocol. Not after our own ``close``."""

    def send(self, message: Buffer) -> bool:
        """Send one message; ``False`` where there is no credit for it now, and nothing of it goes then.

        Raises FrameTooLarge, and what ended the path.
        """

    def take(self) -> bytes | None:
        """The next message; ``None`` when there is none now. Raises what ended the path when all that came is taken."""

    def close(self) -> None:
        """End the path. What was sent and has not left this process may be lost."""


def nothing() -> None:
    """Do nothing: where nobody wants to be told."""


def ignore_end(_error: ActorGridError) -> None:
    """Do nothing with why a path ended: where nobody wants to be told."""
