"""Spans of attempts, by a real ledger, WorkerManager and receiver; the trace that work is given on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from actorgrid.actors.work.attempt_spans import trace_variable
from actorgrid.trace_context import TraceContext, read_traceparent
from tests.otlp_receiver import OtlpReceiver
from tests.work.rig import Rig

SUBMITTED = TraceContext("ab" * 16, "cd" * 8)
TEXT = SUBMITTED.to_text()


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()
    yield made
    made.close()


def test_an_attempt_tells_of_start_run_and_report_and_its_work_goes_on_with_the_trace(
    make_rig: Callable[..., Rig], receiver: OtlpReceiver
) -> None:
    rig = make_rig(monitoring__otlp_endpoint=receiver.url)
    rig.start_manager()
    rig.run("untraced", command=["true"])
    rig.run("j", command=["sh", "-c", "echo $TRACEPARENT; exit 3"], traceparent=TEXT)
    found = receiver.wait_for("start", "run", "report")
    assert {span.trace_id for span in receiver.spans} == {SUBMITTED.trace_id} and len(receiver.spans) == 3
    assert {span.parent_id for span in receiver.spans} == {SUBMITTED.span_id}
    run = found["run"]
    given = read_traceparent(rig.output("j.1").strip())
    assert given == TraceContext(SUBMITTED.trace_id, run.span_id), "what the work begins is below its run"
    assert run.failed and run.attributes["process.exit.code"] == 3 and run.attributes["actorgrid.outcome"] == "failed"
    assert run.attributes["actorgrid.attempt.id"] == "j.1" and run.resource["host.id"] == "h1"
    assert found["start"].ended_ns == run.began_ns <= run.ended_ns == found["report"].began_ns


def test_the_same_run_has_the_same_span_whoever_tells_of_it() -> None:
    job = {"traceparent": TEXT}
    one = trace_variable(job, "j.1", traced=True)  # type: ignore[arg-type]
    assert one == trace_variable(job, "j.1", traced=True)  # type: ignore[arg-type]
    assert one != trace_variable(job, "j.2", traced=True)  # type: ignore[arg-type]
    assert trace_variable(job, "j.1", traced=False) == {"TRACEPARENT": TEXT}, "handed on"  # type: ignore[arg-type]
    assert trace_variable({}, "j.1", traced=True) == {}  # type: ignore[typeddict-item]
