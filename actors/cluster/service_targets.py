"""ServiceTargets: a balancer for each service, and who has what in flight there. Decisions only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from actorgrid.balancing.core import Balancer
from actorgrid.balancing.load_history import LoadSample
from actorgrid.balancing.policies import Draw
from actorgrid.balancing.targets import RouteTarget, RoutingChoice, RoutingRequest
from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import NotFound, Overloaded

MAX_SERVICES = 1024
MAX_NAME_CHARS = 256


class ServiceTargets:
    """The services that servers of this host route for, ``MAX_SERVICES`` at most."""

    def __init__(self) -> None:
        self._services: dict[str, Balancer] = {}
        self._held: dict[str, Counter[tuple[str, str]]] = {}  # by who asked: of service and target, what has not ended

    def __len__(self) -> int:
        return len(self._services)

    def set_targets(self, service: str, targets: Iterable[RouteTarget], policy: BalancingPolicy) -> None:
        """Take *targets* for all of a service, none to forget it. Raises BadRequest, Overloaded."""
        found = list(targets)
        if not found:
            self._services.pop(service, None)
            return
        known = self._services.get(service)
        if known is None:
            if len(self._services) >= MAX_SERVICES or len(service) > MAX_NAME_CHARS:
                raise Overloaded(
                    "no further service is routed for", found=f"{len(self._services)} services", hint="forget some"
                )
            known = Balancer(policy)
        known.set_targets(found)
        known.policy = policy
        self._services[service] = known

    def heard(self, hosts: Mapping[str, LoadSample], unreachable: frozenset[str], service: str) -> None:
        """Take what is known of the load of hosts, before a choice."""
        balancer = self._services.get(service)
        if balancer is None:
            return
        balancer.unreachable = unreachable
        for host in {target.host for target in balancer.targets.values()} & hosts.keys():
            balancer.heard(host, hosts[host].load, hosts[host].at)

    def select(
        self,
        caller: str,
        service: str,
        request: RoutingRequest,
        policy: BalancingPolicy | None,
        now: float,
        draw: Draw,
    ) -> RoutingChoice:
        """Choose, and count it as sent by *caller*. Raises NotFound, NoSuitableTarget."""
        balancer = self._services.get(service)
        if balancer is None:
            raise NotFound("no targets of that service", asked=service[:80], hint="tell them with SetTargets first")
        choice = balancer.choose(request, now, draw, policy)
        balancer.began(choice.target.id, now)
        self._held.setdefault(caller, Counter())[service, choice.target.id] += 1
        return choice

    def ended(self, caller: str, service: str, target_id: str, now: float) -> None:
        """Count a request of *caller* as ended; harmless when it has none there."""
        held = self._held.get(caller)
        if held is None or held[service, target_id] <= 0:
            return
        held[service, target_id] -= 1
        if not held[service, target_id]:
            del held[service, target_id]
        balancer = self._services.get(service)
        if balancer is not None:
            balancer.ended(target_id, now)

    def forget_caller(self, caller: str, now: float) -> None:
        """Count all that *caller* sent as ended: it has started again, and knows of none."""
        for (service, target_id), count in self._held.pop(caller, Counter()).items():
            balancer = self._services.get(service)
            for _ in range(count if balancer is not None else 0):
                assert balancer is not None
                balancer.ended(target_id, now)

    def in_flight(self) -> dict[str, dict[str, int]]:
        """By service and target, what has not ended."""
        return {
            service: {id: balancer.in_flight(id) for id in sorted(balancer.targets)}
            for service, balancer in sorted(self._services.items())
        }
