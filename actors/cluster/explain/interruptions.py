"""What a host that is away or was lost, a preemption and a deadline mean for a job, in sentences."""

from __future__ import annotations

from actorgrid.actors.cluster.host_leases import over_after_s
from actorgrid.actors.ledger.record_types import NO_ALLOCATION, NO_ATTEMPT, NO_ERROR, JobRecord
from actorgrid.actors.ledger.records import isolation_of
from actorgrid.actors.ledger.tables.preemption import PREEMPTIONS_MAX
from actorgrid.amounts import duration
from actorgrid.errors import HostLost
from actorgrid.job_outcome import decided_by
from actorgrid.models import AttemptState


def lost_note(job: JobRecord) -> list[str]:
    """The sentence that the attempt before (or the last one, of a job that waits) went with its host."""
    for attempt in reversed(job["attempts"]):
        error = attempt.get("error") or NO_ERROR
        if error.get("code") == HostLost.__name__:
            return [f"attempt {attempt['number']} went with its host ({error['found']}); that costs no retry"]
        if attempt.get("ended_at") is not None:
            break
    return []


def late_notes(job: JobRecord) -> list[str]:
    """Sentences on which attempt of a succeeded job was taken, where one given up for lost succeeded as well."""
    notes = []
    for attempt in job["attempts"]:
        if attempt.get("late_success_at") is None:
            continue
        if attempt["number"] == job.get("taken"):
            notes.append(
                f"attempt {attempt['number']} had succeeded on a host that was away; its result was taken when that "
                "came back, and what ran instead was stopped"
            )
        else:
            notes.append(
                f"attempt {attempt['number']} had succeeded as well, on a host that was away; "
                f"attempt {decided_by(job)} was taken, as it was heard of first"
            )
    return notes


def away_note(job: JobRecord, name: str, quiet_s: float | None) -> list[str]:
    """The sentence that a running attempt's host has not been heard of, and when the job starts elsewhere."""
    if quiet_s is None:
        return []
    left_s = over_after_s(isolation_of(NO_ALLOCATION, job)) - quiet_s
    then = f"in {duration(left_s)} the attempt is over" if left_s > 0 else "the attempt is being ended"
    return [
        f"{name} has not been heard of for {duration(quiet_s)}; unless it is back, {then} and the job starts elsewhere"
    ]


def stopped_for_another(job: JobRecord, now: float) -> str:
    """The sentence that the running attempt was asked to end, for whom and by when; empty when it was not."""
    asked = job["attempts"][-1].get("preemption") if job["attempts"] else None
    if asked is None:
        return ""
    left_s = asked["asked_at"] + asked["grace_s"] - now
    left = f"has {duration(left_s)} left to save its work" if left_s > 0 else "is being killed, as its grace is over"
    return f"it was asked to end so that {asked['for_job']} can start, and {left}"


def waiting_notes(job: JobRecord, now: float) -> list[str]:
    """Sentences on how often a waiting job was stopped for others, and on its deadline."""
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
    """The sentence on the job's deadline, if it has one."""
    deadline = job.get("deadline")
    if deadline is None:
        return []
    left_s = deadline - now
    if left_s < 0:
        return [f"its deadline passed {duration(-left_s)} ago"]
    return [f"its deadline is in {duration(left_s)} (it counts under scheduling.queue=edf)"]
