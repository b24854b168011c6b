"""What models used on one host, by hour, key, user, tenant, service and model: kept on the disk by the gateway itself.

The gateway's main process writes once a second and goes on where there is no agent; the agent reads, by a connection of
its own. It is one SQLite file in WAL mode. Rows of one hour are added up where they are written, so that the file grows
with what is different and not with the requests. A process that is killed loses the last second; a machine that loses
its power the last half minute.

Bounds: 500,000 rows (some 100 MB) and 400 days; the oldest hours go first, and from when on all is known is kept.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TypedDict

import msgpack

from actorgrid.actors.serving.table import ModelUsage
from actorgrid.errors import BadRequest, StorageError

USAGE_NAME = "usage.sqlite"
HOUR_S = 3_600
STORED_ROWS_MAX, DAYS_MAX = 500_000, 400
ANSWER_ROWS_MAX = 10_000
"""Of one answer; what is beyond is brought together in the row ``OTHERS``."""
OTHERS = "(others)"
BUSY_S = 5.0
USAGE_GROUPS = {
    "key": "key_id",
    "user": "user",
    "tenant": "tenant",
    "service": "service",
    "model": "model",
    "all": "''",
}
"""By what it is brought together, and the column of it."""
_PLACE = "hour, key_id, user, tenant, service, model"
_COUNTS = ("requests", "aborted", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated_tokens")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS used (
  hour INTEGER, key_id TEXT, user TEXT, tenant TEXT, service TEXT, model TEXT,
  {", ".join(f"{name} INTEGER NOT NULL" for name in _COUNTS)}, PRIMARY KEY ({_PLACE})) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (since INTEGER NOT NULL);
"""
_ADD = (
    f"INSERT INTO used VALUES ({', '.join('?' * 12)}) ON CONFLICT ({_PLACE}) DO UPDATE SET "  # nosec B608
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTS)
)


class ModelUsageRow(TypedDict):
    """What was used by one key, user, tenant, service or model."""

    key: str
    user: str
    """Whose all of it was; empty: nobody's, or several users'."""
    requests: int
    aborted: int
    """Of these, the ones that clients or replicas broke off."""
    prompt_tokens: int
    cached_tokens: int
    """Of these, the ones that a replica's cache had."""
    completion_tokens: int
    estimated_tokens: int
    """Of both, the ones that no answer told of."""


class UsageStore:
    """The file, for the one process that writes it. A file that is broken is put aside, and another begun."""

    def __init__(self, folder: Path, rows_max: int = STORED_ROWS_MAX) -> None:
        self._path = folder / USAGE_NAME
        self._rows_max = rows_max
        self._file: sqlite3.Connection | None = None
        self._hour = 0

    def add(self, rows: Iterable[ModelUsage], at: float) -> None:
        """Add what was used; *at*: seconds since the epoch. Raises StorageError, and has added nothing then."""
        hour = int(at // HOUR_S) * HOUR_S
        try:
            file = self._opened()
            with file:
                file.executemany(_ADD, (_row_of(hour, each) for each in rows))
                if hour != self._hour:
                    self._forget_oldest(file, hour)
                    self._hour = hour
        except sqlite3.Error as error:
            self.close()
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                self._put_aside()
            raise StorageError(f"what models used is not kept: {error}", asked=str(self._path)) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            self._file = sqlite3.connect(self._path, timeout=BUSY_S)
            os.chmod(self._path, 0o600)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_SCHEMA)
        return self._file

    def _forget_oldest(self, file: sqlite3.Connection, hour: int) -> None:
        """Drop whole hours until both bounds hold."""
        (count,) = file.execute("SELECT COUNT(*) FROM used").fetchone()
        since = hour - DAYS_MAX * 86_400
        for of_hour, rows in file.execute("SELECT hour, COUNT(*) FROM used GROUP BY hour ORDER BY hour").fetchall():
            if count <= self._rows_max and of_hour >= since:
                break
            if of_hour < hour:
                since = max(since, of_hour + HOUR_S)
                count -= rows
        if file.execute("DELETE FROM used WHERE hour < ?", (since,)).rowcount:
            file.execute("DELETE FROM kept")
            file.execute("INSERT INTO kept VALUES (?)", (since,))

    def _put_aside(self) -> None:
        for end in ("", "-wal", "-shm"):
            path = self._path.with_name(USAGE_NAME + end)
            if path.exists():
                os.replace(path, path.with_name(f"broken-{USAGE_NAME}{end}"))


def read_usage_rows(
    folder: Path, by: str, since: float, user: str = "", tenant: str = ""
) -> tuple[list[ModelUsageRow], float]:
    """What is known by *by* from the hour of *since* on, of one user or tenant where they are named, most tokens first;
    and from when on all of it is (0: since ever).

    Raises BadRequest for what it is not known by, and StorageError.
    """
    column = USAGE_GROUPS.get(by)
    if column is None:
        raise BadRequest("usage of models is not known by that", asked=by[:80], found=", ".join(USAGE_GROUPS))
    path = folder / USAGE_NAME
    if not path.exists():
        return [], 0.0
    wanted, values = ["hour >= ?"], [str(int(since // HOUR_S) * HOUR_S)]
    for name, value in (("user", user), ("tenant", tenant)):
        if value:
            wanted.append(f"{name} = ?")
            values.append(value)
    sums = ", ".join(f"SUM({name}) AS {name}" for name in _COUNTS)
    query = (  # all that is put together here is of this module; what is asked for goes by parameters
        f"SELECT {column} AS key, CASE WHEN MIN(user) = MAX(user) THEN MIN(user) ELSE '' END AS user, {sums} FROM used"  # nosec B608
        f" WHERE {' AND '.join(wanted)} GROUP BY 1"
    )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as file:
            found = file.execute(query, values).fetchall()
            kept = file.execute("SELECT MAX(since) FROM kept").fetchone()[0]
    except sqlite3.Error as error:
        raise StorageError(f"what models used cannot be read: {error}", asked=str(path)) from None
    return merged_usage(row_of_values(each) for each in found if each[2] is not None), float(kept or 0.0)


def row_of_values(values: tuple[str, str, int, int, int, int, int, int]) -> ModelUsageRow:
    """A row from its key, user and six sums."""
    key, user, requests, aborted, prompt, cached, completion, estimated = values
    return {
        "key": key,
        "user": user,
        "requests": requests,
        "aborted": aborted,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": completion,
        "estimated_tokens": estimated,
    }


def usage_row_from(plain: object) -> ModelUsageRow | None:
    """The row that another host told; ``None`` for what is none."""
    if not isinstance(plain, dict):
        return None
    key, user = plain.get("key"), plain.get("user")
    counts = [plain.get(name) for name in _COUNTS]
    if not isinstance(key, str) or not isinstance(user, str):
        return None
    good = [each for each in counts if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**53]
    if len(good) != len(counts):
        return None
    return row_of_values((key[:300], user[:300], good[0], good[1], good[2], good[3], good[4], good[5]))


def merged_usage(rows: Iterable[ModelUsageRow], rows_max: int = ANSWER_ROWS_MAX) -> list[ModelUsageRow]:
    """Rows of several hosts as those of all, most tokens first; of what is beyond *rows_max* one row."""
    found = _added(rows)
    ordered = sorted(
        found, key=lambda row: (-row["prompt_tokens"] - row["completion_tokens"], -row["requests"], row["key"])
    )
    if len(ordered) <= rows_max:
        return ordered
    first = [row for row in ordered[: rows_max - 1] if row["key"] != OTHERS]
    rest = [row for row in ordered if row["key"] == OTHERS] + [
        {**row, "key": OTHERS} for row in ordered[rows_max - 1 :] if row["key"] != OTHERS
    ]
    return first + _added(rest)


def usage_within(rows: list[ModelUsageRow], bytes_max: int) -> list[ModelUsageRow]:
    """*rows* as far as they take *bytes_max* in an answer to another host; of the rest one row."""
    size = 0
    for count, row in enumerate(rows):
        size += len(msgpack.packb(row))
        if size > bytes_max:
            return merged_usage(rows, max(1, count))
    return rows


def _added(rows: Iterable[ModelUsageRow]) -> list[ModelUsageRow]:
    """One row for each key."""
    found: dict[str, ModelUsageRow] = {}
    for row in rows:
        known = found.get(row["key"])
        if known is None:
            found[row["key"]] = {**row}
            continue
        known["user"] = known["user"] if known["user"] == row["user"] else ""
        known["requests"] += row["requests"]
        known["aborted"] += row["aborted"]
        known["prompt_tokens"] += row["prompt_tokens"]
        known["cached_tokens"] += row["cached_tokens"]
        known["completion_tokens"] += row["completion_tokens"]
        known["estimated_tokens"] += row["estimated_tokens"]
    return list(found.values())


def _row_of(hour: int, used: ModelUsage) -> tuple[int | str, ...]:
    return (
        hour, used.key_id, used.user, used.tenant, used.service, used.model, used.requests, used.aborted,
        used.prompt_tokens, used.cached_tokens, used.completion_tokens, used.estimated_tokens,
    )  # fmt: skip
