"""The decisions of GPUCoordinator: which waiting job or lease gets which devices, from what the ledger says.

No I/O: the ledger's snapshot and changes come in, grants to propose come out. The ledger is the guard; here are
proposals. What is proposed stays reserved in the engine until its answer: an allocation in the ledger, or a
refusal. Only hosts that are up get new work, and this host only once the ledger knows its present incarnation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from actorgrid.actors.ledger.record_types import AllocationRecord, HostRecord, JobRecord, QuotaRecord, ResourcesRecord
from actorgrid.demand import Demand
from actorgrid.errors import ActorGridError, AdmissionRefused, AdoptRefused, BadRequest, QueueFull, UnknownNode
from actorgrid.hotpath import Placement, PlacementEngine
from actorgrid.hotpath.records import WHOLE_GPU_MILLI
from actorgrid.models import JobState

from ..ledger.attempt_ids import attempt_of, job_of, number_of
from ..ledger.tables.quotas import quota_of, refuse_over_whole
from ..scheduling.arrivals import Arrivals
from ..scheduling.policies import SchedulingPolicy
from ..scheduling.request import Preempt, Refuse, Request, Start
from ..scheduling.scheduler import Scheduler
from .admission import admission_refused
from .feasibility import check_feasible
from .grant import Grant, Record
from .messages import AcquireLease
from .nodes import add_nodes, adopt, fence, given_out, score_devices, typical_tasks
from .orders import GivenUp, Order, Orders, PreemptionOrder
from .placement_records import by_placement, demand_held, records_of, shares_of
from .requests import (
    STOPPED_S,
    EngineArguments,
    limits_of,
    request_of_job,
    request_of_lease,
    waiting_id,
)

WAITING_LEASES_MAX = 4096
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0
_BATCH = 2**20
"""Jobs of one batch share its index in the ledger; their places in it are far fewer than this."""
_TRIAL = "?"
"""Stands for a job that is only asked about."""


class CoordinatorCore:
    """The scheduler's state, all of it rebuilt from the ledger at any time.

    *policy* says where, *queue* who goes first and who may be stopped for whom. *clock_ns* only measures how long
    placing took.
    """

    def __init__(
        self,
        own_host: str,
        own_incarnation: int,
        policy: str,
        queue_max: int,
        clock_ns: Callable[[], int],
        rng: Callable[[int], int] | None = None,
        queue: str | SchedulingPolicy = "easy_backfill",
    ) -> None:
        self.own_host = own_host
        self.own_incarnation = own_incarnation
        self.hosts: dict[str, HostRecord] = {}
        self.in_flight: dict[str, Grant] = {}
        self.orders = Orders()
        self._refused_leases: dict[str, AdmissionRefused] = {}
        self.notes: dict[str, str] = {}
        self._policy = policy
        self._rng = rng
        self._clock_ns = clock_ns
        self._jobs: Mapping[str, JobRecord] = {}
        self._allocations: Mapping[str, AllocationRecord] = {}
        self._quotas: Mapping[str, QuotaRecord] = {}
        self._leases: dict[str, AcquireLease] = {}
        self._lease_count = 0
        self._refusals: dict[str, int] = {}
        self._sick: dict[str, str] = {}
        self._scores: dict[tuple[str, int], int] = {}
        self._absent: frozenset[str] = frozenset()
        self._fences: list[int | str] = []
        self._gaps = False
        self._stale = False
        self._overflow = False
        self._now = 0.0
        self._queue = queue
        self._doubtful: dict[str, None] = {}  # jobs that were refused by a state that may have been incomplete
        self._resolved: list[str] = []
        self._queued: dict[str, str] = {}  # by job: the id its next attempt waits under
        self._arrivals = Arrivals()
        self.holds_queue = True
        self.engine = PlacementEngine(policy, rng)
        self._arguments = EngineArguments(())
        self.scheduler = self._new_scheduler(queue_max)

    # -- what the ledger says

    def load(
        self,
        jobs: Mapping[str, JobRecord],
        allocations: Mapping[str, AllocationRecord],
        hosts: dict[str, HostRecord],
        now: float,
        quotas: Mapping[str, QuotaRecord] = MappingProxyType({}),
        hold_queue: bool = True,
    ) -> None:
        """Start (again) from a snapshot. The mappings are kept, and expected to be kept current by their owner.

        What is proposed and not answered stays reserved. Without *hold_queue*, nothing waits for ``schedule``.
        """
        self._now = now
        self._jobs, self._allocations, self.hosts, self._quotas = jobs, allocations, hosts, quotas
        held = {attempt_of(id) for id in allocations}
        self.in_flight = {id: grant for id, grant in self.in_flight.items() if id not in held}
        for id in [id for id in self._leases if id in allocations]:
            del self._leases[id]  # granted while nobody told us: it waits for nothing more
        self.orders.load(jobs, held, self.in_flight)
        self.drop_queue()
        self._rebuild()
        for lease in self._leases.values():
            if lease.lease_id not in self.in_flight:
                self._queue_lease(lease, 0.0, now)
        if hold_queue:
            self.hold_queue(now)

    def hold_queue(self, now: float) -> None:
        """Know what waits from here on; when it was dropped, that takes about 15 us for each job."""
        if not self.holds_queue:
            self.holds_queue = True
            if self._stale:
                self._rebuild()  # the policy looks at what runs before it lets one wait
            self._queue_jobs(now)

    def drop_queue(self) -> None:
        """Know no more what waits, nor follow it: for a host on which nothing is placed and nobody asks."""
        self.holds_queue, self._stale = False, True  # the new scheduler has to be told what runs
        self._doubtful.clear()
        self._resolved.clear()
        self._queued.clear()
        self.scheduler = self._new_scheduler(self.scheduler.queue_max)
        self.scheduler.limit(*limits_of(self._quotas), self._now)

    def changed(self, changes: Iterable[tuple[str, str, Any]], now: float) -> None:
        """Take an Applied's changes; the mappings given to ``load`` show them already."""
        self._now = now
        for kind, id, record in changes:
            if kind == "allocation":
                self._allocation_changed(id, record)
            elif kind == "host":
                self._host_changed(id, record)
            elif kind == "job" and self.holds_queue:
                self._job_changed(id, record, now)
            elif kind == "job" and record is not None and record["state"] == JobState.QUEUED:
                self._arrivals.saw(Demand.of(record["resources"]))  # it may place by this mix later
            elif kind == "quota":
                self.scheduler.limit(*limits_of(self._quotas), now)

    def _allocation_changed(self, allocation_id: str, record: AllocationRecord | None) -> None:
        id = attempt_of(allocation_id)
        self.in_flight.pop(id, None)
        self._leases.pop(id, None)
        records = records_of(id, self._allocations, self._jobs)
        if not records:
            self.orders.attempt_over(id)
            self.notes.pop(id, None)
            if id not in self.engine:
                self.scheduler.gave_back(id)
                return
            self._release(id)
            self._fence()
        elif record is None:
            self._stale = True  # a member of a gang is lost, and what it held is gone
        else:
            self._dequeue(self._asked_by(id) or id)
            self.orders.attempt_granted(id, record)
            if id in self.engine:
                if self.engine.placement(id).shares == shares_of(records):
                    return
                self._release(id)
            self._stale = not self._adopt(id, records) or self._stale

    def _host_changed(self, id: str, record: HostRecord | None) -> None:
        if record is None:
            self.hosts.pop(id, None)
        else:
            self.hosts[id] = record
        self._stale = True

    def _job_changed(self, id: str, record: JobRecord | None, now: float) -> None:
        state = None if record is None else record["state"]
        if record is not None and state == JobState.QUEUED:
            if id not in self.orders.giving_up and not any(grant.job_id == id for grant in self.in_flight.values()):
                self._queue_job(record, now)
            return
        self._dequeue(id)
        self._refusals.pop(id, None)
        self.orders.job_changed(id, record)
        if state is None or JobState(state).final:
            self._doubtful.pop(id, None)
            # A job that ends otherwise takes those that wait for it along, in the same entry.
            if self.registered and not self._stale:
                self.scheduler.resolve(id, now)
            else:
                self._resolved.append(id)  # whether a deadline can be kept is to be asked when all is known

    # -- asking for leases

    def ask_lease(self, lease: AcquireLease, now: float) -> None:
        """Let a lease wait for room. Raises as ``check_feasible``, QuotaExceeded when it never may, or QueueFull."""
        self.check_feasible(lease.resources)
        refuse_over_whole(lease.user_id, quota_of(lease.user_id, self._quotas), lease.resources, "the lease")
        if len(self._leases) >= WAITING_LEASES_MAX:
            raise QueueFull(
                "too many leases are being waited for", found=f"{WAITING_LEASES_MAX}", hint="try again in a moment"
            )
        self._leases[lease.lease_id] = lease
        self._queue_lease(lease, 0.0, now)

    def withdraw_lease(self, lease_id: str) -> bool:
        """Stop waiting; ``False`` when the lease is being granted already, or not known."""
        if lease_id in self.in_flight or self._leases.pop(lease_id, None) is None:
            return False
        self._dequeue(lease_id)
        self._refusals.pop(lease_id, None)
        return True

    # -- deciding

    def schedule(self, now: float, limit: int) -> list[Grant]:
        """What to propose now, at most *limit* grants; each is reserved from here on."""
        self._now = now
        if self._stale:
            self._rebuild()
        for id in self._resolved:
            self.scheduler.resolve(id, now)
        self._resolved.clear()
        for id in list(self._doubtful):
            self._settle_doubt(id, now)
        if self._overflow and len(self.scheduler.waiting) < self.scheduler.queue_max // 2:
            self._queue_jobs(now)
        if self._arrivals.news(now) is not None:
            self._weigh_by_arrivals()
        grants = []
        for decision in self.scheduler.schedule(now, limit):
            if isinstance(decision, Start):
                grants.append(self._grant(decision))
            elif isinstance(decision, Preempt):
                self._preempt(decision)
            else:
                self._give_up(decision)
        return grants

    def forget(self) -> None:
        """This host leads no more: what it proposed is settled without it, and who leads goes on from the ledger."""
        self.in_flight.clear()
        self._leases.clear()
        self._refused_leases.clear()
        self._refusals.clear()
        self.orders, self._stale = Orders(), True

    def take_refused_leases(self) -> dict[str, AdmissionRefused]:
        """The leases that the policy gave up since this was asked last, with why."""
        refused, self._refused_leases = self._refused_leases, {}
        return refused

    def take_orders(self) -> list[Order]:
        """What else is to be proposed since this was asked last: attempts to stop, jobs to give up."""
        return self.orders.take()

    def order_refused(self, order: Order) -> None:
        """The ledger did not commit *order*, for certain: forget it, and decide again from what the ledger says."""
        self.orders.drop(order)
        if isinstance(order, GivenUp):
            self._doubtful[order.job_id] = None
        self._stale = True

    @property
    def next_wakeup(self) -> float | None:
        """When ``schedule`` next has something to do without any news."""
        return self.scheduler.next_wakeup

    def refused(self, grant: Grant, now: float) -> None:
        """The ledger did not commit *grant*, for certain: forget it, and try again from what the ledger says."""
        if self.in_flight.pop(grant.id, None) is None:
            return
        self.orders.attempt_over(grant.id)
        self._now = now
        if grant.id in self.engine:
            self._release(grant.id)
        self._stale = True
        key = grant.job_id or grant.id
        count = self._refusals.get(key, 0)
        self._refusals[key] = count + 1
        again_at = now + min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(count, 10))
        if grant.lease is not None:
            if grant.id in self._leases:
                self._queue_lease(grant.lease, again_at, now)
        elif (job := self._jobs.get(grant.job_id)) is not None and job["state"] == JobState.QUEUED:
            self._queue_job({**job, "not_before": max(job["not_before"], again_at)}, now)
        else:
            self._refusals.pop(key, None)

    def committed(self, grant: Grant, now: float) -> None:
        """*grant* is in the ledger up to where the mappings are. If they do not show it, it has ended already.

        That can pass unseen: the ledger restarts, or sends to others before us, and work ends in milliseconds.
        """
        if self.in_flight.get(grant.id) is not grant:
            return
        del self.in_flight[grant.id]
        self._leases.pop(grant.id, None)
        self.orders.attempt_over(grant.id)
        self._stale = True  # the engine still holds its room
        if (job := self._jobs.get(grant.job_id)) is not None and job["state"] == JobState.QUEUED:
            self._queue_job(job, now)

    def set_sick(self, devices: Mapping[str, str]) -> None:
        """The UUIDs of devices in trouble, with what troubles them; nothing new is placed there."""
        if dict(devices) != self._sick:
            self._sick = dict(devices)
            self._fence()
            self.scheduler.refresh(self._now)

    def set_absent(self, hosts: frozenset[str]) -> None:
        """Hosts that the leader has not heard of for a while; nothing new is placed there."""
        self._absent, self._stale = hosts, self._stale or hosts != self._absent

    def set_scores(self, scores: Mapping[tuple[str, int], int]) -> None:
        """How well devices do, 0 to 1000 by (host, index): what the policy ``device_score`` goes by."""
        self._scores = dict(scores)
        if not self._stale:
            self._score_devices()

    # -- answering

    def check_feasible(self, resources: ResourcesRecord) -> None:
        """Raises what :func:`~actorgrid.actors.gpu.feasibility.check_feasible` does."""
        check_feasible(Demand.of(resources), self.hosts.values())

    def check_deadline(self, resources: ResourcesRecord, deadline: float, limit_s: float | None, now: float) -> None:
        """Raises AdmissionRefused when the policy would refuse such a job now, or QueueFull."""
        if self._stale:
            self._rebuild()
        demand = Demand.of(resources)
        request = Request(_TRIAL, demand, expected_s=limit_s, deadline=deadline, strict=limit_s is not None)
        try:
            self.scheduler.check(request, now)
        except BadRequest as error:
            raise admission_refused(error, error.message, deadline, limit_s, now) from None

    def explain(self, resources: ResourcesRecord, job_id: str | None) -> Record:
        """The engine's ``explain`` for one attempt; of a job that waits, what ``Scheduler.explain`` adds to it."""
        if self._stale:
            self._rebuild()
        if job_id in self._queued:
            report = self.scheduler.explain(self._queued[job_id], self._now)
            held_up_by = [self._asked_by(id) or id for id in report["held_up_by"]]
            if report["reservation"] is not None:
                report["reservation"]["stopping"] = [job_of(id) for id in report["reservation"]["stopping"]]
            return {"total_nodes": len(self.hosts), **report, "held_up_by": held_up_by}
        fit = self.scheduler.explain_demand(Demand.of(resources))
        report = {"total_nodes": len(self.hosts), **fit, "position": None}
        if job_id:
            report |= {"depends_on": [], "not_before": None}
        return report

    def allocated(self) -> dict[tuple[str, int], tuple[int, int, list[str]]]:
        """Per (host, device index): thousandths and MiB given out by the ledger, and to whom."""
        return given_out(self._allocations.values())

    @property
    def registered(self) -> bool:
        """Whether the ledger knows this host as it is now."""
        own = self.hosts.get(self.own_host)
        return own is not None and own["incarnation"] == self.own_incarnation

    # -- inside

    def _queue_jobs(self, now: float) -> None:
        self._overflow = False
        taken = {grant.job_id for grant in self.in_flight.values()} | self.orders.giving_up.keys()
        waiting = [
            (job.get("deadline") or math.inf, id)
            for id, job in self._jobs.items()
            if job["state"] == JobState.QUEUED and id not in taken and id not in self._queued
        ]
        # The earliest deadline first, or a promise made before could fail for one made in another order. Records are
        # made as they are asked for: a long queue is never in memory whole.
        waiting.sort(key=lambda found: found[0])
        for _, id in waiting:
            self._queue_job(self._jobs[id], now)

    def _queue_job(self, job: JobRecord, now: float) -> None:
        """Let *job* wait; one that the policy refuses is asked for again, at the next ``schedule``."""
        try:
            self._submit(job, now)
        except (BadRequest, QueueFull):
            self._doubtful[job["job_id"]] = None

    def _settle_doubt(self, job_id: str, now: float) -> None:
        """Ask again for a job that was refused: now all hosts are known, so the answer stands."""
        self._doubtful.pop(job_id, None)
        job = self._jobs.get(job_id)
        if job is None or job["state"] != JobState.QUEUED or job_id in self._queued:
            return
        try:
            self._submit(job, now)
        except (BadRequest, QueueFull) as error:
            self._refuse_job(job, error, error.message)

    def _submit(self, job: JobRecord, now: float) -> None:
        job_id, id = job["job_id"], waiting_id(job)
        if job_id in self._queued and self._queued[job_id] != id:
            self._dequeue(job_id)
        if id in self.engine:
            self._release(id)  # an attempt that nobody knows of any more
        if id not in self.scheduler.waiting and len(self.scheduler.waiting) >= self.scheduler.queue_max:
            self._overflow = True  # the ledger keeps it; it is queued when there is room here
            return
        try:
            self.scheduler.submit(
                request_of_job(id, Demand.of(job["resources"]), job),
                now,
                order=job["submitted_index"] * _BATCH + job.get("ordinal", 0),
                not_before=job["not_before"],
                unmet=[name for name in job["depends_on"] if name in self._jobs or name in self._resolved],
            )
        except (BadRequest, QueueFull):
            self._dequeue(job_id)
            raise
        self._queued[job_id] = id
        self._arrivals.saw(Demand.of(job["resources"]))

    def _dequeue(self, id: str) -> None:
        """A job or lease waits no longer."""
        self.scheduler.withdraw(self._queued.pop(id, id))

    def _asked_by(self, id: str) -> str:
        """The job that waits under *id*; ``""`` for a lease, and for what does not wait."""
        job_id = job_of(id)
        return job_id if self._queued.get(job_id) == id else ""

    def _queue_lease(self, lease: AcquireLease, not_before: float, now: float) -> None:
        self._lease_count += 1
        self._arrivals.saw(Demand.of(lease.resources))
        self.scheduler.queue_max += 1  # leases have a bound of their own and never crowd out jobs
        try:
            self.scheduler.submit(
                request_of_lease(lease.lease_id, Demand.of(lease.resources), lease.user_id, lease.home),
                now,
                order=self._lease_count,
                not_before=not_before,
            )
        finally:
            self.scheduler.queue_max -= 1

    def _new_scheduler(self, queue_max: int) -> Scheduler:
        def translate(demand: Demand) -> Record | None:
            return self._arguments.of(demand)

        return Scheduler(self.engine, self._queue, queue_max=queue_max, translate=translate, clock_ns=self._clock_ns)

    def _grant(self, start: Start) -> Grant:
        id = start.request.id
        lease = self._leases.get(id)
        job_id = self._asked_by(id)
        self._queued.pop(job_id, None)
        shares = start.placement.shares
        grant = Grant(
            id=id,
            shares=shares,
            incarnations=tuple(self.hosts[host]["incarnation"] for host, _ in shares),
            latency_us=start.latency_us,
            demand=Demand.of(lease.resources if lease is not None else self._jobs[job_id]["resources"]),
            job_id=job_id,
            number=number_of(id) or 0 if job_id else 0,
            lease=lease,
            user_id=start.request.tenant,
        )
        self.in_flight[id] = grant
        return grant

    def _preempt(self, decision: Preempt) -> None:
        """Order the end of a running attempt; of one whose grant is on its way, once that is committed."""
        records = records_of(decision.id, self._allocations, self._jobs)
        token = tuple(records[0]["token"]) if records else None
        grace_s = max(0.0, decision.grace_s - STOPPED_S)
        for_job = self._asked_by(decision.for_id) or decision.for_id
        self.orders.give(PreemptionOrder(decision.id, grace_s, for_job, self._now, token))

    def _give_up(self, decision: Refuse) -> None:
        """The policy lets one wait no longer: its job is to fail, its lease is answered."""
        job_id = self._asked_by(decision.id)
        self._dequeue(job_id or decision.id)
        if decision.id in self._leases:
            del self._leases[decision.id]
            self._refused_leases[decision.id] = admission_refused(decision.error, decision.why, None, None, self._now)
        elif (job := self._jobs.get(job_id)) is not None and job["state"] == JobState.QUEUED:
            text = decision.why if decision.error is None else decision.error.message
            self._refuse_job(job, decision.error, text)

    def _refuse_job(self, job: JobRecord, why: ActorGridError | None, text: str) -> None:
        error = admission_refused(why, text, job.get("deadline"), job["max_execution_time_s"], self._now)
        self.orders.give(GivenUp(job["job_id"], error.to_dict()))

    def _release(self, id: str) -> None:
        """Give back what the engine holds under *id*."""
        if id in self.scheduler.running:
            self.scheduler.finished(id, self._now)
        else:
            self.engine.release(id)
            self.scheduler.gave_back(id)
            self.scheduler.refresh(self._now)

    def _eligible(self, host: HostRecord) -> bool:
        here = host["state"] == "up" and not host.get("draining") and host["host_id"] not in self._absent
        return here and (host["host_id"] != self.own_host or self.registered)

    def _rebuild(self) -> None:
        """The engine anew: hosts and allocations from the ledger, then what is proposed, then sick devices."""
        self._stale = False
        self.notes.clear()
        self._arguments = EngineArguments(self.hosts.values())
        self.engine = PlacementEngine(self._policy, self._rng)
        self._fences.clear()
        if self._arrivals.told:
            self._weigh_by_arrivals()
        self.scheduler.rebind(self.engine, self._now)
        self._gaps = add_nodes(self.engine, self.hosts, self._allocations.values(), self._eligible)
        for id, records in by_placement(self._allocations).items():
            self._adopt(id, records)
        for id, grant in self.in_flight.items():
            demand = grant.demand
            try:
                placement = adopt(self.engine, id, grant.shares, demand)
            except (AdoptRefused, UnknownNode):
                continue  # others hold that room now: the ledger will refuse it
            self._runs(placement, demand, grant.job_id, grant.user_id, self._now)
        self._score_devices()
        self._fence()
        self.scheduler.refresh(self._now)

    def _weigh_by_arrivals(self) -> None:
        self.engine.set_typical_tasks(typical_tasks(self._arrivals.told, self.hosts.values()))

    def _score_devices(self) -> None:
        if self._policy == "device_score":  # no other looks at them
            score_devices(self.engine, self.hosts, self._scores)

    def _adopt(self, id: str, records: list[AllocationRecord]) -> bool:
        """Hold what the ledger has given out; ``False``, and a note, when a host has not got it any more."""
        first = records[0]
        for cpu_milli, memory_mib in ((first["cpu_milli"], first["memory_mib"]), (0, 0)):
            try:
                placement = self.engine.adopt(
                    id,
                    shares_of(records),
                    cpu_milli=cpu_milli,
                    memory_mib=memory_mib,
                    gpu_milli=first["gpu_milli"] or WHOLE_GPU_MILLI,
                    gpu_memory_mib=first["gpu_memory_mib"],
                )
            except (AdoptRefused, UnknownNode) as error:
                where = ", ".join(dict.fromkeys(record["host"] for record in records))
                self.notes[id] = f"allocation {id} is more than {where} has now: {error.message}"
                continue
            held = demand_held(records, cpu_milli, memory_mib)
            self._runs(placement, held, first["owner"].get("job_id", ""), first["user_id"], first["granted_at"])
            return True
        # The ledger counts it all the same.
        unplaced = demand_held(records, first["cpu_milli"], first["memory_mib"])
        self.scheduler.tenant_limits.hold(id, first["user_id"], unplaced)
        return False

    def _runs(self, placement: Placement, demand: Demand, job_id: str, user: str, since: float) -> None:
        """Tell the scheduler what the engine holds already, when it will be stopped at the latest, and for whom."""
        id = str(placement.id)
        # It is where it is, whatever else would have done.
        held = replace(demand, gpu_models=(), affinity_hard=(), affinity_soft=())
        job = self._jobs.get(job_id)
        request = request_of_lease(id, held, user, "") if job is None else request_of_job(id, held, job)
        stopping_at, stopped_for = self.orders.stopping(id)
        self.scheduler.adopt(request, placement, since, stopping_at=stopping_at, stopped_for=stopped_for)

    def _fence(self) -> None:
        """Hold what is free of devices that are in trouble or gone, so that nothing new lands there."""
        for id in self._fences:
            self.engine.release(id)
        self._fences.clear()
        if self._stale or not (self._sick or self._gaps):
            return
        self._fences += fence(self.engine, self.hosts, self._sick)
