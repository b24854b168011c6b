"""The model gateway of a simulated host: asks replicas by what its host's ledger knows, and tells the leader of it.

It decides by the real table (``route_of``), and tells what and when the real one does (``DemandNews``). A request goes
to any replica that is ready; one that is not there, or cannot be reached, is passed over, as before a first byte. What
has begun runs until it is answered, or its replica or this host is gone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from actorgrid.actors.serving.gateway_reports import DemandNews
from actorgrid.actors.serving.messages import GatewayTold
from actorgrid.actors.serving.service_tables import is_routed, route_of
from actorgrid.actors.serving.table import (
    DemandReport,
    ReplicaReport,
    ReplicaState,
    RevisionReport,
    ServiceDemand,
    encode_report,
)
from actorgrid.chaos.checkers.checker import ServedRequest

from .clock import MS, SECOND

if TYPE_CHECKING:
    from .node import SimulatedHost

ASK_US = (50 * MS, 400 * MS)
SHORT_US, LONG_US = (20 * MS, 800 * MS), (3_000 * MS, 9_000 * MS)
LONG_PART = 0.1
UNDER_WAY_MAX = 64


class SimulatedModelGateway:
    """Of one life of a host."""

    def __init__(self, node: SimulatedHost) -> None:
        self._node = node
        self._rng = node.world.rng(f"{node.name}/models{node.boots}")
        self._under_way: dict[int, ServedRequest] = {}
        self._number = 0
        self._totals: dict[tuple[str, str], list[int]] = {}
        self._last_at: dict[str, float] = {}
        self._news = DemandNews()
        node.later(self._rng.randrange(SECOND), self._tell)
        node.later(self._rng.randrange(*ASK_US), self._ask)

    def host_down(self) -> None:
        """Power off: clients see their requests break off."""
        for request in self._under_way.values():
            self._node.world.tell(lambda checker, request=request: checker.replica_let_go(request))  # type: ignore[misc]
        self._under_way.clear()

    # -- requests

    def _ask(self) -> None:
        self._node.later(self._rng.randrange(*ASK_US), self._ask)
        services = [each for _, each in sorted(self._node.ledger.services.items()) if is_routed(each)]
        if not services or not self._node.world.faults_strike or len(self._under_way) >= UNDER_WAY_MAX:
            return
        record = services[self._rng.randrange(len(services))]
        gateways = {host_id: host_id for host_id in self._node.ledger.hosts}
        route = route_of(record, gateways, self._node.host_id)
        ready = [each for each in route.replicas if each.state is ReplicaState.READY]
        self._rng.shuffle(ready)
        for replica in ready:
            attempt_id = replica.attempt.rpartition("@")[0]
            if self._reaches(replica.host, attempt_id):
                self._begin(ServedRequest(self._node.host_id, record["name"], replica.replica_id, attempt_id))
                self._totals.setdefault((record["name"], replica.revision), [0, 0])[0] += 1
                self._last_at[record["name"]] = self._node.now
                return

    def _begin(self, request: ServedRequest) -> None:
        self._number += 1
        self._under_way[self._number] = request
        self._node.world.tell(lambda checker: checker.replica_asked(request))
        lasts_us = self._rng.randrange(*(LONG_US if self._rng.random() < LONG_PART else SHORT_US))
        self._node.later(lasts_us, partial(self._end, self._number))

    def _end(self, number: int) -> None:
        request = self._under_way.pop(number)
        self._node.world.tell(lambda checker: checker.replica_let_go(request))

    def _reaches(self, host_id: str, attempt_id: str) -> bool:
        world = self._node.world
        target = world.hosts.get(int(host_id.removeprefix("host") or 0))
        passes = target is not None and all(
            world.network.passes(*pair)
            for pair in ((self._node.name, f"n{target.id}"), (f"n{target.id}", self._node.name))
        )
        return target is not None and passes and target.runs(attempt_id)

    # -- what the leader is told

    def _tell(self) -> None:
        self._node.later(SECOND, self._tell)
        services, leader = self._node.ledger.services, self._node.leader
        if not services or not leader:
            return
        demands = tuple(self._demand(name) for name in sorted(services) if is_routed(services[name]))
        if self._news.is_due(self._node.monotonic, demands, services.values()):
            told = GatewayTold(self._node.host_id, encode_report(DemandReport(0, demands)))
            self._node.world.network.send(self._node.name, f"n{leader}", told)

    def _demand(self, service: str) -> ServiceDemand:
        busy: dict[tuple[str, str], int] = {}
        for request in self._under_way.values():
            if request.service == service:
                key = request.job_id, request.attempt_id
                busy[key] = busy.get(key, 0) + 1
        counts = {revision: each for (name, revision), each in self._totals.items() if name == service}
        return ServiceDemand(
            service,
            in_flight=sum(busy.values()),
            held=0,
            oldest_held_s=0.0,
            requests_total=sum(each[0] for each in counts.values()),
            errors_total=0,
            last_request_at=self._last_at.get(service, 0.0),
            replicas=tuple(
                ReplicaReport(job, attempt, count, count, 0, False) for (job, attempt), count in busy.items()
            ),
            revisions=tuple(
                RevisionReport(name, each[0], each[1], 0.0, 0.0) for name, each in list(counts.items())[-8:]
            ),
        )
