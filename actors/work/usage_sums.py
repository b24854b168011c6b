"""What the work of each past slot of time used, brought together once: who asks for a year reads no year of work.

Slots of an hour, by the end of work. A slot is summed when it is over, with the next write, by everything in
``SUMMED_BY``; one in which something is entered or taken away later is summed anew. With each write some are summed,
until ``ENTRIES_AT_A_TIME`` pieces of work are. By job, and by the values of one
label, nothing is summed: there are as many of those as of pieces of work.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator

import msgpack

from .usage_rows import UsageEntry, UsageRow, rows_of

SLOT_S = 3_600
SUMMED_BY = ("user", "gpu", "model", "host", "kind", "label")
ENTRIES_AT_A_TIME = 2_000
AS_USER = "tenant"
"""Is by user, too."""
SCHEMA = """
create table if not exists sums (slot integer, by text, user_id text, totals blob);
create index if not exists sums_by_slot on sums (slot, by);
create table if not exists summed (slot integer primary key, began_at real);
"""


def slot_of(at: float | None) -> int:
    """The slot in which something ended."""
    return int((at or 0.0) // SLOT_S)


class UsageSums:
    """The sums in *db*, whose table ``works`` they are of; *entries* gives the work that ended in a span of time."""

    def __init__(self, db: sqlite3.Connection, entries: Callable[[float, float], Iterator[UsageEntry]]) -> None:
        self._db = db
        self._entries = entries
        self._summed: dict[int, float] = dict(db.execute("select slot, began_at from summed"))
        self._from = 0.0
        """Behind it, slots may have no sums."""

    def changed(self, ended_at: Iterable[float | None]) -> None:
        """Forget the sums of slots in which work ended that was entered, or taken away."""
        slots = {slot_of(at) for at in ended_at}
        for slot in slots & self._summed.keys():
            self._forget(slot)
        self._from = min([self._from, *(float(slot * SLOT_S) for slot in slots)])

    def taken_away_until(self, ended_at: float) -> None:
        """Forget the sums of all slots from which work was taken away, the last of which ended then."""
        for slot in [slot for slot in self._summed if slot <= slot_of(ended_at)]:
            self._forget(slot)
        self._from = 0.0

    def restored(self) -> None:
        """Take up what is in the file: what was changed since was rolled back."""
        self._summed, self._from = dict(self._db.execute("select slot, began_at from summed")), 0.0

    def _forget(self, slot: int) -> None:
        self._db.execute("delete from sums where slot = ?", (slot,))
        self._db.execute("delete from summed where slot = ?", (slot,))
        del self._summed[slot]

    def sum_some(self, now: float) -> None:
        """Sum slots that are over and have no sums, the oldest first."""
        count = 0
        while count < ENTRIES_AT_A_TIME and (slot := self._next_slot(now)) is not None:
            count += self._sum(slot, now)

    def _next_slot(self, now: float) -> int | None:
        while True:
            (at,) = self._db.execute("select min(ended_at) from works where ended_at >= ?", (self._from,)).fetchone()
            if at is None or slot_of(at) >= slot_of(now):
                return None
            if slot_of(at) not in self._summed:
                return slot_of(at)
            self._from = (slot_of(at) + 1.0) * SLOT_S

    def _sum(self, slot: int, now: float) -> int:
        entries = list(self._entries(slot * SLOT_S, (slot + 1) * SLOT_S))
        users: dict[str, list[UsageEntry]] = {}
        for entry in entries:
            users.setdefault(entry["user_id"], []).append(entry)
        self._db.executemany(
            "insert into sums values (?, ?, ?, ?)",
            [
                (slot, by, user_id, msgpack.packb(rows_of(some, by, 0.0, now)))
                for user_id, some in users.items()
                for by in SUMMED_BY
            ],
        )
        began_at = min(entry["began_at"] for entry in entries)
        self._db.execute("insert into summed values (?, ?)", (slot, began_at))
        self._summed[slot] = began_at
        return len(entries)

    def usable(self, by: str, since: float, now: float) -> frozenset[int]:
        """The slots whose sums are all that is known of their work since *since*, by *by*."""
        if by not in (*SUMMED_BY, AS_USER):
            return frozenset()
        return frozenset(
            slot
            for slot, began_at in self._summed.items()
            # Of work that began before it only a part counts: it is gone through by itself.
            if slot < slot_of(now) and (not since or (slot > slot_of(since) and began_at >= since))
        )

    def rows(self, slots: frozenset[int], by: str, user_id: str, host_id: str) -> Iterator[UsageRow]:
        """The sums of *slots*."""
        wanted = "user" if by == AS_USER else by
        query = "select slot, totals from sums where by = ? and ? in ('', user_id)"
        for slot, totals in self._db.execute(query, (wanted, user_id)):
            if slot in slots:
                rows: list[UsageRow] = msgpack.unpackb(totals)
                for row in rows:
                    if by == "host":
                        row["key"] = host_id
                    yield row


def spans_without(slots: frozenset[int], since: float) -> Iterator[tuple[float, float]]:
    """The spans of time from *since* on that lie between *slots*, and the one behind them."""
    first = since
    for slot in sorted(slots):
        if slot * SLOT_S > first:
            yield first, slot * SLOT_S
        first = max(first, (slot + 1) * SLOT_S)
    yield first, float("inf")
