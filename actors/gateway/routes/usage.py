"""What work has held and used on all hosts: GPU-seconds, device memory, energy, CPU; by user, job, device or label."""

from __future__ import annotations

from difflib import get_close_matches
from time import time
from typing import Any

from pydantic import Field

from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.links.messages import AskHosts
from actorgrid.actors.work.messages import ReadWorkUsage
from actorgrid.actors.work.usage_rows import GROUPS, ROWS_MAX, merged, row_from
from actorgrid.errors import BadRequest
from actorgrid.models import AnswerBody, RequestBody

ROUTES = RouteTable(Route)

READ_S = 20.0
OF_LABEL = "label:"


class WorkUsageQuery(RequestBody):
    """By what, of which time, whose."""

    by: str = Field(default="user", max_length=200, description=f"{', '.join(GROUPS)}, or label:KEY")
    since_s: float | None = Field(default=None, gt=0, le=1e10, description="of the last seconds; else since ever")
    user: str = Field(default="", max_length=128, description="of one user's work alone")


class WorkUsageRow(AnswerBody):
    """What all work of one group used; null is not known."""

    key: str
    works: int = Field(description="attempts, members of gangs and sessions' leases")
    running: int = Field(description="those of them that are not over")
    held_s: float
    gpu_s: float = Field(description="GPU-seconds: a second of half a device is half of one")
    simulated_gpu_s: float = Field(description="how much of that was of simulated devices")
    models: dict[str, float] = Field(description="GPU-seconds by the devices' model")
    memory_mib_s: float | None = Field(description="device memory in use times seconds")
    memory_of_gpu_s: float = Field(description="for how many of the GPU-seconds it is known")
    memory_high_mib: int | None = Field(description="the most memory of one device")
    energy_j: float | None = Field(description="joules")
    energy_of_gpu_s: float = Field(description="for how many of the GPU-seconds they are known")
    energy_estimated_s: float = Field(description="device-seconds of them known by power, not by a counter")
    unsampled_s: float = Field(description="device-seconds that no sample covers")
    core_s: float = Field(description="CPU that was granted: core-seconds")
    cpu_s: float | None = Field(description="CPU that was used")
    max_rss_bytes: int | None
    incomplete: int = Field(description="works of which a part is missing: no agent was there at their end")


class WorkUsageAnswer(AnswerBody):
    """Rows with most GPU-seconds first, and from when on each piece of work is known by itself."""

    by: str
    since: float | None
    rows: list[WorkUsageRow]
    missing_hosts: list[str] = Field(description="hosts that did not answer: what they know is not in the rows")
    kept_since: float | None = Field(description="by what but users, older work is not known any more; null: all is")


@ROUTES.add("GET", "/api/usage", WorkUsageAnswer, "cluster", query=WorkUsageQuery)
async def get_usage(call: RequestContext) -> Any:
    """What work has held and used: GPU-seconds, device memory, energy, CPU."""
    query = call.query_as(WorkUsageQuery)
    if query.by not in GROUPS and not (query.by.startswith(OF_LABEL) and len(query.by) > len(OF_LABEL)):
        near = get_close_matches(query.by, GROUPS, n=1)
        raise BadRequest(
            "usage is not known by that",
            asked=query.by,
            found=f"{', '.join(GROUPS)}, {OF_LABEL}KEY",
            hint=f"did you mean {near[0]}?" if near else "actorgrid usage --by user",
        )
    since = 0.0 if query.since_s is None else max(0.0, time() - query.since_s)
    user = call.only or query.user
    here, ledger = call.app.host.host_id, call.app.ledger
    found = {here: await call.ask("worker_manager", ReadWorkUsage(query.by, since, user), READ_S)}
    others = tuple(host_id for host_id in ledger.members if host_id != here)
    if others:
        asked = {"by": query.by, "since": since, "user_id": user}
        found |= await call.ask("links", AskHosts(others, "usage", asked, READ_S), READ_S + 1)
    told = {host_id: answer for host_id, answer in found.items() if isinstance(answer, dict)}
    rows = [
        row
        for answer in told.values()
        for each in _listed(answer.get("rows"))[:ROWS_MAX]
        if (row := row_from(each)) is not None
    ]
    kept = [at for answer in told.values() if isinstance(at := answer.get("kept_since"), float) and 0 < at < 2**53]
    return {
        "by": query.by,
        "since": since or None,
        "rows": merged(rows),
        "missing_hosts": sorted(set(others) - told.keys()),
        "kept_since": max(kept, default=None),
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # a member may send anything
