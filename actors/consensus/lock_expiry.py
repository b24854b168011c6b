"""Expiry of lock leases by the leader's own clock; what it finds becomes an entry of the log.

A follower's copy of the records says how often each holder and waiter has renewed. A lease is over when that number
has stood still for its time to live and a margin, as seen by one leader: a new leader starts every lease anew, so a
change of leadership lengthens leases and never shortens one. The holder counts its own time from before its renewal
was sent, so it stops first.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from actorgrid.actors.ledger.record_types import LockEntry, LockRecord

MARGIN = 1.1
"""Times the lease: clocks of two hosts may differ in pace by a tenth."""
MARGIN_S = 0.25
"""Seconds more, for the way of a renewal through the log; and between two proposals to end the same lease."""
WAITER_LEASE_S = 5.0
"""Of one who waits, at least: its host may restart meanwhile, and it asks again for its place."""

Seen = tuple[str, str]


class LockExpiry:
    """Feed it the records; ask ``due`` now and then. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[Seen, tuple[int, float]] = {}
        self._heap: list[tuple[float, str, str, int]] = []
        self._entries: dict[str, dict[str, LockEntry]] = {}

    def lead(self, locks: Mapping[str, LockRecord], now_s: float) -> None:
        """Begin as the leader: every lease starts anew."""
        self._seen.clear()
        self._heap.clear()
        self._entries.clear()
        for name, record in locks.items():
            self.changed(name, record, now_s)

    def changed(self, name: str, record: LockRecord | None, now_s: float) -> None:
        """Take the lock's new *record*; ``None`` when nobody holds it any more."""
        before = self._entries.pop(name, {})
        if record is None:
            present: dict[str, LockEntry] = {}
        else:
            present = {each["owner"]: each for each in (*record["holders"], *record["waiters"])}
        for owner, each in present.items():
            renewals = each["renewals"]
            if before.get(owner) is each:
                continue  # records are replaced, never written into
            known = self._seen.get((name, owner))
            if known is None or known[0] != renewals:
                lease_s = each["ttl_s"] if each["token"] is not None else max(each["ttl_s"], WAITER_LEASE_S)
                ends = now_s + lease_s * MARGIN + MARGIN_S
                self._seen[name, owner] = renewals, ends
                heapq.heappush(self._heap, (ends, name, owner, renewals))
        for gone in before.keys() - present.keys():
            del self._seen[name, gone]
        if present:
            self._entries[name] = present

    def due(self, now_s: float) -> list[tuple[str, str, int]]:
        """Leases that are over: (lock, owner, the renewals that were seen). Told again after another lease's time.

        What was proposed may be lost with a leadership; asking again does no harm.
        """
        over = []
        # A renewal leaves the lease's former end in the heap: it is told from the present one here, and thrown away.
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
