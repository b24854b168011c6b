"""Last writer wins, with "last" a total order: (hybrid logical clock, replica id, value bytes).

A version vector cannot say which of two concurrent writes is last; a wall clock alone lets a slow clock's later
write lose to what it overwrote. The hybrid clock (Kulkarni et al. 2014) is the larger of the wall clock and what
the writer has seen, plus a count, so a write always beats the writes its writer knew of. Time comes in as an
argument, in microseconds since the epoch; 0 leaves the pure logical clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from .causal import Replica, check_count, replica_from_plain
from .crdt import Crdt
from .plain import decode_value, encode_value

Stamp = tuple[int, int]
"""(microseconds since the epoch, count within them)."""
Write = tuple[int, int, Replica, bytes]
"""Time, count, writer, value: compared in that order, so two different writes are never equal."""


def next_stamp(now_us: int, after: Stamp | None) -> Stamp:
    """The stamp of a write made at *now_us* by someone who has seen *after*."""
    if after is None or now_us > after[0]:
        return now_us, 0
    return after[0], after[1] + 1


class LWWRegister(Crdt):
    """A register with one value, the last written. ``value`` is None before the first write.

    Joining never refuses; who takes deltas from other hosts calls :meth:`check_drift` first.
    """

    __slots__ = ("_write",)
    kind: ClassVar[str] = "lww_register"

    def __init__(self, write: Write | None = None) -> None:
        self._write = write

    @property
    def value(self) -> Any:
        """The last written value."""
        return None if self._write is None else decode_value(self._write[3])

    @property
    def stamp(self) -> Stamp | None:
        """The stamp of the last write."""
        return None if self._write is None else self._write[:2]

    @property
    def writer(self) -> str | None:
        """The host of the last write."""
        return None if self._write is None else self._write[2][0]

    def put(self, replica: Replica, value: Any, now_us: int = 0) -> Self:
        """Write *value*: it beats whatever this register holds now."""
        data = encode_value(value)
        time_us, count = next_stamp(now_us, self.stamp)
        self._write = (time_us, count, replica, data)
        return type(self)(self._write)

    @property
    def latest_us(self) -> int:
        """The time of the write."""
        return 0 if self._write is None else self._write[0]

    def values_bytes(self) -> Iterator[bytes]:
        """The value."""
        if self._write is not None:
            yield self._write[3]

    def join(self, other: Self) -> Self:
        """Keep the later write."""
        self._same_kind(other)
        if other._write is not None and (self._write is None or other._write > self._write):
            self._write = other._write
        return self

    def copy(self) -> Self:
        """An independent copy."""
        return type(self)(self._write)

    def _body(self) -> list[Any]:
        if self._write is None:
            return []
        time_us, count, replica, data = self._write
        return [time_us, count, list(replica), data]

    @classmethod
    def _from_body(cls, body: list[Any]) -> Self:
        if not body:
            return cls()
        time_us, count, replica, data = body
        if not isinstance(data, bytes):
            raise TypeError("the value must be bytes")
        decode_value(data)
        return cls((check_count(time_us, 0), check_count(count, 0), replica_from_plain(replica), data))
