"""Alerts of our own: what fires on which host, silences, a test."""

from __future__ import annotations

import re
import secrets
from time import time
from typing import Any

from pydantic import ValidationError

from actorgrid.access import Right
from actorgrid.actors.alerts.core import SILENCES_MAX, SilenceRecord
from actorgrid.actors.alerts.messages import ListAlerts, TestAlert
from actorgrid.actors.alerts.watch import SILENCES, silence_record
from actorgrid.actors.gateway.schemas.alerts import (
    AlertsAnswer,
    AlertTested,
    AlertView,
    SilenceRemoved,
    SilenceRequest,
    SilenceView,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.links.messages import AskHosts
from actorgrid.actors.replication.messages import Mutate, ReadPrefix
from actorgrid.errors import NotFound, QueueFull, WrongState
from actorgrid.notification_words import shown_target

ROUTES = RouteTable(Route)
ASK_S, ASKED_MAX, SHOWN_MAX = 2.0, 1_000, 1_000
STATE_S = 5.0
_SILENCE_ID = re.compile(r"[0-9a-f]{8}")


@ROUTES.add("GET", "/api/alerts", AlertsAnswer, "alerts", Right.SEE_FAULTS)
async def get_alerts(call: RequestContext) -> Any:
    """Alerts that are pending or fire, on all hosts."""
    own = await call.ask("fault_detector", ListAlerts(), ASK_S)
    here = call.app.host.host_id
    others = sorted(call.app.ledger.hosts.keys() & call.app.ledger.members.keys() - {here})[:ASKED_MAX]
    told: dict[str, Any] = {}
    if others and call.app.host.enrolment is not None:
        told = await call.ask("links", AskHosts(tuple(others), "alerts", {}, ASK_S), ASK_S + 1)
    names = {
        host_id: str(call.app.ledger.hosts[host_id]["hostname"])
        for host_id in (here, *others)
        if host_id in call.app.ledger.hosts
    }
    alerts = [*own["alerts"], *(each for report in told.values() for each in _views(report, "alerts"))]
    resolved = [*own["resolved"], *(each for report in told.values() for each in _views(report, "resolved"))]
    alerts.sort(key=lambda each: (each["state"] != "firing", each["severity"] != "critical", each["since"]))
    problems = {here: own["problem"], **{host_id: _problem(report) for host_id, report in told.items()}}
    return {
        "alerts": alerts[:SHOWN_MAX],
        "resolved": sorted(resolved, key=lambda each: -float(each["firing_since"] or 0.0))[:SHOWN_MAX],
        "silences": await _silences(call),
        "unheard": [names.get(host_id, host_id) for host_id in others if host_id not in told],
        "targets": [shown_target(each) for each in call.app.settings.alerts.targets],
        "problems": [f"{names.get(host_id, host_id)}: {text}" for host_id, text in problems.items() if text],
    }


@ROUTES.add(
    "POST",
    "/api/alerts/silences",
    SilenceView,
    "alerts",
    Right.SILENCE_ALERTS,
    request=SilenceRequest,
    errors=(QueueFull,),
    status=201,
)
async def post_silence(call: RequestContext) -> Any:
    """Have nobody told of some alerts for a while; also where nobody leads the cluster."""
    wanted = call.body_as(SilenceRequest)
    if len(await _silences(call)) >= SILENCES_MAX:
        raise QueueFull(
            "there are too many silences", found=f"{SILENCES_MAX}", hint="actorgrid alerts list; one that names more"
        )
    now = time()
    silence: SilenceRecord = {
        "silence_id": secrets.token_hex(4),
        "alert": wanted.alert,
        "host": wanted.host,
        "subject": wanted.subject,
        "until": now + wanted.for_s,
        "by": call.caller,
        "reason": wanted.reason,
        "only_firing_since": now if wanted.firing_only else 0.0,
    }
    key = SILENCES + silence["silence_id"]
    put = Mutate(key, "lww_register", "put", dict(silence), ttl_s=wanted.for_s)
    await call.ask("distributed_state", put, STATE_S)
    return silence


@ROUTES.add(
    "DELETE", "/api/alerts/silences/{silence_id}", SilenceRemoved, "alerts", Right.SILENCE_ALERTS, errors=(NotFound,)
)
async def delete_silence(call: RequestContext) -> Any:
    """End a silence."""
    silence_id = call.part("silence_id")
    if not _SILENCE_ID.fullmatch(silence_id) or silence_id not in {
        each["silence_id"] for each in await _silences(call)
    }:
        raise NotFound(f"there is no silence {silence_id[:40]}", asked=silence_id[:40], hint="actorgrid alerts list")
    await call.ask("distributed_state", Mutate(SILENCES + silence_id, "lww_register", "delete"), STATE_S)
    return {"silence_id": silence_id}


@ROUTES.add("POST", "/api/alerts/test", AlertTested, "alerts", Right.SILENCE_ALERTS, errors=(WrongState,))
async def test_alert(call: RequestContext) -> Any:
    """Send a made-up alert to who is told of alerts, from the host that is asked."""
    return await call.ask("fault_detector", TestAlert(call.caller), ASK_S)


def _views(report: Any, name: str) -> list[dict[str, Any]]:
    """The alerts of another host's report; what is none is left out, so that one host does not hide those of others."""
    rows = report.get(name) if isinstance(report, dict) else None
    found: list[dict[str, Any]] = []
    for row in rows if isinstance(rows, list) else ():
        try:
            found.append(AlertView.model_validate(row).model_dump())
        except ValidationError:
            continue
    return found


def _problem(report: Any) -> str:
    text = report.get("problem") if isinstance(report, dict) else ""
    return text[:500] if isinstance(text, str) else ""


async def _silences(call: RequestContext) -> list[SilenceRecord]:
    found = await call.ask("distributed_state", ReadPrefix(SILENCES, SILENCES_MAX), STATE_S)
    now = time()
    rows = [silence for each in found if (silence := silence_record(each["value"]))]
    return sorted((each for each in rows if each["until"] > now), key=lambda each: each["until"])
