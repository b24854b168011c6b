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
OF_VISITOR_MAX = 512
"""With one token or key, through the door for other machines; then its idle ones go, else the new one."""
UNPROVEN_S = 15.0


class Kept(Protocol):
    """A connection, as this needs it."""

    @property
    def idle(self) -> bool:
        """Whether no request is under way on it."""

    def let_go(self) -> None:
        """Close it now. ``Connections.remove`` may be called from within or later."""


class _Entry:
    __slots__ = ("here", "network", "visitor")

    def __init__(self, network: str, here: bool) -> None:
        self.network, self.here = network, here
        self.visitor: str | None = None


class Connections:
    """All open connections of a host. *here* is said of those that came by the plain door, which is on loopback."""

    def __init__(self) -> None:
        self._all: dict[Kept, _Entry] = {}
        self._unproven: dict[bool, OrderedDict[Kept, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._proven: OrderedDict[Kept, None] = OrderedDict()  # who asked longest ago comes first
        self._afar = 0
        self._of_network: dict[str, OrderedDict[Kept, None]] = {}
        self._of_visitor: Counter[str] = Counter()
        self.closed_total = 0
        self.refused_total = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def unproven(self) -> int:
        """How many have shown no token yet."""
        return len(self._unproven[True]) + len(self._unproven[False])

    def add(self, connection: Kept, network: str, here: bool) -> bool:
        """Keep one more; ``False`` when there is no place for it, and none that could be made."""
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

    def prove(self, connection: Kept, visitor: str) -> bool:
        """A request on it showed a good token; ``False`` when whoever it belongs to has too many already."""
        entry = self._all.get(connection)
        if entry is None:
            return True  # it is being closed
        if entry.visitor is not None:
            self._proven.move_to_end(connection)
            return True
        if not entry.here:
            if self._of_visitor[visitor] >= OF_VISITOR_MAX and not self._close_idle(afar=True, visitor=visitor):
                self.refused_total += 1
                return False
            self._of_visitor[visitor] += 1
        self._forget_unproven(connection, entry)
        entry.visitor = visitor
        self._proven[connection] = None
        return True

    def is_proven(self, connection: Kept) -> bool:
        """Whether it has shown a good token."""
        return connection in self._proven

    def remove(self, connection: Kept) -> None:
        """It is closed; harmless when that is known."""
        entry = self._all.pop(connection, None)
        if entry is None:
            return
        self._afar -= not entry.here
        if entry.visitor is None:
            self._forget_unproven(connection, entry)
            return
        del self._proven[connection]
        if not entry.here:
            self._of_visitor[entry.visitor] -= 1
            if not self._of_visitor[entry.visitor]:
                del self._of_visitor[entry.visitor]

    def _make_room(self, here: bool) -> bool:
        # What came from afar goes first for somebody who is here, and never the other way round.
        for app in (False, True) if here else (False,):
            if self._unproven[app]:
                self._close(next(iter(self._unproven[app])))
                return True
        return self._close_idle(afar=not here)

    def _close_idle(self, afar: bool, visitor: str | None = None) -> bool:
        for connection in self._proven:
            entry = self._all[connection]
            if connection.idle and not (afar and entry.here) and visitor in (None, entry.visitor):
                self._close(connection)
                return True
        return False

    def _close(self, connection: Kept) -> None:
        self.closed_total += 1
        self.remove(connection)
        connection.let_go()

    def _forget_unproven(self, connection: Kept, entry: _Entry) -> None:
        del self._unproven[entry.here][connection]
        if not entry.here:
            same = self._of_network[entry.network]
            del same[connection]
            if not same:
                del self._of_network[entry.network]
