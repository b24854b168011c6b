"""What must hold of the shared state whatever happened, from what was acknowledged, without a look into any CRDT.

Every element that is added and every value that is put is a new one. So whoever removed an element has seen it, and it
may never come back; and a value that was overwritten by somebody who saw it may never be shown again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.actors.replication.causal import Replica

from .state_simulation import StateHost, StateSimulation

COUNTER, SET, REGISTER = "hits", "members", "name"
KINDS = {COUNTER: "g_counter", SET: "or_set", REGISTER: "lww_register"}


@dataclass(slots=True)
class Written:
    """One mutation. ``certain``: it was acknowledged, and its host's disk lives. ``over``: the value that the writer
    saw and overwrote."""

    host: str
    operation: str
    value: int
    dot: tuple[Replica, int]
    certain: bool = False
    over: int | None = None


class StateOracle:
    """Makes mutations in *simulation* and remembers them."""

    def __init__(self, simulation: StateSimulation) -> None:
        self.simulation = simulation
        self.written: list[Written] = []
        self._next = 0

    def increment(self, name: str) -> None:
        """Add one to the counter."""
        self._write(name, COUNTER, "increment", 1)

    def add(self, name: str) -> int:
        """Add a new element to the set; gives it."""
        self._next += 1
        self._write(name, SET, "add", self._next)
        return self._next

    def remove(self, name: str, element: int | None = None) -> None:
        """Remove an element that this host shows: the first, or that one."""
        shown = self.shown(self.simulation.hosts[name], SET) or []
        if shown and (element is None or element in shown):
            self._write(name, SET, "remove", shown[0] if element is None else element)

    def put(self, name: str) -> None:
        """Put a new value over the one that this host shows."""
        self._next += 1
        over = self.shown(self.simulation.hosts[name], REGISTER)
        self._write(name, REGISTER, "put", self._next)
        self.written[-1].over = over

    def lost_disk(self, name: str) -> None:
        """That host's disk is gone, and with it what only it had."""
        for each in self.written:
            if each.host == name:
                each.certain = False

    def look(self) -> None:
        """Take note of what is durable by now: that was acknowledged."""
        vectors = {name: host.disk.vector for name, host in self.simulation.hosts.items()}
        for each in self.written:
            origin, sequence = each.dot
            each.certain = each.certain or vectors.get(each.host, {}).get(origin, 0) >= sequence

    def wrong_belief(self, spared: frozenset[str] = frozenset()) -> str:
        """Who believes that another holds durably what that one's disk has not; *spared* lost a disk."""
        for host in self.simulation.hosts.values():
            for name, peer in host.gossip.peers.items():
                other = self.simulation.hosts.get(name)
                if other is None or name in spared:
                    continue
                for origin, count in peer.known.items():
                    if count > other.disk.vector.get(origin, 0):
                        return f"{host.name} believes that {name} holds delta {count} of {origin[0]}, and it has not"
        return ""

    def wrong_end(self) -> str:
        """What is wrong once all should hold the same: somebody differs, or what was acknowledged is not there."""
        apart = self.simulation.disagreement()
        if apart:
            return apart
        host = next(host for host in self.simulation.hosts.values() if host.up)
        return self._wrong_counter(host) or self._wrong_set(host) or self._wrong_register(host)

    def shown(self, host: StateHost, key: str) -> Any:
        """What that host shows of a key."""
        state = host.states.get(key, {}).get(KINDS[key])
        return None if state is None else state.plain

    def _write(self, name: str, key: str, operation: str, value: int) -> None:
        dot = self.simulation.write(name, key, KINDS[key], operation, value)
        self.written.append(Written(name, operation, value, dot))

    def _of(self, operation: str) -> list[Written]:
        return [each for each in self.written if each.operation == operation]

    def _wrong_counter(self, host: StateHost) -> str:
        steps = self._of("increment")
        least, found = sum(each.certain for each in steps), self.shown(host, COUNTER) or 0
        if least <= found <= len(steps):
            return ""
        return f"the counter is {found}, after {least} acknowledged increments of {len(steps)}"

    def _wrong_set(self, host: StateHost) -> str:
        shown = set(self.shown(host, SET) or ())
        removed = {each.value for each in self._of("remove")}
        lost = {each.value for each in self._of("add") if each.certain} - removed - shown
        if lost:
            return f"elements {sorted(lost)[:3]} were acknowledged and are lost"
        back = shown & {each.value for each in self._of("remove") if each.certain}
        return f"elements {sorted(back)[:3]} were removed and are back" if back else ""

    def _wrong_register(self, host: StateHost) -> str:
        shown = self.shown(host, REGISTER)
        if shown is None:
            return "no value is left of those put" if any(each.certain for each in self._of("put")) else ""
        by = [each for each in self._of("put") if each.certain and each.over == shown]
        return f"value {shown} is shown, which {by[0].host} saw and overwrote" if by else ""
