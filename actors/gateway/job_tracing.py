"""The first spans of a job's trace: that it was submitted, and that the ledger committed it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from actorgrid.models import TaskRequest
from actorgrid.supervisors.span_sender import SpanFacts, SpanSender
from actorgrid.trace_context import TraceContext, read_traceparent

from ..ledger.command import cluster_version
from ..ledger.record_checks import JOB_FIELDS_SINCE
from ..ledger.record_types import JobRecord, MemberRecord

SUBMIT = "submit"


def in_traces(
    requests: Sequence[TaskRequest], header: str | None, spans: SpanSender | None, members: Mapping[str, MemberRecord]
) -> tuple[list[TaskRequest], dict[str, str]]:
    """*requests* with their places in traces, and the parents of their ``submit`` spans by job.

    A request's own traceparent counts before that of the *header*. Where spans are sent and there is none, a trace
    begins; where they are not, what came is handed on. While a host is too old to know the field, there is no trace.
    """
    if cluster_version(members) < JOB_FIELDS_SINCE["traceparent"]:
        return [each.model_copy(update={"traceparent": None}) for each in requests], {}
    found, parents = [], {}
    for request in requests:
        came = read_traceparent(request.traceparent or header)
        place = came
        if spans is not None:
            place = (came or TraceContext(secrets.token_hex(16), "")).below(SUBMIT, request.task_id)
            parents[request.task_id] = "" if came is None else came.span_id
        found.append(request.model_copy(update={"traceparent": None if place is None else place.to_text()}))
    return found, parents


def tell(
    spans: SpanSender, jobs: Sequence[JobRecord], parents: Mapping[str, str], began: float, asked: float, ended: float
) -> None:
    """Tell that *jobs* were accepted: their door was asked at *began*, the ledger from *asked* to *ended*."""
    for job in jobs:
        place = read_traceparent(job.get("traceparent"))
        if place is None or job["job_id"] not in parents:
            continue
        about = {"actorgrid.job.id": job["job_id"], "actorgrid.job.name": job["name"], "enduser.id": job["user_id"]}
        spans.send(SpanFacts(SUBMIT, place, parents[job["job_id"]], began, ended, about))
        commit = place.below("ledger commit", job["job_id"])
        spans.send(SpanFacts("ledger commit", commit, place.span_id, asked, ended, {"actorgrid.jobs": len(jobs)}))
