"""Tasks that arrive, wait, run and depart, on a clock of its own: the scheduler's decisions carried out.

The scheduler is the live cluster's, or :class:`Immediate` where there is to be no queue. A job that is preempted saves
its work when it is told to stop (or, with a checkpoint interval, has only what it saved at the last one), and needs a
while to come back to where it was each time it starts again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actorgrid.actors.scheduling.request import Decision, Preempt, Refuse, Request, Start
from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, Overloaded
from actorgrid.hotpath import PlacementEngine
from actorgrid.hotpath.capacity import GangNeeds, NodeCapacity, all_fit

from .fragments import Fragments
from .workload import TraceNode, TraceTask, capacity_gpu_milli

RESTART_S = 30.0
"""Loading a checkpoint, tens of seconds: Gu et al., "Tiresias" (NSDI 2019), section 5."""
DECISIONS_PER_ROUND = 256
ROUNDS_MAX = 4096
"""Of the scheduler at one moment; what it has left then waits for the next event."""
SERIES_MAX = 2000
MOMENTS_OF_ARRIVALS = 1000
TOO_LARGE = "RequestTooLarge"
"""As a live cluster refuses what none of its nodes could ever hold."""
_END, _STOP, _ARRIVE, _WAKE = range(4)


class Scheduling(Protocol):
    """The part of ``actors.scheduling.scheduler.Scheduler`` that is used."""

    @property
    def next_wakeup(self) -> float | None:
        """The time at which the scheduler next has something to decide by itself."""

    def submit(self, request: Request, now: float) -> None:
        """Let a request wait, or raise BadRequest or Overloaded."""

    def schedule(self, now: float, limit: int) -> list[Decision]:
        """What is to be done now."""

    def finished(self, id: str, now: float) -> None:
        """Take note that a job ended."""

    def preempted(self, id: str, now: float, expected_s: float | None) -> None:
        """Take note that a job stopped because it was told to; the rest will take *expected_s*."""


class Immediate:
    """A scheduler without a queue: what does not fit when it arrives is refused."""

    def __init__(self, engine: PlacementEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._arrived: list[Request] = []
        self._held: dict[str, int | str] = {}

    @property
    def next_wakeup(self) -> float | None:
        """At once, while some have not been looked at."""
        return -math.inf if self._arrived else None

    def submit(self, request: Request, now: float) -> None:
        """Keep the request for the next ``schedule``."""
        self._arrived.append(request)

    def schedule(self, now: float, limit: int) -> list[Decision]:
        """Start or refuse those that have just arrived, *limit* at most."""
        batch, self._arrived = self._arrived[:limit], self._arrived[limit:]
        decisions: list[Decision] = []
        for request in batch:
            arguments = request.demand.arguments()
            began = self._clock()
            placement = self._engine.place(**arguments)
            took = self._clock() - began
            if placement is None:
                decisions.append(Refuse(request.id, "it does not fit now"))
            else:
                self._held[request.id] = placement.id
                decisions.append(Start(request, placement, took * 1e6))
        return decisions

    def finished(self, id: str, now: float) -> None:
        """Give back what *id* held."""
        self._engine.release(self._held.pop(id))

    def preempted(self, id: str, now: float, expected_s: float | None) -> None:
        """Give back what *id* held; nothing here asks for that."""
        self.finished(id, now)


@dataclass(slots=True)
class TaskOutcome:
    """What became of one task. Moments are the trace's; ``None`` where it did not come to that.

    ``waited_s`` is all its time in the queue, also after it was preempted, up to its last start.
    """

    task: TraceTask
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    waited_s: float = 0.0
    refused: str = ""
    preemptions: int = 0
    lost_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Seconds that the task runs when nothing stops it."""
        return self.task.duration_s or 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster at one moment. Shares of the GPUs; ``fragmented`` is of the free ones."""

    at_s: float
    allocated: float
    fragmented: float
    waiting: int


@dataclass(slots=True)
class Replayed:
    """One run. ``series`` holds SERIES_MAX moments at most, evenly over time: MOMENTS_OF_ARRIVALS of them while jobs
    arrive.

    ``allocated_mean`` and ``fragmented_mean`` are over time, from the first arrival to the last.
    """

    capacity_gpu_milli: int = 0
    outcomes: list[TaskOutcome] = field(default_factory=list)
    series: list[Moment] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    places_s: list[float] = field(default_factory=list)
    allocated_mean: float = 0.0
    fragmented_mean: float = 0.0


class _Running:
    __slots__ = ("generation", "outcome", "remaining_s", "restarting_s", "since", "start", "waits_since")

    def __init__(self, outcome: TaskOutcome) -> None:
        self.outcome = outcome
        self.remaining_s = outcome.duration_s
        self.restarting_s = 0.0
        self.generation = 0
        self.since = 0.0
        self.waits_since = outcome.submitted_s
        self.start: Start | None = None


class Simulation:
    """One replay in time. *tasks* are by arrival, and each says when it arrives and how long it runs.

    *estimates* times the true duration is what the scheduler is told; ``None`` tells it nothing. A job that goes on
    after it was stopped loses *restart_s*; where it saves each *checkpoint_s* only, instead of when it is told to stop
    (``None``), it loses what it did since too. *clock* gives seconds and only measures the scheduler.
    """

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        tasks: Sequence[TraceTask],
        engine: PlacementEngine,
        scheduler: Scheduling,
        fragments: Fragments,
        clock: Callable[[], float],
        *,
        estimates: float | None = 1.0,
        checkpoint_s: float | None = None,
        restart_s: float = RESTART_S,
        grace_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._fragments = fragments
        self._clock = clock
        self._estimates = estimates
        self._checkpoint_s = checkpoint_s
        self._restart_s = restart_s
        self._grace_s = grace_s
        self._nodes = nodes
        self._possible: dict[Demand, bool] = {}
        self._node_capacities = [NodeCapacity(node.view, number) for number, node in enumerate(nodes)]
        self._capacity = capacity_gpu_milli(nodes)
        self._tasks = tasks
        self._jobs: dict[str, _Running] = {}
        self._events: list[tuple[float, int, int, str, int]] = []
        self._count = 0
        self._waiting = 0
        self._spacing_s = 0.0
        self._last = 0.0
        self._run = Replayed(self._capacity)
        self._area = [0.0, 0.0]
        self._window = (0.0, 0.0)

    def run(self, progress: Callable[[float], None] = lambda _done: None) -> Replayed:
        """Replay to the last event. *progress* is told the share of the tasks that are done."""
        arrivals = [task.submit_s or 0.0 for task in self._tasks]
        if arrivals:
            self._window = (min(arrivals), max(arrivals))
            self._last = self._window[0]
            self._spacing_s = (self._window[1] - self._window[0]) / MOMENTS_OF_ARRIVALS
        for number, at in enumerate(arrivals):
            self._push(at, _ARRIVE, str(number), 0)
        moments = 0
        while self._events:
            now = self._events[0][0]
            self._advance(now)
            while self._events and self._events[0][0] == now:
                _, kind, _, id, generation = heapq.heappop(self._events)
                self._handle(kind, id, generation, now)
            self._decide(now)
            self._observe(now)
            moments += 1
            if moments % 256 == 0:
                done = sum(1 for outcome in self._run.outcomes if outcome.ended_s is not None or outcome.refused)
                progress(done / len(self._tasks))
        span = self._window[1] - self._window[0]
        if span:
            self._run.allocated_mean, self._run.fragmented_mean = (area / span for area in self._area)
        progress(1.0)
        return self._run

    # -- events

    def _push(self, at: float, kind: int, id: str, generation: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, kind, self._count, id, generation))

    def _handle(self, kind: int, id: str, generation: int, now: float) -> None:
        if kind == _ARRIVE:
            self._arrive(self._tasks[int(id)], now)
        elif kind != _WAKE:
            job = self._jobs[id]
            if job.start is None or job.generation != generation:
                return  # it was stopped, or ended, before that
            if kind == _END:
                self._end(job, now)
            else:
                self._stop(job, now)

    def _arrive(self, task: TraceTask, now: float) -> None:
        outcome = TaskOutcome(task, now)
        self._run.outcomes.append(outcome)
        self._jobs[task.id] = _Running(outcome)
        demand = task.demand
        if not self._could_hold(demand):
            outcome.refused = TOO_LARGE
            return
        estimate = None if self._estimates is None else outcome.duration_s * self._estimates
        request = Request(
            id=task.id,
            demand=demand,
            priority=task.priority,
            tenant=task.tenant,
            submitted_at=now,
            expected_s=estimate,
            deadline=task.deadline_s,
            strict=task.deadline_kind == "strict",
            grace_s=self._grace_s,
        )
        try:
            self._scheduler.submit(request, now)
        except (BadRequest, Overloaded) as error:
            outcome.refused = error.code
        else:
            self._waiting += 1

    def _could_hold(self, demand: Demand) -> bool:
        if demand not in self._possible:
            self._possible[demand] = all_fit(self._node_capacities, GangNeeds(demand.arguments()))
        return self._possible[demand]

    def _decide(self, now: float) -> None:
        for _ in range(ROUNDS_MAX):
            began = self._clock()
            decisions = self._scheduler.schedule(now, DECISIONS_PER_ROUND)
            self._run.rounds_s.append(self._clock() - began)
            for decision in decisions:
                self._carry_out(decision, now)
            wakeup = self._scheduler.next_wakeup
            if wakeup is None or wakeup > now:
                break
        if wakeup is not None and self._waiting and (not self._events or wakeup < self._events[0][0]):
            self._push(max(wakeup, math.nextafter(now, math.inf)), _WAKE, "", 0)

    def _carry_out(self, decision: Decision, now: float) -> None:
        if isinstance(decision, Start):
            job = self._jobs[decision.request.id]
            job.start, job.since = decision, now
            job.outcome.waited_s += now - job.waits_since
            if job.outcome.started_s is None:
                job.outcome.started_s = now
            self._waiting -= 1
            self._run.places_s.append(decision.latency_us / 1e6)
            self._fragments.placed(decision.placement.shares, job.outcome.task)
            self._push(now + job.restarting_s + job.remaining_s, _END, decision.request.id, job.generation)
        elif isinstance(decision, Preempt):
            self._push(now + decision.grace_s, _STOP, decision.id, self._jobs[decision.id].generation)
        else:
            self._jobs[decision.id].outcome.refused = decision.why
            self._waiting -= 1

    def _end(self, job: _Running, now: float) -> None:
        job.outcome.ended_s = now
        job.outcome.lost_s += job.restarting_s
        self._leave(job)
        self._scheduler.finished(job.outcome.task.id, now)

    def _stop(self, job: _Running, now: float) -> None:
        worked = max(0.0, now - job.since - job.restarting_s)
        kept = worked
        if self._checkpoint_s is not None:
            kept = math.floor(worked / self._checkpoint_s) * self._checkpoint_s
        job.remaining_s -= kept
        job.outcome.preemptions += 1
        job.outcome.lost_s += now - job.since - kept
        job.restarting_s = self._restart_s
        self._leave(job)
        job.waits_since = now
        self._waiting += 1
        rest = None if self._estimates is None else (self._restart_s + job.remaining_s) * self._estimates
        self._scheduler.preempted(job.outcome.task.id, now, rest)

    def _leave(self, job: _Running) -> None:
        assert job.start is not None
        self._fragments.released(job.start.placement.shares, job.outcome.task)
        job.start = None
        job.generation += 1

    # -- what is seen

    def _advance(self, now: float) -> None:
        """Add up the time since the last event, as far as it lies in the window of the arrivals."""
        span = min(now, self._window[1]) - self._last
        if span > 0:
            self._area[0] += span * self._engine.allocated_gpu_milli / self._capacity if self._capacity else 0.0
            self._area[1] += span * self._fragments.share
            self._last += span

    def _observe(self, now: float) -> None:
        series = self._run.series
        if series and now < series[-1].at_s + self._spacing_s and self._events:
            return
        share = self._engine.allocated_gpu_milli / self._capacity if self._capacity else 0.0
        series.append(Moment(now, share, self._fragments.share, self._waiting))
        if len(series) >= SERIES_MAX:
            del series[1::2]
            self._spacing_s *= 2
