"""Counters: one entry per replica, merged by maximum, summed to read.

Never merged by adding: the same delta may come twice. A replica that lost its entry must come back under a new
incarnation, or its next increments hide behind the higher entry others still hold.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from actorgrid.errors import BadRequest

from .causal import Replica, check_count, replica_from_plain
from .crdt import Crdt

MAX_COUNT = 2**63 - 1
"""Highest total one replica may have counted up, and down."""


def shown_count(total: int) -> int:
    """*total*, or the nearest number of 64 bits: several replicas together may have counted further, or claim to."""
    return max(-(2**63), min(2**64 - 1, total))


def check_amount(amount: Any, so_far: int = 0) -> int:
    """Check that *amount* is a whole number from 1 that leaves the total in range. Raises BadRequest."""
    if type(amount) is not int or amount < 1:
        raise BadRequest(
            "a counter moves by whole numbers from 1 up",
            asked=repr(amount)[:80],
            hint="a pn_counter has decrement; keep fractions in a register",
        )
    if so_far + amount > MAX_COUNT:
        raise BadRequest("the counter would leave 64 bits", asked=f"+{amount}", found=f"{so_far} from this replica")
    return amount


class GCounter(Crdt):
    """A counter that only grows. ``value`` is an int."""

    __slots__ = ("_entries",)
    kind: ClassVar[str] = "g_counter"

    def __init__(self, entries: dict[Replica, int] | None = None) -> None:
        self._entries: dict[Replica, int] = dict(entries or {})

    @property
    def value(self) -> int:
        """The sum over replicas, at most what 64 bits hold."""
        return shown_count(sum(self._entries.values()))

    def increment(self, replica: Replica, amount: int = 1) -> Self:
        """Count up; the delta holds this replica's new total."""
        so_far = self._entries.get(replica, 0)
        total = so_far + check_amount(amount, so_far)
        self._entries[replica] = total
        return type(self)({replica: total})

    def join(self, other: Self) -> Self:
        """Take the larger entry of each replica."""
        self._same_kind(other)
        for replica, total in other._entries.items():
            if total > self._entries.get(replica, 0):
                self._entries[replica] = total
        return self

    def highest(self, replica: Replica) -> int:
        """Its total."""
        return self._entries.get(replica, 0)

    def copy(self) -> Self:
        """An independent copy."""
        return type(self)(self._entries)

    def _body(self) -> list[Any]:
        return sorted([list(replica), total] for replica, total in self._entries.items())

    @classmethod
    def _from_body(cls, body: list[Any]) -> Self:
        return cls({replica_from_plain(replica): check_count(total, 1) for replica, total in body})


class PNCounter(Crdt):
    """A counter that goes up and down: two growing totals per replica. ``value`` is an int."""

    __slots__ = ("_entries",)
    kind: ClassVar[str] = "pn_counter"

    def __init__(self, entries: dict[Replica, tuple[int, int]] | None = None) -> None:
        self._entries: dict[Replica, tuple[int, int]] = dict(entries or {})

    @property
    def value(self) -> int:
        """All that was counted up, less all that was counted down, within what 64 bits hold."""
        return shown_count(sum(up - down for up, down in self._entries.values()))

    def increment(self, replica: Replica, amount: int = 1) -> Self:
        """Count up."""
        up, down = self._entries.get(replica, (0, 0))
        return self._set(replica, up + check_amount(amount, up), down)

    def decrement(self, replica: Replica, amount: int = 1) -> Self:
        """Count down; the value may become negative."""
        up, down = self._entries.get(replica, (0, 0))
        return self._set(replica, up, down + check_amount(amount, down))

    def join(self, other: Self) -> Self:
        """Take the larger of each total, per replica."""
        self._same_kind(other)
        for replica, (up, down) in other._entries.items():
            mine = self._entries.get(replica, (0, 0))
            self._entries[replica] = (max(up, mine[0]), max(down, mine[1]))
        return self

    def highest(self, replica: Replica) -> int:
        """Both its totals together."""
        return sum(self._entries.get(replica, (0, 0)))

    def copy(self) -> Self:
        """An independent copy."""
        return type(self)(self._entries)

    def _set(self, replica: Replica, up: int, down: int) -> Self:
        self._entries[replica] = (up, down)
        return type(self)({replica: (up, down)})

    def _body(self) -> list[Any]:
        return sorted([list(replica), up, down] for replica, (up, down) in self._entries.items())

    @classmethod
    def _from_body(cls, body: list[Any]) -> Self:
        return cls(
            {replica_from_plain(replica): (check_count(up, 0), check_count(down, 0)) for replica, up, down in body}
        )
