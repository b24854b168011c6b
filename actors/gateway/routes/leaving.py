"""Hosts that leave the cluster."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import LeaveHost
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.errors import NotFound, NotLeader, WrongState
from actorgrid.models import AnswerBody, RequestBody

ROUTES = RouteTable(Route)

MARGIN_S = 40.0
WAIT_S_MAX = 60.0


class LeaveRequest(RequestBody):
    """How a host leaves. ``now`` ends its work, which starts again elsewhere; ``force`` removes one that does not
    answer, with its work; ``cancel``: it stays after all; ``wait_s``: how long the answer may take."""

    now: bool = False
    force: bool = False
    cancel: bool = False
    wait_s: float = Field(default=0.0, ge=0, le=WAIT_S_MAX)


class LeaveAnswer(AnswerBody):
    """How far it is: draining (``waits_for`` names allocations), handing_over, left (``lost``: what was lost with
    it), or stays. Ask again to go on."""

    host_id: str
    state: str
    waits_for: list[str]
    lost: list[str]


@ROUTES.add(
    "POST",
    "/api/hosts/{id}/leave",
    LeaveAnswer,
    "cluster",
    Right.REMOVE_HOSTS,
    request=LeaveRequest,
    errors=(NotFound, WrongState, NotLeader),
)
async def post_leave(call: RequestContext) -> Any:
    """Have a host leave the cluster (id, number or name; this: the host that is asked).

    A step further each time it is asked.
    """
    wanted = call.body_as(LeaveRequest)
    request = LeaveHost(
        call.part("id"),
        "http",
        now=wanted.now,
        force=wanted.force,
        cancel=wanted.cancel,
        wait_s=wanted.wait_s,
    )
    return await call.ask("cluster_manager", request, wanted.wait_s + MARGIN_S)
