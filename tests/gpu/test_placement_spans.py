"""Spans of how a job came to its place."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actorgrid.actors.gpu.placement_spans import tell_granted, wait_of
from actorgrid.supervisors.span_sender import SpanFacts, SpanSender
from actorgrid.trace_context import TraceContext

PLACE = TraceContext("ab" * 16, "cd" * 8)


def job(**fields: Any) -> Any:
    return {"job_id": "j", "submitted_at": 100.0, "attempts": [], "depends_on": [], **fields}


class Kept:
    def __init__(self) -> None:
        self.spans: list[SpanFacts] = []

    def send(self, span: SpanFacts) -> None:
        self.spans.append(span)


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({}, (100.0, "room, or its turn")),
        ({"submitted_at": 149.99}, (149.99, "nothing")),
        ({"depends_on": ["i"]}, (100.0, "other jobs, which it depends on, and room")),
        ({"attempts": [{"ended_at": 120.0}]}, (120.0, "another attempt after one that ended")),
    ],
)
def test_what_a_job_waited_for(fields: dict[str, Any], wait: tuple[float, str]) -> None:
    assert wait_of(job(**fields), 150.0) == wait


def test_a_grant_tells_of_the_wait_the_decision_and_itself() -> None:
    kept = Kept()
    sender = cast("SpanSender", kept)
    tell_granted(sender, job(), 1, ["h1"], 500.0, 150.0, 150.2)
    assert kept.spans == [], "it is in no trace"
    tell_granted(sender, job(traceparent=PLACE.to_text()), 1, ["h1"], 500.0, 150.0, 150.2)
    wait, placement, grant = kept.spans
    assert (wait.name, wait.began, wait.ended) == ("queue wait", 100.0, 149.9995)
    assert (placement.name, placement.ended, placement.attributes["actorgrid.hosts"]) == ("placement", 150.0, "h1")
    assert (grant.name, grant.began, grant.ended) == ("grant", 150.0, 150.2)
    assert {span.parent for span in kept.spans} == {PLACE.span_id}
