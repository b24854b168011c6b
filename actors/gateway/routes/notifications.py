"""Notifications of jobs: those that wait or were given up; forgotten, and tried."""

from __future__ import annotations

import secrets
from time import time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import NoticeStates
from actorgrid.actors.gateway.job_notices import check_targets, notice_view
from actorgrid.actors.gateway.schemas.notifications import (
    ClearNoticesRequest,
    NoticesAnswer,
    NoticesCleared,
    NoticesQuery,
    TargetTested,
    TestTarget,
)
from actorgrid.actors.gateway.server.rights import check_job
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.commands import ClearNotices
from actorgrid.actors.links.messages import AskLeader
from actorgrid.actors.notifications.destinations import OperatorFile, read_operator_file
from actorgrid.actors.notifications.outgoing import OutgoingMessage
from actorgrid.actors.notifications.sending import operator_file, send
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    KeyExposed,
    MalformedConfig,
    TargetNotAllowed,
    UnknownTarget,
)
from actorgrid.notification_words import shown_target, target_fault

ROUTES = RouteTable(Route)
STATES_S = 2.0
OF_TARGETS = (UnknownTarget, TargetNotAllowed, KeyExposed, MalformedConfig)


@ROUTES.add("GET", "/api/notifications", NoticesAnswer, "notifications", Right.LIST_NOTICES, query=NoticesQuery)
async def get_notifications(call: RequestContext) -> Any:
    """Notifications that wait to be sent, or were given up."""
    job_id = call.query_as(NoticesQuery).job_id
    records = [
        each
        for each in call.app.ledger.notices.values()
        if job_id in ("", each["job_id"]) and call.scope.covers(each["user_id"])
    ]
    states: dict[str, Any] = {}
    if any(record["failed_at"] is None for record in records):
        try:
            if call.app.ledger.leads:
                states = await call.ask("cluster_manager", NoticeStates(), STATES_S)
            else:
                states = await call.ask("links", AskLeader("notice_states", {}, STATES_S), STATES_S + 1)
        except ActorGridError:  # nobody leads just now: what waits, waits
            states = {}
    path = operator_file(call.app.settings.notifications, call.app.host.paths.data_dir)

    def read() -> tuple[OperatorFile, str]:
        try:
            return read_operator_file(path), ""
        except ActorGridError as error:
            return OperatorFile(), error.message

    operator, problem = await call.app.in_pool(read)
    return {
        "notifications": [notice_view(record, states.get(record["notice_id"])) for record in records],
        "waiting": sum(record["failed_at"] is None for record in records),
        "failed": sum(record["failed_at"] is not None for record in records),
        "targets": sorted(operator.named),
        "mail": bool(operator.mail_command),
        "problem": problem,
    }


@ROUTES.add(
    "POST",
    "/api/notifications/clear",
    NoticesCleared,
    "notifications",
    Right.CLEAR_NOTICES,
    request=ClearNoticesRequest,
)
async def clear_notifications(call: RequestContext) -> Any:
    """Forget notifications that were given up."""
    job_id = call.body_as(ClearNoticesRequest).job_id
    if not call.scope.is_all:
        if not job_id:
            raise BadRequest("those of which job are to be forgotten?", hint="actorgrid notifications clear JOB")
        await check_job(call, job_id)
    return await call.propose(ClearNotices(job_id, call.caller))


@ROUTES.add(
    "POST",
    "/api/notifications/test",
    TargetTested,
    "notifications",
    Right.TEST_TARGETS,
    request=TestTarget,
    errors=OF_TARGETS,
    waits=True,
)
async def test_target(call: RequestContext) -> Any:
    """Send one message to a target, from the host that is asked, and tell what became of it."""
    target = call.body_as(TestTarget).target
    fault = target_fault(target)
    if fault:
        raise BadRequest(fault, asked=target[:80])
    settings, paths = call.app.settings.notifications, call.app.host.paths
    text = f"{call.app.settings.cluster.name}: this is a test of notifications"
    message = OutgoingMessage(f"test.{secrets.token_hex(8)}", "test", time(), text, {"asked_by": call.caller})
    await call.app.in_pool(lambda: check_targets(call.app, [target]))
    path = operator_file(settings, paths.data_dir)
    result = await call.app.in_pool(lambda: send(target, message, settings, path, call.app.host.hostname))
    return {"target": shown_target(target), "sent": not result.reason, "failure": result.reason}
