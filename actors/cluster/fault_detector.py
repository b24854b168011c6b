"""FaultDetector: hears every server's beats, reads the host's disk and memory, and says how it is.

Health goes to the shared state under ``_cluster/health/HOST_ID`` when it changes, so that every host may read it. How
the cluster is, as this host knows it, is judged in ``health.py``: readiness, ``status``, ``doctor`` and figures follow
from that one verdict.

Where the ledger is led it also says which hosts are lost, once what runs there has had to stop (``host_leases.py``).
"""

from __future__ import annotations

import os
from time import time
from typing import Any

import psutil

from actorgrid.actors.ledger.answers import LoseHostAnswer
from actorgrid.actors.ledger.query_answers import HostsHeard
from actorgrid.actors.ledger.record_types import NO_HOST
from actorgrid.errors import ActorGridError, NotLeader
from actorgrid.models import ClusterHealth
from actorgrid.supervisors.envelope import Beat
from actorgrid.supervisors.runtime import Timer
from actorgrid.supervisors.server import handles

from ..alerts.messages import ListAlerts, ListTuning, TestAlert
from ..alerts.watch import AlertWatch
from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.messages import Applied, Query
from ..ledger.recovery_records import maintained
from ..replication.messages import Mutate
from ..replication.namespaces import cluster_key
from .core import Vitals
from .faults.explain import fault_rows, why_host
from .faults.host_checks import HostChecks
from .faults.recovery import HostRecovery
from .health import HealthVerdict
from .health_watch import HealthWatch
from .host_leases import HostLoss, LeaseView, lease_view, losses, next_at
from .messages import ClusterHealthReport, FaultReport, HealthReport, HostsAway, ListFaults, WhyHost

EXPECTED = (
    "consensus",
    "distributed_state",
    "gpu_coordinator",
    "worker_manager",
    "cluster_manager",
    "load_balancer",
    "fault_detector",
    "gateway",
)
EXPECTED_OF_A_CLUSTER = ("links", "join_server", "membership")
"""Looked at where they run; a host that is alone has none."""
FAULTS_MAX = 1000
HEARD_S = 2.0
LOSE_S = 5.0
JUDGE_AGAIN_S = 0.2
LOW_MEMORY_BYTES = 256 * 2**20
PAUSE_FACTOR = 3.0
"""A check this many intervals late means that the whole host (or at least we) stood still."""


class FaultDetector(LedgerFollower):
    """The server that watches this host's health: answers HealthReport, keeps only the latest of everything."""

    name = "fault_detector"

    async def start(self) -> None:
        """Begin to listen; nobody is judged before a full patience has passed."""
        self._ledger = LedgerClient(self, lambda _snapshot: self._on_snapshot(), self._on_applied, jobs="begun")
        self._watch = HealthWatch(self, self._ledger)
        self._plan_timer: Timer | None = None
        self._judging = False
        self._heard: dict[str, float] = {}
        self._hosts_lost_total = 0
        self._attempts_lost_total = 0
        await self._ledger.start()
        interval_s = self.host.settings.monitoring.beat_interval_s
        now_s = self.runtime.monotonic()
        self._interval_s = interval_s
        self._vitals = Vitals(EXPECTED, interval_s, now_s)
        self._last_check_s = now_s
        self._published: tuple[str, tuple[str, ...]] | None = None
        self._pauses = 0
        self.every(interval_s, self._check)
        self._checks = HostChecks(self, self._ledger, self._vitals, (*EXPECTED, *EXPECTED_OF_A_CLUSTER))
        self._checks.start()
        self._recovery = HostRecovery(self, self._ledger, self._checks)
        self._recovery.start()
        names = (*EXPECTED, *EXPECTED_OF_A_CLUSTER)
        self._alerts = AlertWatch(self, self._ledger, names, self.metrics, self._presences, self._check_figures)
        self._alerts.start()

    @handles(Beat)
    def _beat(self, beat: Beat) -> None:
        self._vitals.beat(beat.name, beat.pid, beat.handled, self.runtime.monotonic())

    @handles(HealthReport)
    def _report(self, _request: HealthReport) -> dict[str, Any]:
        self._vitals.beat(self.name, os.getpid(), self.handled, self.runtime.monotonic())
        verdict = self._verdict()
        report = self._vitals.report(self.runtime.monotonic())
        return {**report, "ready": verdict.ready, "cluster": verdict.to_plain()}

    @handles(ClusterHealthReport)
    async def _cluster_report(self, _request: ClusterHealthReport) -> dict[str, Any]:
        await self._watch.ask_leader()
        return self._verdict().to_plain()

    @handles(HostsAway)
    def _hosts_away(self, _request: HostsAway) -> dict[str, Any]:
        told = {"quiet_s": self._watch.quiet_s(), "behind_s": self._watch.behind_s()}
        return {**told, "reached_by": self._watch.reached_by()}

    @handles(FaultReport)
    def _fault_report(self, _request: FaultReport) -> dict[str, Any]:
        return self._checks.report()

    @handles(WhyHost)
    def _why_host(self, request: WhyHost) -> dict[str, Any]:
        self._refuse_unless_leading()
        return why_host(request.host_id, self._ledger, self._recovery, time())

    @handles(ListFaults)
    def _list_faults(self, request: ListFaults) -> dict[str, Any]:
        self._refuse_unless_leading()
        limit = max(1, min(request.limit, FAULTS_MAX))
        return {"faults": fault_rows(self._ledger, self._recovery, request.host_id)[:limit]}

    @handles(ListAlerts)
    def _list_alerts(self, _request: ListAlerts) -> dict[str, Any]:
        return self._alerts.listed()

    @handles(ListTuning)
    def _list_tuning(self, _request: ListTuning) -> dict[str, Any]:
        return self._alerts.tuning()

    @handles(TestAlert)
    def _test_alert(self, request: TestAlert) -> dict[str, Any]:
        return self._alerts.test(request.by)

    def _presences(self) -> list[tuple[str, str]]:
        """The hosts of the cluster by name, each with its presence."""
        names = self._ledger.hosts
        return [
            (str(names.get(host_id, NO_HOST).get("hostname", host_id)), view.presence.value)
            for host_id, view in self._verdict().hosts.items()
        ]

    def _refuse_unless_leading(self) -> None:
        if not self._ledger.leads:
            raise NotLeader("this host does not lead", found=self._ledger.leader or "nobody is known to lead")

    def _verdict(self) -> HealthVerdict:
        silent = tuple(self._vitals.silent(self.runtime.monotonic()))
        return self._watch.verdict(silent, tuple(self._vitals.host_problems))

    async def _check(self) -> None:
        now_s = self.runtime.monotonic()
        if now_s - self._last_check_s > PAUSE_FACTOR * self._interval_s:
            self._pauses += 1
            self._vitals.resume(now_s)
        self._last_check_s = now_s
        self._vitals.beat(self.name, os.getpid(), self.handled, now_s)
        self._vitals.host_problems = self._read_host()
        self.spawn(self._watch.look())
        report = self._vitals.report(now_s)
        shown = (report["health"], tuple(report["problems"]))
        if shown == self._published:
            return
        value = {"health": shown[0], "problems": list(shown[1]), "at": time()}
        key = cluster_key("health", str(self.host.host_id))
        await self.call("distributed_state", Mutate(key, "lww_register", "put", value))
        self._published = shown

    def _read_host(self) -> list[str]:
        problems = []
        disk = os.statvfs(self.host.paths.data_dir)
        free = disk.f_bavail * disk.f_frsize
        floor = self.host.settings.performance.min_free_bytes
        if free < floor:
            problems.append(f"the data directory's disk has {free >> 20} MiB free, new work needs {floor >> 20} MiB")
        available = psutil.virtual_memory().available
        if available < LOW_MEMORY_BYTES:
            problems.append(f"only {available >> 20} MiB of host memory are available")
        return problems

    # -- hosts that are away

    def _on_snapshot(self) -> None:
        self._watch.leader_changed()
        self._plan()

    def _on_applied(self, message: Applied) -> None:
        self._watch.leader_changed()
        if any(kind in ("absent", "leader") for kind, _, _ in message.changes):
            self._plan()

    def _plan(self) -> None:
        """Plan when to judge the absent hosts: once the first work there is over."""
        if self._plan_timer is not None:
            self._plan_timer.cancel()
            self._plan_timer = None
        absent = self._ledger.absent
        if not (self._ledger.leads and absent) or self._judging:
            return
        heard = {host_id: max(at, self._heard.get(host_id, at)) for host_id, at in absent.items()}
        at = next_at(self._lease_view(), heard)
        if at is not None:
            delay_s = max(0.0, at - self.runtime.boottime())
            self._plan_timer = self.runtime.after(delay_s, lambda: self.spawn(self._judge()))

    def _lease_view(self) -> LeaseView:
        ledger = self._ledger
        return lease_view(ledger.hosts, ledger.allocations.values(), ledger.jobs, ledger.term, ledger.absent)

    async def _judge(self) -> None:
        """Ask when each host was last heard of, and declare lost whose work is over; look again until none is."""
        self._judging = True
        try:
            view = self._lease_view()
            known: HostsHeard = await self._ledger.ask(Query("hosts_heard"), timeout_s=HEARD_S)
            self._heard = known["heard"]
            for loss in losses(view, known["heard"], known["as_of"]):
                await self._lose(loss, time() - (self.runtime.boottime() - known["heard"][loss.host]))
        except ActorGridError as error:
            self.log.info("hosts that are away are not judged yet: %s", error)
        await self.sleep(JUDGE_AGAIN_S)
        self._judging = False
        self._plan()

    async def _lose(self, loss: HostLoss, heard_at: float) -> None:
        before = self._ledger.hosts.get(loss.host, NO_HOST).get("state")
        result: LoseHostAnswer = await self._ledger.propose(loss.command(heard_at), timeout_s=LOSE_S)
        self._hosts_lost_total += before == "up"
        self._attempts_lost_total += len(result["ended"])
        self.log.warning(
            "host %s was not heard of for %.1f s; over with it: %s",
            loss.host,
            loss.quiet_s,
            ", ".join(result["ended"][:20]) or "nothing",
        )

    def metrics(self) -> dict[str, float]:
        """Counts of silent servers, restarts seen, pauses of the host; and the cluster as this host knows it."""
        verdict = self._verdict()
        states = {f"cluster_{state.value}": float(verdict.health is state) for state in ClusterHealth}
        return {
            **states,
            "cluster_can_commit": float(verdict.can_commit),
            "cluster_problems": float(sum(problem.level != "note" for problem in verdict.problems)),
            "cluster_hosts": float(len(verdict.hosts)),
            "cluster_hosts_present": float(verdict.hosts_present),
            "cluster_gpus": float(verdict.gpus),
            "cluster_gpus_present": float(verdict.gpus_present),
            **self._fault_figures(),
            **self._own_figures(),
            **self._alerts.figures(),
            "silent_servers": len(self._vitals.silent(self.runtime.monotonic())),
            "server_restarts_total": sum(vital.restarts for vital in self._vitals.servers.values()),
            "host_pauses_total": self._pauses,
            "hosts_lost": sum(host["state"] == "lost" for host in self._ledger.hosts.values()),
            "hosts_lost_total": self._hosts_lost_total,
            "attempts_lost_total": self._attempts_lost_total,
        }

    def _fault_figures(self) -> dict[str, float]:
        """Of this host's checks; and, where this host leads, of what is done about hosts."""
        kinds = [result.status.value for result in self._checks.results]
        outlooks = self._recovery.outlooks.values() if self._ledger.leads else ()
        now = time()
        return {
            "checks_degraded": float(kinds.count("degraded")),
            "checks_failed": float(kinds.count("failed")),
            "check_lateness": self._checks.lateness,
            "recovery_actions_begun_total": float(self._recovery.begun_total),
            "hosts_in_recovery": float(sum(outlook.level > 0 for outlook in outlooks)),
            "hosts_damped": float(sum(outlook.damping.suppressed for outlook in outlooks)),
            "hosts_in_maintenance": float(
                sum(maintained(record, now) is not None for record in self._ledger.recoveries.values())
            ),
        }

    def _check_figures(self) -> dict[str, float]:
        """What the checks of this host as a whole measured."""
        return {
            f"check.{result.name}.{name}": value
            for result in self._checks.results
            if result.name in ("disk", "memory", "processor", "network")
            for name, value in result.evidence.items()
        }

    def _own_figures(self) -> dict[str, float]:
        """Of this host: its disk, its clock, its certificate; what is not known is missing."""
        disk = os.statvfs(self.host.paths.data_dir)
        found = {"disk_free_ratio": disk.f_bavail / max(1, disk.f_blocks)}
        clock = next((result.evidence for result in self._checks.results if result.name == "clock"), {})
        if clock.get("peers"):
            found["clock_offset_seconds"] = clock["offset_s"]
        until = (self._ledger.trust.get(self.host.host_id) or {}).get("valid_until")
        if until:
            found["certificate_left_seconds"] = until - time()
        return found

    def status(self) -> dict[str, Any]:
        """The health report, and the verdict on the cluster."""
        return {**self._vitals.report(self.runtime.monotonic()), "cluster": self._verdict().to_plain()}
