"""The model gateway of a simulated host: asks replicas by what its host's ledger knows, and tells the leader of it.

It decides by the real table (``route_of``), and tells what and when the real one does (``DemandNews``). A request goes
to any replica that is ready; one that is not there, or cannot be reached, is passed over, as before a first byte. What
has begun runs until it is answered, or its replica or this host is gone. Where none is ready and one is to come, it is
held, and the leader told at once. What follows demand is asked for in bursts, by all gateways at the same times.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from actorgrid.actors.ledger.service_records import ServiceRecord
from actorgrid.actors.serving.gateway_reports import DemandNews
from actorgrid.actors.serving.messages import GatewayTold, ServiceWanted
from actorgrid.actors.serving.service_tables import is_routed, route_of
from actorgrid.actors.serving.table import (
    DemandReport,
    ReplicaReport,
    ReplicaState,
    RevisionReport,
    ServiceDemand,
    ServiceRoute,
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
BURST_US, QUIET_US = (8 * SECOND, 20 * SECOND), (90 * SECOND, 130 * SECOND)
HELD_LOOK_US = 100 * MS


class SimulatedModelGateway:
    """Of one life of a host."""

    def __init__(self, node: SimulatedHost) -> None:
        self._node = node
        self._rng = node.world.rng(f"{node.name}/models{node.boots}")
        self._under_way: dict[int, ServedRequest] = {}
        self._number = 0
        self._totals: dict[tuple[str, str], list[int]] = {}
        self._last_at: dict[str, float] = {}
        self._held: dict[str, list[float]] = {}
        self._news = DemandNews()
        node.later(self._rng.randrange(SECOND), self._tell)
        node.later(self._rng.randrange(*ASK_US), self._ask)

    def host_down(self) -> None:
        """Power off: clients see their requests break off."""
        for request in self._under_way.values():
            self._node.world.tell(lambda checker, request=request: checker.replica_let_go(request))  # type: ignore[misc]
        self._under_way.clear()
        self._held.clear()

    @property
    def held(self) -> list[str]:
        """The services that requests wait for here."""
        return sorted(self._held)

    # -- requests

    def _ask(self) -> None:
        self._node.later(self._rng.randrange(*ASK_US), self._ask)
        records = sorted(self._node.ledger.services.items())
        services = [each for _, each in records if is_routed(each) and self._is_asked_for(each)]
        if not services or not self._node.world.faults_strike or len(self._under_way) >= UNDER_WAY_MAX:
            return
        record = services[self._rng.randrange(len(services))]
        route = self._route(record)
        if self._begin_at_one_of(route):
            self._last_at[record["name"]] = self._node.now
        elif route.scales_from_zero and _has_none(route):
            self._hold(route)

    def _is_asked_for(self, record: ServiceRecord) -> bool:
        """Whether clients ask for it now: for one whose number does not follow that, always."""
        if record["scale"]["min"] == record["scale"]["max"]:
            return True
        world = self._node.world
        rng = world.rng(f"bursts of {record['name']}")
        burst_us, quiet_us = rng.randrange(*BURST_US), rng.randrange(*QUIET_US)
        return world.now_us % (burst_us + quiet_us) < burst_us

    def _route(self, record: ServiceRecord) -> ServiceRoute:
        gateways = {host_id: host_id for host_id in self._node.ledger.hosts}
        return route_of(record, gateways, self._node.host_id)

    def _begin_at_one_of(self, route: ServiceRoute) -> bool:
        ready = [each for each in route.replicas if each.state is ReplicaState.READY]
        self._rng.shuffle(ready)
        for replica in ready:
            attempt_id = replica.attempt.rpartition("@")[0]
            if self._reaches(replica.host, attempt_id):
                self._begin(ServedRequest(self._node.host_id, route.name, replica.replica_id, attempt_id))
                self._totals.setdefault((route.name, replica.revision), [0, 0])[0] += 1
                return True
        return False

    # -- requests that are held

    def _hold(self, route: ServiceRoute) -> None:
        waiting = self._held.setdefault(route.name, [])
        if len(waiting) < min(route.limits.held_max, UNDER_WAY_MAX):
            waiting.append(self._node.now)
        self._last_at[route.name] = self._node.now
        if len(waiting) == 1:
            if leader := self._node.leader:  # if it is not told now, it is by the next report
                wanted = ServiceWanted(self._node.host_id, route.name)
                self._node.world.network.send(self._node.name, f"n{leader}", wanted)
            self._node.later(HELD_LOOK_US, partial(self._look_at_held, route.name))

    def _look_at_held(self, name: str) -> None:
        """Send what is held to a replica that is there by now; refuse it where none is to come."""
        record, waiting = self._node.ledger.services.get(name), self._held.get(name)
        route = None if record is None else self._route(record)
        while waiting and route is not None and self._begin_at_one_of(route):
            waiting.pop(0)
        if not waiting or route is None or (_has_none(route) and not route.scales_from_zero):
            self._held.pop(name, None)
        else:
            self._node.later(HELD_LOOK_US, partial(self._look_at_held, name))

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
        held = self._held.get(service, [])
        counts = {revision: each for (name, revision), each in self._totals.items() if name == service}
        return ServiceDemand(
            service,
            in_flight=sum(busy.values()),
            held=len(held),
            oldest_held_s=self._node.now - held[0] if held else 0.0,
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


def _has_none(route: ServiceRoute) -> bool:
    return all(each.state is not ReplicaState.READY for each in route.replicas)
