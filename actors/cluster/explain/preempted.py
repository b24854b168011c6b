"""What preemption and a deadline mean for a job, in sentences."""

from __future__ import annotations

from actorgrid.actors.ledger.record_types import NO_ATTEMPT, JobRecord
from actorgrid.actors.ledger.tables.preemption import PREEMPTIONS_MAX
from actorgrid.amounts import duration
from actorgrid.models import AttemptState


def stopped_for_another(job: JobRecord, now: float) -> str:
    """That the running attempt was asked to end, for whom, and how long it has; empty when it was not."""
    asked = job["attempts"][-1].get("preemption") if job["attempts"] else None
    if asked is None:
        return ""
    left_s = asked["asked_at"] + asked["grace_s"] - now
    left = f"has {duration(left_s)} left to save its work" if left_s > 0 else "is being killed, as its grace is over"
    return f"it was asked to end so that {asked['for_job']} can start, and {left}"


def waiting_notes(job: JobRecord, now: float) -> list[str]:
    """How often a waiting job was stopped for others, and its deadline."""
    notes = []
    last = job["attempts"][-1] if job["attempts"] else NO_ATTEMPT
    if last.get("state") == AttemptState.PREEMPTED:
        preemption = last.get("preemption")
        for_whom = None if preemption is None else preemption["for_job"]
        notes.append(
            f"attempt {last['number']} was stopped{f' for {for_whom}' if for_whom else ''}; it waits in its old place "
            f"(preempted {job.get('preemptions', 0)} of at most {PREEMPTIONS_MAX} times; that costs no retry)"
        )
    return notes + deadline_note(job, now)


def deadline_note(job: JobRecord, now: float) -> list[str]:
    """When it is to be done, if it said so."""
    deadline = job.get("deadline")
    if deadline is None:
        return []
    left_s = deadline - now
    if left_s < 0:
        return [f"its deadline passed {duration(-left_s)} ago"]
    return [f"its deadline is in {duration(left_s)} (it counts under scheduling.queue=edf)"]
