"""What of which schedules is due: decisions only, of the records and a time that it is given.

Decided anew by whoever leads the ledger, from nothing but the records there; that each due time is decided once is held
by the ledger (``ledger/tables/schedules.py``), which takes a decision only if it follows on the last. So a clock that
jumps back makes nothing due again, and one that jumps forward is the same as nobody having been there for a while.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

from actorgrid.actors.ledger.schedule_records import ScheduleRecord
from actorgrid.errors import InvalidSchedule

from .due_times import next_due, passed

LATE_S = 60
"""A run that begins later than that after its due time was missed; so was one whose next due time has come."""


@dataclass(frozen=True, slots=True)
class Firing:
    """Due times that are to be decided, as ``FireSchedule`` of the ledger has them."""

    name: str
    revision: int
    after: int
    until: int
    due: tuple[int, ...]
    missed: int
    in_line: bool


class ScheduleAgenda:
    """The schedules, with the next due time of each. *problems* says what of them cannot be read here, by name."""

    def __init__(self, records: Iterable[ScheduleRecord] = ()) -> None:
        self.problems: dict[str, str] = {}
        self._records: dict[str, ScheduleRecord] = {}
        self._next: dict[str, int] = {}
        for record in records:
            self.put(record)

    def put(self, record: ScheduleRecord) -> None:
        """Take a schedule that is new or another."""
        name = record["name"]
        before = self._records.get(name)
        self._records[name] = record
        if before is not None and _moment(before) == _moment(record):
            return
        self.problems.pop(name, None)
        self._next.pop(name, None)
        if record["paused"]:
            return
        try:
            due = next_due(record["trigger"], record["due_after"], record["counts_from"])
        except InvalidSchedule as error:
            self.problems[name] = str(error)
            return
        if due is not None:
            self._next[name] = due

    def remove(self, name: str) -> None:
        """Forget a schedule."""
        self._records.pop(name, None)
        self._next.pop(name, None)
        self.problems.pop(name, None)

    def next_at(self) -> int | None:
        """When something is due next; ``None``: nothing ever is."""
        return min(self._next.values(), default=None)

    def due(self, now: float, besides: Container[str] = (), most: int | None = None) -> list[Firing]:
        """What is due at *now* and not decided yet, by name, of all *besides* these: *most* of it."""
        names = (name for name, at in sorted(self._next.items()) if at <= now and name not in besides)
        return list(islice((firing for name in names if (firing := self._decide(name, now))), most))

    def _decide(self, name: str, now: float) -> Firing | None:
        record = self._records[name]
        after, run_all = record["due_after"], record["missed"] == "run_all"
        most = record["missed_max"] if run_all else 1
        found = passed(record["trigger"], after, int(now), record["counts_from"], most)
        if not found.latest:
            return None
        last = found.latest[-1]
        due = () if record["missed"] == "skip" and now - last > LATE_S else found.latest
        return Firing(name, record["revision"], after, last, due, found.count - len(due), len(due) > 1)


def _moment(record: ScheduleRecord) -> tuple[object, ...]:
    """What the next due time follows from."""
    return (record["revision"], record["due_after"], record["paused"])
