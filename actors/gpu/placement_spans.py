"""Spans of how a job came to its place: what it waited for, the decision, and the grant that the ledger committed."""

from __future__ import annotations

from collections.abc import Sequence

from actorgrid.supervisors.span_sender import Attribute, SpanFacts, SpanSender
from actorgrid.trace_context import read_traceparent

from ..ledger.record_types import JobRecord

AT_ONCE_S = 0.05


def wait_of(job: JobRecord, decided: float) -> tuple[float, str]:
    """Since when a job had waited that is placed at *decided*, and for what."""
    ends = [attempt["ended_at"] for attempt in job["attempts"] if attempt["ended_at"] is not None]
    since = max([job["submitted_at"], *ends])
    if decided - since <= AT_ONCE_S:
        return since, "nothing"
    if ends:
        return since, "another attempt after one that ended"
    return since, "other jobs, which it depends on, and room" if job["depends_on"] else "room, or its turn"


def tell_granted(
    spans: SpanSender, job: JobRecord, number: int, hosts: Sequence[str], latency_us: float, asked: float, ended: float
) -> None:
    """Tell how attempt *number* of *job* came to *hosts*: the ledger was asked from *asked* to *ended*."""
    of_job = read_traceparent(job.get("traceparent"))
    if of_job is None:
        return
    subject = f"{job['job_id']}.{number}"
    decided = asked - latency_us / 1e6
    since, reason = wait_of(job, decided)
    about: dict[str, Attribute] = {"actorgrid.job.id": job["job_id"], "actorgrid.attempt": number}

    def send(name: str, began: float, until: float, **more: str | float) -> None:
        told = {**about, **{f"actorgrid.{key}": value for key, value in more.items()}}
        spans.send(SpanFacts(name, of_job.below(name, subject), of_job.span_id, began, until, told))

    send("queue wait", min(since, decided), decided, waited_for=reason)
    send("placement", decided, asked, hosts=",".join(hosts[:16]))
    send("grant", asked, ended)
