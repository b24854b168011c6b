"""What a host that is away, or was lost, means for a job, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.amounts import duration
from actorgrid.errors import HostLost

from ..consensus.records import isolation_of
from .host_leases import over_after_s

Record = Mapping[str, Any]


def lost_note(job: Record) -> list[str]:
    """That the attempt before (or the last one, of a job that waits) went with its host."""
    for attempt in reversed(job["attempts"]):
        error = attempt.get("error") or {}
        if error.get("code") == HostLost.__name__:
            return [f"attempt {attempt['number']} went with its host ({error['found']}); that costs no retry"]
        if attempt.get("ended_at") is not None:
            break
    return []


def away_note(job: Record, name: str, quiet_s: float | None) -> list[str]:
    """That the host of a running attempt has not been heard of, and when the job is started elsewhere."""
    if quiet_s is None:
        return []
    left_s = over_after_s(isolation_of({}, dict(job))) - quiet_s
    then = f"in {duration(left_s)} the attempt is over" if left_s > 0 else "the attempt is being ended"
    return [
        f"{name} has not been heard of for {duration(quiet_s)}; unless it is back, {then} and the job starts elsewhere"
    ]
