"""Which connections a host keeps: whoever has shown a token keeps its place, who has not is the first to go.

A connection is *unproven* until a request on it showed a token or key that is good. Unproven ones cost nothing to make,
so that whoever can reach the door could fill it with them; each new one therefore takes the place of the oldest (of its
network, of all) where there are as many as may be, and none lives longer than ``UNPROVEN_S``. A proof takes
milliseconds: it is hardly ever an honest one that goes. No clock and no socket here; the connections own those.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Protocol

CONNECTIONS_MAX = 1024
"""In all. Then the oldest unproven one goes, else the proven one that has been idle longest, else the new one."""
RESERVED_HERE = 128
"""Of them only for the plain door of this machine, whatever comes from others."""
UNPROVEN_MAX = 256
"""At each of the two doors; then the oldest goes."""
UNPROVEN_OF_NETWORK_MAX = 32
"""Of one address of another machine (of one /64); then its oldest goes."""
OF_CALLER_MAX = 512
"""With one token or key, through the door for other machines; then its idle ones go, else the new one."""
UNPROVEN_S = 15.0


class ManagedConnection(Protocol):
    """A connection as ``Connections`` needs it."""

    @property
    def idle(self) -> bool:
        """Whether no request is under way on it."""

    def close_now(self) -> None:
        """Close the connection now. ``Connections.remove`` may be called from within or later."""


class _Entry:
    __slots__ = ("caller", "here", "network")

    def __init__(self, network: str, here: bool) -> None:
        self.network, self.here = network, here
        self.caller: str | None = None


class Connections:
    """All open connections of a host. *here* is said of those that came by the plain door, which is on loopback."""

    def __init__(self) -> None:
        self._all: dict[ManagedConnection, _Entry] = {}
        self._unproven: dict[bool, OrderedDict[ManagedConnection, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._proven: OrderedDict[ManagedConnection, None] = OrderedDict()  # who asked longest ago comes first
        self._afar = 0
        self._of_network: dict[str, OrderedDict[ManagedConnection, None]] = {}
        self._of_caller: Counter[str] = Counter()
        self.closed_total = 0
        self.refused_total = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def unproven(self) -> int:
        """The number of connections that have shown no token yet."""
        return len(self._unproven[True]) + len(self._unproven[False])

    def add(self, connection: ManagedConnection, network: str, here: bool) -> bool:
        """Add a connection; ``False`` when there is no place for it, and none that could be made."""
        mine = self._unproven[here]
        if not here and len(self._of_network.get(network, ())) >= UNPROVEN_OF_NETWORK_MAX:
            self._close(next(iter(self._of_network[network])))
        elif len(mine) >= UNPROVEN_MAX:
            self._close(next(iter(mine)))
        elif (
            len(self._all) >= CONNECTIONS_MAX or (not here and self._afar >= CONNECTIONS_MAX - RESERVED_HERE)
        ) and not self._make_room(here):
            self.refused_total += 1
            return False
        self._all[connection] = _Entry(network, here)
        mine[connection] = None
        if not here:
            self._afar += 1
            self._of_network.setdefault(network, OrderedDict())[connection] = None
        return True

    def prove(self, connection: ManagedConnection, caller: str) -> bool:
        """Note that a good token was shown on a connection; ``False`` when its owner has too many already."""
        entry = self._all.get(connection)
        if entry is None:
            return True  # it is being closed
        if entry.caller is not None:
            self._proven.move_to_end(connection)
            return True
        if not entry.here:
            if self._of_caller[caller] >= OF_CALLER_MAX and not self._close_idle(afar=True, caller=caller):
                self.refused_total += 1
                return False
            self._of_caller[caller] += 1
        self._forget_unproven(connection, entry)
        entry.caller = caller
        self._proven[connection] = None
        return True

    def is_proven(self, connection: ManagedConnection) -> bool:
        """Whether a good token was shown on the connection."""
        return connection in self._proven

    def remove(self, connection: ManagedConnection) -> None:
        """Remove a closed connection; harmless when it is not there."""
        entry = self._all.pop(connection, None)
        if entry is None:
            return
        self._afar -= not entry.here
        if entry.caller is None:
            self._forget_unproven(connection, entry)
            return
        del self._proven[connection]
        if not entry.here:
            self._of_caller[entry.caller] -= 1
            if not self._of_caller[entry.caller]:
                del self._of_caller[entry.caller]

    def _make_room(self, here: bool) -> bool:
        # What came from afar goes first for somebody who is here, and never the other way round.
        for app in (False, True) if here else (False,):
            if self._unproven[app]:
                self._close(next(iter(self._unproven[app])))
                return True
        return self._close_idle(afar=not here)

    def _close_idle(self, afar: bool, caller: str | None = None) -> bool:
        for connection in self._proven:
            entry = self._all[connection]
            if connection.idle and not (afar and entry.here) and caller in (None, entry.caller):
                self._close(connection)
                return True
        return False

    def _close(self, connection: ManagedConnection) -> None:
        self.closed_total += 1
        # First, so that its place is free at once: what the loop has to say of its end comes later.
        self.remove(connection)
        connection.close_now()

    def _forget_unproven(self, connection: ManagedConnection, entry: _Entry) -> None:
        del self._unproven[entry.here][connection]
        if not entry.here:
            same = self._of_network[entry.network]
            del same[connection]
            if not same:
                del self._of_network[entry.network]
