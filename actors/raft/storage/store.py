"""What the ledger keeps beside its log, in one SQLite file on one connection: snapshots, ended jobs, events.

Everything here but the snapshots can be made again from the log, and a start does so for what was not written yet.
Each transaction also stores the last durable index it knew of, so that a log which later ends before it is found
out. Bounds: two snapshots, 100,000 ended jobs, 100,000 events; the oldest go first. Threads may share one Store: each
call is carried out alone.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from actorgrid.actors.ledger.job_filter import JobFilter
from actorgrid.actors.ledger.outcome import Event
from actorgrid.actors.ledger.query_answers import HistoryEvent
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import DiskFull, LogCorrupted, StorageError

HISTORY_MAX = 100_000
LOOKED_AT_MAX = 2_000
"""Ended jobs whose records one question reads through: the ledger does nothing else meanwhile, and 20,000 took a second
and more."""
EVENTS_MAX = 100_000
SNAPSHOTS_KEPT = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshots (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, digest TEXT NOT NULL,
    data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS history (number INTEGER PRIMARY KEY, job_id TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
    ordinal INTEGER NOT NULL, submitted_at REAL NOT NULL, crc INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS history_ordinal ON history (ordinal);
CREATE INDEX IF NOT EXISTS history_state ON history (state, ordinal);
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, idx INTEGER NOT NULL, at REAL NOT NULL,
    type TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_idx ON events (idx);
"""
_SELECT_SNAPSHOTS = "SELECT idx, term, digest, data, members FROM snapshots"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot as it lies in the store; ``intact`` says whether its bytes have the digest they should."""

    index: int
    term: int
    digest: str
    data: bytes
    members: str = ""

    @property
    def intact(self) -> bool:
        """Whether the bytes are those that were written."""
        return _digest(self.data, self.members) == self.digest


class Store:
    """The SQLite file beside the log.

    Raises DiskFull without room, LogCorrupted for a damaged file, else StorageError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()  # reentrant: ``save_snapshot`` holds it over several that take it themselves
        with self._named():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._named():
                self._db.execute("PRAGMA journal_mode=WAL")
                # NORMAL does not sync a commit in this mode: a power cut could take back a snapshot that a log was
                # already reset to.
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_SCHEMA)
                self._migrate()
        except StorageError:
            self._db.close()
            raise

    def _migrate(self) -> None:
        """Add what format 1 did not have: the members, of which there was one."""
        columns = [row[1] for row in self._db.execute("PRAGMA table_info(snapshots)")]
        if "members" not in columns:
            self._db.execute("ALTER TABLE snapshots ADD COLUMN members TEXT NOT NULL DEFAULT ''")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __del__(self) -> None:
        # A server that is dropped without a goodbye (as a crash would) leaves its connection to us.
        if hasattr(self, "_db"):
            self._db.close()

    # -- the durable index

    def durable_index(self) -> int:
        """The last index known to have been durable in the log when something was last written here."""
        with self._named():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'durable_index'").fetchone()
        return int(row[0]) if row else 0

    def received_index(self) -> int:
        """The index of the newest snapshot that came from a leader: the log may end before it; 0 for none."""
        with self._named():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'received_index'").fetchone()
        return int(row[0]) if row else 0

    # -- snapshots

    def snapshots(self) -> list[StoredSnapshot]:
        """The stored snapshots, newest first, intact or not."""
        with self._named():
            rows = self._db.execute(f"{_SELECT_SNAPSHOTS} ORDER BY idx DESC").fetchall()
        return [StoredSnapshot(*row) for row in rows]

    def save_snapshot(self, index: int, term: int, data: bytes, members: str = "", received: bool = False) -> int:
        """Keep a snapshot and forget all but the one before it; gives the index of that one, 0 without one.

        *members* is who they were at *index*, as text. A *received* one came from the leader and may be ahead of the
        log. On return it is in the main file and synced, and what was read back has the digest of what was written:
        the log behind the older snapshot may go.
        """
        row = (index, term, _digest(data, members), data, members)
        with self._lock:
            with self._transaction(index):
                self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", row)
                self._db.execute(
                    "DELETE FROM snapshots WHERE idx NOT IN (SELECT idx FROM snapshots ORDER BY idx DESC LIMIT ?)",
                    (SNAPSHOTS_KEPT,),
                )
                if received:
                    self._db.execute("INSERT OR REPLACE INTO meta VALUES ('received_index', ?)", (index,))
            with self._named():
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                rows = self._db.execute(f"{_SELECT_SNAPSHOTS} ORDER BY idx").fetchall()
        kept = [StoredSnapshot(*row) for row in rows]
        if not kept[-1].intact or kept[-1].index != index:
            raise LogCorrupted("a snapshot does not read back as it was written", found=f"snapshot {index}")
        return kept[0].index if len(kept) > 1 and kept[0].intact else 0

    # -- history and events

    def write(self, durable_index: int, retired: Iterable[tuple[int, JobRecord]], events: Iterable[Event]) -> None:
        """Add ended jobs and events; those already there are written again unchanged."""
        with self._transaction(durable_index):
            self._db.executemany(
                "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?, ?)",
                [_history_row(number, job) for number, job in retired],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(e.number, e.index, e.at, e.type, e.kind, _utf8(e.id), _utf8(e.state)) for e in events],
            )
            self._db.execute(
                "DELETE FROM history WHERE number <= (SELECT max(number) FROM history) - ?", (HISTORY_MAX,)
            )
            self._db.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (EVENTS_MAX,))

    def newest(self) -> tuple[int, int]:
        """The numbers of the newest ended job and the newest event that are written; 0 for none."""
        with self._named():
            row = self._db.execute(
                "SELECT coalesce((SELECT max(number) FROM history), 0), coalesce((SELECT max(number) FROM events), 0)"
            ).fetchone()
        return int(row[0]), int(row[1])

    def job(self, job_id: str) -> JobRecord | None:
        """An ended job, or ``None``."""
        with self._named():
            row = self._db.execute("SELECT crc, record FROM history WHERE job_id = ?", (job_id,)).fetchone()
        return _job(*row) if row else None

    def jobs(self, wanted: JobFilter, limit: int) -> tuple[list[JobRecord], tuple[int, str] | None]:
        """Ended jobs, newest submitted first; and number and id of the last that was looked at, where there are more.

        By name, label or host, at most ``LOOKED_AT_MAX`` are looked at: each record has to be read for these.
        """
        most = LOOKED_AT_MAX if wanted.name or wanted.labels or wanted.host else HISTORY_MAX
        states = json.dumps(wanted.states)
        labels = json.dumps(dict(wanted.labels))
        with self._named():
            rows = self._db.execute(
                "SELECT crc, record FROM (SELECT * FROM history"
                " WHERE (:ordinal IS NULL OR ordinal < :ordinal) ORDER BY ordinal DESC LIMIT :most) AS history"
                " WHERE (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))"
                " AND (:at IS NULL OR submitted_at < :at) AND (:since IS NULL OR submitted_at >= :since)"
                " AND substr(job_id, 1, length(:prefix)) = :prefix"
                " AND (:user = '' OR json_extract(record, '$.user_id') = :user)"
                " AND (:name = '' OR instr(json_extract(record, '$.name'), :name))"
                " AND (:labels = '{}' OR NOT EXISTS (SELECT 1 FROM json_each(:labels) AS wanted WHERE NOT EXISTS"
                " (SELECT 1 FROM json_each(record, '$.labels') AS has"
                " WHERE has.key = wanted.key AND has.value = wanted.value)))"
                " AND (:host = '' OR EXISTS (SELECT 1 FROM json_tree(record, '$.attempts') AS part"
                " WHERE part.key = 'host' AND part.value = :host))"
                " AND (:steps OR json_extract(record, '$.step_of') IS NULL)"
                " ORDER BY ordinal DESC LIMIT :limit",
                {
                    "most": most,
                    "since": wanted.since_at,
                    "name": wanted.name,
                    "labels": labels,
                    "host": wanted.host,
                    "states": states,
                    "ordinal": wanted.before_ordinal,
                    "at": wanted.before_at,
                    "prefix": wanted.prefix,
                    "user": wanted.user,
                    "steps": wanted.steps,
                    "limit": limit,
                },
            ).fetchall()
            last = self._db.execute(
                "SELECT ordinal, job_id FROM history WHERE (:ordinal IS NULL OR ordinal < :ordinal)"
                " ORDER BY ordinal DESC LIMIT 1 OFFSET :last",
                {"ordinal": wanted.before_ordinal, "last": most - 1},
            ).fetchone()
        more = last is not None and most < HISTORY_MAX and len(rows) < limit
        return [_job(*row) for row in rows], (int(last[0]), str(last[1])) if more else None

    def counts(self) -> dict[str, int]:
        """Ended jobs by state."""
        with self._named():
            return dict(self._db.execute("SELECT state, count(*) FROM history GROUP BY state").fetchall())

    def events(self, from_index: int, limit: int) -> list[HistoryEvent]:
        """Events from a log index on, oldest first; the last index given is given whole, even over the limit."""
        columns = ("number", "index", "at", "type", "kind", "id", "state")
        with self._named():
            rows = self._db.execute(
                "SELECT * FROM events WHERE idx >= :first AND idx <= coalesce("
                "(SELECT idx FROM events WHERE idx >= :first"
                " ORDER BY number LIMIT 1 OFFSET :more), 9223372036854775807) ORDER BY number",
                {"first": from_index, "more": max(0, limit - 1)},
            ).fetchall()
        return [cast("HistoryEvent", dict(zip(columns, row, strict=True))) for row in rows]

    # -- plumbing

    @contextmanager
    def _transaction(self, durable_index: int) -> Iterator[None]:
        with self._named():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('durable_index', ?)", (durable_index,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Context for one thread at a time that turns SQLite's errors into this module's."""
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise DiskFull("no room left for the ledger's history", hint="free some space") from error
            raise StorageError(f"the ledger's store: {error}", asked=str(self.path)) from error
        except sqlite3.DatabaseError as error:
            raise LogCorrupted(
                f"the ledger's store is damaged: {error}",
                found=str(self.path),
                hint="restore DATA_DIR/ledger from a backup; with its first segment (…0001.log) still there, moving"
                " state.db away is enough",
                segment=str(self.path),
                offset=0,
                index=0,
            ) from error


def _digest(data: bytes, members: str) -> str:
    digest = hashlib.sha256(data)
    digest.update(members.encode())
    return digest.hexdigest()


def _utf8(text: str) -> str:
    """*text* with halves of surrogate pairs written out: SQLite keeps UTF-8, and a name in an event may hold any."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _history_row(number: int, job: JobRecord) -> tuple[Any, ...]:
    text = json.dumps(job, separators=(",", ":"))
    crc = zlib.crc32(text.encode("ascii"))
    return number, job["job_id"], job["state"], job["ordinal"], job["submitted_at"], crc, text


def _job(crc: int, text: str) -> JobRecord:
    if zlib.crc32(text.encode("utf-8", "surrogatepass")) != crc:
        raise LogCorrupted("an ended job fails its checksum", hint="restore DATA_DIR/ledger from a backup")
    job: JobRecord = json.loads(text)
    return job
