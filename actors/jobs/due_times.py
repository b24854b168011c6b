"""When a schedule is due: cron expressions in a time zone, fixed intervals, single times.

Times are whole seconds since the epoch. Cron expressions have five fields, as of Debian's cron, read by cronsim; where
clocks are put forward, a job of a fixed time that is left out runs right after the gap, and where they are put back it
runs once, the first time; jobs of every hour or minute follow what really passes. Time zones are those of the system,
else of the package tzdata.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from actorgrid.actors.ledger.schedule_records import TriggerRecord
from actorgrid.errors import InvalidSchedule

LATEST = 253_402_300_799 - 366 * 86_400
"""No due time after this: the year 9998."""
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = "minute hour day-of-month month day-of-week"
COUNTED_MAX = 10_100
"""Due times of a cron expression that are gone through at most to find the latest ones, or to count them: a week of
minutes, where there are so many."""
_DAY_S = 86_400
_WINDOWS_S = (7 * _DAY_S, 62 * _DAY_S, 3 * 366 * _DAY_S)


@dataclass(frozen=True, slots=True)
class Passed:
    """Due times that have passed: the latest of them, oldest first, and how many there were at least."""

    latest: tuple[int, ...]
    count: int


def check_trigger(trigger: TriggerRecord, now: float) -> int:
    """The first time that it is due after *now*. Raises InvalidSchedule where it never is, or nobody can tell."""
    due = next_due(trigger, int(now), int(now))
    if due is None:
        raise InvalidSchedule(
            "that is never due",
            asked=_words(trigger),
            found="a time that has passed" if trigger["kind"] == "at" else "no such date in the next 50 years",
            hint="give a time to come",
        )
    return due


def next_due(trigger: TriggerRecord, after: int, counts_from: int) -> int | None:
    """The first due time later than *after*; ``None``: there is none. *counts_from*: where intervals begin.

    Raises InvalidSchedule for what this host cannot read.
    """
    return next(_later(trigger, after, counts_from), None)


def upcoming(trigger: TriggerRecord, after: int, counts_from: int, count: int) -> list[int]:
    """The next *count* due times later than *after*."""
    return list(islice(_later(trigger, after, counts_from), count))


def passed(trigger: TriggerRecord, after: int, until: int, counts_from: int, most: int) -> Passed:
    """The due times later than *after* and not later than *until*: the latest *most* of them."""
    if trigger["kind"] == "every":
        every_s = trigger["every_s"]
        first = max(1, -(-(after + 1 - counts_from) // every_s))
        last = (until - counts_from) // every_s
        kept = range(max(first, last - most + 1), last + 1)
        return Passed(tuple(counts_from + each * every_s for each in kept), max(0, last - first + 1))
    for window_s in (*_WINDOWS_S, until - after):
        begin = max(after, until - window_s)
        found: list[int] = []
        count = 0
        for due in islice(_later(trigger, begin, counts_from), COUNTED_MAX):
            if due > until:
                break
            count += 1
            found = [*found[-most + 1 :], due] if most > 1 else [due]
        if len(found) >= most or begin == after:  # else they are seldom, and few in a longer time as well
            return Passed(tuple(found), count)
    raise AssertionError("the last window is the whole")


def zone(name: str) -> ZoneInfo:
    """The time zone of that *name*. Raises InvalidSchedule."""
    found = _zone(name)
    if found is None:
        near = difflib.get_close_matches(name, available_timezones(), n=1, cutoff=0.6)
        raise InvalidSchedule(
            f"there is no time zone {name[:80]!r}",
            asked=name[:80],
            hint=f"did you mean {near[0]}?" if near else "a name as in Europe/Berlin, America/New_York or UTC",
        )
    return found


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # no such file or package; a path; ZoneInfoNotFoundError is a KeyError
        return None


def _later(trigger: TriggerRecord, after: int, counts_from: int) -> Iterator[int]:
    """The due times later than *after*, in order."""
    if trigger["kind"] == "at":
        if trigger["at"] > after:
            yield trigger["at"]
    elif trigger["kind"] == "every":
        every_s = trigger["every_s"]
        due = counts_from + max(1, (after - counts_from) // every_s + 1) * every_s
        while due <= LATEST:
            yield due
            due += every_s
    else:
        yield from _cron_times(trigger["cron"], trigger["zone"], after)


def _cron_times(cron: str, zone_name: str, after: int) -> Iterator[int]:
    start = datetime.fromtimestamp(max(0, min(after, LATEST)), UTC).astimezone(zone(zone_name))
    last = after
    moments = _simulated(cron, start)
    while True:
        try:
            due = int(next(moments).timestamp())
        except (StopIteration, OverflowError, ValueError):  # none within 50 years, or before the year 10000
            return
        if due > LATEST:
            return
        if last < due:  # where clocks are put back a time may be named twice
            last = due
            yield due


def _simulated(cron: str, start: datetime) -> CronSim:
    fields = ALIASES.get(cron.strip().lower(), cron)
    count = len(fields.split())
    if count != 5:
        raise InvalidSchedule(
            f"a cron expression has five fields: {FIELDS}",
            asked=cron[:100],
            found=f"{count}",
            hint="'0 3 * * *' is at three every night; or one of " + ", ".join(ALIASES),
        )
    try:
        return CronSim(fields, start)
    except CronSimError as error:
        raise InvalidSchedule(
            f"the cron expression cannot be read: {error}",
            asked=cron[:100],
            hint=f"fields: {FIELDS}; as in '*/15 8-17 * * MON-FRI'",
        ) from None


def _words(trigger: TriggerRecord) -> str:
    if trigger["kind"] == "at":
        return datetime.fromtimestamp(trigger["at"], UTC).isoformat()
    return trigger.get("cron") or f"every {trigger.get('every_s')} s"
