"""The recent deltas of all origins, in memory: what intervals are served from.

Bounded by bytes; the oldest go first, whatever their origin. What is not in it any more reaches others by Merkle
repair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from .causal import Replica

LOG_BYTES = 16 * 2**20
ROW_OVERHEAD_BYTES = 200
"""What a row costs in memory beside its key and delta."""
ROW_WIRE_BYTES = 8
"""The same in a packet, at most for keys and deltas of up to 64 KiB."""


class DottedDelta(NamedTuple):
    """One delta by its dot."""

    origin: Replica
    sequence: int
    key: str
    delta: bytes

    @property
    def size(self) -> int:
        """About how much memory it takes."""
        return len(self.key) + len(self.delta) + ROW_OVERHEAD_BYTES

    @property
    def wire_size(self) -> int:
        """About how many bytes it is in a packet."""
        return len(self.key) + len(self.delta) + ROW_WIRE_BYTES


def rows_bytes(rows: Sequence[DottedDelta]) -> int:
    """About how much memory they take."""
    return sum([len(key) + len(delta) for _origin, _sequence, key, delta in rows]) + ROW_OVERHEAD_BYTES * len(rows)


class DeltaLog:
    """Rows of each origin without a gap, up to the newest; ``bytes`` is what they take."""

    def __init__(self, bytes_max: int = LOG_BYTES) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._rows: dict[Replica, deque[DottedDelta]] = {}
        self._order: deque[DottedDelta] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def add(self, row: DottedDelta) -> None:
        """Put in the next row of its origin; one that leaves a gap behind it begins that origin's rows anew."""
        rows = self._rows.setdefault(row.origin, deque())
        if rows and rows[-1].sequence >= row.sequence:
            return
        if rows and rows[-1].sequence + 1 != row.sequence:
            self.forget(row.origin)
            rows = self._rows.setdefault(row.origin, deque())
        self._append(rows, (row,))

    def extend(self, run: Sequence[DottedDelta]) -> None:
        """``add`` of rows of one origin that follow each other."""
        rows = self._rows.get(run[0].origin)
        if rows and rows[-1].sequence + 1 == run[0].sequence:
            self._append(rows, run)
            return
        for row in run:
            self.add(row)

    def _append(self, rows: deque[DottedDelta], run: Sequence[DottedDelta]) -> None:
        rows.extend(run)
        self._order.extend(run)
        self.bytes += rows_bytes(run)
        while self.bytes > self.bytes_max and self._order:
            self._drop_oldest()

    def forget(self, origin: Replica) -> None:
        """The rows of *origin* are of no use: what comes next does not follow them."""
        for row in self._rows.pop(origin, ()):
            self.bytes -= row.size
        self._order = deque(row for row in self._order if row.origin != origin)

    def interval(self, origin: Replica, after: int, bytes_max: int) -> list[DottedDelta] | None:
        """The rows that follow *after*, up to *bytes_max* in a packet, or one; ``None`` or none: they are gone."""
        rows = self._rows.get(origin)
        if not rows or rows[0].sequence > after + 1:
            return None
        found: list[DottedDelta] = []
        size = 0
        for place in range(after + 1 - rows[0].sequence, len(rows)):
            row = rows[place]
            size += row.wire_size
            if found and size > bytes_max:
                break
            found.append(row)
        return found

    def _drop_oldest(self) -> None:
        row = self._order.popleft()
        rows = self._rows[row.origin]
        rows.popleft()
        if not rows:
            del self._rows[row.origin]
        self.bytes -= row.size
