"""Looking into the host's servers over HTTP, and holding one still: the supervision tree, states, traces.

What changes a server (suspend, resume, trace) is logged with who asked for it. Two kinds of servers are not suspended:
the gateway, which could not answer the request that resumes it, and supervisors, which would let the deadlines of
starts and stops pass and put off an ordered stop of the host.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic, time
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.fault_detector import EXPECTED
from actorgrid.actors.gateway.schemas.answers import (
    CodeTaken,
    InspectAnswer,
    Inspected,
    Suspended,
    SuspendRequest,
    TraceAnswer,
    TraceRequest,
    TraceSet,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.tree import ANSWER_S, ROOT, TreeChild, TreeWalk, find, note_starts, plain
from actorgrid.actors.work.messages import ListAttempts
from actorgrid.errors import ActorGridError, NoSuchActor, NotFound, NotSupported, WrongState
from actorgrid.supervisors.code_change import ChangeCode
from actorgrid.supervisors.inspection import GetState, GetTrace, Inspect, Resume, SetTrace, Suspend
from actorgrid.supervisors.ref import Ref

ROUTES = RouteTable(Route)

CODE_S = 10.0
"""For a change of code, whose own limit is less."""

log = logging.getLogger("actorgrid.gateway")


@ROUTES.add("GET", "/api/inspect", InspectAnswer, "inspect", Right.SEE_SERVERS)
async def get_inspect(call: RequestContext) -> Any:
    """The supervision tree, and how each process is.

    With what each process says of itself, and the attempts under way.
    """
    walk = TreeWalk(call.app.bridge, everyone=True)
    root = await walk.run()
    nodes = list(root.walk())
    by_name = {node.name: node for node in reversed(nodes)}  # the first of a name wins, as it is the highest
    names = (ROOT, *EXPECTED)
    attempts, statuses, _ = await asyncio.gather(
        _attempts(call, by_name.get("worker_manager")),
        asyncio.gather(*(_status(call, name, by_name.get(name)) for name in names)),
        call.app.in_pool(lambda: note_starts(nodes)),
    )
    return {
        "at": time(),
        "tree": root.whole(),
        "truncated": walk.truncated,
        "servers": dict(zip(names, statuses, strict=True)),
        "attempts": attempts,
    }


async def _status(call: RequestContext, name: str, node: TreeChild | None) -> dict[str, Any]:
    """What a server of the host says of itself, or why it does not."""
    error: ActorGridError | None
    if node is None:  # its supervisor did not answer: asked by its name
        try:
            return dict((await _told(call, name))["status"])
        except ActorGridError as failure:
            error = failure
    elif node.inspect is not None:
        return dict(node.inspect["status"])
    else:
        error = node.error or _no_process(node)
    return {"error": error.to_dict()}


async def _told(call: RequestContext, to: str | Ref) -> dict[str, Any]:
    """The answer of a server about itself, as plain values."""
    return dict(plain(await call.ask(to, Inspect(), ANSWER_S)))


async def _attempts(call: RequestContext, manager: TreeChild | None) -> list[dict[str, Any]]:
    """The attempts, if their manager takes questions now: one that is suspended would hold ours."""
    if manager is not None and (manager.inspect is None or manager.inspect["state"] != "running"):
        return []
    try:
        found: list[dict[str, Any]] = await call.ask("worker_manager", ListAttempts(), ANSWER_S)
    except ActorGridError:
        return []  # its own status says so
    return found


@ROUTES.add("GET", "/api/inspect/{name}", Inspected, "inspect", Right.HOLD_SERVERS, errors=(NotFound,))
async def get_inspect_server(call: RequestContext) -> Any:
    """One server: its supervisor's word, its own, and its state."""
    node = await find(call.app.bridge, call.part("name"))
    ref = node.ref
    attributes: dict[str, str] | None = None
    if ref is None:
        node.error = node.error or _no_process(node)
    else:
        node.error = None
        try:
            node.inspect, attributes = await asyncio.gather(_told(call, ref), call.ask(ref, GetState(), ANSWER_S))
        except ActorGridError as error:  # one that hangs is what one looks at most
            node.error = error
    await call.app.in_pool(lambda: note_starts([node]))
    return {**node.alone(), "attributes": attributes}


@ROUTES.add("GET", "/api/inspect/{name}/trace", TraceAnswer, "inspect", Right.HOLD_SERVERS, errors=(NotFound,))
async def get_inspect_trace(call: RequestContext) -> Any:
    """The last messages of a traced server.

    Those that it took and those that it sent, the oldest first.
    """
    node = await find(call.app.bridge, call.part("name"))
    ref = _process_of(node)
    told, events = await asyncio.gather(_told(call, ref), call.ask(ref, GetTrace(), ANSWER_S))
    # All processes of a host share the clock that servers stamp their events with.
    zero = time() - monotonic()
    return {
        "name": node.name,
        "traced": told["traced"],
        "events": [{**event, "at": zero + event["at"], "clock_s": event["at"]} for event in events],
    }


@ROUTES.add(
    "POST",
    "/api/inspect/{name}/trace",
    TraceSet,
    "inspect",
    Right.HOLD_SERVERS,
    request=TraceRequest,
    errors=(NotFound,),
)
async def post_inspect_trace(call: RequestContext) -> Any:
    """Keep the last messages of a server; 0 ends it."""
    order = SetTrace(call.body_as(TraceRequest).events)
    node = await find(call.app.bridge, call.part("name"))
    await call.ask(_process_of(node), order, ANSWER_S)
    _note(call, node, f"is traced, {order.events} events" if order.events else "is traced no more")
    return {"name": node.name, "events": order.events}


@ROUTES.add(
    "POST",
    "/api/inspect/{name}/suspend",
    Suspended,
    "inspect",
    Right.HOLD_SERVERS,
    request=SuspendRequest,
    errors=(NotFound, NotSupported),
)
async def post_suspend(call: RequestContext) -> Any:
    """Have a server handle nothing for a while."""
    order = Suspend(call.body_as(SuspendRequest).for_s)
    node = await find(call.app.bridge, call.part("name"))
    ref = _process_of(node)
    _check_may_stand_still(call, node)
    await call.ask(ref, order, ANSWER_S)
    _note(call, node, f"is suspended for at most {order.for_s:g} s")
    return {"name": node.name, "state": "suspended", "until": time() + order.for_s}


@ROUTES.add("POST", "/api/inspect/{name}/resume", Suspended, "inspect", Right.HOLD_SERVERS, errors=(NotFound,))
async def post_resume(call: RequestContext) -> Any:
    """Have a suspended server go on.

    Harmless when it was not suspended.
    """
    node = await find(call.app.bridge, call.part("name"))
    await call.ask(_process_of(node), Resume(), ANSWER_S)
    _note(call, node, "is resumed")
    return {"name": node.name, "state": "running", "until": None}


@ROUTES.add(
    "POST",
    "/api/inspect/{name}/code",
    CodeTaken,
    "inspect",
    Right.MANAGE_HOSTS,
    errors=(NotFound, NotSupported, WrongState),
)
async def post_code(call: RequestContext) -> Any:
    """Have a server take over the code that is installed on its host now, and keep its state.

    If that fails, or takes too long, it is as it was.
    """
    node = await find(call.app.bridge, call.part("name"))
    ref = _process_of(node)
    if ref == call.app.bridge.me or node.type == "supervisor":
        raise NotSupported(
            f"{node.name} takes over no code while it runs",
            asked=f"new code for {node.name}",
            found="the gateway" if ref == call.app.bridge.me else "a supervisor",
            hint="actorgrid restart: the host's work goes on meanwhile",
        )
    changed = await call.ask(ref, ChangeCode(), CODE_S)
    _note(call, node, f"has version {changed.new_version!r} of its code in place of {changed.old_version!r}")
    return {
        "name": node.name,
        "module": changed.module,
        "old_version": changed.old_version,
        "new_version": changed.new_version,
    }


def _check_may_stand_still(call: RequestContext, node: TreeChild) -> None:
    """Refuse to suspend the gateway and supervisors. Raises NotSupported."""
    if node.ref == call.app.bridge.me:
        raise NotSupported(
            "the gateway is not suspended from here",
            asked=f"suspend {node.name}",
            found="it serves this request, and could not answer the one that resumes it",
            hint=f"a trace shows what it does: actorgrid inspect {node.name} --trace 100",
        )
    if node.type == "supervisor":
        children = ", ".join(child.name for child in node.children[:5])
        raise NotSupported(
            f"{node.name} is a supervisor, and those are not suspended from here",
            asked=f"suspend {node.name}",
            found="deadlines of its children's starts and stops would not be kept, and an ordered stop would wait",
            hint=f"suspend one of its children: {children}" if children else "it has no children",
        )


def _process_of(node: TreeChild) -> Ref:
    if node.ref is None:
        raise node.error or _no_process(node)
    return node.ref


def _no_process(node: TreeChild) -> NoSuchActor:
    last = node.last_exit
    return NoSuchActor(
        f"{node.name} has no process now: it is {node.state}",
        found=f"its last one ended: {last['reason']}" if last else "",
        hint="ask again in a moment" if node.state != "down" else "its supervisor does not start it again by itself",
    )


def _note(call: RequestContext, node: TreeChild, what: str) -> None:
    log.warning("%s (pid %s) %s; asked over http from %s", node.name, node.pid, what, call.http.remote)
