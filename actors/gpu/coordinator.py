"""GPUCoordinator: knows this host's devices and gives out the cluster's.

It registers the host with the ledger, follows the ledger, and proposes a grant for every waiting job and lease that
fits. It holds nothing that the ledger does not: killed at any moment, it goes on from there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from time import perf_counter_ns, time
from typing import Any

from actorgrid.actors.ledger.answers import GrantAnswer
from actorgrid.actors.ledger.command import cluster_version
from actorgrid.actors.ledger.commands import GrantLease
from actorgrid.actors.ledger.commands.jobs import BEHIND_SINCE
from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord
from actorgrid.actors.ledger.records import share_of
from actorgrid.demand import Demand
from actorgrid.errors import (
    ActorGridError,
    CallTimeout,
    LedgerRefused,
    NotLeader,
)
from actorgrid.hotpath import COMPILED, LatencyWindow
from actorgrid.models import JobState
from actorgrid.supervisors.gc_pause import collection_paused
from actorgrid.supervisors.runtime import Timer, Waiter
from actorgrid.supervisors.server import handles
from actorgrid.supervisors.span_sender import sender_for

from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.exec_limits import check_exec
from ..ledger.messages import Applied, LedgerSnapshot
from .amd_partitions import AmdPartitions
from .core import CoordinatorCore
from .device import Device, unhealthy_in
from .device_health import HealthIncident
from .device_listing import NOT_ASKED, DeviceNow, Elsewhere, device_rows, readings_elsewhere, unhealthy_rows
from .device_totals import DeviceTotals
from .feasibility import check_feasible
from .host_registration import HostRegistration
from .idle_watch import IdleWatch
from .kernel_limits import KernelLimits
from .memory_watch import MemoryWatch
from .messages import (
    AcquireLease,
    AmdGpus,
    CheckFeasible,
    CreateMig,
    DestroyMig,
    Explain,
    Inventory,
    JoinMps,
    LatencyReport,
    MigGpus,
    OwnReadings,
    OwnTotals,
    RecentDecisions,
    SetAmdPartition,
)
from .metric_sender import GpuMetricsFeed
from .mig_control import MigControl
from .mps_daemons import MpsDaemons
from .placement_spans import tell_granted
from .proposals import AttemptPreemption, Grant, JobFailure, Termination
from .totals_teller import TotalsTeller
from .usage_feed import UsageFeed

IN_FLIGHT_MAX = 128
"""Grants and terminations proposed and not answered; the ledger client takes 256 proposals at once."""
REGISTER_WAIT_S = 8.0
DECISIONS_KEPT = 1024
RETRY_S = 1.0
QUEUE_KEPT_S = 60.0
"""Where another host places what waits: how long the queue is known here after somebody asked about it."""
HOLD_S = 2.0
"""No new grants for this long after the ledger's storage refused one."""


class GPUCoordinator(LedgerFollower):
    """The server that answers for devices and places what waits; ``messages.py`` has what it takes."""

    name = "gpu_coordinator"

    def start(self) -> None:
        """Begin to look for devices and to follow the ledger; neither is waited for."""
        settings = self.host.settings
        self._core = CoordinatorCore(
            self.host.host_id,
            self.host.incarnation,
            settings.scheduling.policy,
            settings.scheduling.queue_max,
            perf_counter_ns,
            queue=settings.scheduling.queue,
        )
        self._ledger = LedgerClient(self, on_snapshot=self._on_snapshot, on_applied=self._on_applied)
        self._watch = MemoryWatch(self, self._ledger)
        self._registration = HostRegistration(
            self, self._ledger, self._core.records, self._health_changed, self._watch.take
        )
        self._mps = MpsDaemons(self, self._ledger, self._registration.inventory, self._registration.tell_health)
        self._registration.held_by_mps = self._mps.held_now
        self._kernel = KernelLimits(self, self._registration.inventory, self._registration.tell_health)
        self._registration.held_by_kernel = self._kernel.now
        self._watch.own_pids = self._mps.own_pids
        self._idle = IdleWatch(self, self._ledger)
        self._usage = UsageFeed(self, self._registration, self._watch)
        self._spans = sender_for(self.host)
        self._feed = GpuMetricsFeed(self, self._registration.own_now)
        self._mig = MigControl(self, self._ledger, self._registration)
        self._totals = TotalsTeller(self, self._ledger, self._registration.sampling)
        self._amd = AmdPartitions(self, self._registration.inventory, self._mig)
        self._latency = LatencyWindow()
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_KEPT)
        self._grants_total = 0
        self._refused_total = 0
        self._terminations_total: dict[type[Termination], int] = {AttemptPreemption: 0, JobFailure: 0}
        self._lease_waiters: dict[str, tuple[Waiter, Timer]] = {}
        self._kicked = False
        self._mig_due = False
        self._wake_at: float | None = None
        self._hold_until = 0.0
        self._hold_reason = ""
        self.spawn(self._registration.start())
        self.spawn(self._sample())

    def stop(self, reason: str) -> None:
        """End the probe child."""
        self._registration.inventory.stop()
        self._mps.stop()
        self._feed.close()
        if self._spans is not None:
            self._spans.close()

    def setting_changed(self, key: str) -> None:
        """Take over what may change while the host runs: the size of the queue, what is given out, what is watched."""
        if key == "scheduling.queue_max":
            self._core.mirror.scheduler.queue_max = self.host.settings.scheduling.queue_max
        if key == "gpus.mig":
            self._registration.inventory.settings_changed()
        if key == "work.isolation":
            self._registration.settings_changed()
        if key == "gpus.mps":
            self._mps.look()
        if key in ("gpus.memory_watch", "gpus.mps"):
            self._registration.tell_health()

    # -- this host

    async def _sample(self) -> None:
        while True:
            await self.sleep(self.host.settings.gpus.probe_interval_s)
            self._mps.look()
            self._kernel.look()
            self._registration.take_sample()
            self._idle.take(self._registration.utilization())
            self._usage.tell_simulated()
            self._feed.take(time())
            self._totals.look()
            self._core.mirror.set_unhealthy(self._unhealthy())
            self._core.mirror.set_scores(self._registration.sampling.scores())
            self._look_at_mig()
            self._kick()

    def _look_at_mig(self) -> None:
        self._mig_due = False
        self._mig.look(self._core.leases.waiting())

    def _health_changed(self, incidents: list[HealthIncident]) -> None:
        """Place nothing new, from now on, on a device that is in trouble."""
        self._registration.take_health()
        self._core.mirror.set_unhealthy(self._unhealthy())
        self._kick()

    def _unhealthy(self) -> dict[str, str]:
        """The devices of all hosts that take nothing new: of this one as found now, of others as their records say."""
        found = dict(self._registration.sampling.unhealthy())
        for host_id, host in self._ledger.hosts.items():
            if host_id != self.host.host_id:
                found.update(unhealthy_in(host))
        return found

    def _held_back_by(self) -> str:
        """The reason why nothing is placed just now; ``""`` when there is none."""
        if self._registration.problem or self.runtime.monotonic() >= self._hold_until:
            return self._registration.problem
        return self._hold_reason

    # -- following the ledger

    def _on_snapshot(self, _snapshot: LedgerSnapshot) -> None:
        if not self._ledger.leads:
            self._leave_to_leader()
        # Before the load, which builds the engine by it: told afterwards, it would have to be built twice.
        self._core.mirror.set_absent(frozenset(self._ledger.absent))
        self._load()
        for lease_id in list(self._lease_waiters):
            self._settle_lease(lease_id)
        self._kick()

    def _on_applied(self, message: Applied) -> None:
        self._core.changed(message.changes, time())
        for kind, id, record in message.changes:
            if kind == "allocation":
                self._settle_lease(id)
            elif kind == "job" and not self._mig_due and self._mig.concerns(record):
                self._mig_due = True  # once for all that come with it: each look goes over all that waits
                self.runtime.after(0.0, self._look_at_mig)
            elif kind == "leader":
                self._leadership_changed()
            elif kind == "absent":
                self._core.mirror.set_absent(frozenset(self._ledger.absent))
            elif kind == "host":
                self._core.mirror.set_unhealthy(self._unhealthy())
            elif kind == "member":
                self._members_changed()
        self._kick()

    def _leadership_changed(self) -> None:
        """Start to place from what the ledger says where this host leads it, or leave that to the one that does."""
        if self._ledger.leads:
            self._load()
        else:
            self._leave_to_leader()

    def _load(self) -> None:
        ledger = self._ledger
        self._members_changed()
        with collection_paused():
            self._core.load(
                ledger.jobs,
                ledger.allocations,
                ledger.hosts,
                time(),
                ledger.quotas,
                ledger.leads,
                ledger.tenants,
                ledger.tenant_uses,
            )

    def _members_changed(self) -> None:
        self._core.chains.allowed = cluster_version(self._ledger.members) >= BEHIND_SINCE
        self._registration.members_changed()

    def _leave_to_leader(self) -> None:
        self._core.forget()
        self._core.drop_queue()
        for lease_id in list(self._lease_waiters):
            self._take_waiter(lease_id).fail(self._not_leader())

    def _hold_queue(self) -> None:
        """Have the queue here for a question about it, also where another host places what waits, and for the next."""
        if not self._core.holds_queue:
            self._core.hold_queue(time())
            self.runtime.after(QUEUE_KEPT_S, self._let_go_of_queue)

    def _let_go_of_queue(self) -> None:
        if not self._ledger.leads:
            self._core.drop_queue()

    def _queue_length(self) -> int:
        if self._core.holds_queue:
            return len(self._core.mirror.scheduler.waiting)
        return self._ledger.job_counts.get(JobState.QUEUED, 0)

    def _not_leader(self) -> NotLeader:
        return NotLeader(
            "another host of the cluster places work",
            asked="a worker",
            found=f"host {self._ledger.leader or 'unknown: none leads just now'}",
            hint="ask again in a moment",
        )

    # -- scheduling

    def _kick(self) -> None:
        """Decide after what is already on its way in has been taken."""
        if not self._kicked:
            self._kicked = True
            self.runtime.after(0.0, self._schedule)

    def _schedule(self) -> None:
        # First: whoever kicks from here on asks for another turn.
        self._kicked = False
        now = time()
        if self.runtime.monotonic() < self._hold_until:
            self._wake_in(self._hold_until - self.runtime.monotonic())
            return
        if not self._core.records.registered or not self._ledger.leads:
            return
        room = IN_FLIGHT_MAX - self._core.proposals.under_way
        if room <= 0:
            return  # the next answer makes some, and kicks
        for grant in self._core.schedule(now, room):
            self._latency.add(grant.latency_us)
            self.spawn(self._propose(grant))
        for termination in self._core.proposals.take_terminations():
            self.spawn(self._propose_termination(termination))
        for lease_id, error in self._core.leases.take_refused().items():
            if lease_id in self._lease_waiters:
                self._take_waiter(lease_id).fail(error)
        wake = self._core.next_wakeup
        if wake is not None:
            self._wake_in(max(0.0, wake - now))

    def _wake_in(self, delay_s: float) -> None:
        at = self.runtime.monotonic() + delay_s
        if self._wake_at is not None and self._wake_at <= at:
            return
        self._wake_at = at

        def wake() -> None:
            if self._wake_at == at:
                self._wake_at = None
            self._kick()

        self.runtime.after(delay_s, wake)

    async def _propose(self, grant: Grant) -> None:
        """Commit a grant. What the ledger may or may not have committed stays reserved and is asked again."""
        while grant.id in self._core.proposals.grants:
            try:
                command = grant.command(self._ledger.term, self._ports())
                if isinstance(command, GrantLease):
                    command = replace(command, max_isolation_s=self.host.settings.work.max_isolation_s)
                job = self._ledger.jobs.get(grant.job_id) if self._spans is not None else None
                asked = time()
                result: GrantAnswer = await self._ledger.propose(command)
                self._grants_total += 1
                if self._spans is not None and job is not None:
                    hosts = [host for host, _ in grant.shares]
                    tell_granted(self._spans, job, grant.number, hosts, grant.latency_us, asked, time())
                self._decisions.appendleft(self._decision(grant))
                await self._seen(grant, result["token"][1])
                return
            except CallTimeout as error:
                # Proposing it again is safe: if it was committed, the guard refuses a second time.
                self.log.warning("grant %s: %s", grant.id, error)
                await self.sleep(RETRY_S)
            except ActorGridError as error:
                self._refused(grant, error)
                return

    def _ports(self) -> tuple[int, int]:
        """The first and the last port at which the members of a gang may meet."""
        first, _, last = self.host.settings.work.rendezvous_ports.partition("-")
        return int(first), int(last)

    async def _propose_termination(self, termination: Termination) -> None:
        """Commit the end of an attempt or of a waiting job, until the ledger shows it or refuses."""
        while self._core.proposals.stands(termination):
            try:
                await self._ledger.propose(termination.command(self._ledger.term))
            except CallTimeout as error:
                self.log.warning("%s: %s", termination, error)
            except ActorGridError as error:
                self._hold_after(error)
                self.log.info("%s refused: %s", termination, error)
                self._core.termination_refused(termination)
                self._kick()
                return
            else:
                self._terminations_total[type(termination)] += 1
                self._kick()
                return  # our copy of the ledger shows it already, or will when it has subscribed again
            await self.sleep(RETRY_S)

    async def _seen(self, grant: Grant, index: int) -> None:
        """Stop holding room for *grant*, committed at *index*, once our copy of the ledger is that far."""
        while grant.id in self._core.proposals.grants and self._ledger.index < index:
            await self.sleep(RETRY_S)  # the ledger is being subscribed to again
        if grant.id in self._core.proposals.grants:
            self._core.committed(grant, time())
            self._kick()

    def _decision(self, grant: Grant) -> dict[str, Any]:
        held = self._core.records.of_placement(grant.id)
        job = self._ledger.jobs.get(grant.job_id, NO_JOB)
        return {
            "task_id": grant.job_id or grant.id,
            "node_id": grant.host,
            "gpu_ids": [uuid for record in held for uuid in record["gpu_uuids"]],
            "scheduled_at": held[0]["granted_at"] if held else time(),
            # The best guess there is of how long it will take: what its owner allows it.
            "execution_time_estimate_s": job.get("max_execution_time_s"),
            "decision_latency_us": grant.latency_us,
        }

    def _refused(self, grant: Grant, error: ActorGridError) -> None:
        self._refused_total += 1
        self._hold_after(error)
        self.log.info("grant %s refused: %s", grant.id, error)
        self._core.refused(grant, time())
        self._kick()

    def _hold_after(self, error: ActorGridError) -> None:
        """Propose nothing for a while when it was not the ledger's guard that refused."""
        if not isinstance(error, LedgerRefused):
            self._hold_until = self.runtime.monotonic() + HOLD_S
            self._hold_reason = f"nothing new is placed for now: {error.message}"

    # -- answering

    @handles(CheckFeasible)
    async def _check_feasible(self, request: CheckFeasible) -> None:
        await self._registration.until_registered(REGISTER_WAIT_S)
        check_feasible(Demand.of(request.resources), self._ledger.hosts.values())
        if request.deadline is not None:
            self._hold_queue()
            self._core.jobs.check_deadline(request.resources, request.deadline, request.limit_s, time())
            self._kick()  # looking may have moved the reservations of others

    @handles(Explain)
    def _explain(self, request: Explain) -> dict[str, Any]:
        if request.job_id is not None:
            self._hold_queue()
        report = self._core.explain(request.resources, request.job_id)
        if not self._core.records.registered:
            report["host"] = "this host's devices are not known yet"
        elif problem := self._held_back_by():
            report["host"] = problem
        report["unfit"] = unhealthy_rows(self._ledger.hosts, self._unhealthy())
        return report

    @handles(AcquireLease)
    async def _acquire_lease(self, request: AcquireLease) -> AllocationRecord:
        # Asked for again because its answer was lost, a lease is not granted a second time.
        if request.lease_id in self._ledger.allocations:
            return self._ledger.allocations[request.lease_id]
        check_exec((), request.env)
        deadline = self.runtime.monotonic() + request.wait_s
        await self._registration.until_registered(max(request.wait_s, REGISTER_WAIT_S))
        if not self._ledger.leads:
            raise self._not_leader()
        waiting = self._lease_waiters.get(request.lease_id)
        if waiting is None:
            self._core.leases.ask(request, time())
            waiting = Waiter(), self._expire_lease_in(max(0.0, deadline - self.runtime.monotonic()), request)
            self._lease_waiters[request.lease_id] = waiting
            self._kick()
        record: AllocationRecord = await waiting[0]
        return record

    def _settle_lease(self, lease_id: str) -> None:
        if lease_id in self._lease_waiters and lease_id in self._ledger.allocations:
            self._take_waiter(lease_id).set(self._ledger.allocations[lease_id])

    def _take_waiter(self, lease_id: str) -> Waiter:
        """Take out whoever waits for that lease, to be answered: nobody does any more."""
        waiter, timer = self._lease_waiters.pop(lease_id)
        timer.cancel()
        return waiter

    def _expire_lease_in(self, delay_s: float, request: AcquireLease) -> Timer:
        return self.runtime.after(delay_s, lambda: self._lease_expired(request))

    def _lease_expired(self, request: AcquireLease) -> None:
        if request.lease_id not in self._lease_waiters:
            return
        if not self._core.leases.withdraw(request.lease_id) and request.lease_id in self._core.proposals.grants:
            # Being committed right now: the answer is near, and giving up here would leave it to no one.
            waiter, _ = self._lease_waiters[request.lease_id]
            self._lease_waiters[request.lease_id] = waiter, self._expire_lease_in(RETRY_S, request)
            return
        waiter, _ = self._lease_waiters.pop(request.lease_id)
        waiter.fail(self._core.leases.no_room(request))

    @handles(Inventory)
    async def _list(self, request: Inventory) -> list[dict[str, Any]]:
        await self._ledger.reached(request.seen)
        elsewhere: Elsewhere = {}
        if request.everywhere and self.host.enrolment is not None:
            others = self._ledger.hosts.keys() - self._ledger.absent - {self.host.host_id}
            elsewhere = await readings_elsewhere(self, sorted(others))

        def read(host_id: str, device: Device, milli: int, memory_mib: int) -> DeviceNow:
            if host_id != self.host.host_id:
                return elsewhere.get(device.uuid, NOT_ASKED)
            return self._registration.now(device, milli, memory_mib)

        return device_rows(self._ledger.hosts, self._core.records.allocated(), self._unhealthy(), read)

    @handles(OwnTotals)
    def _own_totals(self, _request: OwnTotals) -> DeviceTotals:
        return self._totals.now()

    @handles(OwnReadings)
    def _own_readings(self, _request: OwnReadings) -> dict[str, dict[str, Any]]:
        allocated = self._core.records.allocated()
        found = {}
        for device in self._registration.inventory.devices:
            milli, memory_mib, _ = allocated.get((self.host.host_id, device.index), (0, 0, []))
            found[device.uuid] = self._registration.now(device, milli, memory_mib).to_record()
        return found

    @handles(JoinMps)
    async def _join_mps(self, request: JoinMps) -> str:
        await self._registration.until_registered(REGISTER_WAIT_S)
        return await self._mps.join(request)

    @handles(MigGpus)
    def _mig_gpus(self, _request: MigGpus) -> list[dict[str, Any]]:
        return self._mig.listed()

    @handles(CreateMig)
    async def _create_mig(self, request: CreateMig) -> str:
        return await self._mig.create(request.gpu, request.profile)

    @handles(DestroyMig)
    async def _destroy_mig(self, request: DestroyMig) -> None:
        await self._mig.destroy(request.instance)

    @handles(AmdGpus)
    def _amd_gpus(self, _request: AmdGpus) -> list[dict[str, Any]]:
        return self._amd.listed()

    @handles(SetAmdPartition)
    async def _set_amd_partition(self, request: SetAmdPartition) -> None:
        await self._amd.set(request.gpu, request.change, request.mode)

    @handles(RecentDecisions)
    def _recent_decisions(self, request: RecentDecisions) -> list[dict[str, Any]]:
        return list(islice(self._decisions, max(0, request.limit)))

    @handles(LatencyReport)
    def _latency_report(self, _request: LatencyReport) -> dict[str, Any]:
        return {
            "p50_us": self._latency.percentile(50),
            "p99_us": self._latency.percentile(99),
            "count": self._latency.count,
            "policy": self._core.mirror.engine.policy,
            "compiled": COMPILED,
        }

    def metrics(self) -> dict[str, float]:
        """The figures of devices, of what is given out of them, of the queue, and of placement latencies."""
        devices = [device for host in self._ledger.hosts.values() for device in host["devices"]]
        figures = {
            "gpu_devices": float(len(devices)),
            "gpu_capacity_milli": float(sum(map(share_of, devices))),
            "gpu_allocated_milli": float(sum(milli for milli, _, _ in self._core.records.allocated().values())),
            "gpu_idle_ended_total": float(self._idle.ended_total),
            "gpu_devices_in_error": float(len(self._registration.inventory.troubles())),
            "queue_length": float(self._queue_length()),
            "grants_in_flight": float(len(self._core.proposals.grants)),
            "grants_total": float(self._grants_total),
            "grants_refused_total": float(self._refused_total),
            "preemptions_total": float(self._terminations_total[AttemptPreemption]),
            "jobs_given_up_total": float(self._terminations_total[JobFailure]),
        }
        for percent in (50, 99):
            value = self._latency.percentile(percent)
            if value is not None:
                figures[f"placement_latency_p{percent}_us"] = value
        if self._spans is not None:
            figures |= self._spans.figures()
        figures |= self._feed.figures() | self._mps.figures() | self._watch.figures()
        return figures | self._registration.sampling.figures() | self._registration.heat.figures()

    def status(self) -> dict[str, Any]:
        """The state of devices, queue and probe, with ``notes`` that people should read."""
        inventory = self._registration.inventory.status()
        notes = [*inventory.pop("notes"), *self._core.mirror.notes.values(), *self._mps.notes]
        notes += [note for note in (self._registration.heat.note, self._feed.note) if note]
        if problem := self._held_back_by():
            notes.append(problem)
        return {
            "registered": self._core.records.registered,
            "devices": len(self._registration.inventory.devices),
            "queue": self._queue_length(),
            "in_flight": len(self._core.proposals.grants),
            "policy": self._core.mirror.engine.policy,
            "compiled": COMPILED,
            "probe": inventory,
            "gpu_users": self._watch.status(),
            "heat": self._registration.heat.status(),
            "mig": self._mig.status(),
            "mps": self._mps.status(),
            "notes": notes,
        }
