"""Services: servers that are kept running, as many as are wanted. Written, shown, scaled, exchanged, removed."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any, cast

from actorgrid.access import Right
from actorgrid.actors.cluster.core import choose_pool
from actorgrid.actors.gateway.job_requests import job_checks
from actorgrid.actors.gateway.routes.jobs import ADMISSION, recorded
from actorgrid.actors.gateway.routes.named_records import NamedRecords
from actorgrid.actors.gateway.schemas.services import (
    ServicePut,
    ServiceRemoval,
    ServiceRemoved,
    ServiceRequest,
    ServicesAnswer,
    ServiceScale,
    ServiceView,
    ServiceWhy,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gpu.messages import CheckFeasible
from actorgrid.actors.ledger.commands import PutService, RemoveService, RollBackService, ScaleService
from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.actors.ledger.record_checks import JOB_CHECKS
from actorgrid.actors.ledger.service_checks import NOT_SERVED, is_service_name
from actorgrid.actors.ledger.service_records import (
    USUAL_ROUTING,
    RoutingRecord,
    ServiceRecord,
    ServiceRevisionRecord,
    ServiceScaleRecord,
    ServingRecord,
    goal_of,
    revision_in,
)
from actorgrid.actors.serving.why_service import explain_service, state_of
from actorgrid.errors import BadRequest, UnknownService, WrongState
from actorgrid.service_presets import PRESETS
from actorgrid.supervisors.envelope import GetStatus
from actorgrid.working_dir import VARIABLE

ROUTES = RouteTable(Route)


def _all(call: RequestContext) -> Mapping[str, ServiceRecord]:
    return call.app.ledger.services


NAMED = NamedRecords[ServiceRecord]("service", "actorgrid services", UnknownService, is_service_name, _all)

FEASIBLE_S = 10.0
STATUS_S = 2.0
SHOWN_OF_JOB = ("kind", "name", "command", "resources", "priority", "container", "cwd")
_ALWAYS = ("submitted_at", "user_id", "job_id")
START_TIMEOUT_S, IDLE_S, DRAIN_S, CONCURRENCY = 600.0, 900.0, 120.0, 16


@ROUTES.add("GET", "/api/services", ServicesAnswer, "services", Right.LIST_JOBS)
async def get_services(call: RequestContext) -> Any:
    """Services, by name."""
    services = [
        _shown(record) for _, record in sorted(call.app.ledger.services.items()) if call.scope.covers(record["user_id"])
    ]
    status = await call.ask("gateway", GetStatus(), STATUS_S)
    return {"services": services, "url": status.get("models_url", "")}


@ROUTES.add("GET", "/api/services/{name}", ServiceView, "services", Right.LIST_JOBS, errors=(UnknownService,))
async def get_service(call: RequestContext) -> Any:
    """One service."""
    return _shown(NAMED.record(call))


@ROUTES.add("GET", "/api/services/{name}/why", ServiceWhy, "services", Right.LIST_JOBS, errors=(UnknownService,))
async def why_service(call: RequestContext) -> Any:
    """Why a service is as it is."""
    record = NAMED.record(call)
    return {"name": record["name"], "state": state_of(record), **explain_service(record, time())._asdict()}


@ROUTES.add(
    "PUT",
    "/api/services/{name}",
    ServicePut,
    "services",
    Right.SUBMIT_JOBS,
    request=ServiceRequest,
    errors=(*ADMISSION, WrongState),
)
async def put_service(call: RequestContext) -> Any:
    """Write a service: committed when this answers. What it runs is exchanged only with ``replace``."""
    name, wanted = call.part("name"), call.body_as(ServiceRequest)
    if not is_service_name(name):
        raise BadRequest(
            f"{name[:80]!r} cannot be the name of a service",
            asked=name[:80],
            hint="letters, digits, '.', '-' and '_', at most 40: its replicas are called after it",
        )
    before = call.app.ledger.services.get(name)
    if before is not None and not call.scope.covers(before["user_id"]):
        raise WrongState("a service has that name already", asked=name, hint="take another name")
    last = None if before is None else revision_in(before, goal_of(before))
    job_checks(wanted.job, "job.")
    check_exec(wanted.job.command if wanted.job.kind == "command" else (), wanted.job.env)
    (record,) = await recorded(call, [wanted.job])
    job: dict[str, Any] = {each: value for each, value in record.items() if each not in (*NOT_SERVED, *_ALWAYS)}
    if not wanted.job.name and wanted.job.kind == "command":
        del job["name"]  # each replica is called as the service is
    _keep(wanted, job, last)
    await call.ask("gpu_coordinator", CheckFeasible(job["resources"]), FEASIBLE_S)
    job["pool"] = choose_pool(job["resources"], job["pool"])
    service = {
        "name": name,
        "user_id": record["user_id"],
        "made_by": call.caller,
        "job": job,
        "serving": _serving(wanted, None if last is None else last["serving"]),
        "scale": _scale(wanted, None if before is None else before["scale"]),
    }
    known = None if before is None else before.get("routing")
    routing = _routing(wanted, known or USUAL_ROUTING)
    if known is not None or routing != USUAL_ROUTING:
        service["routing"] = routing
    # What our copy of the ledger does not know yet may be somebody else's: that is not exchanged.
    replace = wanted.replace and (before is not None or call.scope.is_all)
    done = await NAMED.propose(call, PutService(service, replace, wanted.canary, wanted.canary_s))
    return {"unchanged": done["unchanged"], "service": _shown(NAMED.record(call))}


@ROUTES.add(
    "POST",
    "/api/services/{name}/scale",
    ServiceView,
    "services",
    Right.STEER_JOBS,
    request=ServiceScale,
    errors=(UnknownService,),
)
async def scale_service(call: RequestContext) -> Any:
    """Say how many replicas there are to be."""
    wanted = call.body_as(ServiceScale)
    await NAMED.propose(call, ScaleService(NAMED.name(call), wanted.replicas_min, wanted.replicas_max, call.caller))
    return _shown(NAMED.record(call))


@ROUTES.add(
    "POST",
    "/api/services/{name}/rollback",
    ServiceView,
    "services",
    Right.STEER_JOBS,
    errors=(UnknownService, WrongState),
)
async def roll_back_service(call: RequestContext) -> Any:
    """Give up the exchange that goes on, or else go back to what served before."""
    await NAMED.propose(call, RollBackService(NAMED.name(call), call.caller))
    return _shown(NAMED.record(call))


@ROUTES.add(
    "DELETE",
    "/api/services/{name}",
    ServiceRemoved,
    "services",
    Right.STEER_JOBS,
    query=ServiceRemoval,
    errors=(UnknownService,),
)
async def delete_service(call: RequestContext) -> Any:
    """Remove a service: replicas that answer get no more requests, and end once they have finished what they have."""
    at_once = call.query_as(ServiceRemoval).now
    return await NAMED.propose(call, RemoveService(NAMED.name(call), call.caller, at_once))


def _keep(wanted: ServiceRequest, job: dict[str, Any], last: ServiceRevisionRecord | None) -> None:
    """Put the fields into *job* that are to be as they were. Raises BadRequest."""
    if not wanted.keep:
        return
    if last is None:
        raise BadRequest("there is nothing of before to keep", asked=", ".join(wanted.keep)[:200])
    own_directory = job["env"].get(VARIABLE)
    for field in wanted.keep:
        if field not in JOB_CHECKS and field != "resources":
            raise BadRequest(f"a job has no field {field[:40]!r}", asked=field[:40])
        if field in last["job"]:
            job[field] = last["job"][field]
        else:
            job.pop(field, None)
    # A directory that was sent is an archive and a variable that says so: they stay, or go, together.
    kept = (last["job"].get("env") or {}).get(VARIABLE)
    directory = kept if "payload_digest" in wanted.keep else own_directory
    plain = {name: value for name, value in (job.get("env") or {}).items() if name != VARIABLE}
    job["env"] = plain if directory is None else {**plain, VARIABLE: directory}


def _serving(wanted: ServiceRequest, before: ServingRecord | None) -> dict[str, Any]:
    preset = wanted.preset if wanted.preset is not None else "" if before is None else before["preset"]
    protocol = wanted.protocol or ("openai" if before is None else before["protocol"])
    live_path = PRESETS[preset].live_path if preset else "/v1/models" if protocol == "openai" else "/"
    usual: ServingRecord = {
        "protocol": protocol,
        "model": "",
        "ready_path": "" if protocol == "openai" else (wanted.live_path or "/"),
        "ready_body": "",
        "live_path": live_path if protocol == "openai" or wanted.ready_body else (wanted.ready_path or live_path),
        "start_timeout_s": START_TIMEOUT_S,
        "preset": preset,
    }
    given: dict[str, Any] = {**usual, **(before or {}), "preset": preset, "protocol": protocol}
    for field in ("model", "ready_path", "ready_body", "live_path"):
        value = getattr(wanted, field)
        if value is not None:
            given[field] = value
    given["live_path"] = given["live_path"] or live_path
    if wanted.start_timeout_s is not None:
        given["start_timeout_s"] = wanted.start_timeout_s
    if protocol == "http" and not given["ready_path"]:
        given["ready_path"] = "/"  # only of OpenAI's servers it is known what to ask
    return {**given, "start_timeout_s": float(given["start_timeout_s"])}


def _scale(wanted: ServiceRequest, before: ServiceScaleRecord | None) -> dict[str, Any]:
    least, most = wanted.replicas_min, wanted.replicas_max
    usual = {"concurrency": CONCURRENCY, "idle_s": IDLE_S, "drain_s": DRAIN_S, "strategy": "auto"}
    scale: dict[str, Any] = {"min": 1, "max": 1, **usual, **(before or {})}
    if least is not None:
        scale |= {"min": least, "max": max(scale["max"], least)}
    if most is not None:
        scale |= {"max": most, "min": min(scale["min"], most) if least is None else least}
    if scale["min"] > scale["max"]:
        raise BadRequest("no more replicas at least than at most", asked=f"{scale['min']}:{scale['max']}")
    for field in ("concurrency", "strategy"):
        if getattr(wanted, field) is not None:
            scale[field] = getattr(wanted, field)
    for field in ("idle_s", "drain_s"):
        if getattr(wanted, field) is not None:
            scale[field] = float(getattr(wanted, field))
    return scale


def _routing(wanted: ServiceRequest, before: RoutingRecord) -> RoutingRecord:
    routing: RoutingRecord = {**before}
    if wanted.route is not None:
        routing["strategy"] = wanted.route
    if wanted.affinity_header is not None:
        routing["affinity_header"] = wanted.affinity_header.lower()
    if wanted.adapters is not None:
        routing["adapters"] = [
            {"model": each.model, "served_as": each.served_as or each.model} for each in wanted.adapters
        ]
    if wanted.fallbacks is not None:
        routing["fallbacks"] = list(wanted.fallbacks)
    return routing


def _shown(record: ServiceRecord) -> dict[str, Any]:
    scale, routing = record["scale"], record.get("routing") or USUAL_ROUTING
    own = ("name", "user_id", "made_by", "made_at", "target", "revision", "rollout", "problem", "ended")
    fields = cast("dict[str, Any]", record)
    return {
        **{field: fields[field] for field in own},
        "last_rollout": record.get("last_rollout", ""),
        "state": state_of(record),
        "route": routing["strategy"],
        **{field: value for field, value in routing.items() if field != "strategy"},
        "ready": sum(each["state"] == "ready" for each in record["replicas"]),
        "replicas_min": scale["min"],
        "replicas_max": scale["max"],
        **{field: value for field, value in scale.items() if field not in ("min", "max")},
        "replicas": [
            {field: value for field, value in each.items() if field not in ("attempt_id", "token")}
            for each in record["replicas"]
        ],
        "revisions": [
            {
                **{field: value for field, value in each.items() if field != "job"},
                "job": {field: each["job"][field] for field in SHOWN_OF_JOB if each["job"].get(field) is not None},
            }
            for each in record["revisions"]
        ],
    }
