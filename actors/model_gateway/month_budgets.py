"""What keys with a budget of the month have used of it, at the gateways of all hosts together. No I/O, no clock.

Each host counts what its own workers admitted, and tells the others its count of a key with a number that grows; of two
counts of one host and key the one with the higher number is right. So counts may come twice, late and by way of others,
and a gateway that begins anew, or has lost its disk, gets its own back from whoever kept them. A worker tells what it
has counted since it began, less than before where a request used less than it was counted for when it came.

Bounds: 1,000 keys, 100,000 counts of hosts and keys; what is told beyond them is not kept. Counts of another month than
this one are dropped: the new month begins at nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgpack

from actorgrid.errors import MalformedMessage

KEYS_MAX = 1_000
COUNTS_MAX = 100_000
ROWS_OF_MESSAGE = 2_000
"""About 150 kB."""
BYTES_MAX = 32 * 2**20
COUNT_MAX = 2**53
_NAME_MAX = 253


class Spent(NamedTuple):
    """What was used of a budget in a month."""

    tokens: int = 0
    requests: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both together; less than nothing is nothing."""
        return Spent(max(0, self.tokens + other.tokens), max(0, self.requests + other.requests))

    def minus(self, other: Spent) -> Spent:
        """What this is more; it may be less than nothing."""
        return Spent(self.tokens - other.tokens, self.requests - other.requests)


class BudgetCount(NamedTuple):
    """What the gateway of one host counted of one key. *stamp*: the higher one is the later count."""

    host: str
    key_id: str
    stamp: int
    spent: Spent


class MonthBudgets:
    """The counts of one month, as one host knows them."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.month = ""
        self._counts: dict[tuple[str, str], BudgetCount] = {}
        self._since_start: dict[str, Spent] = {}
        """Of this host, by key: what this process has counted itself."""
        self._workers: dict[int, dict[str, Spent]] = {}
        self._changed: dict[tuple[str, str], None] = {}
        self._cursor = 0
        self.version = 0
        """Grows with each change."""

    def __len__(self) -> int:
        return len(self._counts)

    def turn(self, month: str) -> None:
        """Go on to *month*."""
        if month != self.month:
            self.month = month
            self._counts, self._since_start, self._workers, self._changed = {}, {}, {}, {}
            self.version += 1

    def worker_told(self, worker: int, month: str, told: Mapping[str, Spent], stamp: int) -> None:
        """Take what a worker of this host has counted of each key since it began. *stamp*: the time in ms."""
        if month != self.month:
            return
        before = self._workers.setdefault(worker, {})
        for key_id, spent in islice(told.items(), KEYS_MAX):
            more = spent.minus(before.get(key_id, Spent()))
            if more == Spent() or (key_id not in before and len(before) >= KEYS_MAX):
                continue
            before[key_id] = spent
            self._since_start[key_id] = self._since_start.get(key_id, Spent()).plus(more)
            place = (self.host, key_id)
            known = self._counts.get(place, BudgetCount(*place, 0, Spent()))
            if self._put(BudgetCount(*place, max(known.stamp + 1, stamp), known.spent.plus(more))):
                self._changed[place] = None

    def worker_ended(self, worker: int) -> None:
        """Another process takes its place, and counts from nothing; what this one counted stays."""
        self._workers.pop(worker, None)

    def heard(self, month: str, rows: Iterable[BudgetCount]) -> None:
        """Take what others know. Of this host's own counts a higher number is from before its disk was lost: what was
        counted since then comes on top."""
        if month != self.month:
            return
        for row in rows:
            known = self._counts.get((row.host, row.key_id))
            if known is not None and known.stamp >= row.stamp:
                continue
            if row.host == self.host:
                own = row._replace(spent=row.spent.plus(self._since_start.get(row.key_id, Spent())))
                if self._put(own._replace(stamp=row.stamp + 1)):
                    self._changed[row.host, row.key_id] = None
            else:
                self._put(row)

    def _put(self, row: BudgetCount) -> bool:
        place = (row.host, row.key_id)
        if place not in self._counts and len(self._counts) >= COUNTS_MAX:
            return False
        self._counts[place] = row
        self.version += 1
        return True

    def keep_only(self, key_ids: Iterable[str]) -> None:
        """Forget keys that are no more, or have no budget."""
        kept = set(key_ids)
        gone = [place for place in self._counts if place[1] not in kept]
        for place in gone:
            del self._counts[place]
            self._changed.pop(place, None)
            self._since_start.pop(place[1], None)
        for told in self._workers.values():
            for key_id in told.keys() - kept:
                del told[key_id]
        self.version += bool(gone)

    def spent_beside(self, worker: int) -> dict[str, Spent]:
        """What each key has used in all, but for what that worker knows of itself."""
        found: dict[str, Spent] = {}
        for row in self._counts.values():
            found[row.key_id] = found.get(row.key_id, Spent()).plus(row.spent)
        for key_id, spent in self._workers.get(worker, {}).items():
            if key_id in found:
                found[key_id] = Spent().plus(found[key_id].minus(spent))
        return found

    def take_changed(self) -> list[BudgetCount]:
        """This host's counts that changed since the last time, as many as one message takes."""
        places = list(islice(self._changed, ROWS_OF_MESSAGE))
        for place in places:
            del self._changed[place]
        return [self._counts[place] for place in places]

    def next_part(self) -> list[BudgetCount]:
        """All that is known, one part at each call and then from the start again: for whoever missed something."""
        if self._cursor >= len(self._counts):
            self._cursor = 0
        part = list(islice(self._counts.values(), self._cursor, self._cursor + ROWS_OF_MESSAGE))
        self._cursor += len(part)
        return part

    def to_bytes(self) -> bytes:
        """All of it, for the disk."""
        return write_counts(self.month, self._counts.values())


def write_counts(month: str, rows: Iterable[BudgetCount]) -> bytes:
    """Counts of a month as they go to other hosts, and to the disk."""
    body: bytes = msgpack.packb([month, [[row.host, row.key_id, row.stamp, *row.spent] for row in rows]])
    return body


def read_counts(body: bytes) -> tuple[str, list[BudgetCount]]:
    """The month and its counts. Raises MalformedMessage."""
    if len(body) > BYTES_MAX:
        raise MalformedMessage("counts of budgets are too long", found=str(len(body)))
    try:
        plain = msgpack.unpackb(body, raw=False, max_array_len=COUNTS_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"counts of budgets are not msgpack: {type(error).__name__}") from None
    match plain:
        case [str(month), list(rows)] if len(month) <= 7:
            return month, [_count(row) for row in rows]
    raise MalformedMessage("counts of budgets are not as they should be")


def read_spent(rows: Any) -> dict[str, Spent]:
    """What a row for each key says it used, between the processes of a gateway. Raises MalformedMessage."""
    found: dict[str, Spent] = {}
    for row in rows:
        match row:
            case [str(key_id), int(tokens), int(requests)]:
                found[key_id] = Spent(tokens, requests)
            case _:
                raise MalformedMessage("what a key has used", found=repr(row)[:100])
    return found


def _count(row: Any) -> BudgetCount:
    match row:
        case [str(host), str(key_id), int(stamp), int(tokens), int(requests)] if (
            len(host) <= _NAME_MAX
            and len(key_id) <= _NAME_MAX
            and all(0 <= each <= COUNT_MAX for each in (stamp, tokens, requests))
        ):
            return BudgetCount(host, key_id, stamp, Spent(tokens, requests))
    raise MalformedMessage("counts of budgets: a row")
