"""MIG instances of the cluster's GPUs: which there are, make one, take one away."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.mig import MigCreated, MigDestroyed, MigGpusAnswer, MigRequest
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gpu.messages import MIG_CHANGE_S, CreateMig, DestroyMig, MigGpus
from actorgrid.actors.links.messages import AskHost, AskHosts
from actorgrid.errors import BadRequest, HostError, HostUnreachable, NotFound, NotSupported, WrongState

ROUTES = RouteTable(Route)

LIST_S = 5.0
REFUSALS = (BadRequest, NotFound, WrongState, NotSupported, HostError, HostUnreachable)


@ROUTES.add("GET", "/api/mig", MigGpusAnswer, "cluster", Right.LIST_HOSTS)
async def get_mig(call: RequestContext) -> Any:
    """All GPUs that can be cut into MIG instances, with their instances and what there is room for.

    Those of hosts that answer soon.
    """
    return {"gpus": await of_all_hosts(call, MigGpus(), "mig_gpus")}


@ROUTES.add(
    "POST", "/api/hosts/{host_id}/mig", MigCreated, "cluster", Right.MANAGE_HOSTS, request=MigRequest, errors=REFUSALS
)
async def post_mig(call: RequestContext) -> Any:
    """Make a MIG instance in a GPU of a host; MIG goes on, if it is not.

    No work may be on the GPU as a whole.
    """
    wanted, host_id = call.body_as(MigRequest), call.part("host_id")
    fields = {"gpu": wanted.gpu, "profile": wanted.profile}
    made = await of_host(call, host_id, CreateMig(**fields), "mig_create", fields)
    return {"host": host_id, "gpu": wanted.gpu, "instance": made}


@ROUTES.add(
    "DELETE", "/api/hosts/{host_id}/mig/{instance}", MigDestroyed, "cluster", Right.MANAGE_HOSTS, errors=REFUSALS
)
async def delete_mig(call: RequestContext) -> Any:
    """Take away a MIG instance of a host, on which no work may be; with the last one of a GPU, MIG goes off."""
    host_id, instance = call.part("host_id"), call.part("instance")
    await of_host(call, host_id, DestroyMig(instance), "mig_destroy", {"instance": instance})
    return {"host": host_id, "instance": instance}


async def of_all_hosts(call: RequestContext, message: Any, service: str) -> list[dict[str, Any]]:
    """GPUs as the coordinators of hosts list them, each with its host."""
    own = call.app.host.host_id
    found = {own: await call.ask("gpu_coordinator", message, LIST_S)}
    others = tuple(sorted(host_id for host_id in call.app.ledger.members if host_id != own))
    if others:
        found |= await call.ask("links", AskHosts(others, service, {}, LIST_S), LIST_S + 1)
    return [{"host": host_id, **gpu} for host_id, gpus in sorted(found.items()) for gpu in gpus]


async def of_host(call: RequestContext, host_id: str, message: Any, service: str, fields: dict[str, Any]) -> Any:
    """What that host answers. Raises NotFound for one that there is not."""
    if host_id == call.app.host.host_id:
        return await call.ask("gpu_coordinator", message, MIG_CHANGE_S)
    if host_id not in call.app.ledger.members:
        raise NotFound("no host of that id", asked=host_id, hint="actorgrid hosts --json has the ids")
    return await call.ask("links", AskHost(host_id, service, fields, MIG_CHANGE_S), MIG_CHANGE_S + 1)
