"""A job from the command line's trace to its work's, by a real agent and a real receiver of OTLP."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.otlp_receiver import OtlpReceiver
from tests.system.agent import Agent

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BELOW_SUBMIT = ("ledger commit", "queue wait", "placement", "grant", "start", "run", "report")


def test_a_job_is_one_trace_from_the_door_to_its_work(
    make_agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = OtlpReceiver()
    try:
        agent = make_agent(f"monitoring.otlp_endpoint={receiver.url}").start()
        with agent.client() as client:
            job = client.run(["sh", "-c", "echo $TRACEPARENT"], env={"TRACEPARENT": "of the user"}, gpus=1)
            mine = receiver.wait_for("submit", *BELOW_SUBMIT)
        submit, run = mine["submit"], mine["run"]
        assert submit.parent_id == "" and {mine[name].parent_id for name in BELOW_SUBMIT} == {submit.span_id}
        assert job.stdout.decode().strip() == f"00-{submit.trace_id}-{run.span_id}-01"
        assert run.attributes["actorgrid.outcome"] == "succeeded" and run.attributes["actorgrid.gpus"] == 1
        order = [mine[name].began_ns for name in ("submit", "ledger commit", "placement", "grant", "run", "report")]
        assert order == sorted(order)
        before = len(receiver.spans)
        monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-00")
        told = agent.cli("run", "--", "sh", "-c", "echo $TRACEPARENT")
        assert told.stdout.strip().startswith(f"00-{TRACE}-") and told.stdout.strip().endswith("-00")
        assert len(receiver.spans) == before, "a trace that is not sampled is handed on and not told"
    finally:
        receiver.close()
