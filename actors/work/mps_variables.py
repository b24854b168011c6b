"""What work that has a share of a GPU is told of MPS: where its daemon is, and how much it may have of the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from actorgrid.actors.ledger.record_types import AllocationRecord
from actorgrid.actors.ledger.records import DEVICE_MILLI
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..gpu.messages import JoinMps

ASK_S = 50.0
"""The device may have to be listed first, one daemon to end, and another to start: 8, 15 and 10 s at most."""
ASKED_TIMES = 3
AGAIN_S = 1.0
NO_MPS: Mapping[str, str] = {}
IN_CONTAINER = "it runs in a container; without one, on a whole GPU or on a MIG instance it is held to what it has"
IN_GANG = "members of a gang share memory with the host, and one that has a uid of its own would with its daemon"


def may_join(server: Server, allocation: AllocationRecord) -> bool:
    """Whether work with that grant is to be put under MPS, where its device can be."""
    is_share = len(allocation["gpu_uuids"]) == 1 and 0 < allocation["gpu_milli"] < DEVICE_MILLI
    return bool(server.host.settings.gpus.mps and is_share)


async def mps_variables(
    server: Server, allocation: AllocationRecord, uid: int = 0, *, why_not: str = ""
) -> dict[str, str]:
    """The variables by which CUDA holds work to its share; none where it runs without MPS.

    *uid*: the uid of its own that it has. *why_not*: why it cannot. Who does not get an answer goes without, and has
    that told as soon as somebody listens.
    """
    if not may_join(server, allocation):
        return {}
    request = JoinMps(
        allocation["allocation_id"], allocation["gpu_uuids"][0], allocation.get("user_id", "local"), why_not, uid
    )
    pipe = await _ask(server, request)
    if pipe is None:
        server.spawn(_tell(server, replace(request, why_not="nobody answered")))
    return share_variables(pipe, allocation["gpu_milli"], allocation["gpu_memory_mib"]) if pipe else {}


def share_variables(pipe: str, gpu_milli: int, gpu_memory_mib: int) -> dict[str, str]:
    """Those of a share of so many thousandths, with so much memory; 0: as much as there is.

    The daemon sees the one GPU, so that its number is 0 whatever place it has on the host. Percentages are whole, and
    never more than what was granted, but one at least.
    """
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, gpu_milli * 100 // DEVICE_MILLI)),
    }
    if gpu_memory_mib:
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={gpu_memory_mib}M"
    return variables


async def _ask(server: Server, request: JoinMps) -> str | None:
    for _ in range(ASKED_TIMES):
        try:
            return str(await server.call("gpu_coordinator", request, ASK_S))
        except ActorGridError as error:
            server.log.info("whether %s runs under MPS is not known: %s", request.work_id, error)
        await server.sleep(AGAIN_S)
    return None


async def _tell(server: Server, request: JoinMps) -> None:
    while await _ask(server, request) is None:
        await server.sleep(AGAIN_S)
