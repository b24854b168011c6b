"""How many bytes jobs that wait take, for each user and in all; and that they are not more than allowed.

Part of the replicated state, derived from its records: every host counts the same. How many may wait is said by who
proposes the jobs (``scheduling.waiting_bytes_max``, ``scheduling.user_waiting_bytes_max``) in the command itself, so
that hosts whose settings differ decide alike, and so does a replay of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.amounts import counted
from actorgrid.errors import QueueFull

from ..record_checks import JOB_FIELDS_SINCE

JOB_BYTES = 1024
"""Of a job beside its texts: some thirty numbers and short words."""
_TEXTS = ("command", "depends_on")


def job_bytes(job: JobRecord) -> int:
    """The bytes a job counts with, as given and as kept: what its owner wrote, plus the same part for all."""
    size = JOB_BYTES + _bytes(job.get("name") or "") + _bytes(job.get("cwd") or "")
    for name in _TEXTS:
        size += sum(map(_bytes, cast("list[str] | None", job.get(name)) or ()))
    for name, value in (job.get("env") or {}).items():
        size += _bytes(name) + _bytes(value)
    for later in JOB_FIELDS_SINCE:
        texts = job.get(later)
        if isinstance(texts, dict):  # it may be anything: an entry of a version before it is not checked for it
            size += sum(_bytes(part) for pair in texts.items() for part in pair if isinstance(part, str))
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class WaitingBytes:
    """The sums. ``of`` has users with waiting jobs only."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.total = 0

    def count(self, job: JobRecord, by: int) -> None:
        """Count *job*, which waits from now on (1), or no more (-1)."""
        size, user = by * job_bytes(job), job["user_id"]
        self.total += size
        left = self.of.pop(user, 0) + size
        if left:
            self.of[user] = left

    def most(self) -> tuple[str, int] | None:
        """The user whose waiting jobs take most, and how many bytes; ``None``: nothing waits."""
        return max(self.of.items(), key=lambda each: (each[1], each[0]), default=None)

    def refuse_growth(self, before: JobRecord, after: JobRecord, most: dict[str, int]) -> None:
        """Check that a waiting job may become as large as *after*, with *most* for its ``user`` and ``all``.

        Raises QueueFull; what becomes no larger is never refused.
        """
        more, user = job_bytes(after) - job_bytes(before), before["user_id"]
        for who, waiting, limit in (
            (f"of user {user}", self.of.get(user, 0), most["user"]),
            ("of all users", self.total, most["all"]),
        ):
            if more > 0 and waiting + more > limit:
                raise QueueFull(
                    f"the waiting jobs {who} take too much memory",
                    asked=f"{more} bytes more",
                    found=f"{waiting} waiting of {limit} bytes",
                    hint="wait for some to start or cancel some",
                )

    def refuse_over(self, jobs: Iterable[JobRecord], user_max: int, all_max: int) -> None:
        """Check that *jobs* take no user, nor all together, over the bounds. Raises QueueFull."""
        more: dict[str, int] = {}
        count = 0
        for job in jobs:
            user = job.get("user_id", "local")
            more[user] = more.get(user, 0) + job_bytes(job)
            count += 1
        for user, size in more.items():
            if self.of.get(user, 0) + size > user_max:
                raise QueueFull(
                    f"the waiting jobs of user {user} take too much memory",
                    asked=f"{size} bytes more, in {counted(count, 'job')}",
                    found=f"{self.of.get(user, 0)} waiting of {user_max} bytes",
                    hint="wait for some to start or cancel some; give jobs smaller environments, or have "
                    "scheduling.user_waiting_bytes_max raised",
                )
        if self.total + sum(more.values()) > all_max:
            raise QueueFull(
                "the waiting jobs of all users take too much memory",
                asked=f"{sum(more.values())} bytes more, in {counted(count, 'job')}",
                found=f"{self.total} waiting of {all_max} bytes",
                hint="wait for some to start or cancel some; or have scheduling.waiting_bytes_max raised",
            )
