"""A job's place in a trace, as it comes to the door; and the door's own spans."""

from __future__ import annotations

from typing import Any, cast

from actorgrid.actors.gateway.job_tracing import in_traces, tell
from actorgrid.models import TaskRequest
from actorgrid.supervisors.span_sender import SpanFacts, SpanSender
from actorgrid.trace_context import TraceContext, read_traceparent

CAME = TraceContext("ab" * 16, "cd" * 8)
NEW: Any = {"h1": {"ledger_version": 9}}
OLD: Any = {"h1": {"ledger_version": 8}}


class Kept:
    def __init__(self) -> None:
        self.spans: list[SpanFacts] = []

    def send(self, span: SpanFacts) -> None:
        self.spans.append(span)


def request(job_id: str = "j", **fields: Any) -> TaskRequest:
    return TaskRequest(task_id=job_id, command=["true"], **fields)


def test_where_no_spans_are_sent_what_came_is_handed_on() -> None:
    requests, parents = in_traces([request()], CAME.to_text(), None, NEW)
    assert (requests[0].traceparent, parents) == (CAME.to_text(), {})
    assert in_traces([request()], "rubbish", None, NEW)[0][0].traceparent is None


def test_while_a_host_does_not_know_the_field_there_is_no_trace() -> None:
    requests, parents = in_traces([request(traceparent=CAME.to_text())], None, cast("SpanSender", Kept()), OLD)
    assert (requests[0].traceparent, parents) == (None, {})


def test_a_job_goes_on_with_the_trace_that_came_or_begins_one() -> None:
    own = TraceContext("ef" * 16, "cd" * 8).to_text()
    sender = cast("SpanSender", Kept())
    requests, parents = in_traces([request("a"), request("b", traceparent=own)], CAME.to_text(), sender, NEW)
    first, second = (read_traceparent(each.traceparent) for each in requests)
    assert first is not None and first.trace_id == CAME.trace_id and first.span_id != CAME.span_id
    assert second is not None and second.trace_id == "ef" * 16
    assert parents == {"a": CAME.span_id, "b": "cd" * 8}
    (began,), roots = in_traces([request()], None, sender, NEW)
    assert read_traceparent(began.traceparent) is not None and roots == {"j": ""}


def test_the_door_tells_of_the_submission_and_of_the_commit() -> None:
    kept = Kept()
    (asked,), parents = in_traces([request()], CAME.to_text(), cast("SpanSender", kept), NEW)
    record: Any = {"job_id": "j", "name": "true", "user_id": "ann", "traceparent": asked.traceparent}
    tell(cast("SpanSender", kept), [record], parents, 1.0, 2.0, 3.0)
    submit, commit = kept.spans
    assert (submit.name, submit.parent, submit.began, submit.ended) == ("submit", CAME.span_id, 1.0, 3.0)
    assert (commit.name, commit.parent, commit.began) == ("ledger commit", submit.place.span_id, 2.0)


def test_the_header_of_a_request_is_taken_into_the_job(town: Any) -> None:
    reply = town.http(
        "POST", "/api/jobs", json={"task_id": "traced", "command": ["true"]}, headers={"traceparent": CAME.to_text()}
    )
    assert reply.status == 201, reply.body
    (job,) = [job for job in town.servers["cluster_manager"].submitted if job["job_id"] == "traced"]
    assert job["traceparent"] == CAME.to_text()


def test_what_is_no_traceparent_is_passed_over_in_a_body_too(town: Any) -> None:
    reply = town.http("POST", "/api/jobs", json={"task_id": "odd", "command": ["true"], "traceparent": "rubbish"})
    assert reply.status == 201, reply.body
    (job,) = [job for job in town.servers["cluster_manager"].submitted if job["job_id"] == "odd"]
    assert "traceparent" not in job
