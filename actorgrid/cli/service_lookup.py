"""What ``logs`` and ``why`` say of a service, where its name is given in place of a job's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.client.http import AdminHttp, segment
from actorgrid.errors import BadRequest, NotFound, UnknownJob

from .call import CommandContext
from .printing import say
from .session_leases import find_work
from .show import coloured, say_folded

Found = tuple[dict[str, Any] | None, list[dict[str, Any]], dict[str, Any] | None]


def find_work_or_service(http: AdminHttp, text: str) -> Found:
    """The job that a person means, or the leases of a session, or the service of that name.

    Raises UnknownJob, BadRequest.
    """
    try:
        job, leases = find_work(http, text)
    except (UnknownJob, BadRequest):
        service = _service(http, text)
        if service is None:
            raise
        return None, [], service
    if job is not None and job["job_id"] != text and (job.get("labels") or {}).get("service") == text:
        service = _service(http, text)
        if service is not None:
            return None, [], service
    return job, leases, None


def explain_service(call: CommandContext, service: dict[str, Any]) -> None:
    """``why SERVICE``."""
    told = call.http.get(f"/api/services/{segment(service['name'])}/why")
    if call.json:
        call.document(told)
        return
    say_folded(f"{told['name']} {coloured(told['state'].replace('_', ' '))}: {told['headline']}")
    for note in told["notes"]:
        say_folded(f"  {note}")
    say()
    say("  next step" if len(told["next_steps"]) == 1 else "  next steps, any of")
    for step in told["next_steps"]:
        say_folded(f"  - {step}")


def replica_logs(
    call: CommandContext, service: dict[str, Any], streams: list[str], text_of: Callable[[str, str], str]
) -> None:
    """``logs SERVICE``: of each replica, oldest first; of the last that ended where there is none. *text_of*: what a
    job wrote to a stream.
    """
    jobs = [each["job_id"] for each in service["replicas"]] or [each["job_id"] for each in service["ended"][-1:]]
    if call.json:
        told = [{"job_id": job_id, **{stream: text_of(job_id, stream) for stream in streams}} for job_id in jobs]
        call.document({"service": service["name"], "replicas": told})
        return
    if not jobs:
        say(f"{service['name']} has had no replica yet; actorgrid why {service['name']}", err=True)
    for job_id in jobs:
        say(f"==> {job_id} <==", err=True)
        for stream in streams:
            text = text_of(job_id, stream)
            if text:
                say(text.removesuffix("\n"), err=stream == "stderr")


def _service(http: AdminHttp, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = http.get(f"/api/services/{segment(name)}")
    except NotFound:
        return None  # there is none, or the host is of an earlier version
    return found
