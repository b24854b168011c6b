"""How many connections of whom the gRPC door has: the rules of the HTTP door (``server/connections.py``) on gRPC's own
sockets.

gRPC hands none of its connections out and counts them in all alone. They are files of this process, so that they are
found there, four times a second, and closed by shutting their socket down, which gRPC takes for an end by the client.
In between gRPC's own bound on all of them holds (``main.py``).
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from actorgrid.actors.gateway.server.connections import Connections
from actorgrid.actors.security.token_rate_limit import network_of

LOOK_S = 0.25
_FOLDER = "/proc/self/fd"
_SOCKET = "socket:["


@dataclass(frozen=True, slots=True)
class DoorPeer:
    """Where a client is: an address, as text without scope or mapping, and its port."""

    address: str
    port: int


class _GrpcConnection:
    """One of them, by the inode of its socket: its number as a file may be another one's by now."""

    def __init__(self, inode: str, peer: DoorPeer) -> None:
        self.inode = inode
        self.peer = peer
        self.is_over = False

    @property
    def idle(self) -> bool:
        """Nobody here knows what is under way on it: none is ended for being idle."""
        return False

    def close_now(self) -> None:
        """Have it closed with the next look."""
        self.is_over = True


class DoorConnections:
    """The connections of this process' clients; *here*: these are on this machine."""

    def __init__(self, *, here: bool) -> None:
        self.port = 0
        """Where it listens; 0: not yet."""
        self._here = here
        self._kept = Connections()
        self._by_inode: dict[str, _GrpcConnection | None] = {}
        self._by_peer: dict[DoorPeer, _GrpcConnection] = {}

    def __len__(self) -> int:
        return len(self._by_peer)

    def look(self) -> None:
        """Take in what is new, in the order of the kernel's numbers; close what there is no place for."""
        if not self.port:
            return
        found = _own_sockets()
        for inode in self._by_inode.keys() - found.keys():
            self._gone(inode)
        for inode in sorted(found.keys() - self._by_inode.keys(), key=int):
            self._new(inode, found[inode])
        for connection in [each for each in self._by_peer.values() if each.is_over]:
            _shut_down(found.get(connection.inode), connection.inode)

    def prove(self, peer: DoorPeer, shown: str) -> None:
        """A token was good that a client showed: its connection is not the first to go any more."""
        connection = self._by_peer.get(peer)
        if connection is None:
            self.look()
            connection = self._by_peer.get(peer)
        if connection is not None and not self._kept.is_proven(connection):
            caller = hashlib.sha256(shown.encode()).hexdigest()[:16]
            if not self._kept.prove(connection, caller):
                connection.close_now()

    def _new(self, inode: str, file: int) -> None:
        peer = _peer_of(file, self.port)
        self._by_inode[inode] = None  # the other sockets of this process are looked at once
        if peer is None:
            return
        connection = self._by_inode[inode] = self._by_peer[peer] = _GrpcConnection(inode, peer)
        if not self._kept.add(connection, network_of(peer.address), self._here):
            connection.close_now()

    def _gone(self, inode: str) -> None:
        connection = self._by_inode.pop(inode)
        if connection is not None:
            self._kept.remove(connection)
            if self._by_peer.get(connection.peer) is connection:
                del self._by_peer[connection.peer]


def peer_named(address: str, port: int) -> DoorPeer:
    """A client by what the system calls it."""
    plain = ipaddress.ip_address(address.partition("%")[0])
    mapped = plain.ipv4_mapped if isinstance(plain, ipaddress.IPv6Address) else None
    return DoorPeer(str(mapped or plain), port)


def _own_sockets() -> dict[str, int]:
    """The sockets of this process, by inode."""
    found = {}
    for name in os.listdir(_FOLDER):
        with suppress(OSError):
            target = os.readlink(f"{_FOLDER}/{name}")
            if target.startswith(_SOCKET):
                found[target[len(_SOCKET) : -1]] = int(name)
    return found


def _peer_of(file: int, port: int) -> DoorPeer | None:
    """Who is at the other end of a connection that came to *port*; ``None`` for any other socket."""
    with suppress(OSError, ValueError), socket.socket(fileno=os.dup(file)) as seen:
        if seen.family in (socket.AF_INET, socket.AF_INET6) and seen.getsockname()[1] == port:
            address, number = seen.getpeername()[:2]
            return peer_named(address, number)
    return None


def _shut_down(file: int | None, inode: str) -> None:
    """End a connection, unless its number is another file's by now."""
    if file is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(file)) as seen:
        if str(os.fstat(seen.fileno()).st_ino) == inode:
            seen.shutdown(socket.SHUT_RDWR)
