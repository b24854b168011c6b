"""Preemption as the ledger keeps it: who may be asked to end for another, and what that leaves on the job.

An attempt that is asked carries ``preemption`` {asked_at, grace_s, for_job} from then on. It is asked once; the owner
host ends it, and its job waits again in its old place, not charged a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord, PreemptionRecord
from actorgrid.errors import ErrorRecord, WorkerLost, WrongState

if TYPE_CHECKING:
    from actorgrid.actors.ledger.commands import PreemptAttempt

PREEMPTED = "preempted"
PREEMPTIONS_MAX = 10
"""A job that was stopped so often for others is not asked any more, so that it comes to its end."""


def may_ask(job: JobRecord) -> bool:
    """Whether *job* may be preempted: it allows that, and was not stopped for others too often already."""
    return bool(job.get("preemptible", True)) and int(job.get("preemptions", 0)) < PREEMPTIONS_MAX


def asked(job: JobRecord, attempt: AttemptRecord, command: PreemptAttempt, at: float) -> PreemptionRecord:
    """The preemption record for the live *attempt*, which is to end.

    Raises WrongState for a job that may not be preempted.
    """
    if not may_ask(job):
        raise WrongState(
            f"job {job['job_id']} is not stopped for others",
            asked=f"end attempt {attempt['attempt_id']} for {command.for_job}",
            found=f"preempted {job.get('preemptions', 0)} times of at most {PREEMPTIONS_MAX}"
            if job.get("preemptible", True)
            else "it was submitted as not preemptible",
        )
    return {"asked_at": at, "grace_s": command.grace_s, "for_job": command.for_job}


def preempted_error(attempt: AttemptRecord) -> ErrorRecord:
    """The error of an attempt that was preempted."""
    preemption = attempt.get("preemption")
    for_whom = None if preemption is None else preemption["for_job"]
    return WorkerLost(
        f"attempt {attempt['attempt_id']} was preempted{f' for {for_whom}' if for_whom else ''}",
        hint="it waits in its old place and starts again by itself",
    ).to_dict()
