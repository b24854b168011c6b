"""What an attempt's end leaves on its record, and what becomes of its job."""

from __future__ import annotations

from actorgrid.actors.ledger.commands import EndAttempt, end_facts, value_or_none
from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord
from actorgrid.actors.ledger.records import default_error

from .jobs import CANCELLED, FAILED, LOST, QUEUED, SUCCEEDED
from .preemption import PREEMPTED

ATTEMPTS_MAX = 1_000


def ended_attempt(attempt: AttemptRecord, command: EndAttempt, at: float) -> AttemptRecord:
    """*attempt* as it is after ``end_attempt``; what came without an error and did not succeed gets one."""
    outcome = command.outcome
    error = attempt["error"]
    if outcome != SUCCEEDED:
        error = value_or_none(command.error) or default_error(outcome, attempt)
    return {
        **attempt,
        "state": FAILED if outcome == "timed_out" else outcome,
        "ended_at": at,
        **end_facts(command),
        "error": error,
    }


def after_attempt(job: JobRecord, number: int, command: EndAttempt, at: float) -> tuple[str, Plain]:
    """The state of *job* after its attempt *number* ended, and the fields that change when it waits again.

    Success counts, whatever was asked meanwhile; so does that of an earlier attempt, whose host came back with it. What
    was preempted, or came to grief by no fault of its own, is not charged a retry; a preempted job waits for nothing
    before it may start again.
    """
    outcome, charge = command.outcome, command.charge
    if outcome == SUCCEEDED or job.get("taken") is not None:
        return SUCCEEDED, {}
    if outcome == CANCELLED or job["cancel_requested"]:
        return CANCELLED, {}
    if number >= ATTEMPTS_MAX:
        return LOST, {}
    if outcome == PREEMPTED:
        return QUEUED, {"preemptions": job.get("preemptions", 0) + 1, "not_before": at}
    if not charge or job["retries_left"] > 0:
        return QUEUED, {"retries_left": job["retries_left"] - charge, "not_before": command.retry_at or at}
    return (LOST if outcome == LOST else FAILED), {}
