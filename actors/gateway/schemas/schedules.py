"""What the routes of schedules take and give."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field, model_validator

from actorgrid.actors.ledger.schedule_checks import CRON_CHARS_MAX, EVERY_MAX_S, HELD_MAX, ZONE_CHARS_MAX
from actorgrid.models import AnswerBody, RequestBody, TaskRequest

Overlap = Literal["skip", "queue", "replace"]
Missed = Literal["skip", "run_once", "run_all"]


class ScheduleRequest(RequestBody):
    """Work that is due at times: one of ``cron``, ``every_s`` and ``execute_at`` says when."""

    cron: str | None = Field(default=None, max_length=CRON_CHARS_MAX, description="five fields, or @daily and the like")
    time_zone: str = Field(default="UTC", min_length=1, max_length=ZONE_CHARS_MAX, description="of cron: its name")
    every_s: int | None = Field(default=None, ge=1, le=EVERY_MAX_S, description="seconds from one due time to the next")
    execute_at: AwareDatetime | None = Field(default=None, description="once, at a time with its zone")
    overlap: Overlap = Field(default="skip", description="at a due time while the run before is not over")
    missed: Missed = Field(default="run_once", description="due times at which nobody led the cluster")
    missed_max: int = Field(default=10, ge=1, le=HELD_MAX, description="of run_all: so many of them, the latest")
    paused: bool = Field(default=False, description="nothing begins before it is resumed")
    replace: bool = Field(default=False, description="write over a schedule of that name")
    job: TaskRequest = Field(description="what runs; its task_id, deadline and depends_on have no meaning here")

    @model_validator(mode="after")
    def _one_trigger(self) -> ScheduleRequest:
        given = [name for name in ("cron", "every_s", "execute_at") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"one of cron, every_s and execute_at says when it is due; given: {', '.join(given) or 0}")
        if self.job.deadline is not None or self.job.deadline_s is not None or self.job.depends_on:
            raise ValueError("a job that comes again has no deadline and depends on no other: use max_execution_time_s")
        return self


class ScheduleRun(AnswerBody):
    """What became of a due time; of ``count`` of them, where they were missed. Times are seconds since the epoch."""

    due_at: int
    at: float
    outcome: Literal["started", "skipped", "missed", "refused"]
    job_id: str | None
    state: str | None
    ended_at: float | None
    count: int
    reason: str


class ScheduleView(AnswerBody):
    """A schedule; times are seconds since the epoch."""

    name: str
    user_id: str
    cron: str | None = None
    time_zone: str | None = None
    every_s: int | None = None
    execute_at: int | None = None
    overlap: Overlap
    missed: Missed
    missed_max: int
    paused: bool
    next_due: list[int] = Field(description="the next times at which it is due")
    live: str | None = Field(description="the job of it that waits or runs")
    held: list[int] = Field(description="due times whose runs stand in line")
    started_total: int
    runs: list[ScheduleRun] = Field(description="the last 20, oldest first")
    job: dict[str, Any]
    made_by: str
    made_at: float
    problem: str | None = Field(default=None, description="why the host that answers cannot tell when it is due")


class SchedulesAnswer(AnswerBody):
    """All schedules, by name."""

    schedules: list[ScheduleView]


class SchedulePut(AnswerBody):
    """The schedule as it is now; ``unchanged``: it was so before."""

    unchanged: bool
    schedule: ScheduleView


class ScheduleRemoved(AnswerBody):
    """What was removed; ``live``: its job that goes on."""

    name: str
    live: str | None


class ScheduleFired(AnswerBody):
    """What running it now came to: a job, or a place in line."""

    started: list[str]
    held: int
