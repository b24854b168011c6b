"""Sessions' workers on other hosts: a local socket for each lease, and a stream to its worker for each client.

A client sees a worker's socket as ever. On the worker's host, the stream is joined to the socket that the worker
listens on; the secret between client and worker goes through unread, and is checked by the worker. The channels of a
job (work/job_channels.py) are come to in the same way, by the id of its attempt instead of a lease's.
Bounds: ``RELAYS_MAX`` leases, ``PIPES_MAX`` connections.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

from actorgrid.errors import Overloaded, PeerGone, StartFailed, UnknownAllocation
from actorgrid.transports.peer.calls import NetLoop, Stream

from .pieces import pack
from .pipe import Pipe

RELAYS_MAX = 4096
PIPES_MAX = 4096
BACKLOG = 8
WORKER = "worker"
"""The target of a stream to a lease's worker."""

OpenStream = Callable[[str, str, bytes], Stream]


class Relays:
    """The relays of one host. *open_stream*: (host, target, head). Sockets lie in *folder*, which is ours alone."""

    def __init__(self, loop: NetLoop, folder: Path, open_stream: OpenStream) -> None:
        self._loop = loop
        self._folder = folder
        self._open_stream = open_stream
        self._listeners: dict[str, tuple[socket.socket, Path]] = {}  # by lease
        self._workers: dict[str, str] = {}  # lease to the socket of its worker here
        self._pipes: dict[Pipe, str] = {}
        self.opened_total = 0

    def __len__(self) -> int:
        return len(self._pipes)

    # -- on the client's host

    def open(self, host_id: str, lease_id: str) -> str:
        """Open a socket that leads to the lease's worker on *host_id*; gives its path.

        Raises Overloaded, StartFailed.
        """
        if lease_id in self._listeners:
            return str(self._listeners[lease_id][1])
        if len(self._listeners) >= RELAYS_MAX:
            raise Overloaded("this host relays its maximum of leases", found=f"{RELAYS_MAX}", hint="try again later")
        path = self._folder / f"r-{hashlib.sha256(lease_id.encode()).hexdigest()[:16]}"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(path))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise StartFailed(f"no relay to host {host_id}: {error}", asked=str(path)) from error
        self._listeners[lease_id] = listener, path
        self._loop.watch(listener.fileno(), lambda: self._accept(host_id, lease_id))
        return str(path)

    def _accept(self, host_id: str, lease_id: str) -> None:
        listener = self._listeners[lease_id][0]
        try:
            local, _ = listener.accept()
        except OSError:
            return  # it went away again
        if len(self._pipes) >= PIPES_MAX:
            local.close()
            return
        stream = self._open_stream(host_id, WORKER, pack({"lease_id": lease_id}))
        self._join(local, stream, lease_id)

    # -- on the worker's host

    def serves(self, lease_id: str, path: str) -> None:
        """Note that the lease's worker on this host listens at *path*."""
        self._workers[lease_id] = path

    def take(self, stream: Stream, lease_id: str) -> None:
        """Join another host's client to its worker here. Raises UnknownAllocation, Overloaded, PeerGone."""
        path = self._workers.get(lease_id)
        if path is None:
            raise UnknownAllocation(
                "no worker of this host serves that lease for another host",
                asked=lease_id[:80],
                hint="ask for the lease again: its worker may have another socket now",
            )
        if len(self._pipes) >= PIPES_MAX:
            raise Overloaded("this host relays its maximum of connections", found=f"{PIPES_MAX}")
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            local.connect(path)
        except OSError as error:
            local.close()
            raise PeerGone(f"the leased worker does not take connections: {error}", asked=lease_id[:80]) from error
        self._join(local, stream, lease_id)

    # -- both

    @property
    def leases(self) -> set[str]:
        """The leases with a client here and the worker elsewhere, or the other way round."""
        return self._listeners.keys() | self._workers.keys()

    def ended(self, lease_id: str) -> None:
        """Close the socket and connections of a lease that is over. Harmless when there are none."""
        self._workers.pop(lease_id, None)
        found = self._listeners.pop(lease_id, None)
        if found is not None:
            listener, path = found
            self._loop.unwatch(listener.fileno())
            listener.close()
            path.unlink(missing_ok=True)
        for pipe, lease in list(self._pipes.items()):
            if lease == lease_id:
                pipe.close(PeerGone("the lease is over", asked=lease_id))

    def close_all(self) -> None:
        """Close all relays, as this server stops."""
        for pipe in list(self._pipes):
            pipe.close(PeerGone("the links of this host are stopping"))
        for lease_id in self.leases:
            self.ended(lease_id)

    def _join(self, local: socket.socket, stream: Stream, lease_id: str) -> None:
        self.opened_total += 1
        pipe = Pipe(self._loop, local, stream, self._forget)
        self._pipes[pipe] = lease_id

    def _forget(self, pipe: Pipe) -> None:
        self._pipes.pop(pipe, None)
