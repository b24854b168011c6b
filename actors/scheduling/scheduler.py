"""The scheduler, which decides what starts when and where: takes requests and news of what ended, gives decisions. No
clock, no I/O, never blocks.

The policy ranks those who wait; the engine says what fits; the planner keeps reservations, so that what passes the
first in the queue does not delay it. A need that did not fit is not tried again until something was freed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, QueueFull, UnknownPlacement
from actorgrid.hotpath import Placement, PlacementEngine, TimerWheel
from actorgrid.hotpath.capacity import GangNeeds

from .dispatch import Dispatch
from .fair_share import RANK_EVERY_S, FairShare, NodeSize, TenantTerms
from .gang_places import explain_places
from .job import NO_TIMER, ScheduledJob
from .job_queue import TENANT, JobQueues, Key, heads, length_class
from .planner import Planner
from .policies import SchedulingPolicy, find_policy
from .preemption import plan_after_stopped
from .request import Decision, Preempt, Refuse, Request
from .tenant_limits import Limits, TenantLimits

QUEUE_MAX = 100_000
TICK_S = 0.001
"""What timers are rounded up to."""
Translate = Callable[[Demand], dict[str, Any] | None]
_TIMERS = {"ready": "timer_ready", "change": "timer_change", "give_up": "timer_give_up"}
_REFUSALS = (BadRequest, QueueFull)
"""What a policy's ``admit`` refuses with."""


class Scheduler:
    """The scheduler. At most *queue_max* requests wait. One thread; nobody else changes the engine unseen.

    *policy* is a policy or the name of one. *translate* turns a demand into the engine's arguments, ``None`` when
    nothing there is could serve it; *clock_ns* measures how long placing takes. After others have changed the engine
    (nodes, drains, devices held back), call ``refresh``; for another engine, ``rebind``.
    """

    def __init__(
        self,
        engine: PlacementEngine,
        policy: str | SchedulingPolicy = "priority",
        *,
        queue_max: int = QUEUE_MAX,
        translate: Translate = Demand.arguments,
        clock_ns: Callable[[], int] | None = None,
    ) -> None:
        self.engine = engine
        self.policy = find_policy(policy) if isinstance(policy, str) else policy
        self.queue_max = queue_max
        self.waiting: dict[str, ScheduledJob] = {}
        self.planner = Planner(engine)
        self.tenant_limits = TenantLimits()
        self.fair_share = FairShare()
        self._ranked_at = -math.inf
        self._translate = translate
        self._queues = JobQueues(self.policy.levels)
        self._wheel: TimerWheel | None = None
        self._sequence = 0
        self._now = -math.inf
        self._dependents: dict[str, dict[str, None]] = {}
        self._refusals: deque[Refuse] = deque()
        self._promised: dict[str, ScheduledJob] = {}  # of another engine, to be promised anew
        self._dispatch = Dispatch(
            engine,
            self.policy,
            self.planner,
            self._queues,
            self.tenant_limits,
            self.fair_share,
            clock_ns or (lambda: 0),
            self._started,
        )

    # -- news

    def submit(
        self,
        request: Request,
        now: float,
        *,
        order: int | None = None,
        not_before: float = 0.0,
        unmet: Iterable[str] = (),
    ) -> None:
        """Let *request* wait, or, with the id of one that waits, let it wait as described now.

        *order* is its place among its equals (default: as they come). It may not start before *not_before*, nor
        before ``resolve`` was called for all of *unmet*. Raises QueueFull, BadRequest for one that runs already, and
        what the policy's ``admit`` raises; nothing has changed then.
        """
        if request.id in self.planner.running:
            raise BadRequest("it is running already", asked=request.id)
        self._drop_refusals(request.id)  # of what it was before: told now, it would end the one that waits
        before = self.waiting.get(request.id)
        if before is None and len(self.waiting) >= self.queue_max:
            raise QueueFull("the queue of waiting work is full", asked=request.id, found=f"{self.queue_max} waiting")
        self._sequence += 1
        sequence = self._sequence if before is None else before.sequence
        since = request.submitted_at if 0 < request.submitted_at <= now else now
        job = ScheduledJob(request, sequence, sequence if order is None else order, since)
        job.unmet = frozenset(unmet) or job.unmet
        if before is not None:
            self._forget(before)
        self.waiting[request.id] = job
        for dependency in job.unmet:
            self._dependents.setdefault(dependency, {})[request.id] = None
        if not_before > now:
            self._arm(job, "ready", not_before, now)
        try:
            self._enter(job, now)
        except _REFUSALS:
            self._forget(job)
            if before is not None:
                self.waiting[before.id] = before
                self._enter(before, now)
            raise

    def check(self, request: Request, now: float) -> None:
        """Whether *request* could wait here now: raises what ``submit`` would, and keeps nothing of it.

        Others' reservations may be made anew on the way, all of them still in time.
        """
        self.submit(request, now)
        self.withdraw(request.id)

    def resolve(self, dependency: str, now: float) -> None:
        """Release the jobs that waited for *dependency*."""
        for id in self._dependents.pop(dependency, ()):
            job = self.waiting[id]
            job.unmet -= {dependency}
            self._or_refuse(self._enter, job, now)

    def withdraw(self, id: str) -> bool:
        """Forget a job that waits; ``False`` when none of that id does."""
        self._drop_refusals(id)
        job = self.waiting.get(id)
        if job is None:
            return False
        self._forget(job)
        return True

    def finished(self, id: str, now: float) -> None:
        """Take note that the running job *id* has ended, whyever: its room is free. Raises UnknownPlacement."""
        self._ended(id, now)

    def preempted(self, id: str, now: float, expected_s: float | None = None) -> None:
        """Let the running job *id*, which was stopped, wait again in its old place. Raises UnknownPlacement.

        *expected_s* is how long the rest will take (default: as long as the whole).
        """
        job = self._ended(id, now)
        if expected_s is not None:
            job.expect(expected_s)
        self.waiting[id] = job
        self._or_refuse(self._enter, job, now)

    def adopt(
        self,
        request: Request,
        placement: Placement,
        started_at: float,
        *,
        stopping_at: float | None = None,
        stopped_for: str = "",
    ) -> None:
        """Take note of a job that runs already; the engine holds *placement* for it.

        One that was asked to stop is not asked again: it will have stopped at *stopping_at*, for *stopped_for*.
        """
        self.withdraw(request.id)
        self._sequence += 1
        job = ScheduledJob(request, self._sequence, self._sequence, started_at)
        job.needs = GangNeeds(self._translate(job.demand) or {}, apart=job.demand.apart)
        job.begin(placement, started_at)
        job.stopping_at = stopping_at
        self.planner.refresh()
        self.planner.started(job)
        self._hold(job, placement)
        self._dispatch.look_at_claims(request.tenant, self._now)
        if stopping_at is not None:
            self.planner.stopped_for[job.id] = stopped_for
        self._watch(job, max(started_at, self._now))

    def limit(self, limits: Mapping[str, Limits], others: Limits | None, now: float) -> None:
        """Hold tenants to *limits*, by name, and all *others* to theirs. Costs a look at everyone who waits.

        Nothing that runs is stopped. A job whose tenant has no room waits aside: it delays nobody, has no reservation,
        and is looked at again when something of that tenant ends or limits change.
        """
        self.tenant_limits.limit(limits, others)
        self._sort_anew(now)

    def share(
        self,
        terms: Mapping[str, TenantTerms],
        now: float,
        *,
        nodes: Mapping[str, NodeSize] | None = None,
        past: Mapping[str, tuple[float, Mapping[str, float]]] | None = None,
    ) -> None:
        """Share out between tenants by *terms*, by name: who ranks first, what is guaranteed, and limits.

        Without terms for anybody there are no tenants. *nodes* are what there is, *past* what tenants have held of
        late (``FairShare``); ``None`` leaves either as it is. Within a tenant the policy's order holds. Costs a look
        at everyone who waits.
        """
        fair_share, before, others = self.fair_share, self.fair_share.in_force, self.fair_share.terms != terms
        fair_share.advance(now)
        fair_share.set_terms(terms)
        if nodes is not None:
            fair_share.set_nodes(nodes)
        if fair_share.in_force and (nodes is not None or not before):
            fair_share.clear()
            for job in self.planner.running.values():
                assert job.placement is not None
                fair_share.hold(job.id, job.request.tenant, job.demand, job.placement.shares)
        if past is not None:
            fair_share.set_past(past)  # what is held has been since that time
        if others:
            self._sort_anew(now)
        if fair_share.in_force:
            self._rank_all(now)

    def _sort_anew(self, now: float) -> None:
        """Put everyone who waits into the queue of its kind: limits or terms are other ones."""
        for job in self.waiting.values():
            queue = job.queue
            if queue is not None and queue.key != (key := self._key(job)):
                self._queues.remove(job)
                self._queues.add(job, key, queue.arguments)
        self._dispatch.limited(now)

    def gave_back(self, id: str) -> None:
        """Stop counting *id*, which does not run here, in the use of its tenant."""
        self._dispatch.allowed(self.tenant_limits.free(id))
        self._ranked(self.fair_share.free(id))

    def _hold(self, job: ScheduledJob, placement: Placement) -> None:
        """Count what *job* holds from now on."""
        self.tenant_limits.hold(job.id, job.request.tenant, job.demand)
        if self.fair_share.in_force:
            tenant = self.fair_share.hold(job.id, job.request.tenant, job.demand, placement.shares)
            self._queues.rank(tenant, self.fair_share.ranks(tenant), job.queue)

    def _ranked(self, tenant: str) -> None:
        """Take note that *tenant* holds less than before."""
        if tenant and self.fair_share.in_force:
            self._queues.rank(tenant, self.fair_share.ranks(tenant))
            self._dispatch.allowed_tenant(tenant)

    def _rank_all(self, now: float) -> None:
        """Rank all tenants anew, by what they have held until now."""
        self._ranked_at = now
        self.fair_share.weigh_past()
        for tenant in self._queues.groups():
            self._queues.rank(tenant, self.fair_share.ranks(tenant))

    def refresh(self, now: float) -> None:
        """Look at an engine that others changed: everything is tried again, and reservations are made anew.

        What was promised and cannot be kept any more is refused, by the next ``schedule``.
        """
        kept = self.planner.reservations.values()
        self._promised.update((each.job.id, each.job) for each in kept if each.firm and not each.preempting)
        for reservation in list(self.planner.reservations.values()):
            if not reservation.preempting:
                self.planner.drop(reservation.job)
        self._start_over()
        promised, self._promised = self._promised, {}
        for job in sorted(promised.values(), key=lambda each: each.key):
            if self.waiting.get(job.id) is job and job.queue is not None:
                self._or_refuse(self._admit, job, now)
        for id in dict.fromkeys(self.planner.stopped_for.values()):
            if id in self.waiting and self.waiting[id].queue is not None:
                self._resume(self.waiting[id], now)

    def rebind(self, engine: PlacementEngine, now: float) -> None:
        """Go on with another engine. What runs is forgotten: tell ``adopt`` what the new one holds, then ``refresh``.

        Promises stand until then, and who was told to stop is to be told by ``adopt``.
        """
        self.tenant_limits.clear()
        self.fair_share.clear()
        self.engine = self.planner.engine = self._dispatch.engine = engine
        for job in list(self.planner.running.values()):
            self._cancel(job)
            self.planner.ended(job)
        for reservation in list(self.planner.reservations.values()):
            if reservation.firm:
                self._promised[reservation.job.id] = reservation.job
            self.planner.drop(reservation.job)
        self._start_over()

    def _start_over(self) -> None:
        """Forget all that was found out about the engine."""
        self.planner.refresh()
        self._queues.renew(self._translate)
        self._dispatch.begin_anew()

    # -- deciding

    def schedule(self, now: float, limit: int) -> list[Decision]:
        """Decide what is to be done now, at most *limit* decisions. A started job's room is held from here on.

        When more could be said than *limit*, ``next_wakeup`` is *now*.
        """
        self._now = now
        self.fair_share.advance(now)
        if self.fair_share.in_force and now >= self._ranked_at + RANK_EVERY_S:
            self._rank_all(now)
        self._expire(now)
        decisions: list[Decision] = []
        self._tell(decisions, limit)
        self._dispatch.serve(now, limit, decisions)
        self._tell(decisions, limit)
        return decisions

    def first_waiting(self, limit: int) -> Iterator[ScheduledJob]:
        """The first *limit* of those who wait and could start, in the policy's order; each may be withdrawn meanwhile.

        Ask after ``schedule``: none of them fits, then. Nobody where not all could be tried, nor anybody behind one
        whose tenant has no room for others of its jobs: what that tenant gives back is theirs.
        """
        queues = () if self._dispatch.unfinished else self._queues
        heap = heads(queues)
        while heap and limit > 0:
            _, job = heapq.heappop(heap)
            assert job.queue is not None, "it stands in a queue"
            if self._queues.holds(job.request.tenant) or self._queues.holds(TENANT + job.queue.group):
                return
            following = job.queue.jobs.after(job.handle)
            if following is not None:
                heapq.heappush(heap, (following.key, following))
            limit -= 1
            yield job

    @property
    def next_wakeup(self) -> float | None:
        """The time at which ``schedule`` next has something to do without news; not before the last *now*."""
        if self._refusals or self.planner.to_stop:
            return self._now
        earliest = self._dispatch.next_wakeup(self._now)
        if self._wheel is not None and (tick := self._wheel.next_tick()) is not None:
            earliest = min(earliest, tick * TICK_S)
        return None if math.isinf(earliest) else max(earliest, self._now)

    @property
    def running(self) -> dict[str, ScheduledJob]:
        """The running jobs by id; not to be changed."""
        return self.planner.running

    # -- answering

    def position(self, id: str) -> int | None:
        """Place in the queue, from 1; ``None`` for one that may not start yet, stands aside, or does not wait."""
        mine = self.waiting.get(id)
        if mine is None or mine.queue is None or mine.queue.held:
            return None
        return 1 + sum(
            other.queue is not None and not other.queue.held and other.key < mine.key for other in self.waiting.values()
        )

    def explain(self, id: str, now: float) -> dict[str, Any]:
        """Why *id* waits: the engine's ``explain`` for it, and

        ``position``, of how many ``waiting`` in queues; ``waited_s``; ``depends_on`` and ``not_before``;
        ``reservation`` (``start``, ``None`` when nobody knows it, ``nodes``, and ``stopping``, who is being stopped for
        it); ``held_up_by``, who has reservations in its way; ``stands_aside``, whether its user's or tenant's limits
        keep it out; ``tenant``, where tenants share: a ``TenantReport``.
        Raises BadRequest when it does not wait.
        """
        job = self.waiting.get(id)
        if job is None:
            raise BadRequest("it does not wait", asked=id, found="it runs" if id in self.running else "it is not known")
        report = self.explain_demand(job.demand)
        reservation = job.reservation
        report |= {
            "position": self.position(id),
            "waiting": sum(other.queue is not None for other in self.waiting.values()),
            "waited_s": job.waited_s(now),
            "depends_on": sorted(job.unmet),
            "not_before": None if job.timer_ready == NO_TIMER else job.not_before,
            "reservation": None,
            "held_up_by": [],
            "stands_aside": job.queue is not None and job.queue.held,
        }
        if reservation is not None:
            report["reservation"] = {
                "start": None if reservation.unknown else reservation.start,
                "nodes": list(reservation.nodes),
                "stopping": [victim for victim in reservation.plan.victims if victim in self.running],
            }
        if group := self.fair_share.group(job.request.tenant):
            report["tenant"] = self.fair_share.report(group, job.demand, self._queues.groups())
        end = job.expected_end(now)
        if report["fits"] and not report["stands_aside"]:
            report["held_up_by"] = [
                other
                for other, each in self.planner.reservations.items()
                if each.job is not job and (each.unknown or each.start < end)
            ]
            if self._dispatch.stuck is not None and self._dispatch.stuck is not job:
                report["held_up_by"].append(self._dispatch.stuck.id)
        return report

    def explain_demand(self, demand: Demand) -> dict[str, Any]:
        """Whether *demand* fits now, and if not, why: the engine's ``explain``.

        Of a gang with a layout also ``hosts``: how many members each holds, and what those that hold none lack.
        """
        arguments = self._translate(demand)
        if arguments is None:
            return {"fits": False}
        report: dict[str, Any] = self.engine.explain(**arguments)
        if demand.layout:
            nodes, needs = list(self.planner.preemption_view().nodes.values()), GangNeeds(arguments, apart=demand.apart)
            report |= explain_places(nodes, self.engine.nodes(), needs, arguments)
        return report

    # -- waiting

    def _enter(self, job: ScheduledJob, now: float) -> None:
        """Let *job* stand in its queue, if nothing else is to come first. Raises what ``admit`` raises."""
        if job.unmet or job.timer_ready != NO_TIMER:
            return
        policy = self.policy
        job.level = policy.level(job, now)
        job.order = policy.order(job)
        key = self._key(job)
        queue = self._queues.get(key)
        self._queues.add(job, key, self._translate(job.demand) if queue is None else queue.arguments)
        if queue is None and key.group:
            self._queues.rank(key.group, self.fair_share.ranks(key.group))
        self._admit(job, now)
        if self.planner.stopped_for:
            self._resume(job, now)
        self._dispatch.entered(job, now)
        self._watch(job, now)
        gives_up_at = policy.gives_up_at(job)
        if gives_up_at is not None:
            self._arm(job, "give_up", gives_up_at + TICK_S, now)

    def _key(self, job: ScheduledJob) -> Key:
        tenant, length = job.request.tenant, length_class(job.request.expected_s) if self.policy.uses_estimates else 0
        limited = tenant if self.tenant_limits.limits_of(tenant) is not None else ""
        group = self.fair_share.group(tenant)
        return Key(job.demand, length, limited, group, bool(group) and self.fair_share.limits_models(group))

    def _admit(self, job: ScheduledJob, now: float) -> None:
        # Nothing is promised to one that its tenant's limits keep out.
        group = self.fair_share.group(job.request.tenant)
        if group and self.fair_share.over_limit(group, job.demand):
            return
        if self.tenant_limits.has_capacity(job.request.tenant, job.demand):
            self.policy.admit(job, self.planner, now)

    def _or_refuse(self, step: Callable[[ScheduledJob, float], None], job: ScheduledJob, now: float) -> None:
        """Do *step*, ``_enter`` or ``_admit``; when the policy refuses *job*, it is given up."""
        try:
            step(job, now)
        except _REFUSALS as error:
            self._forget(job)
            self._refusals.append(Refuse(job.id, str(error), error))

    def _resume(self, job: ScheduledJob, now: float) -> None:
        """Let *job* have the place again that others are being stopped for, after that was forgotten."""
        had = job.reservation
        if not self.tenant_limits.has_capacity(job.request.tenant, job.demand):
            return
        if job.id in self.planner.stopped_for.values() and (had is None or not had.preempting):
            self.planner.resume(job, plan_after_stopped(self.planner, job, now) if had is None else None, now)

    def _drop_refusals(self, id: str) -> None:
        if self._refusals:
            self._refusals = deque(each for each in self._refusals if each.id != id)

    def _forget(self, job: ScheduledJob) -> None:
        """Forget *job*, which waits no longer."""
        self.waiting.pop(job.id, None)
        for dependency in job.unmet:
            dependents = self._dependents[dependency]
            dependents.pop(job.id, None)
            if not dependents:
                del self._dependents[dependency]
        self._leave(job)

    def _leave(self, job: ScheduledJob) -> None:
        self._cancel(job)
        self._dispatch.left(job)

    def _ended(self, id: str, now: float) -> ScheduledJob:
        job = self.planner.running.get(id)
        if job is None:
            raise UnknownPlacement("no such job is running", asked=id, found=f"{len(self.running)} running")
        assert job.placement is not None
        early = job.is_early(now)
        self._cancel(job)
        self.engine.release(job.placement.id)
        self.planner.ended(job)
        job.end(now)
        tenant = self.tenant_limits.free(id)
        self._dispatch.freed(early)
        self._dispatch.allowed(tenant)
        self._ranked(self.fair_share.free(id))
        return job

    def _started(self, job: ScheduledJob, now: float) -> None:
        """Take note that *job* has started: its room is held, and it waits no longer."""
        del self.waiting[job.id]
        assert job.placement is not None, "it has just begun"
        self._hold(job, job.placement)
        self._leave(job)
        self._watch(job, now)

    def _tell(self, decisions: list[Decision], limit: int) -> None:
        """Hand out what was decided outside of a pass, as far as *limit* allows."""
        while self._refusals and len(decisions) < limit:
            decisions.append(self._refusals.popleft())
        while self.planner.to_stop and len(decisions) < limit:
            id, for_id = next(iter(self.planner.to_stop.items()))
            del self.planner.to_stop[id]
            decisions.append(Preempt(id, self.running[id].request.grace_s, for_id))

    # -- timers

    def _arm(self, job: ScheduledJob, kind: str, at: float, now: float) -> None:
        if self._wheel is None:
            self._wheel = TimerWheel(max(0, math.floor(now / TICK_S)))
        before: int = getattr(job, _TIMERS[kind])
        if before != NO_TIMER:
            self._wheel.cancel(before)
        due = job if kind == "change" else (job, kind)  # nearly all are of this kind: no tuple for each
        setattr(job, _TIMERS[kind], self._wheel.add(max(0, math.ceil(at / TICK_S - TICK_S)), due))
        if kind == "ready":
            job.not_before = at

    def _cancel(self, job: ScheduledJob) -> None:
        for name in _TIMERS.values():
            handle: int = getattr(job, name)
            if handle != NO_TIMER:
                assert self._wheel is not None, "a timer has a wheel"
                self._wheel.cancel(handle)
                setattr(job, name, NO_TIMER)

    def _watch(self, job: ScheduledJob, now: float) -> None:
        at = self.policy.next_change(job, now)
        if at is not None:
            self._arm(job, "change", max(at, now + TICK_S), now)

    def _expire(self, now: float) -> None:
        if self._wheel is None:
            return
        for due in self._wheel.advance(math.floor(now / TICK_S + TICK_S)):
            job, kind = due if isinstance(due, tuple) else (due, "change")
            setattr(job, _TIMERS[kind], NO_TIMER)
            if kind == "ready":
                self._or_refuse(self._enter, job, now)
            elif kind == "give_up":
                self._forget(job)
                self._refusals.append(Refuse(job.id, "its deadline cannot be kept any more"))
            else:
                self._changed(job, now)

    def _changed(self, job: ScheduledJob, now: float) -> None:
        """Ask the policy about *job* again: its word has changed by itself."""
        if job.placement is not None:
            self._queues.freed()  # it may be stopped for others now
        elif job.queue is not None:
            if self.policy.forgives(job, now):
                job.forgive()
            self._queues.move(job, self.policy.level(job, now))
            self._queues.offer(job.queue)
            self._dispatch.entered(job, now)
        self._watch(job, now)
