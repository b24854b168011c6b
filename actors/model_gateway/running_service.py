"""A service in one gateway process: its route, its router, how its replicas do, and what is held for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Protocol

from actorgrid.actors.serving.prefix_index import PrefixIndex
from actorgrid.actors.serving.routing import Assignment, PromptHead, ReplicaRouter
from actorgrid.actors.serving.table import (
    ReplicaEndpoint,
    ReplicaReport,
    ReplicaState,
    RevisionReport,
    ServiceDemand,
    ServiceRoute,
)

from .replica_health import ReplicaCondition, RetryBudget

LATENCIES_MAX = 1_000
WANT_AGAIN_S = 1.0
REVISIONS_MAX = 8
"""Of these figures are kept, the last used ones."""


class HeldRequest(Protocol):
    """A request that waits for a replica."""

    held_since: float
    held_bytes: int

    def try_again(self) -> None:
        """There may be a replica now."""


class RevisionOutcomes:
    """How a revision did since the process began."""

    def __init__(self) -> None:
        self.requests_total = self.failures_total = 0
        self.first_bytes_s: deque[float] = deque(maxlen=LATENCIES_MAX)

    def percentile(self, share: float) -> float:
        """Of the times to the first byte, in seconds."""
        ranked = sorted(self.first_bytes_s)
        return ranked[min(len(ranked) - 1, int(len(ranked) * share))] if ranked else 0.0


class RunningService:
    """One service."""

    def __init__(self, route: ServiceRoute) -> None:
        self.route = route
        self.index = PrefixIndex()
        self.router = ReplicaRouter(route.strategy, self.index)
        self.conditions: dict[str, ReplicaCondition] = {}
        self.retries = RetryBudget()
        self.held: OrderedDict[int, HeldRequest] = OrderedDict()
        self.held_bytes = 0
        self.in_flight = 0
        self.requests_total = self.errors_total = self.aborted_total = self.retries_total = 0
        self.last_request_at = 0.0
        self._wanted_at: float | None = None
        self.revisions: OrderedDict[str, RevisionOutcomes] = OrderedDict()
        self.use(route)

    def use(self, route: ServiceRoute) -> None:
        """Take *route* for what it is from now on."""
        self.route = route
        self.router.use(route.strategy, route.replicas, route.revisions)
        attempts = self.attempts = {each.attempt for each in route.replicas}
        self.index.keep(attempts)
        self.conditions = {
            attempt: condition
            for attempt, condition in self.conditions.items()
            if attempt in attempts or condition.in_flight
        }

    def condition_of(self, endpoint: ReplicaEndpoint) -> ReplicaCondition:
        """How that replica does."""
        found = self.conditions.get(endpoint.attempt)
        if found is None:
            found = self.conditions[endpoint.attempt] = ReplicaCondition(endpoint.attempt)
        return found

    def revision(self, name: str) -> RevisionOutcomes:
        """The figures of that revision."""
        found = self.revisions.get(name)
        if found is None:
            found = self.revisions[name] = RevisionOutcomes()
            while len(self.revisions) > REVISIONS_MAX:
                self.revisions.popitem(last=False)
        return found

    def choose(
        self, prompt: PromptHead, now: float, draw: Callable[[int], int], avoid: Collection[str]
    ) -> Assignment | None:
        """A replica for a request, counted there from now on."""
        shunned: set[str] = set()
        conditions = self.conditions
        for each in self.route.replicas:
            condition = conditions.get(each.attempt)
            if condition is None or (condition.ejected_until is None and not condition.in_flight):
                continue  # which is what they are, nearly always
            if condition.is_ejected(now) or condition.is_silent(now):
                shunned.add(each.replica_id)
        found = self.router.choose(prompt, now, draw, avoid, shunned)
        if found is not None:
            self.condition_of(found.replica).began(now)
        return found

    def release(self, assignment: Assignment, now: float) -> None:
        """Give back what a request counts for, once."""
        if not assignment.is_released:
            self.router.release(assignment, now)
            self.condition_of(assignment.replica).ended()

    @property
    def may_hold(self) -> bool:
        """Whether a replica is to come."""
        return self.route.scales_from_zero or any(each.state is ReplicaState.STARTING for each in self.route.replicas)

    @property
    def has_ready(self) -> bool:
        """Whether a replica is there."""
        return any(each.state is ReplicaState.READY for each in self.route.replicas)

    def want(self, now: float, wake: Callable[[str], None]) -> None:
        """Tell that it is asked for and has no replica, once a second while another model answers in its place."""
        if self._wanted_at is None or now - self._wanted_at >= WANT_AGAIN_S:
            self._wanted_at = now
            wake(self.route.name)

    def let_go(self) -> None:
        """Have those that wait try again, the oldest first."""
        for number, held in list(self.held.items()):
            if number in self.held:
                held.try_again()

    def demand(self, now: float) -> ServiceDemand:
        """What is asked of it."""
        oldest = next(iter(self.held.values()), None)
        return ServiceDemand(
            service=self.route.name,
            in_flight=self.in_flight,
            held=len(self.held),
            oldest_held_s=0.0 if oldest is None else max(0.0, now - oldest.held_since),
            requests_total=self.requests_total,
            errors_total=self.errors_total,
            last_request_at=self.last_request_at,
            replicas=tuple(
                ReplicaReport(
                    each.replica_id,
                    each.attempt,
                    condition.in_flight,
                    condition.requests_total,
                    condition.failures_total,
                    condition.is_ejected(now),
                )
                for each in self.route.replicas
                if (condition := self.conditions.get(each.attempt)) is not None
            ),
            revisions=tuple(
                RevisionReport(
                    name, each.requests_total, each.failures_total, each.percentile(0.5), each.percentile(0.99)
                )
                for name, each in self.revisions.items()
            ),
        )
