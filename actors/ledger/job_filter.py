"""Which jobs a list is of: one description for those in memory and those in the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.record_types import JobRecord


@dataclass(frozen=True, slots=True)
class JobFilter:
    """No *states*: all. *before_at*: submitted before that time; *since_at*: then or later. *prefix*: what the id
    begins with. *user*: only that one's; empty: all. *steps*: whether jobs that run steps of graphs belong in it.
    *name*: what is somewhere in its name. *labels*: it has all of them. *host*: an attempt of it was there.
    *tenant*: its user is of that one.

    *before_ordinal*: accepted before the job of that number, which is where the page before ended.
    """

    states: tuple[str, ...] = ()
    before_ordinal: int | None = None
    before_at: float | None = None
    prefix: str = ""
    user: str = ""
    steps: bool = True
    since_at: float | None = None
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    tenant: str = ""

    @property
    def of_a_part(self) -> bool:
        """Whether it is about what the counts by state do not tell."""
        return bool(
            self.prefix
            or self.user
            or self.name
            or self.labels
            or self.host
            or self.tenant
            or self.since_at is not None
        )

    def passes(self, job: JobRecord) -> bool:
        """Whether *job* belongs in the list."""
        return (
            (not self.states or job["state"] in self.states)
            and (self.before_ordinal is None or job["ordinal"] < self.before_ordinal)
            and (self.before_at is None or job["submitted_at"] < self.before_at)
            and (self.since_at is None or job["submitted_at"] >= self.since_at)
            and str(job["job_id"]).startswith(self.prefix)
            and (not self.user or job["user_id"] == self.user)
            and (self.steps or "step_of" not in job)
            and (not self.name or self.name in job["name"])
            and (not self.labels or _has(job.get("labels"), self.labels))
            and (not self.host or was_on(job, self.host))
            and (not self.tenant or tenant_of(job["user_id"]) == self.tenant)
        )


def _has(labels: Any, wanted: Mapping[str, str]) -> bool:
    return isinstance(labels, dict) and all(labels.get(key) == value for key, value in wanted.items())


def was_on(job: JobRecord, host: str) -> bool:
    """Whether an attempt of *job*, or a member of one, was on that host."""
    return any(
        each.get("host") == host for attempt in job["attempts"] for each in (attempt, *(attempt.get("members") or ()))
    )
