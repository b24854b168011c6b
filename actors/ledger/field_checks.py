"""What a value in a command of the ledger may be: checks of single values, and the types that carry them.

A refusal of a committed entry is part of what every voter must agree on: what a check says of a value never changes.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal

from actorgrid.actors.ledger.record_types import GangPlace, JobRecord
from actorgrid.digests import is_digest
from actorgrid.errors import BadRequest

DEPTH_MAX = 16
TEXT_MAX = 65_536
SITE_MAX = 64
DEVICES_MAX = 1024
NEAR_CHARS_MAX = 64
GANG_MEMBERS_MAX = 256
JOBS_MAX = 10_000
"""Of one entry."""
LOST_MAX = 10_000
PRIORITY_MAX = 100
GRACE_MAX_S = 3600.0
ABSENCE_MAX_S = 3600
LOCK_NAME_MAX, LOCK_SLOTS_MAX = 256, 1_000
LOCK_TTL_MIN_S, LOCK_TTL_MAX_S = 0.5, 86_400.0
SETTING_KEY_MAX = 256
OUTCOMES = ("succeeded", "failed", "cancelled", "timed_out", "lost", "preempted")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Check = Callable[[Any], bool]
Plain = dict[str, Any]
"""A record or a part of one, as JSON has it."""


class _Absent(Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""What a field holds that a command does not have. It is not written, where ``None`` is written as null."""
Absent = Literal[_Absent.ABSENT]


@dataclass(frozen=True, slots=True)
class Since:
    """The version that a field came with (see ``command.py``)."""

    version: int


def refused(message: str, **more: Any) -> BadRequest:
    """The error for a malformed value; not the guard's, so that nobody takes it for an answer about the state."""
    return BadRequest(message, **more)


def check_fields(what: str, fields: Mapping[str, Any], must: Mapping[str, Check], may: Mapping[str, Check]) -> None:
    """Raises BadRequest for a field of *must* that is missing, and for one of either that holds something else."""
    for name, good in must.items():
        if name not in fields:
            raise refused(f"{what} has no field {name!r}")
        if not good(fields[name]):
            raise refused(f"{what}: field {name!r} is wrong", found=repr(fields[name])[:200])
    for name, good in may.items():
        if name in fields and not good(fields[name]):
            raise refused(f"{what}: field {name!r} is wrong", found=repr(fields[name])[:200])


def is_text(value: Any) -> bool:
    """A string of at most 65,536 characters."""
    return isinstance(value, str) and len(value) <= TEXT_MAX


def is_site(value: Any) -> bool:
    """The name of a site, or nothing."""
    return isinstance(value, str) and len(value) <= SITE_MAX and (value == "" or value.isprintable())


def is_id(value: Any) -> bool:
    """An id of anything but a job."""
    return isinstance(value, str) and ID.fullmatch(value) is not None


def is_job_id(value: Any) -> bool:
    """A job's id: it is also a folder's name."""
    return isinstance(value, str) and JOB_ID.fullmatch(value) is not None


def is_whole(value: Any) -> bool:
    """A number from 0 that every JSON reader keeps exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def is_signed(value: Any) -> bool:
    """A whole number of either sign."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def is_number(value: Any) -> bool:
    """A finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_user(value: Any) -> bool:
    """The name of whoever asked, as shown to people."""
    return isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable()


def is_truth(value: Any) -> bool:
    """``True`` or ``False``."""
    return isinstance(value, bool)


def is_near(value: Any) -> bool:
    """How close a device is to others, a digit for each of the first 64 (``device_words``)."""
    return isinstance(value, str) and 0 < len(value) <= NEAR_CHARS_MAX and not set(value) - set("012345")


def is_table(value: Any) -> bool:
    """A map, nested no deeper than every later reader can follow."""
    return isinstance(value, dict) and is_shallow(value)


def is_texts(value: Any) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def is_env(value: Any) -> bool:
    """Strings by name."""
    return isinstance(value, dict) and all(isinstance(part, str) for part in value.values())


def is_indexes(value: Any) -> bool:
    """Whole numbers, none twice, at most 1,024."""
    return (
        isinstance(value, list)
        and all(is_whole(part) for part in value)
        and len(set(value)) == len(value) <= DEVICES_MAX
    )


def is_token(value: Any) -> bool:
    """A fencing token: the recovery epoch, the index in the log."""
    return isinstance(value, list) and len(value) == 2 and all(is_whole(part) for part in value)


def is_lock_request(value: Any) -> bool:
    """The number that a client gave its request for a lock (0: none), and the id that its host gave."""
    return isinstance(value, list) and len(value) == 2 and is_whole(value[0]) and is_id(value[1])


def is_held(value: Any) -> bool:
    """Allocations with their tokens."""
    return (
        isinstance(value, list)
        and len(value) <= LOST_MAX
        and all(isinstance(part, list) and len(part) == 2 and is_text(part[0]) and is_token(part[1]) for part in value)
    )


def is_ports(value: Any) -> bool:
    """The first and the last of a range of ports."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(is_whole(part) for part in value)
        and (1 <= value[0] <= value[1] <= 65_535)
    )


def is_gang(value: Any) -> bool:
    """A place for each member of a gang, by rank."""
    return (
        isinstance(value, list)
        and 2 <= len(value) <= GANG_MEMBERS_MAX
        and all(isinstance(part, dict) for part in value)
    )


def is_waiting_bytes(value: Any) -> bool:
    """How many bytes may wait, of the user and in all."""
    return (
        isinstance(value, dict) and value.keys() == {"user", "all"} and all(is_whole(part) for part in value.values())
    )


def is_shallow(value: Any, depth: int = DEPTH_MAX) -> bool:
    """A plain value, nested no deeper than every later reader can follow."""
    if isinstance(value, dict):
        return depth > 0 and all(is_shallow(part, depth - 1) for part in value.values())
    if isinstance(value, list):
        return depth > 0 and all(is_shallow(part, depth - 1) for part in value)
    return True


def is_date(value: Any) -> bool:
    """Seconds since the epoch that are a date: of the years 1 to 9999."""
    return is_number(value) and -62_135_596_800 <= value < 253_402_300_800


def is_priority(value: Any) -> bool:
    """A job's priority: higher goes first."""
    return is_whole(value) and value <= PRIORITY_MAX


def is_grace(value: Any) -> bool:
    """Seconds between SIGTERM and SIGKILL."""
    return is_number(value) and 0 <= value <= GRACE_MAX_S


def is_isolation(value: Any) -> bool:
    """Seconds for which work may go on without its cluster."""
    return is_number(value) and value >= 0


def or_none(check: Check) -> Check:
    """The check that takes ``None`` as well as what *check* takes."""
    return lambda value: value is None or check(value)


Text = Annotated[str, is_text]
Site = Annotated[str, is_site]
Id = Annotated[str, is_id]
Digest = Annotated[str, is_digest]
JobId = Annotated[str, is_job_id]
User = Annotated[str, is_user]
Whole = Annotated[int, is_whole]
Signed = Annotated[int, is_signed]
Number = Annotated[float, is_number]
Date = Annotated[float, is_date]
Grace = Annotated[float, is_grace]
Isolation = Annotated[float, is_isolation]
Truth = Annotated[bool, is_truth]
Table = Annotated[Plain, is_table]
Texts = Annotated[list[str], is_texts]
Env = Annotated[dict[str, str], is_env]
Indexes = Annotated[list[int], is_indexes]
Token = Annotated[list[int], is_token]
Held = Annotated[list[list[Any]], is_held]
Ports = Annotated[list[int], is_ports]
Gang = Annotated[list[GangPlace], is_gang]
WaitingBytes = Annotated[dict[str, int], is_waiting_bytes]
LockRequest = Annotated[list[Any], is_lock_request]
Outcome = Annotated[str, lambda value: value in OUTCOMES]
Priority = Annotated[int, is_priority]
Jobs = Annotated[list[JobRecord], lambda value: isinstance(value, list) and len(value) <= JOBS_MAX]
Absence = Annotated[float, lambda value: is_number(value) and 0 <= value <= ABSENCE_MAX_S]
LockName = Annotated[str, lambda value: isinstance(value, str) and 0 < len(value) <= LOCK_NAME_MAX]
LockTtl = Annotated[float, lambda value: is_number(value) and LOCK_TTL_MIN_S <= value <= LOCK_TTL_MAX_S]
LockSlots = Annotated[int, lambda value: is_whole(value) and 1 <= value <= LOCK_SLOTS_MAX]
SettingKey = Annotated[str, lambda value: is_text(value) and 0 < len(value) <= SETTING_KEY_MAX]
Value = Annotated[Any, is_shallow]
