"""Which jobs a list is of: one description for those in memory and those in the history."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.actors.ledger.record_types import JobRecord


@dataclass(frozen=True, slots=True)
class JobFilter:
    """No *states*: all. *before_at*: submitted before that time. *prefix*: what the id begins with.
    *user*: only that one's; empty: all. *steps*: whether jobs that run steps of graphs belong in it.

    *before_ordinal*: accepted before the job of that number, which is where the page before ended.
    """

    states: tuple[str, ...] = ()
    before_ordinal: int | None = None
    before_at: float | None = None
    prefix: str = ""
    user: str = ""
    steps: bool = True

    def passes(self, job: JobRecord) -> bool:
        """Whether *job* belongs in the list."""
        return (
            (not self.states or job["state"] in self.states)
            and (self.before_ordinal is None or job["ordinal"] < self.before_ordinal)
            and (self.before_at is None or job["submitted_at"] < self.before_at)
            and str(job["job_id"]).startswith(self.prefix)
            and (not self.user or job["user_id"] == self.user)
            and (self.steps or "step_of" not in job)
        )
