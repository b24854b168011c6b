"""What work of this host has used, kept on its disk: by piece of work for a time, behind that by day.

One SQLite file. ``ENTRIES_MAX`` pieces of work are kept one by one; the oldest of them are brought together by day and
user when more come, or when all take more than ``BYTES_MAX``, as work with many labels and devices does. Days are kept
for ``DAYS_MAX``. So the file stays below some 150 MB, and what was used by whom is known for over a year. It is written
every few seconds, unsynced by the rule of SQLite's WAL: a killed agent loses nothing that was written, a machine that
loses its power the last writes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import cast

from .usage_rows import ROWS_MAX, UsageEntry, UsageRow, add_row, empty_row, in_order, jobs_with_most, joined, rows_of
from .usage_sums import SCHEMA, UsageSums, spans_without

ENTRIES_MAX = 200_000
TRIM = 20
"""A twentieth of them is brought together at a time."""
BYTES_MAX = 140 * 10**6
"""Of the file, without what is free in it."""
DAYS_MAX = 400
DAY_S = 86_400
BUSY_S = 5.0
_SCHEMA = """
create table if not exists works (number integer primary key, id text unique, user_id text, ended_at real, entry text);
create index if not exists works_by_end on works (ended_at);
create table if not exists days (day integer, user_id text, totals text, primary key (day, user_id));
create table if not exists facts (name text primary key, value real);
"""
_KEEP = "insert or replace into works (id, user_id, ended_at, entry) values (?, ?, ?, ?)"
_KEEP_PART = "insert or ignore into works (id, user_id, ended_at, entry) values (?, ?, ?, ?)"


class UsageHistory:
    """The file *path*; for one thread at a time. Raises sqlite3.Error, also for a file that is none."""

    def __init__(self, path: Path, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        path.touch(0o600)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        try:
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_SCHEMA + SCHEMA)
            self._count = int(self._db.execute("select count(*) from works").fetchone()[0])
            self._sums = UsageSums(self._db, self._between)
        except sqlite3.Error:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, entries: Iterable[UsageEntry], now: float) -> None:
        """Keep *entries*, all of them or none; one that is kept already is replaced, but not by an incomplete one.

        A whole one behind an incomplete one is the same work after the machine's next start: both count.
        """
        self._db.execute("begin immediate")
        try:
            changed: list[float | None] = []
            for entry in entries:
                before = None if entry["incomplete"] else self._kept(entry["id"])
                if before is not None and before["incomplete"]:
                    entry = joined(before, entry)
                    self._db.execute("delete from works where id = ?", (entry["id"],))
                if before is not None:
                    changed.append(before["ended_at"])
                changed.append(entry["ended_at"])
                self._db.execute(
                    _KEEP_PART if entry["incomplete"] else _KEEP,
                    (entry["id"], entry["user_id"], entry["ended_at"], json.dumps(entry, separators=(",", ":"))),
                )
            self._count = int(self._db.execute("select count(*) from works").fetchone()[0])
            self._sums.changed(changed)
            self._trim(now)
            self._sums.sum_some(now)
            self._db.execute("commit")
        except BaseException:
            self._db.execute("rollback")
            self._sums.restored()
            raise

    def _between(self, first: float, last: float) -> Iterator[UsageEntry]:
        """The work that ended from *first* on, before *last*."""
        query = "select entry from works where ended_at >= ? and ended_at < ?"
        return (cast("UsageEntry", json.loads(entry)) for (entry,) in self._db.execute(query, (first, last)))

    def _kept(self, work_id: str) -> UsageEntry | None:
        found = self._db.execute("select entry from works where id = ?", (work_id,)).fetchone()
        return None if found is None else cast("UsageEntry", json.loads(found[0]))

    def _is_kept(self, entry: UsageEntry) -> bool:
        """Whether *entry*, which is over, is in the file: it may have been written since it was looked at."""
        kept = None if entry["ended_at"] is None else self._kept(entry["id"])
        return kept is not None and (bool(entry["incomplete"]) or kept["ended_at"] == entry["ended_at"])

    def _used_bytes(self) -> int:
        pages, free, size = (
            int(self._db.execute(f"pragma {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def _trim(self, now: float) -> None:
        too_many = 0
        if self._count > self._entries_max:
            too_many = self._count - self._entries_max + self._entries_max // TRIM
        elif self._count and self._used_bytes() > self._bytes_max:
            too_many = self._count // TRIM + 1
        if too_many:
            found = self._db.execute(
                "select number, ended_at, entry from works order by ended_at limit ?", (too_many,)
            ).fetchall()
            self._by_day([json.loads(entry) for _, _, entry in found])
            self._db.executemany("delete from works where number = ?", [(number,) for number, _, _ in found])
            self._db.execute("insert or replace into facts values ('kept_since', ?)", (found[-1][1],))
            self._sums.taken_away_until(found[-1][1])
            self._count -= len(found)
        self._db.execute("delete from days where day < ?", (now // DAY_S - DAYS_MAX,))

    def _by_day(self, entries: list[UsageEntry]) -> None:
        """Add what *entries* used to that of the days on which they ended."""
        days: dict[tuple[int, str], list[UsageEntry]] = {}
        for entry in entries:
            days.setdefault((int((entry["ended_at"] or 0.0) // DAY_S), entry["user_id"]), []).append(entry)
        for (day, user_id), some in days.items():
            total = rows_of(some, "user", 0.0, 0.0)[0]
            kept = self._db.execute("select totals from days where day = ? and user_id = ?", (day, user_id)).fetchone()
            if kept is not None:
                add_row(total, json.loads(kept[0]))
            self._db.execute("insert or replace into days values (?, ?, ?)", (day, user_id, json.dumps(total)))

    def _kept_since(self, summed: frozenset[int], since: float, user_id: str) -> Iterator[UsageEntry]:
        """The work that ended since, beside that of the *summed* slots."""
        query = "select entry from works where ended_at >= ? and ended_at < ? and ? in ('', user_id)"
        for first, last in spans_without(summed, since):
            for (entry,) in self._db.execute(query, (first, last, user_id)):
                yield json.loads(entry)

    def kept_since(self) -> float:
        """The time behind which every piece of work is kept by itself; 0: since the beginning."""
        found = self._db.execute("select value from facts where name = 'kept_since'").fetchone()
        return 0.0 if found is None else float(found[0])

    def rows(
        self, running: Iterable[UsageEntry], by: str, since: float, now: float, user_id: str = "", host_id: str = ""
    ) -> list[UsageRow]:
        """What was used since *since*, with that of what is *running*, by *by*.

        What is only kept by day counts where *by* is a user or tenant, and from the beginning of the day of *since*.
        """
        entries = [entry for entry in running if user_id in ("", entry["user_id"]) and not self._is_kept(entry)]
        summed = self._sums.usable(by, since, now)
        only = None
        if by == "job" and self._count > ROWS_MAX:
            # To make a row of each, and bring most of them together, takes longer than to read twice.
            found = chain(entries, self._kept_since(frozenset(), since, user_id))
            only = jobs_with_most(found, since, now, ROWS_MAX - 1)
        found = chain(entries, self._kept_since(summed, since, user_id))
        rows = {row["key"]: row for row in rows_of(found, by, since, now, host_id, only)}
        for row in self._sums.rows(summed, by, user_id, host_id):
            add_row(rows.setdefault(row["key"], empty_row(row["key"])), row)
        if by in ("user", "tenant"):
            for user, totals in self._db.execute(
                "select user_id, totals from days where day >= ? and (? in ('', user_id))", (since // DAY_S, user_id)
            ):
                add_row(rows.setdefault(user, empty_row(user)), json.loads(totals))
        return in_order(rows.values())
