"""What work has held and used on all hosts: GPU-seconds, device memory, energy, CPU; by user, job, device or label; and
what served models used: requests and tokens, by key, user, tenant, service or model."""

from __future__ import annotations

from difflib import get_close_matches
from time import time
from typing import TYPE_CHECKING, Any

from pydantic import Field

from actorgrid.access import Right, tenant_of
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.links.messages import AskHosts
from actorgrid.actors.work.messages import ReadWorkUsage
from actorgrid.actors.work.usage_rows import GROUPS, OTHERS, ROWS_MAX, UsageRow, merged, row_from
from actorgrid.errors import BadRequest, NotFound
from actorgrid.models import AnswerBody, RequestBody

if TYPE_CHECKING:
    from actorgrid.actors.model_gateway.usage_store import ModelUsageRow

ROUTES = RouteTable(Route)

READ_S = 20.0
OF_LABEL = "label:"
BY_NAME = ("user", "tenant")
"""By what a tenant's operators may ask of all its users: whose each row is, its key says."""
MODEL_GROUPS = ("model", "key", "user", "tenant", "service", "host")


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


@ROUTES.add("GET", "/api/usage", WorkUsageAnswer, "cluster", Right.READ_USAGE, query=WorkUsageQuery, errors=(NotFound,))
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
    user = query.user if call.scope.user is None else call.scope.user
    if user and not call.scope.covers(user):
        raise NotFound("no user of that name is known", asked=user[:80])
    if call.scope.tenant is not None and not user and query.by not in BY_NAME:
        raise BadRequest(
            "of a tenant, usage is told by user and tenant, or of one user by whatever it is",
            asked=f"by={query.by}",
            hint="name the user: actorgrid usage --by job --user NAME",
        )
    here, ledger = call.app.host.host_id, call.app.ledger
    by = "user" if query.by == "tenant" else query.by  # a user's name says the tenant
    found = {here: await call.ask("worker_manager", ReadWorkUsage(by, since, user), READ_S)}
    others = tuple(host_id for host_id in ledger.members if host_id != here)
    if others:
        asked = {"by": by, "since": since, "user_id": user}
        found |= await call.ask("links", AskHosts(others, "usage", asked, READ_S), READ_S + 1)
    told = {host_id: answer for host_id, answer in found.items() if isinstance(answer, dict)}
    rows = [
        row
        for answer in told.values()
        for each in _listed(answer.get("rows"))[:ROWS_MAX]
        if (row := row_from(each)) is not None
    ]
    if by == "user":
        rows = [row for row in rows if call.scope.covers(row["key"])]
    if query.by == "tenant":
        rows = [_of_tenant(row) for row in rows]
    kept = [at for answer in told.values() if isinstance(at := answer.get("kept_since"), float) and 0 < at < 2**53]
    return {
        "by": query.by,
        "since": since or None,
        "rows": merged(rows),
        "missing_hosts": sorted(set(others) - told.keys()),
        "kept_since": max(kept, default=None),
    }


def _of_tenant(row: UsageRow) -> UsageRow:
    """A user's *row* as one of the tenant."""
    return row if row["key"] == OTHERS else {**row, "key": tenant_of(row["key"])}


class ModelUsageQuery(RequestBody):
    """By what, of which time, whose."""

    by: str = Field(default="model", max_length=20, description=", ".join(MODEL_GROUPS))
    since_s: float | None = Field(default=None, gt=0, le=1e10, description="of the last seconds, by whole hours")
    user: str = Field(default="", max_length=128, description="of one user's keys alone")


class ModelUsageView(AnswerBody):
    """What one group used of served models, streams that were broken off included."""

    key: str = Field(description="the id of an API key, or the name of what it is by; '': without a key")
    name: str = Field(description="what that API key is called; ''")
    user: str = Field(description="whose all of it was; '': nobody's, or several users'")
    requests: int
    aborted: int = Field(description="requests that clients or replicas broke off")
    prompt_tokens: int
    cached_tokens: int = Field(description="of these, the ones that a replica's cache had")
    completion_tokens: int
    estimated_tokens: int = Field(description="of both, the ones that no answer told of")


class ModelUsageAnswer(AnswerBody):
    """Rows with most tokens first."""

    by: str
    since: float | None = Field(description="the whole hour from which on it is counted; null: since ever")
    rows: list[ModelUsageView]
    missing_hosts: list[str] = Field(description="hosts that did not answer: what they know is not in the rows")
    kept_since: float | None = Field(description="older usage is not known any more; null: all is")


@ROUTES.add(
    "GET",
    "/api/usage/models",
    ModelUsageAnswer,
    "cluster",
    Right.READ_USAGE,
    query=ModelUsageQuery,
    errors=(NotFound,),
)
async def get_model_usage(call: RequestContext) -> Any:
    """What served models used: requests and tokens by key, user, tenant, service, model or host."""
    from actorgrid.actors.model_gateway.process_spec import FOLDER
    from actorgrid.actors.model_gateway.usage_store import HOUR_S, merged_usage, read_usage_rows, usage_row_from

    query, scope = call.query_as(ModelUsageQuery), call.scope
    if query.by not in MODEL_GROUPS:
        raise BadRequest(
            "usage of models is not known by that",
            asked=query.by,
            found=", ".join(MODEL_GROUPS),
            hint="actorgrid usage --models --by key",
        )
    since = 0.0 if query.since_s is None else max(0.0, time() - query.since_s)
    user = query.user if scope.user is None else scope.user
    if user and not scope.covers(user):
        raise NotFound("no user of that name is known", asked=user[:80])
    here, tenant, by = call.app.host.host_id, scope.tenant or "", "all" if query.by == "host" else query.by
    folder = call.app.host.paths.data_dir / FOLDER
    rows, kept = await call.app.in_pool(lambda: read_usage_rows(folder, by, since, user, tenant))
    told: dict[str, Any] = {here: {"rows": rows, "kept_since": kept}}
    others = tuple(host_id for host_id in call.app.ledger.members if host_id != here)
    if others:
        asked = {"by": by, "since": since, "user_id": user, "tenant": tenant}
        found = await call.ask("links", AskHosts(others, "model_usage", asked, READ_S), READ_S + 1)
        told |= {host_id: answer for host_id, answer in found.items() if isinstance(answer, dict)}
    taken: list[ModelUsageRow] = []
    for host_id, answer in told.items():
        for each in _listed(answer.get("rows"))[:ROWS_MAX]:
            row = usage_row_from(each)
            if row is not None:
                taken.append({**row, "key": host_id} if query.by == "host" else row)
    times = [at for answer in told.values() if isinstance(at := answer.get("kept_since"), float) and 0 < at < 2**53]
    return {
        "by": query.by,
        "since": since // HOUR_S * HOUR_S or None,
        "rows": [
            {**row, "name": _name_of(call, row["key"]) if query.by == "key" else ""} for row in merged_usage(taken)
        ],
        "missing_hosts": sorted(set(others) - told.keys()),
        "kept_since": max(times, default=None),
    }


def _name_of(call: RequestContext, key_id: str) -> str:
    record = call.app.ledger.api_keys.get(key_id)
    return "" if record is None else record.get("name", "")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # a member may send anything
