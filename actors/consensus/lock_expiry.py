"""Whose lock leases have run out, by the leader's own clock; what it finds becomes an entry of the log.

A follower's copy of the records says how often each holder and waiter has renewed. A lease is over when that number
has stood still for its time to live and a margin, as seen by one leader: a new leader starts every lease anew, so a
change of leadership lengthens leases and never shortens one. The holder counts its own time from before its renewal
was sent, so it stops first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

MARGIN = 1.1
"""Times the lease: clocks of two hosts may differ in pace by a tenth."""
MARGIN_S = 0.25

Seen = tuple[str, str]


class LockExpiry:
    """Feed it the records; ask ``due`` now and then. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[Seen, tuple[int, float]] = {}
        self._heap: list[tuple[float, str, str, int]] = []
        self._owners: dict[str, tuple[str, ...]] = {}

    def lead(self, locks: Mapping[str, Mapping[str, Any]], now_s: float) -> None:
        """We are the leader from now on: every lease starts anew."""
        self._seen.clear()
        self._heap.clear()
        self._owners.clear()
        for name, record in locks.items():
            self.changed(name, record, now_s)

    def changed(self, name: str, record: Mapping[str, Any] | None, now_s: float) -> None:
        """A lock's record is another now; ``None``: nobody has it."""
        present: Iterable[Mapping[str, Any]] = () if record is None else (record["holder"], *record["waiters"])
        owners = []
        for each in present:
            owner, renewals = each["owner"], each["renewals"]
            owners.append(owner)
            known = self._seen.get((name, owner))
            if known is None or known[0] != renewals:
                ends = now_s + each["ttl_s"] * MARGIN + MARGIN_S
                self._seen[name, owner] = renewals, ends
                heapq.heappush(self._heap, (ends, name, owner, renewals))
        for gone in set(self._owners.pop(name, ())).difference(owners):
            del self._seen[name, gone]
        if owners:
            self._owners[name] = tuple(owners)

    def due(self, now_s: float) -> list[tuple[str, str, int]]:
        """Leases that are over: (lock, owner, the renewals that were seen). Told again after another lease's time.

        What was proposed may be lost with a leadership; asking again does no harm.
        """
        over = []
        while self._heap and self._heap[0][0] <= now_s:
            ends, name, owner, renewals = heapq.heappop(self._heap)
            if self._seen.get((name, owner)) == (renewals, ends):
                over.append((name, owner, renewals))
                again = now_s + MARGIN_S
                self._seen[name, owner] = renewals, again
                heapq.heappush(self._heap, (again, name, owner, renewals))
        return over

    def next_at(self) -> float | None:
        """When to ask ``due`` again; too early does no harm."""
        return self._heap[0][0] if self._heap else None
