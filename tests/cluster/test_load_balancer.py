"""LoadBalancer on a real ledger: what becomes of leases."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.cluster.load_balancer import LoadBalancer
from actorgrid.actors.cluster.messages import AcquireWorker, OpenSession
from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.gpu.messages import AcquireLease
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.commands import GrantLease, RegisterHost, ReleaseLease
from actorgrid.actors.ledger.messages import Propose, Query
from actorgrid.actors.work.messages import DetachLease
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorDown
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles

HOST = {"host_id": "h", "hostname": "h", "incarnation": 1, "cpu_milli": 1000, "memory_mib": 100, "devices": []}


class LateGrants(Server):
    """A coordinator that dies after it proposed: the grant comes later."""

    name = "gpu_coordinator"

    def start(self) -> None:
        self.asked: list[AcquireLease] = []

    @handles(AcquireLease)
    def _acquire(self, request: AcquireLease) -> None:
        self.asked.append(request)
        raise ActorDown("gone")


class Releasing(Server):
    """A worker manager that releases what the ledger holds at that moment."""

    name = "worker_manager"

    def start(self) -> None:
        self.detached = 0
        self.before_answer: Any = None
        self.seq = itertools.count(1)

    @handles(DetachLease)
    async def _detach(self, request: DetachLease) -> None:
        self.detached += 1
        held = (await self.call("consensus", Query("allocations")))["allocations"]
        if request.lease_id in {record["allocation_id"] for record in held}:
            command = ReleaseLease(at=time.time(), lease_id=request.lease_id)
            await self.call("consensus", Propose(command, "manager", next(self.seq)))
        elif self.before_answer is not None:
            grant, self.before_answer = self.before_answer, None
            await self.call("consensus", Propose(grant, "coordinator", 1))


@pytest.fixture
def host(tmp_path: Path) -> HostContext:
    paths = HostPaths(tmp_path)
    paths.make()
    return HostContext(paths, Settings(), "h", "h", 1, "boot-1")


def test_a_lease_granted_while_it_is_being_given_back_is_given_back_too(host: HostContext) -> None:
    node = InlineNode()
    consensus = node.add(Consensus, host)
    register = RegisterHost(at=time.time(), host=HOST)
    node.request("consensus", Propose(register, "test", 1))
    term = node.request("consensus", Query("status"))["term"]
    coordinator, manager = node.add(LateGrants, host), node.add(Releasing, host)
    assert isinstance(coordinator, LateGrants)
    assert isinstance(manager, Releasing)
    node.add(LoadBalancer, host)
    node.settle()
    session_id = node.request("load_balancer", OpenSession("me", ""))["session_id"]
    resources = {"gpus": 0.0, "gpu_count": 0, "gpu_milli": 0, "gpu_memory_mib": 0, "cpu_milli": 100, "memory_mib": 0}

    def late_grant(lease_id: str) -> GrantLease:
        return GrantLease(
            at=time.time(),
            lease_id=lease_id,
            session_id=session_id,
            host="h",
            incarnation=1,
            gpu_indexes=[],
            resources=resources,
            pool="general",
            env={},
            term=term,
        )

    with pytest.raises(ActorDown):
        node.request("load_balancer", AcquireWorker(session_id, resources, None, {}, 1.0))
    manager.before_answer = late_grant(coordinator.asked[0].lease_id)
    node.advance(5.0)
    assert manager.detached >= 2
    assert node.request("consensus", Query("allocations"))["allocations"] == []
    consensus.stop("over")
