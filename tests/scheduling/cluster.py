"""A cluster in simulated time: jobs arrive, run and end; the scheduler under test decides. No clock, no dice."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from actorgrid.actors.scheduling.policies import SchedulingPolicy
from actorgrid.actors.scheduling.request import Preempt, Refuse, Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.demand import Demand
from actorgrid.errors import BadRequest
from actorgrid.hotpath import PlacementEngine

_DEMAND = {each.name for each in fields(Demand) if each.init}


def request(id: str, **asked: Any) -> Request:
    """A request with the fields of its demand beside its own."""
    demand = {name: asked.pop(name) for name in tuple(asked) if name in _DEMAND}
    return Request(id, Demand(**demand), **asked)


def cluster(nodes: int, gpus: int = 8, *, policy: str = "best_fit", racks: int = 0) -> PlacementEngine:
    engine = PlacementEngine(policy)
    for number in range(nodes):
        engine.add_node(
            f"n{number}",
            cpu_milli=1000 * 16 * max(1, gpus),
            memory_mib=64 * 1024 * max(1, gpus),
            gpu_count=gpus,
            gpu_model="H100",
            gpu_memory_mib=81920,
            rack=f"r{number % racks}" if racks else None,
        )
    return engine


@dataclass
class Outcome:
    """What happened, and when."""

    arrived: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)  # the first time
    ended: dict[str, float] = field(default_factory=dict)
    turned_away: dict[str, float] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)
    preemptions: list[tuple[str, str]] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)
    passes: int = 0

    def mean_jct(self) -> float:
        return sum(end - self.arrived[id] for id, end in self.ended.items()) / len(self.ended)


def simulate(
    engine: PlacementEngine,
    policy: str | SchedulingPolicy,
    jobs: Iterable[tuple[Request, float]],
    *,
    limit: int = 1000,
    resume: bool = True,
    check: bool = False,
) -> Outcome:
    """Run all *jobs*, (request, how long it really runs), each arriving at its ``submitted_at``.

    A preempted job stops when its grace is over and, with *resume*, goes on where it was.
    """
    scheduler = Scheduler(engine, policy)
    outcome = Outcome()
    # (time, kind, count): ends before stops before arrivals before wake-ups, at one time
    events: list[tuple[float, int, int, str, int]] = []
    requests: dict[str, Request] = {}
    left: dict[str, float] = {}
    run: dict[str, int] = {}
    begun: dict[str, float] = {}
    count = 0
    for request, duration in jobs:
        requests[request.id], left[request.id] = request, duration
        count += 1
        heapq.heappush(events, (request.submitted_at, 2, count, request.id, 0))
    woken = -1.0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, _, id, number = heapq.heappop(events)
            if kind == 0 and run.get(id) == number:
                scheduler.finished(id, now)
                del run[id]
                outcome.ended[id] = now
                outcome.log.append((now, f"end {id}"))
            elif kind == 1 and run.get(id) == number:
                del run[id]
                if resume:
                    left[id] -= now - begun[id]
                expected = requests[id].expected_s
                scheduler.preempted(id, now, left[id] if expected is not None else None)
            elif kind == 2:
                outcome.arrived[id] = now
                try:
                    scheduler.submit(requests[id], now)
                except BadRequest:
                    outcome.turned_away[id] = now
        while True:
            decisions = scheduler.schedule(now, limit)
            outcome.passes += 1
            for decision in decisions:
                count += 1
                if isinstance(decision, Start):
                    id = decision.request.id
                    outcome.started.setdefault(id, now)
                    begun[id], run[id] = now, count
                    heapq.heappush(events, (now + left[id], 0, count, id, count))
                    outcome.log.append((now, f"start {id} on {decision.placement.shares}"))
                elif isinstance(decision, Preempt):
                    outcome.preemptions.append((decision.id, decision.for_id))
                    heapq.heappush(events, (now + decision.grace_s, 1, count, decision.id, run[decision.id]))
                    outcome.log.append((now, f"preempt {decision.id} for {decision.for_id}"))
                else:
                    assert isinstance(decision, Refuse)
                    outcome.given_up[decision.id] = decision.why
            if len(decisions) < limit and scheduler.next_wakeup != now:
                break
        if check:
            verify(scheduler, engine, run)
        wake = scheduler.next_wakeup
        if wake is not None and wake > now and wake != woken and (events or scheduler.waiting):
            woken = wake
            count += 1
            heapq.heappush(events, (wake, 3, count, "", 0))
    assert not run
    return outcome


def verify(scheduler: Scheduler, engine: PlacementEngine, run: dict[str, int]) -> None:
    """The engine, the scheduler and its preemption view agree on what is held."""
    held = set(engine.placements())
    assert held == set(scheduler.running) == set(run)
    preemption_view = scheduler.planner.preemption_view()
    for view in engine.nodes():
        free = preemption_view.nodes[view.name].free
        assert (free.cpu, free.memory) == (view.cpu_milli_free, view.memory_mib_free)
        assert free.milli == [gpu.milli_free for gpu in view.gpus]
        assert free.device_memory == [gpu.memory_mib_free for gpu in view.gpus]
        assert free.total == sum(free.milli)
