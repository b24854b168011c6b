"""Successes heard of late: an attempt had ended well within its lease, and its host was lost before it said so.

The host's shim keeps the outcome on disk, and the host tells it when it is back. By then the leader has ended the
attempt as lost, and the job waits, or runs again. Running work again that is done helps nobody, so such a success is
the job's as long as the job is not over: ``taken`` on its record is the number of that attempt, and an attempt that
runs by then carries ``superseded`` {by, at} and is stopped by its host. Its room is given back when its processes are
gone, as ever, and only then is the job over. When the job was over before, that stays as it is, and the lost attempt
carries ``late_success_at``. Nothing of this moves a token: what the later attempt wrote under its own stays fenced.
"""

from __future__ import annotations

from typing import cast

from actorgrid.actors.ledger.commands import EndAttempt, TakeSuccess, end_facts
from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord

from .gangs import succeeded_member, verdict
from .jobs import SUCCEEDED


def with_success(
    attempt: AttemptRecord, rank: int | None, command: TakeSuccess | EndAttempt, at: float
) -> AttemptRecord:
    """*attempt*, which was lost, with the success that *command* tells of it or of its member of that *rank*.

    A gang's attempt has succeeded once all of its members have.
    """
    if rank is None:
        return {**attempt, **end_facts(command), "state": SUCCEEDED, "error": None, "late_success_at": at}
    assert isinstance(command, TakeSuccess), "of a member only its host tells"
    told = succeeded_member(attempt, rank, command)
    if any(member["state"] != SUCCEEDED for member in told["members"]):
        return told
    whole = verdict(cast("JobRecord", {}), {**told, "ending": None}, None)
    return with_success(told, None, whole, at)


def superseded(attempt: AttemptRecord, by: int, at: float) -> AttemptRecord:
    """The live *attempt*, which is to end, as attempt number *by* has done the work."""
    return {**attempt, "superseded": {"by": by, "at": at}}
