"""Spans of an attempt on its host: its start, its run, and that its end was told to the ledger.

They are told when the ledger shows the end, from its record and from what the shim noted. Of an attempt that ended
while no agent was here there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time

from actorgrid.supervisors.span_sender import Attribute, SpanFacts, SpanSender
from actorgrid.trace_context import VARIABLE, TraceContext, read_traceparent

from ..ledger.attempt_ids import number_of
from ..ledger.messages import Applied
from ..ledger.record_types import AttemptRecord, GangMemberRecord, JobRecord
from .work_records import WorkStatus

RUN = "run"


def trace_variable(job: JobRecord, attempt_id: str, *, traced: bool) -> dict[str, str]:
    """The variable that has the work go on with the trace of its job; *traced*: its ``run`` is a span of that."""
    of_job = read_traceparent(job.get("traceparent"))
    if of_job is None:
        return {}
    return {VARIABLE: (of_job.below(RUN, attempt_id) if traced else of_job).to_text()}


class AttemptSpans:
    """Of host *host_id*. *status_of* reads what an attempt's shim noted."""

    def __init__(self, spans: SpanSender, host_id: str, status_of: Callable[[str], WorkStatus | None]) -> None:
        self._spans = spans
        self._host_id = host_id
        self._status_of = status_of

    def applied(self, message: Applied) -> None:
        """Tell of the attempts of this host that end with this change of the ledger."""
        over = {identity for kind, identity, record in message.changes if kind == "allocation" and record is None}
        for kind, _identity, record in message.changes:
            if kind != "job" or record is None or not record.get("traceparent"):
                continue
            of_job = read_traceparent(record["traceparent"])
            for attempt in record["attempts"][-1:]:
                for part in attempt.get("members", (attempt,)):
                    if of_job is not None and part["host"] == self._host_id and part["allocation_id"] in over:
                        self._tell(record, of_job, attempt, part)

    def _tell(
        self, job: JobRecord, of_job: TraceContext, attempt: AttemptRecord, part: AttemptRecord | GangMemberRecord
    ) -> None:
        attempt_id = part["allocation_id"]
        status = self._status_of(attempt_id) or {}
        started, told = part["started_at"], part["ended_at"]
        began = status.get("started_at") or started
        ended = status.get("ended_at") or told or time()
        about: dict[str, Attribute] = {
            "actorgrid.job.id": job["job_id"],
            "actorgrid.attempt.id": attempt_id,
            "actorgrid.attempt": number_of(attempt_id) or 1,
            "host.id": self._host_id,
        }
        if began is not None:
            built: dict[str, Attribute] = {"actorgrid.environment": job["environment"]} if "environment" in job else {}
            self._send("start", of_job, attempt_id, attempt["placed_at"], began, {**about, **built})
            outcome: dict[str, Attribute] = {
                "actorgrid.outcome": part["state"],
                "actorgrid.gpus": len(part["gpu_uuids"]),
            }
            if part["exit_code"] is not None:
                outcome["process.exit.code"] = part["exit_code"]
            why = "" if part["error"] is None else part["error"].get("message", "")
            failed = str(why or part["state"]) if part["state"] != "succeeded" else ""
            self._send(RUN, of_job, attempt_id, began, ended, {**about, **outcome}, failed)
        self._send("report", of_job, attempt_id, ended, time(), about)

    def _send(
        self,
        name: str,
        of_job: TraceContext,
        attempt_id: str,
        began: float,
        ended: float,
        about: dict[str, Attribute],
        error: str = "",
    ) -> None:
        place = of_job.below(name, attempt_id)
        self._spans.send(SpanFacts(name, place, of_job.span_id, began, ended, about, error))
