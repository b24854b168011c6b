"""Schedules: work that is due at times. Written, shown, paused, run now, removed."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.core import choose_pool
from actorgrid.actors.gateway.job_requests import job_checks
from actorgrid.actors.gateway.routes.jobs import ADMISSION, recorded
from actorgrid.actors.gateway.routes.named_records import NamedRecords
from actorgrid.actors.gateway.schemas.schedules import (
    ScheduleFired,
    SchedulePut,
    ScheduleRemoved,
    ScheduleRequest,
    SchedulesAnswer,
    ScheduleView,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gpu.messages import CheckFeasible
from actorgrid.actors.jobs.due_times import check_trigger, upcoming
from actorgrid.actors.ledger.commands import PauseSchedule, PutSchedule, RemoveSchedule, RunSchedule
from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.actors.ledger.schedule_checks import NOT_SCHEDULED, is_schedule_name
from actorgrid.actors.ledger.schedule_records import ScheduleRecord, TriggerRecord
from actorgrid.errors import BadRequest, InvalidSchedule, UnknownSchedule, WrongState

ROUTES = RouteTable(Route)


def _all(call: RequestContext) -> Mapping[str, ScheduleRecord]:
    return call.app.ledger.schedules


NAMED = NamedRecords[ScheduleRecord]("schedule", "actorgrid schedule list", UnknownSchedule, is_schedule_name, _all)

FEASIBLE_S = 10.0
NEXT_SHOWN = 3
SHOWN_OF_JOB = ("kind", "name", "command", "resources", "priority", "retries_left", "max_execution_time_s", "container")


@ROUTES.add("GET", "/api/schedules", SchedulesAnswer, "schedules", Right.LIST_JOBS)
async def get_schedules(call: RequestContext) -> Any:
    """Schedules, by name."""
    return {
        "schedules": [
            _shown(record)
            for _, record in sorted(call.app.ledger.schedules.items())
            if call.scope.covers(record["user_id"])
        ]
    }


@ROUTES.add("GET", "/api/schedules/{name}", ScheduleView, "schedules", Right.LIST_JOBS, errors=(UnknownSchedule,))
async def get_schedule(call: RequestContext) -> Any:
    """One schedule."""
    return _shown(NAMED.record(call))


@ROUTES.add(
    "PUT",
    "/api/schedules/{name}",
    SchedulePut,
    "schedules",
    Right.SUBMIT_JOBS,
    request=ScheduleRequest,
    errors=(*ADMISSION, InvalidSchedule, WrongState),
)
async def put_schedule(call: RequestContext) -> Any:
    """Write a schedule: committed when this answers."""
    name, wanted = call.part("name"), call.body_as(ScheduleRequest)
    if not is_schedule_name(name):
        raise BadRequest(
            f"{name[:80]!r} cannot be the name of a schedule",
            asked=name[:80],
            hint="letters, digits, '-' and '_', at most 40: its jobs are called after it",
        )
    before = call.app.ledger.schedules.get(name)
    if before is not None and not call.scope.covers(before["user_id"]):
        raise WrongState("a schedule has that name already", asked=name, hint="take another name")
    trigger = _trigger(wanted)
    check_trigger(trigger, time())
    job_checks(wanted.job, "job.")
    check_exec(wanted.job.command if wanted.job.kind == "command" else (), wanted.job.env)
    (record,) = await recorded(call, [wanted.job])
    await call.ask("gpu_coordinator", CheckFeasible(record["resources"]), FEASIBLE_S)
    job = {each: value for each, value in record.items() if each not in (*NOT_SCHEDULED, "job_id", "user_id")}
    if not wanted.job.name and wanted.job.kind == "command":
        del job["name"]  # each run is called as the schedule is
    job["pool"] = choose_pool(record["resources"], record["pool"])
    schedule = {
        "name": name,
        "user_id": record["user_id"],
        "trigger": trigger,
        "job": job,
        "overlap": wanted.overlap,
        "missed": wanted.missed,
        "missed_max": wanted.missed_max,
        "paused": wanted.paused,
        "made_by": call.caller,
    }
    done = await call.propose(PutSchedule(schedule, wanted.replace and (before is not None or call.scope.is_all)))
    return {"unchanged": done["unchanged"], "schedule": _shown(NAMED.record(call))}


@ROUTES.add(
    "DELETE", "/api/schedules/{name}", ScheduleRemoved, "schedules", Right.STEER_JOBS, errors=(UnknownSchedule,)
)
async def delete_schedule(call: RequestContext) -> Any:
    """Remove a schedule; a run of it goes on."""
    return await NAMED.propose(call, RemoveSchedule(NAMED.name(call), call.caller))


@ROUTES.add(
    "POST", "/api/schedules/{name}/pause", ScheduleView, "schedules", Right.STEER_JOBS, errors=(UnknownSchedule,)
)
async def pause_schedule(call: RequestContext) -> Any:
    """Let nothing more of it begin."""
    await NAMED.propose(call, PauseSchedule(NAMED.name(call), True, call.caller))
    return _shown(NAMED.record(call))


@ROUTES.add(
    "POST", "/api/schedules/{name}/resume", ScheduleView, "schedules", Right.STEER_JOBS, errors=(UnknownSchedule,)
)
async def resume_schedule(call: RequestContext) -> Any:
    """Let it go on: what was due meanwhile is passed over."""
    await NAMED.propose(call, PauseSchedule(NAMED.name(call), False, call.caller))
    return _shown(NAMED.record(call))


@ROUTES.add(
    "POST",
    "/api/schedules/{name}/run",
    ScheduleFired,
    "schedules",
    Right.STEER_JOBS,
    errors=(UnknownSchedule, WrongState),
)
async def run_schedule(call: RequestContext) -> Any:
    """Run it now, as if it were due."""
    return await NAMED.propose(call, RunSchedule(NAMED.name(call), call.caller))


def _trigger(wanted: ScheduleRequest) -> TriggerRecord:
    if wanted.cron is not None:
        return {"kind": "cron", "cron": wanted.cron, "zone": wanted.time_zone}
    if wanted.every_s is not None:
        return {"kind": "every", "every_s": wanted.every_s}
    assert wanted.execute_at is not None, "the model has looked"
    return {"kind": "at", "at": max(0, int(wanted.execute_at.timestamp()))}


def _shown(record: ScheduleRecord) -> dict[str, Any]:
    trigger, problem, due = record["trigger"], None, []
    if not record["paused"]:
        try:
            due = upcoming(trigger, record["due_after"], record["counts_from"], NEXT_SHOWN)
        except InvalidSchedule as error:
            problem = str(error)
    return {
        **{name: value for name, value in record.items() if name not in ("trigger", "job")},
        "cron": trigger.get("cron"),
        "time_zone": trigger.get("zone"),
        "every_s": trigger.get("every_s"),
        "execute_at": trigger.get("at"),
        "next_due": due,
        "problem": problem,
        "job": {name: record["job"][name] for name in SHOWN_OF_JOB if record["job"].get(name) is not None},
    }
