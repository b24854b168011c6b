"""One pass over those who wait: start what fits and delays nobody, keep places for those who come first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection
from typing import Any

from actorgrid.demand import Demand
from actorgrid.errors import AdoptRefused, UnknownNode
from actorgrid.hotpath import Placement, PlacementEngine
from actorgrid.hotpath.capacity import GangNeeds
from actorgrid.hotpath.records import WHOLE_GPU_MILLI, Shares

from .fair_share import FairShare
from .gang_places import choose_places
from .job import ScheduledJob, SortKey
from .job_queue import TENANT, JobQueue, JobQueues, heads
from .planner import Planner
from .policies import SchedulingPolicy
from .preemption_view import among
from .reclaim import Reclaim
from .request import Decision, Start
from .reservation import PlannedStart, Reservation
from .tenant_limits import TenantLimits

OVERDUE_S = 1.0
"""How long a reservation outlives its start: jobs are not gone the moment they should be."""
MOVES_MAX = 32
"""Reservations moved forward in one pass at most, the first in the queue first."""


class Dispatch:
    """Serves the queues. It knows which are open, who has a claim to a reservation, and who holds up all others.

    A *claim* is the right of one of the first in the queue to a reservation. It stands although nobody knows yet
    when room will be free; the place is then kept once the policy's ``hold_after_s`` is over.

    One whose tenant has no room for it under its limits stands aside: its queue is held, without claims, until that
    tenant gives something back. Beside the claims of a tenant its other jobs do not use up what those will need; after
    ``hold_after_s`` nor beside the first that stands aside, so that smaller ones do not keep it out for ever.
    """

    def __init__(
        self,
        engine: PlacementEngine,
        policy: SchedulingPolicy,
        planner: Planner,
        queues: JobQueues,
        tenant_limits: TenantLimits,
        fair_share: FairShare,
        clock_ns: Callable[[], int],
        started: Callable[[ScheduledJob, float], None],
    ) -> None:
        self.engine = engine
        self.stuck: ScheduledJob | None = None
        """The one that holds up all others, where nobody may overtake."""
        self._policy = policy
        self._planner = planner
        self._queues = queues
        self._tenant_limits = tenant_limits
        self._fair_share = fair_share
        self._reclaim = Reclaim(policy, planner, fair_share)
        self._clock_ns = clock_ns
        self._started = started
        self._claims: dict[str, ScheduledJob] = {}
        self._savers: dict[str, ScheduledJob] = {}  # by tenant: the one that has stood aside for too long
        self._seek = False  # a claim may be due to someone in a closed queue
        self._seek_at = math.inf
        self._hold_at = math.inf  # a claim is due a place although nobody knows when
        self._ended = False  # something ended since claims were last looked at
        self._early = False  # and did so before its time
        self._looked_at = -math.inf
        self.unfinished = False
        """Whether the last pass ended before all were tried."""
        self._untried = False  # room came free since those with reservations were tried
        self._limit = 0
        self._tries = 0
        self._searches = 0
        self._seeking = False  # this walk goes over all queues
        self._ahead = 0  # those met on it who come before others in claiming

    # -- news

    def begin_anew(self) -> None:
        """Forget everything that was found out."""
        self.stuck = None
        self._claims.clear()
        self._savers.clear()
        self._queues.release()
        self._seek = self._untried = True

    def freed(self, early: bool) -> None:
        """Take note that a job has ended, *early* if before its time."""
        self._queues.freed()
        self.stuck = None
        self._seek = self._ended = self._untried = True
        self._early = self._early or early

    def allowed(self, tenant: str) -> None:
        """Take note that *tenant* may have more room than before."""
        self._savers.pop(tenant, None)
        for queue in self._queues.release(tenant):
            self._seek = True
            first = queue.jobs.first()
            if self.stuck is not None and first is not None and first.key < self.stuck.key:
                self.stuck = None

    def allowed_tenant(self, tenant: str) -> None:
        """Take note that the tenant, one of several that share by rank, holds less than before."""
        self.allowed(TENANT + tenant)

    def limited(self, now: float) -> None:
        """Take note that tenants are held to other limits than before."""
        self.stuck = None
        self._savers.clear()
        self._queues.release()
        self._seek = True
        self.look_at_claims(None, now)

    def look_at_claims(self, tenant: str | None, now: float) -> None:
        """Look at the claims of *tenant* (``None``: any), which has less room: its first may have to stand aside."""
        if not self._claims and not self._planner.reservations:
            return
        for job in sorted(self._with_claims(), key=lambda job: job.key):
            if job.queue is not None and tenant in (None, job.queue.tenant):
                self._stands_aside(job, job.queue, now)

    def entered(self, job: ScheduledJob, now: float) -> None:
        """Take note that *job* stands in its queue, or at another place of it."""
        queue = job.queue
        if queue is not None and queue.held_for == TENANT + queue.group:
            return
        if queue is not None and queue.held:
            ahead = self._kept_ahead(job, queue.tenant) if queue.jobs.first() is job else None
            if ahead is not None and self._tenant_limits.has_capacity(queue.tenant, queue.demand, ahead):
                self.allowed(queue.tenant)  # what is left is kept for others, but this one comes before them
            else:
                return
        if self.stuck is not None and job.key < self.stuck.key:
            self.stuck = None
        if job.queue not in self._queues.open and self._may_claim(job, now):
            self._seek = True

    def left(self, job: ScheduledJob) -> None:
        """Take note that *job* waits no longer."""
        tenant = "" if job.queue is None else job.queue.tenant
        self._queues.remove(job)
        if self._claims.pop(job.id, None) is not None:
            self._seek = True
            self.allowed(tenant)
        elif self._savers.get(tenant) is job:
            self.allowed(tenant)
        if self._planner.drop(job):
            self._queues.reopen()
        if self.stuck is job:
            self.stuck = None
        if not len(self._queues):
            self._seek_at = self._hold_at = math.inf

    def next_wakeup(self, now: float) -> float:
        """The time at which a pass next has something to do without news."""
        if self.unfinished:
            return now
        starts = [each.start for each in self._planner.reservations.values() if not self._awaits_victims(each)]
        times = [at for start in starts for at in (start, start + OVERDUE_S) if at > now]
        times += [self._seek_at, self._hold_at]
        if self._worth_looking():
            times.append(max(now, self._looked_at + self._policy.replan_s))
        return min(times)

    # -- a pass

    def serve(self, now: float, limit: int, decisions: list[Decision]) -> None:
        """Add at most *limit* less what is there already to *decisions*."""
        self._tries = self._searches = 0
        self._limit = limit
        self.unfinished = False
        if now >= self._hold_at or (self._worth_looking() and now >= self._looked_at + self._policy.replan_s):
            self._look_again(now, limit, decisions)
        if now >= self._seek_at:
            self._seek_at = math.inf
            self._seek = True
        while self.stuck is None and (self._queues.open or self._seek):
            before = len(decisions)
            self._walk(now, limit, decisions)
            if self.unfinished or (len(decisions) == before and not self._seek):
                break
        if not self.unfinished:
            if self._untried:
                self._start_reserved(now, limit, decisions)
            self._renew_overdue(now, limit, decisions)

    def _walk(self, now: float, limit: int, decisions: list[Decision]) -> None:
        """Try the first of each open queue in order; a queue that is tried in vain is closed."""
        queues, policy = self._queues, self._policy
        seeking = self._seeking = self._seek and policy.reservations_max > 0
        self._seek = False
        self._ahead = 0
        heap = heads(queues if seeking or not policy.overtaking else queues.open)
        while heap:
            if len(decisions) >= limit or self._tries >= policy.candidates_max:
                self.unfinished = True
                self._seek = self._seek or seeking
                return
            _, job = heapq.heappop(heap)
            queue = job.queue
            if queue is None:
                continue  # it was started out of its turn meanwhile, on a place kept for it
            if queue.line is not None and queue.line.leader is not queue:
                self._go_on_with(queue, heap)  # its tenant has had something since, and ranks behind others now
                continue
            if self._stands_aside(job, queue, now):
                self._go_on_with(queue, heap)
                continue
            line = queue.line
            started = queue in queues.open and self._try(job, queue, now, decisions)
            if not started:
                queues.open.pop(queue, None)
                if not policy.overtaking:
                    self.stuck = job
                    self._stops_others(job, now)  # what its tenant was guaranteed
                    return
                started = self._keep_place(job, now, decisions)
                if self._seek and not seeking:
                    return  # nobody passes before it is clear who comes first
            if started:
                if line is not None and line.leader is not None:
                    queue = line.leader
                following = queue.jobs.first()
            elif self._more_may_claim(job):
                following = queue.jobs.after(job.handle)
            else:
                following = None  # those behind it need as much, and nothing is kept for them
            if following is not None:
                heapq.heappush(heap, (following.key, following))

    @staticmethod
    def _go_on_with(queue: JobQueue, heap: list[tuple[SortKey, ScheduledJob]]) -> None:
        """Put the first of whoever leads the line of *queue*, another one, among those to be tried."""
        leader = None if queue.line is None else queue.line.leader
        first = None if leader is None or leader is queue else leader.jobs.first()
        if first is not None:
            heapq.heappush(heap, (first.key, first))

    def _more_may_claim(self, job: ScheduledJob) -> bool:
        if job.reservation is not None and job.reservation.preempting:
            return self._searches < self._policy.preemptions_max
        return self._seeking and self._ahead < self._policy.reservations_max and self._policy.reserves(job)

    def _try(self, job: ScheduledJob, queue: JobQueue, now: float, decisions: list[Decision]) -> bool:
        """Start *job* now if it fits and meets nobody's reservation."""
        queues, planner = self._queues, self._planner
        if queue.arguments is None:
            queues.full(queue.demand)
            return False
        if queues.known_full(queue.demand):
            return False
        self._tries += 1
        if queue.key.apart:
            models = self._fair_share.models_left(queue.group, queue.demand, queue.arguments.get("gpu_models", ()))
            if models is not None:
                return self._try_models(job, queue, models, now, decisions)
        end = job.expected_end(now)
        closed = planner.closed_to(job, end) if planner.reservations else ()
        if job.request.near and self._place_near(job, queue, now, decisions, closed):
            return True
        preferred = self._policy.preferred(job, now)
        if preferred:
            within = among(queue.needs.within, planner.preemption_view().rack_or_node(preferred))
            return bool(within) and self._place(job, queue, now, decisions, within=within, exclude=closed)
        if not closed:
            if self._place(job, queue, now, decisions):
                return True
            queues.full(queue.demand)
            return False
        if self._place(job, queue, now, decisions, exclude=closed):
            return True
        if job.reservation is not None and (job.reservation.unknown or job.reservation.start <= now):
            return self._place_as_planned(job, queue, job.reservation.plan, now, decisions)
        if job.demand.gang == 1:
            beside = planner.beside(job, closed, now, end)
            return bool(beside) and self._place(job, queue, now, decisions, within=beside)
        return False

    def _try_models(
        self, job: ScheduledJob, queue: JobQueue, models: tuple[str, ...], now: float, decisions: list[Decision]
    ) -> bool:
        """Start *job* on devices of *models*, of which its tenant may have more, if that meets nobody's reservation."""
        planner = self._planner
        closed = planner.closed_to(job, job.expected_end(now)) if planner.reservations else ()
        return bool(models) and self._place(job, queue, now, decisions, gpu_models=models, exclude=closed)

    def _place_near(
        self, job: ScheduledJob, queue: JobQueue, now: float, decisions: list[Decision], closed: Collection[str]
    ) -> bool:
        """Start *job* on the node that it would rather have, if there is room and nobody's reservation."""
        assert queue.arguments is not None
        near = job.request.near
        node = self._planner.preemption_view().nodes.get(near)
        if node is None or near in closed or "within" in queue.arguments:
            return False
        return self._place(job, queue, now, decisions, within=((near, tuple(range(len(node.models)))),))

    def _place_as_planned(
        self, job: ScheduledJob, queue: JobQueue, plan: PlannedStart, now: float, decisions: list[Decision]
    ) -> bool:
        """Start *job* where the plan has room for it."""
        demand = queue.demand
        if demand.gang == 1 or (demand.gpu_count and demand.gpu_milli == WHOLE_GPU_MILLI and not demand.layout):
            return self._place(job, queue, now, decisions, within=plan.within())
        # The engine may put several of these on a node, where the plan has one and others keep the rest.
        return self._take(job, demand, plan.shares, self._clock_ns(), now, decisions)

    def _place_gang(
        self,
        job: ScheduledJob,
        queue: JobQueue,
        now: float,
        decisions: list[Decision],
        exclude: Collection[str] = (),
        within: Shares = (),
    ) -> bool:
        """Start all members of *job* where its layout wants them."""
        assert queue.arguments is not None
        before = self._clock_ns()
        needs = GangNeeds({**queue.arguments, "within": within}, apart=queue.demand.apart) if within else queue.needs
        shares = choose_places(self._planner.preemption_view().nodes.values(), needs, frozenset(exclude))
        return shares is not None and self._take(job, queue.demand, shares, before, now, decisions)

    def _take(
        self, job: ScheduledJob, demand: Demand, shares: Shares, before: int, now: float, decisions: list[Decision]
    ) -> bool:
        """Start *job* on exactly these *shares*, which were being looked for since *before*."""
        try:
            placement = self.engine.adopt(
                job.id,
                shares,
                cpu_milli=demand.cpu_milli,
                memory_mib=demand.memory_mib,
                gpu_milli=demand.gpu_milli,
                gpu_memory_mib=demand.gpu_memory_mib,
            )
        except (AdoptRefused, UnknownNode):
            return False
        return self._start(job, placement, (self._clock_ns() - before) / 1000, now, decisions)

    def _place(self, job: ScheduledJob, queue: JobQueue, now: float, decisions: list[Decision], **where: Any) -> bool:
        assert queue.arguments is not None
        if queue.demand.layout:
            return self._place_gang(job, queue, now, decisions, **where)
        before = self._clock_ns()
        placement: Placement | None = self.engine.place(id=job.id, **{**queue.arguments, **where})
        latency_us = (self._clock_ns() - before) / 1000
        return placement is not None and self._start(job, placement, latency_us, now, decisions)

    def _start(
        self, job: ScheduledJob, placement: Placement, latency_us: float, now: float, decisions: list[Decision]
    ) -> bool:
        crossed = self._started_with(job, placement, now)
        decisions.append(Start(job.request, placement, latency_us))
        if crossed:
            self._plan_anew(crossed, now, decisions)
        return True

    def _started_with(self, job: ScheduledJob, placement: Placement, now: float) -> list[ScheduledJob]:
        """Take note that *job* runs; gives those whose reservations it may have crossed, as it ranks before them."""
        end = job.expected_end(now)
        tenant = "" if job.queue is None else job.queue.tenant
        crossed = [
            each.job
            for each in self._planner.reservations.values()
            if each.job is not job
            and not each.binds(job)
            and (each.unknown or each.start < end)
            and any(name in each.nodes for name, _ in placement.shares)
        ]
        job.begin(placement, now)
        self._planner.started(job)
        self._started(job, now)
        if tenant:
            self.look_at_claims(tenant, now)
        return crossed

    # -- limits of tenants

    def _stands_aside(self, job: ScheduledJob, queue: JobQueue, now: float) -> bool:
        """Whether the tenant has no room for *job*, one of *queue*; it has no claim then.

        The queue is held if it is the first: what there is no room for even then, there is not for those behind it.
        """
        if queue.group and self._fair_share.over_limit(queue.group, queue.demand):
            self._withdraw_with(job, queue)
            if queue.jobs.first() is job:
                self._queues.hold(queue, TENANT + queue.group)
            return True
        tenant = queue.tenant
        if not tenant:
            return False
        if self._tenant_limits.has_capacity(tenant, queue.demand, self._kept_ahead(job, tenant)):
            if self._savers.get(tenant) is job:
                del self._savers[tenant]
            return False
        first = queue.jobs.first() is job
        if self._withdraw_with(job, queue):
            self._queues.release(tenant)  # some may have been held for what was kept for these
        if not first:
            return True
        self._queues.hold(queue, tenant)
        if (
            tenant not in self._savers
            and job.waited_s(now) >= self._policy.hold_after_s
            and self._policy.reserves(job)
            and self._tenant_limits.could_hold(tenant, queue.demand)
        ):
            self._savers[tenant] = job
        return True

    def _withdraw_with(self, job: ScheduledJob, queue: JobQueue) -> bool:
        """Drop what is kept for *job*, and for all of *queue* if it is the first; ``False``: nothing was."""
        first = queue.jobs.first() is job
        withdrawn = [each for each in self._with_claims() if each is job or (first and each.queue is queue)]
        for each in withdrawn:
            self._withdraw(each)
        return bool(withdrawn)

    def _kept_ahead(self, job: ScheduledJob, tenant: str) -> list[Demand]:
        """The part of the tenant's room that is kept for those that rank before *job*."""
        found = [
            each.demand
            for each in self._claims.values()
            if each.queue is not None and each.queue.tenant == tenant and each.key < job.key
        ]
        saver = self._savers.get(tenant)
        if saver is not None and saver.key < job.key:
            found.append(saver.demand)
        return found

    def _with_claims(self) -> list[ScheduledJob]:
        """The jobs that have a claim or a reservation."""
        reserved = {each.job.id: each.job for each in self._planner.reservations.values()}
        return list({**self._claims, **reserved}.values())

    def _withdraw(self, job: ScheduledJob) -> None:
        """Drop what is kept for *job*."""
        if self._claims.pop(job.id, None) is not None:
            self._seek = True
        if self._planner.drop(job):
            self._queues.reopen()

    # -- claims

    def _keep_place(self, job: ScheduledJob, now: float, decisions: list[Decision]) -> bool:
        """Stop others for *job*, which does not fit now, or keep a place, as the policy says.

        ``True`` if it started.
        """
        policy = self._policy
        if self._stops_others(job, now):
            return False
        if not self._seeking:
            # Who comes first is known only by looking at closed queues too.
            self._seek = self._seek or (job.reservation is None and self._may_claim(job, now))
            return False
        if self._ahead >= policy.reservations_max or not policy.reserves(job):
            return False
        self._ahead += 1
        if job.reservation is not None or not self._may_claim(job, now):
            return False
        if len(self._claims) >= policy.reservations_max:
            last = self._last_claim()
            self._withdraw(last)
            if last.queue is not None:
                self.allowed(last.queue.tenant)
        behind = [
            each for each in self._claims.values() if each.reservation is not None and not each.reservation.binds(job)
        ]
        for each in behind:
            self._planner.drop(each)
        self._claims[job.id] = job
        started = self._reserve(job, self._planner.earliest(job, now), now, decisions)
        self._plan_anew(behind, now, decisions)
        return started

    def _stops_others(self, job: ScheduledJob, now: float) -> bool:
        if job.reservation is not None or self._searches >= self._policy.preemptions_max:
            return False
        stops = self._reclaim.stop_others(job, now)
        self._searches += stops is not None
        return bool(stops)

    def _plan_anew(self, jobs: list[ScheduledJob], now: float, decisions: list[Decision]) -> None:
        """Make these jobs' reservations anew, in their order, beside those of all others."""
        for job in jobs:
            self._planner.drop(job)
        for job in sorted(jobs, key=lambda job: job.key):
            if job.queue is not None:
                self._reserve(job, self._planner.earliest(job, now), now, decisions)
        if jobs:
            self._queues.reopen()

    def _may_claim(self, job: ScheduledJob, now: float) -> bool:
        """Whether *job* has waited long enough for a claim, has none, and may come before one that has."""
        policy = self._policy
        if not policy.reservations_max or job.id in self._claims or not policy.reserves(job):
            return False
        if len(self._claims) >= policy.reservations_max and self._last_claim().key < job.key:
            return False
        if job.waited_s(now) >= policy.reserve_after_s:
            return True
        self._seek_at = min(self._seek_at, job.waiting_since + policy.reserve_after_s)
        return False

    def _last_claim(self) -> ScheduledJob:
        return max(self._claims.values(), key=lambda job: job.key)

    def _reserve(self, job: ScheduledJob, plan: PlannedStart | None, now: float, decisions: list[Decision]) -> bool:
        """Keep *plan* for *job*, or carry it out if it can start now; ``True`` then."""
        had = job.reservation is not None
        queue = job.queue
        assert queue is not None
        if self._stands_aside(job, queue, now):
            return False
        started = False
        if plan is not None and plan.start <= now and queue.arguments is not None and len(decisions) < self._limit:
            # It fits between the reservations of others, where a general search does not look.
            started = self._place_as_planned(job, queue, plan, now, decisions)
            plan = None
        if plan is not None and math.isinf(plan.start):
            hold_at = job.waiting_since + self._policy.hold_after_s
            if hold_at > now:
                self._hold_at = min(self._hold_at, hold_at)
                plan = None
        if plan is not None:
            self._planner.reserve(job, plan, now)
        elif not started:
            self._planner.drop(job)
        if had and not started:
            self._queues.reopen()
        return started

    # -- keeping them

    def _worth_looking(self) -> bool:
        return (self._early and bool(self._planner.reservations)) or (
            self._ended and any(job.reservation is None for job in self._claims.values())
        )

    def _look_again(self, now: float, limit: int, decisions: list[Decision]) -> None:
        """Move reservations forward, each beside all others as they are; none moves back."""
        early, self._early, self._ended = self._early, False, False
        self._looked_at = now
        self._hold_at = math.inf
        kept = {each.job.id: each.job for each in self._planner.reservations.values() if not each.preempting}
        moved = False
        for job in sorted({**kept, **self._claims}.values(), key=lambda job: job.key)[:MOVES_MAX]:
            if len(decisions) >= limit:
                break
            if job.queue is None:
                continue  # it was started on behalf of another
            if job.reservation is None:
                self._reserve(job, self._planner.earliest(job, now), now, decisions)
            elif early and not job.reservation.preempting and job.reservation.start > now:
                plan = self._planner.earliest(job, now)
                if plan is not None and plan.start < job.reservation.start:
                    self._planner.reserve(job, plan, now)
                    moved = True
        if moved:
            self._queues.reopen()

    def _start_reserved(self, now: float, limit: int, decisions: list[Decision]) -> None:
        """Start those whose time has come, also behind others of their queue who may not take their place."""
        self._untried = False
        for reservation in list(self._planner.reservations.values()):
            job = reservation.job
            if job.reservation is not reservation:
                continue
            due = reservation.unknown or reservation.start <= now
            if len(decisions) < limit and due and job.queue is not None and job.queue not in self._queues.open:
                if self._stands_aside(job, job.queue, now):
                    continue
                self._try(job, job.queue, now, decisions)

    def _renew_overdue(self, now: float, limit: int, decisions: list[Decision]) -> None:
        """Plan anew for jobs that should have started by now: what runs there has taken longer than expected."""
        for reservation in list(self._planner.reservations.values()):
            if reservation.start + OVERDUE_S > now or len(decisions) >= limit or self._awaits_victims(reservation):
                continue
            job = reservation.job
            if job.reservation is not reservation:
                continue  # it was started, or planned anew, on behalf of another
            self._planner.drop(job)
            self._queues.reopen()
            if job.id in self._claims or not self._policy.preemptive:
                self._reserve(job, self._planner.earliest(job, now), now, decisions)

    def _awaits_victims(self, reservation: Reservation) -> bool:
        running = self._planner.running
        return reservation.preempting and any(victim in running for victim in reservation.plan.victims)
