"""Processes of this host at the object stores of others: one local socket, and a stream for each connection.

A process says on one line which host it wants, and then speaks with the store there as it would with its own: whose
objects it may read is told by the secret of their space, which goes through unread. Bounds: ``STREAMS_MAX``
connections each way, ``STREAMS_OF_HOST_MAX`` of them with one host, ``STRANGERS_MAX`` that have not said whom they want
(the oldest gives way).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from actorgrid.errors import ActorGridError, Overloaded, PeerGone, StartFailed
from actorgrid.transports.object_frames import FAR_LINE_MAX, parse_far_line
from actorgrid.transports.peer.calls import NetLoop, Stream

from .pipe import Pipe

STREAMS_MAX = 1024
STREAMS_OF_HOST_MAX = 256
"""Half of what a link takes each way: workers need streams as well."""
STRANGERS_MAX = 64
BACKLOG = 64
OBJECTS = "objects"
"""The target of a stream to a host's object store."""

OpenStream = Callable[[str, str, bytes], Stream]


class ObjectRelays:
    """*store_path*: where this host's own store listens. *open_stream*: (host, target, head)."""

    def __init__(self, loop: NetLoop, store_path: Path, open_stream: OpenStream) -> None:
        self._loop = loop
        self._store_path = store_path
        self._open_stream = open_stream
        self._listener: socket.socket | None = None
        self._strangers: dict[socket.socket, bytes] = {}  # with what they have said
        self._going_out: dict[Pipe, str] = {}  # with the other host
        self._coming_in: dict[Pipe, str] = {}
        self.opened_total = 0

    def __len__(self) -> int:
        return len(self._going_out) + len(self._coming_in)

    # -- on the host of the process

    def listen(self, path: Path) -> None:
        """Take processes at *path*. Raises StartFailed."""
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise StartFailed(f"no relay to the object stores of other hosts: {error}", asked=str(path)) from error
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._listener is not None, "it is watched while it is there"
        try:
            local, _ = self._listener.accept()
        except OSError:
            return  # it went away again
        while len(self._strangers) >= STRANGERS_MAX:
            self._dismiss(next(iter(self._strangers)))
        local.setblocking(False)
        self._strangers[local] = b""
        self._loop.watch(local.fileno(), lambda: self._hear(local))

    def _hear(self, local: socket.socket) -> None:
        said = self._strangers.get(local)
        if said is None:
            return  # it gave way to another one
        try:
            data = local.recv(FAR_LINE_MAX - len(said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(local)
            return
        said += data
        self._strangers[local] = said
        try:
            line = parse_far_line(said)
            if line is None:
                return  # more is to come
            host_id, rest = line
            _check_room(self._going_out, host_id)
            stream = self._open_stream(host_id, OBJECTS, b"")
        except ActorGridError:
            self._dismiss(local)  # whoever asks says that the host is not reached
            return
        del self._strangers[local]
        self._loop.unwatch(local.fileno())
        self._join(local, stream, self._going_out, rest)

    def _dismiss(self, local: socket.socket) -> None:
        del self._strangers[local]
        self._loop.unwatch(local.fileno())
        local.close()

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

        pipes[Pipe(self._loop, local, stream, forget, said=said)] = stream.host_id

    def close(self) -> None:
        """End all of it, as this server stops."""
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            with suppress(OSError):
                Path(self._listener.getsockname()).unlink(missing_ok=True)
            self._listener.close()
            self._listener = None
        for local in list(self._strangers):
            self._dismiss(local)
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
