"""The decisions of GPUCoordinator: which waiting job or lease gets which devices, from what the ledger says.

No I/O: the ledger's snapshot and changes come in, decisions to propose come out. The ledger is the guard; here are
proposals. What is proposed stays reserved in the engine until its answer: an allocation in the ledger, or a
refusal. Only hosts that are up get new work, and this host only once the ledger knows its present incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from actorgrid.actors.ledger.record_types import (
    NO_JOB,
    AllocationRecord,
    HostRecord,
    JobRecord,
    QuotaRecord,
    ResourcesRecord,
)
from actorgrid.demand import Demand
from actorgrid.models import JobState

from ..ledger.attempt_ids import attempt_of, job_of, number_of
from ..ledger.tenant_records import TenantRecord, TenantUseRecord
from ..scheduling.policies import SchedulingPolicy
from ..scheduling.request import Preempt, Refuse, Start
from .call_chains import CallChains
from .engine_mirror import EngineMirror
from .placement_records import PlacementRecords
from .proposals import AttemptPreemption, Grant, JobFailure, Proposals, Termination
from .scheduler_requests import STOPPED_S
from .waiting_jobs import WaitingJobs
from .waiting_leases import WaitingLeases


class CoordinatorCore:
    """Joins the ledger's records, the engine at what they say, who waits for room, and what is proposed.

    All of it is rebuilt from the ledger at any time, but for the leases that wait. *policy* says where, *queue* who
    goes first and who may be stopped for whom. *clock_ns* only measures how long placing took.
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
        # Each knows those above it, and none below.
        self.records = PlacementRecords(own_host, own_incarnation)
        self.proposals = Proposals(self.records)
        self.mirror = EngineMirror(self.records, self.proposals, policy, queue, queue_max, clock_ns, rng)
        self.jobs = WaitingJobs(self.records, self.proposals, self.mirror)
        self.leases = WaitingLeases(self.records, self.proposals, self.mirror)
        self.chains = CallChains(self.records, self.proposals, self.mirror, self.jobs)
        self.holds_queue = True

    # -- what the ledger says

    def load(
        self,
        jobs: Mapping[str, JobRecord],
        allocations: Mapping[str, AllocationRecord],
        hosts: dict[str, HostRecord],
        now: float,
        quotas: Mapping[str, QuotaRecord] = MappingProxyType({}),
        hold_queue: bool = True,
        tenants: Mapping[str, TenantRecord] = MappingProxyType({}),
        tenant_uses: Mapping[str, TenantUseRecord] = MappingProxyType({}),
    ) -> None:
        """Start (again) from a snapshot. The mappings are kept, and expected to be kept current by their owner.

        What is proposed and not answered stays reserved. Without *hold_queue*, nothing waits for ``schedule``.
        """
        self.mirror.now = now
        records = self.records
        records.jobs, records.allocations, records.hosts, records.quotas = jobs, allocations, hosts, quotas
        records.tenants, records.tenant_uses, self.mirror.fresh = tenants, tenant_uses, True
        self.proposals.load()
        self.jobs.load()
        self.chains.load()
        # What waited did so by records of before; it goes with its scheduler.
        self.drop_queue()
        self.mirror.rebuild()  # before anybody is queued: the policy looks at what runs before it lets one wait
        self.leases.load(now)
        if hold_queue:
            self.hold_queue(now)

    def hold_queue(self, now: float) -> None:
        """Queue what waits, and follow it from here on; when it was dropped, that takes about 15 us for each job."""
        if not self.holds_queue:
            self.holds_queue = True
            self.mirror.catch_up()  # the policy looks at what runs before it lets one wait
            self.jobs.queue_all(now)

    def drop_queue(self) -> None:
        """Drop the queue, and follow no more what waits: for a host on which nothing is placed and nobody asks."""
        self.holds_queue = False
        self.jobs.clear()
        self.mirror.renew_scheduler()

    def changed(self, changes: Iterable[tuple[str, str, Any]], now: float) -> None:
        """Take an Applied's changes; the mappings given to ``load`` show them already."""
        self.mirror.now = now
        for kind, id, record in changes:
            if kind == "job" and record is not None:
                self.chains.job_changed(record)
            if kind == "allocation":
                self._allocation_changed(id, record)
            elif kind == "host":
                self.records.host_changed(id, record)
                self.mirror.invalidate()
            elif kind == "job" and self.holds_queue:
                self.jobs.changed(id, record, now)
            elif kind == "job" and record is not None and record["state"] == JobState.QUEUED:
                self.mirror.arrivals.saw(Demand.of(record["resources"]))  # it may place by this mix later
            elif kind == "quota":
                self.mirror.limit_tenants()
            elif kind == "tenant":
                self.mirror.share()

    def _allocation_changed(self, allocation_id: str, record: AllocationRecord | None) -> None:
        id = attempt_of(allocation_id)
        self.proposals.grants.pop(id, None)
        self.leases.settled(id)
        self.chains.allocation_changed(allocation_id, record)
        records = self.records.of_placement(id)
        if record is not None and "behind" in record:
            self.jobs.withdraw_attempt(id)  # it holds nothing yet
        elif not records:
            self.proposals.attempt_over(id)
            self.mirror.ended(id)
        elif record is None:
            self.mirror.invalidate()  # a member of a gang is lost, and what it held is gone
        else:
            self.jobs.withdraw_attempt(id)
            self.proposals.attempt_granted(id, record)
            self.mirror.granted(id, records)

    # -- deciding

    def schedule(self, now: float, limit: int) -> list[Grant]:
        """Decide what to propose now, at most *limit* grants; each is reserved from here on."""
        self.mirror.now = now
        # The engine first: whether a job's deadline can be kept is asked of it. Then the jobs that were left open, or
        # they would wait for the next round.
        self.mirror.catch_up()
        self.jobs.catch_up(now)
        self.mirror.weigh_arrivals(now)
        grants = []
        for decision in self.mirror.scheduler.schedule(now, limit):
            if isinstance(decision, Start):
                grants.append(self._grant(decision))
            elif isinstance(decision, Preempt):
                self._preempt(decision, now)
            else:
                self._give_up(decision, now)
        return grants + self.chains.decide(limit - len(grants))

    @property
    def next_wakeup(self) -> float | None:
        """The time at which ``schedule`` next has something to do without any news; ``None``: at none."""
        return self.mirror.scheduler.next_wakeup

    def _grant(self, start: Start) -> Grant:
        id = start.request.id
        lease = self.leases.find(id)
        job_id = self.jobs.started(id)
        shares = start.placement.shares
        job = self.records.jobs.get(job_id, NO_JOB)
        grant = Grant(
            id=id,
            shares=shares,
            incarnations=tuple(self.records.hosts[host]["incarnation"] for host, _ in shares),
            latency_us=start.latency_us,
            demand=Demand.of(lease.resources if lease is not None else job["resources"]),
            job_id=job_id,
            number=number_of(id) or 0 if job_id else 0,
            lease=lease,
            user_id=start.request.tenant,
            edits=job.get("edits", 0),
        )
        self.proposals.grants[id] = grant
        return grant

    def _preempt(self, decision: Preempt, now: float) -> None:
        """Decide the end of a running attempt; of one whose grant is on its way, once that is committed."""
        records = self.records.of_placement(decision.id)
        token = tuple(records[0]["token"]) if records else None
        grace_s = max(0.0, decision.grace_s - STOPPED_S)
        for_job = self.jobs.job_under(decision.for_id) or decision.for_id
        self.proposals.terminate(AttemptPreemption(decision.id, grace_s, for_job, now, token))

    def _give_up(self, decision: Refuse, now: float) -> None:
        """Give up one that the policy lets wait no longer: its job is to fail, its lease is answered."""
        job_id = self.jobs.job_under(decision.id)
        self.jobs.withdraw_attempt(decision.id)
        if self.leases.find(decision.id) is not None:
            self.leases.give_up(decision, now)
        else:
            self.jobs.give_up(job_id, decision, now)

    # -- answers to what was proposed

    def committed(self, grant: Grant, now: float) -> None:
        """Settle *grant*, which is in the ledger up to where the mappings are: one they do not show has ended already.

        Its end can pass unseen: the ledger restarts, or sends to others before us, and work ends in milliseconds.
        """
        if self.proposals.grants.get(grant.id) is not grant:
            return
        del self.proposals.grants[grant.id]
        self.proposals.attempt_over(grant.id)
        self.leases.settled(grant.id)
        if grant.behind:
            self.chains.allocation_changed(grant.id, None)
        else:
            self.mirror.invalidate()  # the engine still holds its room
        if (job := self.records.queued_job(grant.job_id)) is not None:
            self.jobs.queue(job, now)

    def refused(self, grant: Grant, now: float) -> None:
        """Forget *grant*, which the ledger has not committed for certain, and try again from what the ledger says."""
        if self.proposals.grants.pop(grant.id, None) is None:
            return
        self.proposals.attempt_over(grant.id)
        self.mirror.now = now
        if grant.behind:
            self.chains.refused(grant)
            if (job := self.records.queued_job(grant.job_id)) is not None:
                self.jobs.queue(job, now)
            return
        if grant.id in self.mirror.engine:
            self.mirror.release(grant.id)
        self.mirror.invalidate()
        if grant.lease is not None:
            self.leases.try_again(grant.id, now)
        else:
            self.jobs.try_again(grant.job_id, now)

    def termination_refused(self, termination: Termination) -> None:
        """Forget one that the ledger has not committed for certain, and decide again from what the ledger says."""
        self.proposals.drop(termination)
        if isinstance(termination, JobFailure):
            self.jobs.doubt(termination.job_id)
        self.mirror.invalidate()

    def forget(self) -> None:
        """Forget what is proposed: this host leads no more, and who does goes on from the ledger, which settles it."""
        self.proposals.clear()
        self.leases.clear()
        self.chains.load()
        self.jobs.forget_refusals()
        self.mirror.invalidate()

    # -- answering

    def explain(self, resources: ResourcesRecord, job_id: str | None) -> dict[str, Any]:
        """The engine's ``explain`` for one attempt; of a job that waits, what ``Scheduler.explain`` adds to it."""
        self.mirror.catch_up()
        scheduler = self.mirror.scheduler
        waiting_id = self.jobs.attempt_waiting(job_id)
        if waiting_id is not None:
            report = scheduler.explain(waiting_id, self.mirror.now)
            held_up_by = [self.jobs.job_under(id) or id for id in report["held_up_by"]]
            if report["reservation"] is not None:
                report["reservation"]["stopping"] = [job_of(id) for id in report["reservation"]["stopping"]]
            return {"total_nodes": len(self.records.hosts), **report, "held_up_by": held_up_by}
        fit = scheduler.explain_demand(Demand.of(resources))
        report = {"total_nodes": len(self.records.hosts), **fit, "position": None}
        if job_id:
            report |= {"depends_on": [], "not_before": None}
        return report
