"""What is slow, and which setting to change: findings of all hosts; settings are changed when asked, and back."""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Any

from pydantic import ValidationError

from actorgrid.access import Right
from actorgrid.actors.alerts.messages import ListTuning
from actorgrid.actors.alerts.tuning_rules import TUNING_RULES
from actorgrid.actors.cluster.messages import ChangeSetting
from actorgrid.actors.gateway.schemas.tuning import (
    FindingView,
    TuningAnswer,
    TuningChange,
    TuningChanged,
    TuningRequest,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.links.messages import AskHosts
from actorgrid.actors.replication.messages import Mutate, ReadPrefix
from actorgrid.actors.replication.namespaces import cluster_key
from actorgrid.errors import NotFound

ROUTES = RouteTable(Route)
ASK_S, ASKED_MAX, STATE_S, COMMIT_S = 2.0, 1_000, 5.0, 35.0
APPLIED = cluster_key("tuning", "applied") + "/"
FINDINGS_MAX = 1_000


@ROUTES.add("GET", "/api/tuning", TuningAnswer, "tuning", Right.SEE_FAULTS)
async def get_tuning(call: RequestContext) -> Any:
    """What is slow on which host, and which setting to change."""
    found, unheard, problems = await _found(call)
    applied = [each.model_dump() for each in await _applied(call)]
    shown = [each.model_dump() for each in found[:FINDINGS_MAX]]
    return {"findings": shown, "applied": applied, "unheard": unheard, "problems": problems}


@ROUTES.add(
    "POST",
    "/api/tuning/apply",
    TuningChanged,
    "tuning",
    Right.WRITE_SETTINGS,
    request=TuningRequest,
    errors=(NotFound,),
)
async def apply_tuning(call: RequestContext) -> Any:
    """Change the settings that findings name, on all hosts at once.

    What is changed for one is remembered, so that it can be changed back.
    """
    names = call.body_as(TuningRequest).names
    found, _, _ = await _found(call)
    _check_names(names, {each.name for each in found})
    wanted = [each for each in found if not names or each.name in names]
    changed: list[TuningChange] = []
    kept: dict[str, str] = {}
    for name in dict.fromkeys(each.name for each in wanted):
        # Settings are those of the whole cluster: of what several hosts say, the one that goes furthest.
        best = max((each for each in wanted if each.name == name), key=_reach)
        if not best.setting:
            kept[name] = f"no setting helps: {best.effect}"
        elif not best.live:
            kept[name] = (
                f"{best.setting} takes effect at the next start: write {best.to} into its file (docs/configuration.md)"
            )
        elif any(each.setting == best.setting for each in changed):
            kept[name] = f"{best.setting} was just changed for another finding"
        else:
            changed.append(await _change(call, name, best.setting, best.to))
    return {"changed": [each.model_dump() for each in changed], "kept": kept}


@ROUTES.add(
    "POST", "/api/tuning/undo", TuningChanged, "tuning", Right.WRITE_SETTINGS, request=TuningRequest, errors=(NotFound,)
)
async def undo_tuning(call: RequestContext) -> Any:
    """Change settings back to what they were before findings were applied; what somebody changed since stays."""
    names = call.body_as(TuningRequest).names
    applied = await _applied(call)
    _check_names(names, {each.name for each in applied})
    changed: list[TuningChange] = []
    kept: dict[str, str] = {}
    for each in sorted(applied, key=lambda each: -each.at):  # the last one first: two may have changed one setting
        if names and each.name not in names:
            continue
        now = call.app.settings.get(each.setting)
        if now == each.after:
            change = ChangeSetting(each.setting, each.before, by=call.caller)
            done = await call.ask("cluster_manager", change, COMMIT_S)
            told = {"before": done["previous"], "after": done["value"], "at": time(), "by": call.caller}
            changed.append(TuningChange(name=each.name, setting=each.setting, **told))
        else:
            kept[each.name] = f"{each.setting} is {now} by now, not {each.after}"
        await call.ask("distributed_state", Mutate(APPLIED + each.name, "lww_register", "delete"), STATE_S)
    return {"changed": [each.model_dump() for each in changed], "kept": kept}


async def _change(call: RequestContext, name: str, setting: str, value: Any) -> TuningChange:
    before = call.app.settings.get(setting)
    call.app.settings.check_live(setting, value)
    done = await call.ask("cluster_manager", ChangeSetting(setting, value, by=call.caller), COMMIT_S)
    first = next((each.before for each in await _applied(call) if each.name == name), before)
    made = TuningChange(name=name, setting=setting, before=first, after=done["value"], at=time(), by=call.caller)
    await call.ask("distributed_state", Mutate(APPLIED + name, "lww_register", "put", made.model_dump()), STATE_S)
    return made


def _check_names(names: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for name in names:
        if name not in known:
            raise NotFound(
                "there is no such finding now", asked=name[:64], found=", ".join(known) or "none", hint="actorgrid tune"
            )


def _reach(finding: FindingView) -> float:
    if isinstance(finding.to, int | float) and isinstance(finding.now, int | float):
        return abs(finding.to - finding.now)
    return 0.0


async def _found(call: RequestContext) -> tuple[list[FindingView], list[str], list[str]]:
    """The findings of all hosts; the hosts that did not answer; why nobody looks on some."""
    app = call.app
    here = app.host.host_id
    told: dict[str, Any] = {here: await call.ask("fault_detector", ListTuning(), ASK_S)}
    others = sorted(app.ledger.hosts.keys() & app.ledger.members.keys() - {here})[:ASKED_MAX]
    if others and app.host.enrolment is not None:
        told |= await call.ask("links", AskHosts(tuple(others), "tuning", {}, ASK_S), ASK_S + 1)
    names = {id: str(app.ledger.hosts[id]["hostname"]) for id in (here, *others) if id in app.ledger.hosts}
    found: list[FindingView] = []
    problems = []
    for host_id, report in told.items():
        rows = report.get("findings") if isinstance(report, dict) else None
        for row in rows if isinstance(rows, list) else ():
            try:
                finding = FindingView.model_validate(row)
            except ValidationError:
                continue  # of a host of another version: the others are not hidden by it
            if _SETTINGS.get(finding.name) == finding.setting:
                found.append(finding)
        problem = report.get("problem") if isinstance(report, dict) else ""
        if isinstance(problem, str) and problem:
            problems.append(f"{names.get(host_id, host_id)}: {problem[:300]}")
    return found, [names.get(id, id) for id in others if id not in told], problems


async def _applied(call: RequestContext) -> list[TuningChange]:
    rows = await call.ask("distributed_state", ReadPrefix(APPLIED, len(TUNING_RULES) + 1), STATE_S)
    found = []
    for row in rows:
        try:
            made = TuningChange.model_validate(row["value"])
        except ValidationError:
            continue
        if _SETTINGS.get(made.name) == made.setting:
            found.append(made)
    return found


_SETTINGS = {rule.name: rule.setting for rule in TUNING_RULES}
"""What another host says may change nothing but the setting that its rule has here."""
