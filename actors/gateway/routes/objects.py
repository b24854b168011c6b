"""What lies in the object stores of the hosts: how much, whose it is, which values are the largest."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from actorgrid.access import Right
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.record_types import NO_HOST, HostRecord
from actorgrid.actors.links.messages import AskHosts
from actorgrid.actors.work.messages import ReportObjects
from actorgrid.models import AnswerBody, RequestBody

ROUTES = RouteTable(Route)

REPORT_S = 5.0
SHOWN, SHOWN_MAX = 100, 1000


class ObjectsQuery(RequestBody):
    """How many values are listed of each host, the largest first."""

    limit: int = Field(default=SHOWN, ge=0, le=SHOWN_MAX)


class KeptObject(AnswerBody):
    """One value. *where*: memory or disk; *references*: how many keep it; *readers*: processes that read it now."""

    id: str
    bytes: int
    where: str
    state: str
    references: int
    readers: int


class SessionObjects(AnswerBody):
    """What one session has on a host. *home*: the host of its client, and *pid* its process there."""

    user: str
    session: str
    pid: int
    home: str
    count: int
    bytes: int
    memory_bytes: int
    disk_bytes: int
    processes: int
    objects: list[KeptObject]


class HostObjects(AnswerBody):
    """The object store of one host: its bounds, and whose values it has."""

    host: str
    hostname: str
    store: str
    memory_bytes_max: int
    disk_bytes_max: int
    figures: dict[str, int]
    sessions: list[SessionObjects]


class ObjectsAnswer(AnswerBody):
    """The hosts that answered and have a store. One starts with the first session of its host."""

    hosts: list[HostObjects]


@ROUTES.add("GET", "/api/objects", ObjectsAnswer, "cluster", Right.LIST_LEASES, query=ObjectsQuery)
async def get_objects(call: RequestContext) -> Any:
    """Values in the hosts' object stores, by session; the largest of each host one by one."""
    limit = call.query_as(ObjectsQuery).limit
    here, ledger = call.app.host.host_id, call.app.ledger
    found = {here: await call.ask("worker_manager", ReportObjects(limit), REPORT_S)}
    others = tuple(host_id for host_id in ledger.members if host_id != here)
    if others:
        found |= await call.ask("links", AskHosts(others, "objects", {"limit": limit}, REPORT_S), REPORT_S + 1)
    if not call.scope.is_all:
        found = {host_id: _in_reach(call, report) for host_id, report in found.items()}
    shown = (_shown(host_id, ledger.hosts.get(host_id, NO_HOST), report) for host_id, report in found.items())
    return {"hosts": [each for each in shown if each is not None]}


def _in_reach(call: RequestContext, report: Any) -> Any:
    """What a host said, with the sessions alone that are of users in reach."""
    if not isinstance(report, dict) or not isinstance(report.get("spaces"), list):
        return report
    spaces = [
        each for each in report["spaces"] if isinstance(each, dict) and call.scope.covers(str(each.get("user") or ""))
    ]
    return {**report, "spaces": spaces}


def _shown(host_id: str, host: HostRecord, report: Any) -> dict[str, Any] | None:
    """What a host said of its store; ``None`` where it has none, or is of a version that says something else."""
    match report:
        case {
            "store": str(store),
            "limits": {"memory_bytes": memory_bytes, "disk_bytes": disk_bytes},
            "figures": figures,
            "spaces": spaces,
        }:
            said = {
                "host": host_id,
                "hostname": host.get("hostname") or host_id,
                "store": store,
                "memory_bytes_max": memory_bytes,
                "disk_bytes_max": disk_bytes,
                "figures": figures,
                "sessions": spaces,
            }
            try:
                return HostObjects.model_validate(said).model_dump()
            except ValidationError:
                return None
    return None
