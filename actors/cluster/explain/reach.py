"""The same explanation for whoever may not see all work: what is out of reach holds room, and has no name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from actorgrid.access import Scope
from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, JobRecord, OwnerRecord

from ..messages import Why
from .contention import FitReport
from .why import OTHERS, JobContext, explain_job

_HIDDEN = cast("OwnerRecord", {"kind": ""})


def explain_in_reach(job: JobRecord, context: JobContext, asked: Why) -> dict[str, Any]:
    """As ``explain_job``, for whoever sees the work of users in a scope alone, and perhaps not what it wrote."""
    scope = asked.scope
    if not asked.output:
        job = without_output(job)
    if scope.is_all:
        return explain_job(job, context)
    answer = explain_job(job, in_reach(context, scope))
    return {**answer, "held_up_by": [each for each in answer["held_up_by"] if each != OTHERS]}


def in_reach(context: JobContext, scope: Scope) -> JobContext:
    """*context* without the names and ids of others' work. How much that holds stays: it is why there is no room."""

    def named(job_ids: Iterable[str]) -> list[str]:
        users = ((id, context.jobs.get(id, NO_JOB).get("user_id", "")) for id in job_ids)
        return list(dict.fromkeys(id if scope.covers(user) else OTHERS for id, user in users))

    allocations = tuple(
        held if scope.covers(held["user_id"]) else cast("AllocationRecord", {**held, "owner": _HIDDEN})
        for held in context.allocations
    )
    fit = context.fit
    if fit is not None:
        shown = {**fit, "held_up_by": named(fit.get("held_up_by") or ())}
        if reservation := fit.get("reservation"):
            shown["reservation"] = {**reservation, "stopping": named(reservation.get("stopping") or ())}
        fit = cast("FitReport", shown)
    root = context.root
    if root is not None and not scope.covers(root["user_id"]):
        root = None
    return replace(context, allocations=allocations, fit=fit, root=root)


TOLD_OF_ENDS = ("exit_code", "signal", "host", "host_id")
"""Details of an error that hold nothing that the work wrote."""
_OF_ITS_USER: dict[str, Any] = {
    "env": {},
    "payload_digest": None,
    "stdin_digest": None,
    "working_dir": None,
    "environment": None,
}


def without_output(job: JobRecord) -> JobRecord:
    """The record for whoever may see that the job is there, and not read what it was given and wrote: environment
    variables, digests by which its files are had, the end of its stderr."""
    shown: dict[str, Any] = {**job, **{name: value for name, value in _OF_ITS_USER.items() if name in job}}
    shown["error"] = error_without_output(job.get("error"))
    shown["attempts"] = [_attempt_without_output(each) for each in job["attempts"]]
    return cast("JobRecord", shown)


def _attempt_without_output(attempt: Any) -> Any:
    shown = {**attempt, "error": error_without_output(attempt.get("error"))}
    if attempt.get("members"):
        shown["members"] = [_attempt_without_output(each) for each in attempt["members"]]
    return shown


def error_without_output(error: Any) -> Any:
    """The error of work without what that wrote."""
    if not error:
        return error
    details = error.get("details") or {}
    return {**error, "found": "", "details": {name: details[name] for name in TOLD_OF_ENDS if name in details}}
