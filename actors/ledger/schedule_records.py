"""What the ledger knows of a schedule: when work is due, the work itself, and what became of its last runs."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class TriggerRecord(TypedDict):
    """When work is due: one of three kinds. Times are whole seconds since the epoch, which is what fences them."""

    kind: str
    """cron, every or at."""
    cron: NotRequired[str]
    """Of cron: five fields."""
    zone: NotRequired[str]
    """Of cron: the time zone in which they are read, by its name in the time zone database."""
    every_s: NotRequired[int]
    """Of every: the whole seconds from one due time to the next, counted from when the schedule was made."""
    at: NotRequired[int]
    """Of at: the one time when it is due."""


class ScheduleRunRecord(TypedDict):
    """What became of one due time; of several together, where they were missed."""

    due_at: int
    """The due time; of several the last."""
    at: float
    """When it was decided."""
    outcome: str
    """started, skipped (another run was not over), missed (nobody was there in time), refused (no room for the job)."""
    job_id: str | None
    """The job that was made of it."""
    state: str | None
    """How that job ended; ``None``: it has not, or there is none."""
    ended_at: float | None
    """When it did."""
    count: int
    """How many due times this stands for."""
    reason: str
    """Why nothing was started."""


class ScheduleRecord(TypedDict):
    """A schedule."""

    name: str
    """What people call it."""
    user_id: str
    """Whose jobs it makes."""
    trigger: TriggerRecord
    """When they are due."""
    job: dict[str, Any]
    """The job that it makes, as it was submitted: without its id and its time."""
    overlap: str
    """What happens at a due time while the run before is not over: skip, queue or replace."""
    missed: str
    """What happens to due times when nobody was there to see them: skip, run_once or run_all."""
    missed_max: int
    """Of run_all: how many of them run at most, the latest."""
    paused: bool
    """Nothing of it starts."""
    made_by: str
    """Who wrote it."""
    made_at: float
    """When it was written first."""
    revision: int
    """The entry that it was last written or resumed with: what was decided from an earlier one is refused."""
    counts_from: int
    """Of every: the time that due times are counted from."""
    due_after: int
    """Every due time up to this one has been decided: the fence that keeps each from being decided twice."""
    live: str | None
    """The job that runs or waits; there is one at most."""
    held: list[int]
    """Due times whose runs stand in line until that job is over, oldest first."""
    started_total: int
    """Jobs that were made."""
    runs: list[ScheduleRunRecord]
    """The last of what became of due times, oldest first."""
