"""Quotas: what each user may hold at once, and holds."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import ChangeQuota
from actorgrid.actors.gateway.schemas.answers import QuotaRequest, QuotasAnswer, QuotaSet
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.record_types import QuotaRecord
from actorgrid.errors import BadRequest, NotFound

ROUTES = RouteTable(Route)

COMMIT_TIMEOUT_S = 35.0
USER_MAX = 128
EVERYBODY = "*"
"""The user of the quota that all have who have none of their own."""


@ROUTES.add("GET", "/api/quotas", QuotasAnswer, "quotas", Right.READ_QUOTAS)
async def get_quotas(call: RequestContext) -> Any:
    """Users: what limits apply, what they use."""
    rows = (await call.ask("consensus", Query("quotas"), 10.0))["quotas"]
    rows = [row for row in rows if row["user"] == EVERYBODY or call.scope.covers(row["user"])]
    return {"quotas": [{**row, "limits": _shown(row["limits"]), "used": _shown(row["used"])} for row in rows]}


@ROUTES.add(
    "PUT", "/api/quotas/{user:.+}", QuotaSet, "quotas", Right.WRITE_QUOTAS, request=QuotaRequest, errors=(BadRequest,)
)
async def put_quota(call: RequestContext) -> Any:
    """Hold a user to limits; the user * is everyone without a quota of one's own."""
    wanted = call.body_as(QuotaRequest)
    limits: QuotaRecord = {
        "gpu_milli": _milli(wanted.gpus),
        "gpu_memory_mib": _mib(wanted.gpu_memory_bytes),
        "cpu_milli": _milli(wanted.cpus),
        "memory_mib": _mib(wanted.memory_bytes),
        "jobs_waiting": wanted.jobs_waiting,
    }
    return await _set(call, limits)


@ROUTES.add("DELETE", "/api/quotas/{user:.+}", QuotaSet, "quotas", Right.WRITE_QUOTAS, errors=(NotFound,))
async def delete_quota(call: RequestContext) -> Any:
    """Take a user's own quota away."""
    return await _set(call, None)


async def _set(call: RequestContext, limits: QuotaRecord | None) -> dict[str, Any]:
    user = call.part("user")
    if len(user) > USER_MAX or not user.isprintable():
        raise BadRequest(
            "not the name of a user", asked=user[:100], hint=f"at most {USER_MAX} letters that can be printed"
        )
    answer = await call.ask("cluster_manager", ChangeQuota(user, limits, by="http"), COMMIT_TIMEOUT_S)
    return {"user": user, "limits": _shown(answer["limits"]), "previous": _shown(answer["previous"])}


def _shown(amounts: QuotaRecord | None) -> dict[str, Any] | None:
    """The ledger's amounts in the units of requests."""
    if amounts is None:
        return None
    return {
        "gpus": _units(amounts["gpu_milli"]),
        "gpu_memory_bytes": _bytes(amounts["gpu_memory_mib"]),
        "cpus": _units(amounts["cpu_milli"]),
        "memory_bytes": _bytes(amounts["memory_mib"]),
        "jobs_waiting": amounts["jobs_waiting"],
    }


def _milli(units: float | None) -> int | None:
    return None if units is None else round(units * 1000)


def _mib(size: int | None) -> int | None:
    # Down to whole MiB: never more than was said.
    return None if size is None else size // 2**20


def _units(milli: int | None) -> float | None:
    return None if milli is None else milli / 1000


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * 2**20
