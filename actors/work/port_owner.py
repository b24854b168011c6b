"""Whether the socket that listens on the port of a service's replica is the replica's own.

The port of a replica is known in the cluster, and any process of its host may listen there before the replica does, or
after it. Whoever does would be given what clients say to the model. So a replica is asked only while every socket that
takes connections at 127.0.0.1 on this port is held by a process of its attempt.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from .attempt_dir import AttemptDir
from .listening_sockets import ListeningSocket, listening_sockets, sockets_of
from .process_tree import processes_of_work


class PortOwner:
    """Looks at one attempt's port. For one thread at a time."""

    def __init__(self, attempts_dir: Path, attempt_id: str, port: int) -> None:
        self._attempt = AttemptDir(attempts_dir, attempt_id)
        self._port = port
        self._own: frozenset[int] = frozenset()
        """The inodes of sockets that were found to be its own: the same socket is not looked for again in /proc."""

    def stranger(self) -> str:
        """What is wrong with who listens there; empty: nothing, or nobody does."""
        there = {each.inode for each in listening_sockets(self._port) if _is_reached(each)}
        if there <= self._own:
            return ""
        self._own = frozenset(there & sockets_of(self._pids()))
        if there <= self._own:
            return ""
        return f"port {self._port}: a process that is not of this replica listens there"

    def _pids(self) -> list[int]:
        shim = self._attempt.shim_pid()
        if shim is None:
            return []
        # All of the attempt's are below it: it is the parent of those that lost their own.
        return processes_of_work(shim, self._attempt.attempt_id, self._attempt.read_spec())


def _is_reached(found: ListeningSocket) -> bool:
    """Whether who connects to 127.0.0.1 may come to this socket."""
    address = ipaddress.ip_address(found.address)
    if isinstance(address, ipaddress.IPv6Address):
        # A socket of IPv6 may have an address of IPv4 written as one of its own (RFC 4291, 2.5.5.2).
        return address.is_unspecified or (address.ipv4_mapped is not None and _is_near(address.ipv4_mapped))
    return _is_near(address)


def _is_near(address: ipaddress.IPv4Address) -> bool:
    return address.is_loopback or address.is_unspecified
