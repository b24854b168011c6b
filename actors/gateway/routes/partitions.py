"""Partitions of AMD's GPUs: how each is cut; cut one otherwise."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.routes.mig import REFUSALS, of_all_hosts, of_host
from actorgrid.actors.gateway.schemas.partitions import PartitionRequest, PartitionsAnswer, PartitionSet
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gpu.messages import AmdGpus, SetAmdPartition

ROUTES = RouteTable(Route)


@ROUTES.add("GET", "/api/partitions", PartitionsAnswer, "cluster", Right.LIST_HOSTS)
async def get_partitions(call: RequestContext) -> Any:
    """All GPUs of AMD's that can be cut, with their parts.

    Those of hosts that answer soon.
    """
    return {"gpus": await of_all_hosts(call, AmdGpus(), "amd_gpus")}


@ROUTES.add(
    "POST",
    "/api/hosts/{host_id}/partitions",
    PartitionSet,
    "cluster",
    Right.MANAGE_HOSTS,
    request=PartitionRequest,
    errors=REFUSALS,
)
async def post_partition(call: RequestContext) -> Any:
    """Have a GPU of AMD's be cut by another mode; no work may be on any part of it."""
    wanted, host_id = call.body_as(PartitionRequest), call.part("host_id")
    fields = {"gpu": wanted.gpu, "change": wanted.change, "mode": wanted.mode}
    await of_host(call, host_id, SetAmdPartition(**fields), "set_amd_partition", fields)
    return {"host": host_id, "gpu": wanted.gpu, "mode": wanted.mode}
