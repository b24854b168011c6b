"""What makes well formed what commands say of schedules."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any

from .field_checks import Check, Plain, check_fields, is_table, is_text, is_truth, is_user, is_whole, refused
from .record_checks import JOB_CHECKS, JOB_FIELDS_SINCE, check_resources

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Jobs of a schedule are called after it, with their due time behind it, and a job's id has 64 characters."""
EVERY_MAX_S = 366 * 86_400
CRON_CHARS_MAX = 200
ZONE_CHARS_MAX = 64
HELD_MAX = 100
"""Runs of a schedule that stand in line."""
DUE_MAX = 100
"""Due times that one entry decides."""
SCHEDULE_BYTES_MAX = 65_536
"""Of the job of one schedule, packed."""
OVERLAP = ("skip", "queue", "replace")
MISSED = ("skip", "run_once", "run_all")
_LATEST = 253_402_300_799
"""The last second of the year 9999."""
NOT_SCHEDULED = ("deadline", "depends_on", "submitted_at", "step_of", "graph")
"""Fields of a job that are about one moment, or one other job: work that comes again cannot have them."""


def is_schedule_name(value: Any) -> bool:
    """The name of a schedule."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def is_second(value: Any) -> bool:
    """A whole second since the epoch that has a date."""
    return is_whole(value) and value <= _LATEST


def is_due(value: Any) -> bool:
    """Due times, each later than the one before."""
    return (
        isinstance(value, list)
        and len(value) <= DUE_MAX
        and all(map(is_second, value))
        and all(first < second for first, second in pairwise(value))
    )


_SCHEDULE: dict[str, Check] = {
    "name": is_schedule_name,
    "user_id": is_user,
    "trigger": is_table,
    "job": is_table,
    "overlap": lambda value: value in OVERLAP,
    "missed": lambda value: value in MISSED,
    "missed_max": lambda value: is_whole(value) and 1 <= value <= HELD_MAX,
    "paused": is_truth,
    "made_by": is_text,
}
_TRIGGERS: dict[str, dict[str, Check]] = {
    "cron": {
        "cron": lambda value: isinstance(value, str) and 0 < len(value) <= CRON_CHARS_MAX,
        "zone": lambda value: isinstance(value, str) and 0 < len(value) <= ZONE_CHARS_MAX,
    },
    "every": {"every_s": lambda value: is_whole(value) and 1 <= value <= EVERY_MAX_S},
    "at": {"at": is_second},
}


def check_schedule(schedule: object) -> None:
    """Check a schedule that is written. Raises BadRequest that names the field."""
    if not isinstance(schedule, dict):
        raise refused("a schedule is a dict", found=type(schedule).__name__)
    check_fields("schedule", schedule, _SCHEDULE, {})
    _no_more("schedule", schedule, _SCHEDULE)
    trigger = schedule["trigger"]
    kind = trigger.get("kind")
    of_kind = _TRIGGERS.get(kind) if isinstance(kind, str) else None
    if of_kind is None:
        raise refused("a trigger is of the kind cron, every or at", found=repr(kind)[:100])
    check_fields("trigger", trigger, of_kind, {})
    _no_more("trigger", trigger, {**of_kind, "kind": is_text})
    job = schedule["job"]
    check_fields("job", job, {"resources": is_table}, JOB_CHECKS)
    _no_more("job", job, {**JOB_CHECKS, "resources": is_table})
    for name in NOT_SCHEDULED:
        if name in job:
            raise refused(f"the job of a schedule has no field {name!r}", found=repr(job[name])[:100])
    check_resources(job["resources"])


def schedule_version(schedule: Plain) -> int:
    """The lowest version that knows all fields of the job in *schedule*."""
    job = schedule.get("job")
    return max((since for name, since in JOB_FIELDS_SINCE.items() if isinstance(job, dict) and name in job), default=1)


def _no_more(what: str, given: Plain, known: dict[str, Check]) -> None:
    for name in given:
        if name not in known:
            raise refused(f"{what} has no field {name!r}", found=f"known: {', '.join(sorted(known))}")


ScheduleName = Annotated[str, is_schedule_name]
Schedule = Annotated[Plain, lambda value: isinstance(value, dict)]
Second = Annotated[int, is_second]
Due = Annotated[list[int], is_due]
MissedCount = Annotated[int, is_whole]
