"""Strategies: which of the steps that could begin gets room, and where.

An allocator is told of a graph once (``prepare``) and then, whenever something has changed, which steps could begin
(``allocate``): it claims room for those that are to. It decides nothing else, so that it may be somebody else's: an
installed package offers one by an entry point of the group ``actorgrid.allocators``, a class or a function that gives
an :class:`Allocator`. Names that ship cannot be taken over.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from actorgrid.errors import UnknownPolicy

from .hosts import HostCapacity, ResourceTracker
from .model import Graph
from .plan import GraphPlan, lane_counts, plan_by_lanes
from .ranks import BANDWIDTH, PlannedGraph, upward_ranks

GROUP = "actorgrid.allocators"
DEFAULT = "time_optimized"
LATE_PART = 0.1
"""A step that its lane keeps waiting for longer than this part of its runtime goes wherever there is room."""


@runtime_checkable
class Allocator(Protocol):
    """What decides which step begins where."""

    by_plan: bool
    """Whether it goes by its plan alone, and on a cluster is not asked again: steps are then tried first where ``hint``
    says, in the order of their urgency."""
    holds_back: bool
    """Whether a step that it claims no room for is to wait, although the cluster's queue would take it."""

    def prepare(self, graph: Graph, tracker: ResourceTracker) -> Sequence[float] | None:
        """Look at a whole *graph* before anything of it begins; gives the urgency of each step (the higher goes first),
        or ``None``: first come, first served."""

    def allocate(self, ready: Sequence[int], tracker: ResourceTracker, now_s: float) -> None:
        """Claim room (``tracker.claim``) for those of *ready* that are to begin now; the most urgent stand first.

        *now_s* are seconds since the graph began. Of many that are ready, some hundred are shown at a time.
        """

    def hint(self, step: int) -> str:
        """The host that *step* would best run on, before there is room anywhere; empty: no opinion."""


class _Choosing:
    """An allocator that looks at one step after the other, the most urgent first, and never waits."""

    name = ""
    by_plan = False
    holds_back = False

    def prepare(self, graph: Graph, tracker: ResourceTracker) -> Sequence[float] | None:
        """As in Allocator."""
        return None

    def allocate(self, ready: Sequence[int], tracker: ResourceTracker, now_s: float) -> None:
        """As in Allocator."""
        for step in ready:
            found = self.choose(step, tracker.room_for(step), tracker, now_s)
            if found:
                tracker.claim(step, found)

    def hint(self, step: int) -> str:
        """As in Allocator."""
        return ""

    def choose(self, step: int, hosts: Sequence[HostCapacity], tracker: ResourceTracker, now_s: float) -> str:
        """One of *hosts*, which have room, or ``""``: it waits."""
        raise NotImplementedError


class FirstAvailable(_Choosing):
    """First come, first served, each on the first host that has room."""

    name = "first_available"

    def choose(self, step: int, hosts: Sequence[HostCapacity], tracker: ResourceTracker, now_s: float) -> str:
        """As in the class it is of."""
        return hosts[0].name if hosts else ""


class LoadBalanced(_Choosing):
    """Each step on the host of which the least is in use."""

    name = "load_balanced"

    def choose(self, step: int, hosts: Sequence[HostCapacity], tracker: ResourceTracker, now_s: float) -> str:
        """As in the class it is of."""
        return min(hosts, key=lambda host: tracker.load(host.name)).name if hosts else ""


class LeastCommunication(_Choosing):
    """Each step on the host that holds most of what it takes; where nothing is held, on the fullest that has room, so
    that what belongs together comes to lie together."""

    name = "least_communication"

    def choose(self, step: int, hosts: Sequence[HostCapacity], tracker: ResourceTracker, now_s: float) -> str:
        """As in the class it is of."""
        if not hosts:
            return ""
        return min(hosts, key=lambda host: (tracker.bytes_to_bring(step, host.name), -tracker.load(host.name))).name


class LeastFragmentation(_Choosing):
    """Each step where the placement policy wants it: where it spoils least of what others could have."""

    name = "least_fragmentation"
    by_plan = True  # on a cluster, its placement policy decides

    def allocate(self, ready: Sequence[int], tracker: ResourceTracker, now_s: float) -> None:
        """As in Allocator."""
        for step in ready:
            tracker.claim_anywhere(step)


class CostOptimized(_Choosing):
    """Each step on the host where its run costs least.

    With *deadline_s* (seconds from the start of the graph), a step waits for a cheaper host than there is room on for
    as long as what follows it can still be done in time.
    """

    name = "cost_optimized"

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._latest: list[float] = []
        self._runtimes: list[float] = []
        self.holds_back = deadline_s is not None

    def prepare(self, graph: Graph, tracker: ResourceTracker) -> Sequence[float] | None:
        """As in Allocator."""
        planned = PlannedGraph.of(graph)
        ranks = [0.0] * len(graph)
        for number, rank in zip(planned.steps, upward_ranks(planned), strict=True):
            ranks[number] = rank
        self._runtimes = [step.cost.expected_s for step in graph.steps]
        if self._deadline_s is not None:
            self._latest = [self._deadline_s - rank for rank in ranks]
        return ranks

    def choose(self, step: int, hosts: Sequence[HostCapacity], tracker: ResourceTracker, now_s: float) -> str:
        """As in the class it is of."""
        if not hosts:
            return ""
        found = min(hosts, key=lambda host: host.price / host.speed)
        if self._latest and now_s < self._latest[step]:
            cheapest = min(host.price / host.speed for host in tracker.hosts)
            if found.price / found.speed > cheapest:
                return ""
        return found.name


class TimeOptimized:
    """The graph's plan that ends soonest, of many tried (plan.py), followed: each step on its planned host, in the
    plan's order; where runtimes turn out otherwise, what is late goes wherever it is done first."""

    name = "time_optimized"
    by_plan = True
    holds_back = False

    def __init__(self, bandwidth: float = BANDWIDTH) -> None:
        self._bandwidth = bandwidth
        self.plan: GraphPlan | None = None
        self._graph: Graph | None = None
        self._host: list[str] = []
        self._start: list[float] = []
        self._before: list[int] = []  # on its lane; -1: none
        self._claimed: list[bool] = []
        self._order: dict[str, list[int]] = {}  # by host, as planned
        self._next: dict[str, int] = {}  # by host, the place in its order before which all have begun

    def prepare(self, graph: Graph, tracker: ResourceTracker) -> Sequence[float] | None:
        """As in Allocator."""
        self._graph = graph
        self._host, self._start = [""] * len(graph), [0.0] * len(graph)
        self._before, self._claimed = [-1] * len(graph), [False] * len(graph)
        counts = lane_counts(graph, tracker.hosts)
        if counts is None or not any(counts):
            planned = PlannedGraph.of(graph, self._bandwidth)
            ranks = [0.0] * len(graph)
            for number, rank in zip(planned.steps, upward_ranks(planned), strict=True):
                ranks[number] = rank
            self.plan = None
            return ranks
        self.plan = plan_by_lanes(graph, tracker.hosts, counts, self._bandwidth)
        last: dict[int, int] = {}
        self._order, self._next = {}, {}
        for run in self.plan.runs:
            self._order.setdefault(run.host, []).append(run.step)
            self._host[run.step], self._start[run.step] = run.host, run.start_s
            lane = self.plan.lanes[run.step]
            self._before[run.step] = last.get(lane, -1)
            last[lane] = run.step
        urgency = [0.0] * len(graph)
        for place, run in enumerate(self.plan.runs):
            urgency[run.step] = float(-place)
        return urgency

    def allocate(self, ready: Sequence[int], tracker: ResourceTracker, now_s: float) -> None:
        """As in Allocator."""
        for step in ready:
            begun = self._is_due(step, now_s) and bool(self._host[step]) and tracker.claim(step, self._host[step])
            if not begun and (elsewhere := self._soonest(step, tracker, now_s)):
                begun = tracker.claim(step, elsewhere)
            if begun:
                self._claimed[step] = True

    def hint(self, step: int) -> str:
        """As in Allocator."""
        return self._host[step] if self._host else ""

    def _is_due(self, step: int, now_s: float) -> bool:
        """Whether all before *step* on its lane have begun, or ought to have."""
        before = self._before[step]
        return before < 0 or self._claimed[before] or self._is_late(before, now_s)

    def _is_late(self, step: int, now_s: float) -> bool:
        return now_s > self._start[step] + LATE_PART * self._runtime(step)

    def _has_nothing_due(self, host: str, now_s: float) -> bool:
        """Whether *host* is behind the plan, or done with it: what the plan has there next waits for others."""
        order = self._order.get(host, ())
        place = self._next.get(host, 0)
        while place < len(order) and self._claimed[order[place]]:
            place += 1
        self._next[host] = place
        return place >= len(order) or self._is_late(order[place], now_s)

    def _soonest(self, step: int, tracker: ResourceTracker, now_s: float) -> str:
        """The host with room, and nothing else to begin now, on which *step* is done first; a step that is in time
        goes only where it is done earlier than planned."""
        late = self.plan is None or self._is_late(step, now_s)
        runtime = self._runtime(step)
        best = ""
        best_s = math.inf if late else self._start[step] + runtime
        for host in tracker.room_for(step):
            if self.plan is None or self._has_nothing_due(host.name, now_s):
                moved_s = tracker.transfer_s(tracker.bytes_to_bring(step, host.name))
                end_s = now_s + moved_s + runtime / host.speed
                if end_s < best_s:
                    best, best_s = host.name, end_s
        return best

    def _runtime(self, step: int) -> float:
        assert self._graph is not None, "an allocator is prepared before it allocates"
        return self._graph.steps[step].cost.expected_s


BUILT_IN: dict[str, Callable[[], Allocator]] = {
    "first_available": FirstAvailable,
    "load_balanced": LoadBalanced,
    "cost_optimized": CostOptimized,
    "time_optimized": TimeOptimized,
    "least_communication": LeastCommunication,
    "least_fragmentation": LeastFragmentation,
}


def allocator_names() -> list[str]:
    """The names of all strategies, those of installed packages included."""
    return sorted({*BUILT_IN, *(each.name for each in entry_points(group=GROUP))})


def find_allocator(name: str) -> Allocator:
    """A new allocator of that name: one that ships, or one that an installed package offers.

    Raises UnknownPolicy, with the nearest name.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    offered = {each.name: each for each in entry_points(group=GROUP)}
    if name in offered:
        found = offered[name].load()()
        if not isinstance(found, Allocator):
            raise UnknownPolicy(
                f"the entry point {name!r} gives no allocator",
                asked=offered[name].value,
                found=type(found).__name__,
                hint="derive it from FirstAvailable, or give it all that actorgrid.dag.allocators.Allocator says",
            )
        return found
    names = allocator_names()
    near = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=1, cutoff=0.5)
    raise UnknownPolicy(
        f"there is no strategy {name!r}",
        asked=name,
        found=", ".join(names),
        hint=f"did you mean {near[0]}?" if near else f"use one of: {', '.join(names)}",
    )
