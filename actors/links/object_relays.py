"""Processes of this host at the object stores of others: one local socket, and a stream for each connection.

A process says on one line which host it wants, and then speaks with the store there as it would with its own: whose
objects it may read is told by the secret of their space, which goes through unread. Bounds: ``STREAMS_MAX``
connections each way, ``STREAMS_OF_HOST_MAX`` of them with one host.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from actorgrid.errors import Overloaded, PeerGone
from actorgrid.transports.object_frames import FAR_LINE_MAX, parse_far_line
from actorgrid.transports.paths import PathKind
from actorgrid.transports.peer.calls import NetLoop, Stream

from .line_door import LineDoor
from .pipe import Pipe

STREAMS_MAX = 1024
STREAMS_OF_HOST_MAX = 256
"""Half of what a link takes each way: workers need streams as well."""
OBJECTS = "objects"
"""The target of a stream to a host's object store."""

OpenStream = Callable[[str, str, bytes], Stream]
OnBytes = Callable[[str, PathKind, int], None]


class ObjectRelays:
    """*store_path*: where this host's own store listens. *open_stream*: (host, target, head). *on_bytes*: is told how
    many bytes came from a host, and over what."""

    def __init__(
        self, loop: NetLoop, store_path: Path, open_stream: OpenStream, on_bytes: OnBytes | None = None
    ) -> None:
        self._loop = loop
        self._store_path = store_path
        self._open_stream = open_stream
        self._on_bytes = on_bytes
        self._door = LineDoor(
            loop, FAR_LINE_MAX, parse_far_line, self._lead
        )  # whoever asks says that it is not reached
        self._going_out: dict[Pipe, str] = {}  # with the other host
        self._coming_in: dict[Pipe, str] = {}
        self.opened_total = 0

    def __len__(self) -> int:
        return len(self._going_out) + len(self._coming_in)

    # -- on the host of the process

    def listen(self, path: Path) -> None:
        """Take processes at *path*. Raises StartFailed."""
        self._door.listen(path, "relay to the object stores of other hosts")

    def _lead(self, local: socket.socket, host_id: str, said: bytes) -> None:
        _check_room(self._going_out, host_id)
        self._join(local, self._open_stream(host_id, OBJECTS, b""), self._going_out, said)

    # -- on the host of the store

    def take(self, stream: Stream) -> None:
        """Join another host's process to the store of this one. Raises PeerGone, Overloaded."""
        _check_room(self._coming_in, stream.host_id)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            local.connect(str(self._store_path))
        except OSError as error:
            local.close()
            raise PeerGone(f"the object store of this host does not take connections: {error}") from error
        self._join(local, stream, self._coming_in)

    # -- both

    def _join(self, local: socket.socket, stream: Stream, pipes: dict[Pipe, str], said: bytes = b"") -> None:
        self.opened_total += 1

        def forget(pipe: Pipe) -> None:
            pipes.pop(pipe, None)

        on_bytes = None
        if self._on_bytes is not None and pipes is self._going_out:
            on_bytes = partial(self._on_bytes, stream.host_id, stream.carrier)
        pipes[Pipe(self._loop, local, stream, forget, said=said, on_bytes=on_bytes)] = stream.host_id

    def close(self) -> None:
        """End all of it, as this server stops."""
        self._door.close()
        for pipe in [*self._going_out, *self._coming_in]:
            pipe.close(PeerGone("the links of this host are stopping"))


def _check_room(pipes: dict[Pipe, str], host_id: str) -> None:
    """Raise Overloaded where there are as many connections as there may be."""
    if len(pipes) >= STREAMS_MAX or sum(other == host_id for other in pipes.values()) >= STREAMS_OF_HOST_MAX:
        raise Overloaded(
            "this host relays its maximum of connections to object stores",
            asked=f"one more with host {host_id}",
            found=f"{STREAMS_OF_HOST_MAX} with one host, {STREAMS_MAX} in all",
        )
