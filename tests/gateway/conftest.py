"""A gateway among small stand-ins, driven from the test's thread, and a real HTTP client in another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from actorgrid.actors.alerts.core import Alert, AlertBook
from actorgrid.actors.alerts.messages import ListAlerts, ListTuning, TestAlert
from actorgrid.actors.alerts.rules import RULES
from actorgrid.actors.alerts.watch import AlertWatch
from actorgrid.actors.cluster import messages as cluster
from actorgrid.actors.cluster.fault_detector import FaultDetector as RealFaultDetector
from actorgrid.actors.cluster.faults.explain import why_host
from actorgrid.actors.cluster.health import Facts, HostFact, LedgerFact, verdict
from actorgrid.actors.cluster.load_balancer import LoadBalancer as RealLoadBalancer
from actorgrid.actors.cluster.manager import ClusterManager as RealClusterManager
from actorgrid.actors.consensus.actor import Consensus as RealConsensus
from actorgrid.actors.gateway.actor import Gateway
from actorgrid.actors.gpu.coordinator import GPUCoordinator as RealGPUCoordinator
from actorgrid.actors.gpu.device_totals import DeviceTotals, together
from actorgrid.actors.gpu.messages import (
    AmdGpus,
    CheckFeasible,
    CreateMig,
    DestroyMig,
    Inventory,
    MigGpus,
    OwnTotals,
    RecentDecisions,
    SetAmdPartition,
)
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.host.enrolment import Enrolment
from actorgrid.actors.host.messages import RestartHost
from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.api_keys import revoke_key
from actorgrid.actors.ledger.messages import Applied, LedgerSnapshot, Propose, Proposed, Query, Subscribe
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.links import messages as links
from actorgrid.actors.model_gateway.gateway_keeper import GatewayKeeper
from actorgrid.actors.replication import messages as replication
from actorgrid.actors.replication.actor import DistributedState as RealDistributedState
from actorgrid.actors.replication.changes import ChangeLog, change_id, read_change_id
from actorgrid.actors.security import messages as security
from actorgrid.actors.security.host_material import store_material
from actorgrid.actors.work.messages import (
    DetachLease,
    FindChannel,
    LeaseOutput,
    ListAttempts,
    ReadWorkUsage,
    ReportObjects,
)
from actorgrid.actors.work.usage_rows import empty_row
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorGridError, HostUnreachable, UnknownJob, UnknownKey, UnknownSession
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles
from tests.security.rig import Cluster
from tests.system.cluster_host import free_base_port

FINAL = ("succeeded", "failed", "cancelled", "lost")
GPU = {
    "device_id": "GPU-0",
    "vendor": "nvidia",
    "model": "H100-80GB",
    "host": "h1",
    "index": 0,
    "source": "simulated",
    "memory_total_bytes": 80 * 2**30,
    "memory_allocated_bytes": 0,
    "memory_used_bytes": None,
    "allocated_milli": 250,
    "temperature_celsius": None,
    "power_usage_watts": None,
    "utilization_percent": None,
    "status": "allocated",
    "jobs": ["a"],
}
ALLOCATION = {
    "allocation_id": "a.1",
    "owner": {"kind": "attempt", "job_id": "a", "attempt": 1},
    "host": "h1",
    "incarnation": 1,
    "gpu_indexes": [0],
    "gpu_uuids": ["GPU-0"],
    "gpu_milli": 250,
    "gpu_memory_mib": 0,
    "cpu_milli": 1000,
    "memory_mib": 0,
    "token": [1, 7],
    "granted_at": 1.0,
    "pool": "gpu_compute",
    "env": {},
}


CLUSTER = Cluster()
JOIN_TOKEN = {"id": "t1", "made_by": "http", "made_at": 1.0, "expires_at": 9.0, "uses_max": 1, "used_by": []}
JOIN_TOKEN |= {"revoked_at": None, "verify_key": "not shown"}
HOLDER = {"owner": "me", "user_id": "ann", "since": 1.0, "ttl_s": 5.0, "renewals": 0, "token": [1, 7]}
LOCK = {"name": "deploy", "slots": 1, "holders": [HOLDER], "waiters": [{**HOLDER, "owner": "you", "token": None}]}
QUOTA = {
    "user": "ann",
    "limits": {
        "gpu_milli": 4000,
        "gpu_memory_mib": 1024,
        "cpu_milli": None,
        "memory_mib": None,
        "jobs_waiting": 10,
    },
    "default": False,
    "used": {"gpu_milli": 1500, "gpu_memory_mib": 0, "cpu_milli": 2000, "memory_mib": 512, "jobs_waiting": 3},
}


class StandIn(Server):
    """Answers from memory; ``broken`` makes it raise that instead, ``mute`` makes it never answer."""

    broken: ActorGridError | None = None
    mute = False
    seen = -1
    """How far in the ledger the last asker of a ledger client had seen."""

    def deliver(self, envelope: Any) -> None:
        if not self.mute:
            super().deliver(envelope)

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken


class Consensus(StandIn):
    name = "consensus"

    def start(self) -> None:
        self.index = 5
        self.rows: list[dict[str, Any]] = []
        self.subscribers: list[str] = []
        self.keys: dict[str, dict[str, Any]] = {}
        self.steps: list[tuple[int, Any]] = []
        self.planner = Ledger()

    @handles(Propose)
    def propose(self, request: Propose) -> Proposed:
        """API keys, locks that are always had, and a host that drains."""
        command = request.command
        if isinstance(command, commands.DrainHost):
            return Proposed(self.index, {"host": command.host, "draining": command.draining})
        if isinstance(command, commands.SetMaintenance):
            return Proposed(self.index, {"host": command.host, "until": command.until, "was": False})
        if isinstance(command, commands.EditJob):
            changed = {"priority": command.priority, "max_execution_time_s": command.max_execution_time_s}
            return Proposed(self.index, {"job_id": command.job_id, **changed})
        if isinstance(command, commands.RetryJob):
            return Proposed(self.index, {"job_id": command.job_id, "attempts": 1})
        if isinstance(command, commands.ReportAuditHead):
            return Proposed(self.index, {"host_id": command.host_id, "log": 1, "size": command.size})
        if isinstance(command, commands.ClearNotices):
            return Proposed(self.index, {"cleared": 0})
        if command.verb.endswith(("_schedule", "_service", "_tenant", "_secret")):
            return self.plan(command)
        if isinstance(command, commands.CancelSteps):
            return Proposed(self.index, {"cancelled": 1, "stopping": 0, "over": 0})
        if isinstance(command, commands.RetryGraph | commands.RetrySteps):
            return Proposed(self.index, {"state": "running", "again": 1})
        if command.verb.endswith("_lock"):
            held = {"held": True, "token": [1, 7], "position": 0, "slots": 1, "ttl_s": 5.0, "renewals": 0}
            return Proposed(self.index, {"released": True} if isinstance(command, commands.ReleaseLock) else held)
        if isinstance(command, commands.CreateApiKey):
            record = command.key
        else:
            assert isinstance(command, commands.RevokeApiKey)
            record = revoke_key(self.keys.get(command.key_id), command.at)
        self.keys[record["id"]] = record
        self.apply("api_key", record["id"], record, command.verb)
        return Proposed(self.index, {"id": record["id"], "revoked_at": record["revoked_at"]})

    def plan(self, command: Any) -> Proposed:
        """Schedules, services, tenants and secrets, by the real rules."""
        outcome = self.planner.apply(self.planner.index + 1, command)
        if outcome.error is not None:
            raise outcome.error
        for kind, name, record in outcome.changes:
            if kind in ("schedule", "service", "tenant", "secret"):
                self.apply(kind, name, record, command.verb)
        return Proposed(self.index, dict(outcome.result or {}))

    @handles(Subscribe)
    def subscribe(self, _request: Subscribe, sender: str) -> LedgerSnapshot:
        self.subscribers.append(sender)
        return LedgerSnapshot(self.index, 1, 1, {}, {}, {}, {})

    @handles(Query)
    def query(self, query: Query) -> Any:
        self.check()
        if query.kind == "allocations":
            return {"allocations": [ALLOCATION]}
        if query.kind == "quotas":
            return {"quotas": [QUOTA]}
        if query.kind == "tenants":
            return {"tenants": self.planner.quotas.tenants.rows()}
        if query.kind == "secrets":
            return {"secrets": list(self.planner.secrets.values())}
        if query.kind == "locks":
            return {"locks": [LOCK]}
        if query.kind == "join_tokens":
            return {"join_tokens": [JOIN_TOKEN]}
        if query.kind == "api_keys":
            return {"api_keys": list(self.keys.values())}
        if query.kind == "audit_heads":
            head = {"log": 1, "size": 3, "root": "ab" * 32, "note": "note", "key": "key", "at": 1e9}
            return {"heads": [{**head, "host_id": "h-1", "ended": [head]}]}
        if query.kind == "counts":
            return {"jobs": {"queued": 2, "running": 1}, "commit_latency_ms": 1.5}
        first, limit = query.args["from"], query.args["limit"]
        if query.kind == "graph_steps":
            return {"steps": [each for each in self.steps if first <= each[0] < first + limit], "next": None}
        return {"events": [row for row in self.rows if row["index"] >= first][:limit], "index": self.index}

    def apply(self, kind: str, identity: str, record: Any, command_type: str = "start_attempt") -> int:
        previous, self.index = self.index, self.index + 1
        state = record.get("state", "") if isinstance(record, dict) else ""
        self.rows.append(
            {
                "number": len(self.rows) + 1,
                "index": self.index,
                "at": 1.0,
                "type": command_type,
                "kind": kind,
                "id": identity,
                "state": state,
            }
        )
        for name in self.subscribers:
            self.cast(name, Applied(self.index, previous, 1.0, command_type, ((kind, identity, record),)))
        return self.index


class ClusterManager(StandIn):
    name = "cluster_manager"

    def start(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submitted: list[dict[str, Any]] = []
        self.waiting: dict[str, list[Waiter]] = {}
        self.quotas: list[cluster.ChangeQuota] = []

    @handles(cluster.AcceptJobs)
    def submit(self, request: cluster.AcceptJobs) -> list[dict[str, Any]]:
        self.check()
        answers = []
        for job in request.jobs:
            answers.append({"job_id": job["job_id"], "duplicate": job["job_id"] in self.jobs})
            record = {**job, "state": "queued", "attempts": [], "ended_at": None, "error": None}
            self.jobs.setdefault(job["job_id"], record)
            self.submitted.append(job)
        return answers

    @handles(cluster.AcceptGraph)
    def accept(self, request: cluster.AcceptGraph) -> dict[str, Any]:
        self.check()
        self.submitted.append(request.graph)
        return {"job_id": request.graph["job_id"], "duplicate": request.graph["job_id"] in self.jobs}

    @handles(cluster.AskGraph)
    def ask(self, request: cluster.AskGraph) -> dict[str, Any]:
        job = self.record(request.graph_id)
        return {"job": job, "states": {"succeeded": job["graph"]["steps"]}, "here": None}

    def record(self, job_id: str) -> dict[str, Any]:
        self.check()
        if job_id not in self.jobs:
            raise UnknownJob(f"there is no job {job_id}", asked=job_id, hint="actorgrid ps")
        return self.jobs[job_id]

    @handles(cluster.FindResults)
    def find_results(self, request: cluster.FindResults) -> dict[str, cluster.ResultPlace]:
        self.seen = request.seen
        return {}

    @handles(cluster.GetJob)
    async def get(self, request: cluster.GetJob) -> dict[str, Any]:
        self.seen = request.seen
        record = self.record(request.job_id)
        if request.wait_s and record["state"] not in FINAL:
            waiter = Waiter()
            self.waiting.setdefault(request.job_id, []).append(waiter)
            timer = self.runtime.after(request.wait_s, lambda: waiter.set(None))
            await waiter
            timer.cancel()
        return self.record(request.job_id)

    def change(self, job_id: str, **fields: Any) -> dict[str, Any]:
        self.jobs[job_id] = {**self.jobs[job_id], **fields}
        if self.jobs[job_id]["state"] in FINAL:
            for waiter in self.waiting.pop(job_id, []):
                waiter.set(None)
        return self.jobs[job_id]

    @handles(cluster.ListJobs)
    def listed(self, request: cluster.ListJobs) -> dict[str, Any]:
        found = [job for job in self.jobs.values() if not request.states or job["state"] in request.states]
        return {"jobs": found[: request.limit], "total": len(found), "next": None}

    @handles(cluster.RequestCancel)
    def cancel(self, request: cluster.RequestCancel) -> dict[str, Any]:
        self.record(request.job_id)
        return self.change(request.job_id, state="cancelled", cancel_requested=True)

    @handles(cluster.Why)
    def why(self, request: cluster.Why) -> dict[str, Any]:
        self.seen = request.seen
        state = self.record(request.job_id)["state"]
        return {"job_id": request.job_id, "state": state, "reasons": ["it waits"], "next_step": "wait"}

    @handles(cluster.ListHosts)
    def hosts(self, request: cluster.ListHosts) -> list[dict[str, Any]]:
        self.seen = request.seen
        return [
            {
                "node_id": "h1",
                "hostname": "box",
                "ip_address": "127.0.0.1",
                "port": 7400,
                "incarnation": 1,
                "gpus": [GPU],
                "cpu_milli": 2000,
                "memory_mib": 1024,
            }
        ]

    @handles(cluster.ClusterSummary)
    def summary(self, request: cluster.ClusterSummary) -> dict[str, Any]:
        self.seen = request.seen
        return {
            "name": "actorgrid",
            "health": "healthy",
            "ready": True,
            "problems": [],
            "hosts": 1,
            "gpus": 1,
            "gpu_allocated_milli": 250,
            "gpu_capacity_milli": 1000,
            "jobs": {"queued": 2},
            "performance": {
                "scheduling_latency_us": 3.0,
                "scheduling_latency_p99_us": None,
                "commit_latency_ms": 1.0,
                "gpu_allocated_percent": 25.0,
                "gpu_utilization_percent": None,
                "cluster_throughput_tasks_per_second": 0.5,
                "active_tasks": 1,
                "queued_tasks": 2,
            },
        }

    @handles(cluster.ChangeSetting)
    def set(self, request: cluster.ChangeSetting) -> dict[str, Any]:
        previous = self.host.settings.set_live(request.key, request.value)
        return {"key": request.key, "value": self.host.settings.get(request.key), "previous": previous}

    @handles(cluster.LeaveHost)
    def leave_host(self, request: cluster.LeaveHost) -> dict[str, Any]:
        state = "stays" if request.cancel else "draining"
        return {"host_id": request.host, "state": state, "waits_for": ["a.1"], "lost": []}

    @handles(cluster.ChangeQuota)
    def set_quota(self, request: cluster.ChangeQuota) -> dict[str, Any]:
        self.quotas.append(request)
        return {"user": request.user, "limits": request.limits, "previous": None}

    def metrics(self) -> dict[str, float]:
        return {"jobs_queued": 2, "jobs_submitted_total": len(self.submitted)}


class JoinDoor(StandIn):
    name = "join_server"

    @handles(security.MakeJoinToken)
    def make(self, request: security.MakeJoinToken) -> dict[str, Any]:
        shown = {"token": "agj1.c1", "join": "127.0.0.1:7403", "id": "t1", "expires_at": request.ttl_s}
        return {**shown, "uses_max": request.uses}

    @handles(security.ShowTrust)
    def show(self, _request: security.ShowTrust) -> dict[str, Any]:
        authority = {"generation": 1, "state": "signing", "fingerprint": "f1", "valid_until": 9e9, "holders": ["h1"]}
        member = {"node_id": "h1", "node": 1, "generation": 1, "valid_until": 8e9, "bundle_version": 1, "keys": [1]}
        return {
            "cluster_id": "c1",
            "version": 1,
            "fingerprint": "f1",
            "rotation_due": False,
            "authorities": [authority],
            "rotation": {"next": "", "waits_for": []},
            "hosts": [{**member, "asks": False}],
        }

    @handles(security.RotateAuthority)
    def rotate(self, request: security.RotateAuthority) -> dict[str, Any]:
        return {"generation": 3 if request.call_off else 2, "fingerprint": "f2"}

    @handles(security.RenewCertificate)
    def renew(self, request: security.RenewCertificate) -> dict[str, Any]:
        return {"valid_until": 2.0 if request.new_key else 1.0}

    @handles(security.TakeBackJoinToken)
    def take_back(self, request: security.TakeBackJoinToken) -> dict[str, Any]:
        return {"id": request.token_id, "revoked_at": 2.0}


class Links(StandIn):
    name = "links"

    def start(self) -> None:
        self.spread: list[tuple[str, ...]] = []

    @handles(links.SpreadBlobs)
    def take(self, request: links.SpreadBlobs) -> None:
        self.check()
        self.spread.append(request.digests)

    @handles(links.AskHost)
    def ask(self, request: links.AskHost) -> Any:
        if request.service == "bench_path":
            figures = {"round_trip_us": 80.0, "round_trip_p99_us": 500.0, "trips": request.fields["trips"]}
            moved = {"mb_per_s": 450.0, "bytes": request.fields["bytes"]}
            return {"path": request.fields["path"], **figures, **moved, "unavailable": ""}
        raise HostUnreachable(f"{request.host_id} cannot be reached", asked=request.service)

    @handles(links.TellPaths)
    def paths(self, _request: links.TellPaths) -> list[dict[str, Any]]:
        known = {"mb_per_s": None, "transfers": 0, "bytes": 0}
        path = {"path": "rdma", "available": False, "reason": "off: transports.rdma is false", **known}
        return [{"host": "h2", "used": "tls_streams", "paths": [path]}]


class LoadBalancer(StandIn):
    name = "load_balancer"

    def start(self) -> None:
        self.sessions: set[str] = set()
        self.acquired: list[cluster.AcquireWorker] = []

    @handles(cluster.OpenSession)
    def open(self, _request: cluster.OpenSession) -> dict[str, Any]:
        self.sessions.add("s1")
        return {"session_id": "s1", "renew_s": 2.0, "expires_s": 10.0}

    @handles(cluster.RenewSession)
    def renew(self, request: cluster.RenewSession) -> dict[str, Any]:
        if request.session_id not in self.sessions:
            raise UnknownSession("the session is not open here", asked=request.session_id)
        return {"leave": ["l1"]}

    @handles(cluster.LoadReport)
    def loads(self, _request: cluster.LoadReport) -> list[dict[str, Any]]:
        reading = {"at": 1.0, "cpus": 8, "cpu": 2.5, "memory": 0.25, "attempts": 1, "leases": 2, "waiting": 0}
        known = {"age_s": 0.5, "load": 3.0, "expected": 3.2, "trend_per_s": 0.1, "reading": reading}
        history = [{"age_s": 0.5, "load": 3.0}]
        return [
            {"host": "h1", "hostname": "box", "state": "known", **known, "history": history},
            {"host": "h2", "hostname": "far", "state": "unknown"},
        ]

    @handles(cluster.Rebalance)
    def rebalance(self, request: cluster.Rebalance) -> dict[str, Any]:
        move = {"lease_id": "l1", "home": "h1", "host": "h2", "to": "h1", "why": "more than its share"}
        moves = [{**move, "done": not request.dry_run}]
        return {"overloaded": ["h2"], "moves": moves, "stays": 1, "dry_run": request.dry_run}

    @handles(cluster.CloseSession)
    def close(self, request: cluster.CloseSession) -> None:
        self.sessions.discard(request.session_id)

    @handles(cluster.AcquireWorker)
    def acquire(self, request: cluster.AcquireWorker) -> dict[str, Any]:
        self.acquired.append(request)
        return {
            "lease_id": "l1",
            "worker_id": "w1",
            "socket_path": "/run/w1",
            "secret": "x",
            "token": [1, 9],
            "gpu_uuids": [],
            "enforcement": "none",
            "tenancy": "single",
            "python": "3.11",
        }

    @handles(cluster.LeaseEnd)
    def lease_end(self, _request: cluster.LeaseEnd) -> dict[str, Any]:
        return {"ended": True, "reason": "exited", "exit_code": None, "signal": 11, "stderr": "Fatal"}

    @handles(cluster.ReturnWorker)
    def give_back(self, _request: cluster.ReturnWorker) -> None:
        return None


class GpuCoordinator(StandIn):
    name = "gpu_coordinator"

    def start(self) -> None:
        self.gpus = [GPU]

    @handles(CheckFeasible)
    def feasible(self, _request: CheckFeasible) -> None:
        self.check()

    @handles(RecentDecisions)
    def decisions(self, request: RecentDecisions) -> list[dict[str, Any]]:
        self.check()
        decision = {
            "task_id": "job-1",
            "node_id": "host-1",
            "gpu_ids": ["GPU-1"],
            "scheduled_at": 1.0,
            "execution_time_estimate_s": None,
            "decision_latency_us": 5.5,
        }
        return [decision][: request.limit]

    @handles(MigGpus)
    def mig_gpus(self, _request: MigGpus) -> list[dict[str, Any]]:
        instance = {"uuid": "MIG-1", "index": 1, "profile": "3g.40gb", "memory_bytes": 2**35, "made_for_work": False}
        profile = {"name": "3g.40gb", "memory_bytes": 2**35, "most": 2, "room": 1}
        gpu = {"gpu": "GPU-1", "index": None, "model": "H100", "pcie_bus_id": None, "enabled": True, "pending": True}
        return [{**gpu, "jobs": [], "instances": [{**instance, "jobs": []}], "profiles": [profile]}]

    @handles(CreateMig)
    def create_mig(self, request: CreateMig) -> str:
        assert (request.gpu, request.profile) == ("GPU-1", "3g.40gb")
        return "MIG-2"

    @handles(AmdGpus)
    def amd_gpus(self, _request: AmdGpus) -> list[dict[str, Any]]:
        part = {"uuid": "part-0", "index": 1, "memory_bytes": 2**35, "jobs": []}
        return [{"gpu": "0000:0c:00", "model": "MI300X", "mode": "SPX", "parts": [part]}]

    @handles(SetAmdPartition)
    def set_amd_partition(self, request: SetAmdPartition) -> None:
        assert (request.gpu, request.change, request.mode) == ("0000:0c:00", "compute", "CPX")

    @handles(DestroyMig)
    def destroy_mig(self, request: DestroyMig) -> None:
        assert request.instance == "MIG-1"

    @handles(OwnTotals)
    def totals(self, _request: OwnTotals) -> DeviceTotals:
        self.check()
        return {**together([]), "at": 1.0, "devices": 2, "memory_bytes": 160 << 30, "watts": 300.0, "watts_known": 1}

    @handles(Inventory)
    def inventory(self, request: Inventory) -> list[dict[str, Any]]:
        self.seen = request.seen
        return self.gpus


class DistributedState(StandIn):
    name = "distributed_state"

    def start(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.watched: list[str] = []
        self.unwatched: list[str] = []
        self.mutations: list[replication.Mutate] = []
        self.batches: list[replication.MutateBatch] = []
        self.log = ChangeLog("0123456789abcdef")

    @handles(replication.Mutate)
    def mutate(self, request: replication.Mutate) -> dict[str, Any]:
        self.check()
        self.mutations.append(request)
        return self.put(request.key, request.value, request.type)

    def put(self, key: str, value: Any, kind: str = "lww_register") -> dict[str, Any]:
        entry = self.entries[key] = {"key": key, "type": kind, "value": value}
        position = change_id(self.log.epoch, self.log.add(key))
        if any(key.startswith(prefix) for prefix in self.watched):
            self.cast("gateway", replication.StateChanged(key, kind, value, position))
        return entry

    @handles(replication.MutateBatch)
    def mutate_batch(self, request: replication.MutateBatch) -> list[dict[str, Any]]:
        self.check()
        self.batches.append(request)
        return [self.mutate(one) for one in request.mutations]

    @handles(replication.ReadUsage)
    def read_usage(self, request: replication.ReadUsage) -> dict[str, Any]:
        peer = {"host_id": "h2", "sent_bytes": 1, "received_bytes": 2, "behind": None, "heard_s": 0.5}
        return {
            "keys": len(self.entries),
            "bytes": 10,
            "namespaces": [{"namespace": "default", "keys": 1, "bytes": 10}],
            "prefixes": [{"prefix": request.prefix, "keys": 1, "bytes": 10}],
            "peers": [peer],
            "origins": [{"host_id": "h1", "starts": 1, "deltas": 3}],
        }

    @handles(replication.ReadChanges)
    def read_changes(self, request: replication.ReadChanges) -> dict[str, Any]:
        after = read_change_id(request.after)
        upto = change_id(self.log.epoch, self.log.position)
        if after is not None and self.log.knows(*after):
            changes = [
                {**self.entries[key], "id": change_id(self.log.epoch, position)}
                for position, key in self.log.after(after[1])
                if key.startswith(request.prefix)
            ]
            return {"known": True, "upto": upto, "changes": changes, "more": False}
        changes = [
            {**entry, "id": ""}
            for key, entry in sorted(self.entries.items())
            if key.startswith(request.prefix) and key > request.behind
        ]
        page = changes[: request.limit]
        return {"known": False, "upto": upto, "changes": page, "more": len(page) < len(changes)}

    @handles(replication.Read)
    def read(self, request: replication.Read) -> dict[str, Any]:
        if request.key not in self.entries:
            raise UnknownKey(f"there is no key {request.key}", asked=request.key)
        return self.entries[request.key]

    @handles(replication.ReadPrefix)
    def read_prefix(self, request: replication.ReadPrefix) -> list[dict[str, Any]]:
        found = [entry for key, entry in sorted(self.entries.items()) if key.startswith(request.prefix)]
        return found[: request.limit]

    @handles(replication.WatchPrefix)
    def watch(self, request: replication.WatchPrefix) -> None:
        self.watched.append(request.prefix)

    @handles(replication.UnwatchPrefix)
    def unwatch(self, request: replication.UnwatchPrefix) -> None:
        self.unwatched.append(request.prefix)
        if request.prefix in self.watched:  # a test may have told of all at once, and cleared it
            self.watched.remove(request.prefix)


class WorkerManager(StandIn):
    name = "worker_manager"

    @handles(ListAttempts)
    def attempts(self, _request: ListAttempts) -> list[dict[str, Any]]:
        return [{"id": "a.1", "kind": "attempt", "state": "running", "pid": 1, "shim_pid": 2, "pool": "x", "gpus": []}]

    @handles(FindChannel)
    def find_channel(self, _request: FindChannel) -> dict[str, Any]:
        return {"path": "/nowhere", "secret": "s" * 32, "terminal": True}

    @handles(DetachLease)
    def detach(self, _request: DetachLease) -> None:
        return None

    @handles(ReportObjects)
    def objects(self, _request: ReportObjects) -> dict[str, Any]:
        return {}

    @handles(ReadWorkUsage)
    def usage(self, request: ReadWorkUsage) -> dict[str, Any]:
        if request.by == "kind":
            return {"rows": 3, "kept_since": float("inf")}  # what a member may send
        key = request.user_id or request.by
        return {"rows": [{**empty_row(key), "gpu_s": 2.0, "models": {"H100": 2.0}}, {"key": 3}], "kept_since": 5.0}

    @handles(LeaseOutput)
    def output(self, _request: LeaseOutput) -> dict[str, Any]:
        return {"exists": True, "data": b"hello\n", "size": 6}


class FaultDetector(StandIn):
    name = "fault_detector"

    def start(self) -> None:
        self.ready = True

    @handles(ListAlerts)
    def list_alerts(self, _request: ListAlerts) -> dict[str, Any]:
        """As the real one has it, of one that fires."""
        watch = AlertWatch.__new__(AlertWatch)
        watch._book = AlertBook("box")
        alert = Alert(RULES[0], "h2", "firing", 1.0, 1.0, 2.0)
        return {"alerts": [watch.view(alert, 3.0)], "resolved": [], "problem": "ops: no answer"}

    @handles(ListTuning)
    def list_tuning(self, _request: ListTuning) -> dict[str, Any]:
        about = {"host": "box", "what": "slow", "evidence": "9 of 10", "effect": "faster"}
        changed = {"setting": "sessions.expire_s", "now": 10.0, "to": 30.0, "live": True}
        none = {"setting": "", "now": None, "to": None, "live": False}
        later = {"setting": "scheduling.policy", "now": "completion", "to": "best_fit", "live": False}
        rows = [("sessions-lapse", changed), ("gpus-idle", none), ("placement-slow", later)]
        return {"findings": [{"name": name, **about, **row} for name, row in rows], "problem": ""}

    @handles(TestAlert)
    def test_alert(self, _request: TestAlert) -> dict[str, Any]:
        return {"targets": ["ops"]}

    @handles(cluster.WhyHost)
    def why_host(self, request: cluster.WhyHost) -> dict[str, Any]:
        """As the real one tells it of a host of which nothing has come yet."""
        records = {request.host_id: {"hostname": "box", "state": "up"}}
        copy = SimpleNamespace(hosts=records, recoveries={})
        deciding = SimpleNamespace(outlooks={}, pictures={}, witnesses=lambda _host: {"h2": "no answer"})
        return why_host(request.host_id, copy, deciding, 1.0)

    @handles(cluster.ListFaults)
    def list_faults(self, request: cluster.ListFaults) -> dict[str, Any]:
        row = {"at": 1.0, "host_id": "h1", "hostname": "box", "kind": "check", "what": "disk", "outcome": "failed"}
        return {"faults": [{**row, "reason": "EIO", "found": "", "evidence": {}}][: request.limit]}

    @handles(cluster.HealthReport)
    def report(self, _request: cluster.HealthReport) -> dict[str, Any]:
        return {
            "health": "healthy" if self.ready else "degraded",
            "ready": self.ready,
            "problems": [] if self.ready else ["consensus is silent"],
            "servers": {"consensus": {"pid": os.getpid(), "handled": 3, "silent_s": 0.1, "restarts": 1}},
            "cluster": self.cluster_report(cluster.ClusterHealthReport()),
        }

    @handles(cluster.ClusterHealthReport)
    def cluster_report(self, _request: cluster.ClusterHealthReport) -> dict[str, Any]:
        ledger = LedgerFact(1.0, ("h1",), {})
        silent = () if self.ready else ("consensus",)
        return verdict(Facts("h1", 1.0, (HostFact("h1", "box", 1),), "h1", 0.0, ledger, silent)).to_plain()


class Host(StandIn):
    name = "host"

    @handles(RestartHost)
    def restart(self, request: RestartHost) -> dict[str, Any]:
        self.restarted_by = request.by
        return {"host_id": "h1", "incarnation": 1}

    def status(self) -> dict[str, Any]:
        return {"children": 8}


class Membership(StandIn):
    name = "membership"


STAND_INS: tuple[type[StandIn], ...] = (
    Consensus,
    ClusterManager,
    JoinDoor,
    Links,
    LoadBalancer,
    Membership,
    GpuCoordinator,
    DistributedState,
    WorkerManager,
    FaultDetector,
    Host,
)


@dataclass
class Reply:
    """An HTTP answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found


class ClientThread:
    """An asyncio loop with an aiohttp session, away from the test's thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-client")
        self._thread.start()
        self.session: aiohttp.ClientSession = asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(60)

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def _close(self) -> None:
        await self.session.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)
        await self.loop.shutdown_default_executor()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


@dataclass
class Town:
    """The node with its servers, and a client."""

    node: InlineNode
    host: HostContext
    client: ClientThread
    gateway: Gateway
    wake: tuple[int, int]
    servers: dict[str, Any] = field(default_factory=dict)

    def hold_lease(self, lease_id: str) -> None:
        """Let the gateway know a lease of a session."""
        owner = {"kind": "session", "session_id": "h1.s1"}
        lease = {**ALLOCATION, "allocation_id": lease_id, "owner": owner, "user_id": "ann"}
        self.gateway._app.ledger.allocations[lease_id] = lease

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def token(self) -> str:
        return self.host.paths.token_file.read_text().strip()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Run in the client's loop; the node is woken when it ends."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.client.loop)
        future.add_done_callback(lambda _: os.write(self.wake[1], b"\0"))
        return future

    def finish(self, future: concurrent.futures.Future[Any], timeout_s: float = 60.0) -> Any:
        self.node.run_until(future.done, timeout_s, "the client to be done")
        return future.result()

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float = 60.0) -> Any:
        return self.finish(self.start(coroutine), timeout_s)

    def until(self, condition: Callable[[], bool], what: str = "condition", timeout_s: float = 60.0) -> None:
        self.node.run_until(condition, timeout_s, what)

    async def fetch(self, method: str, path: str, token: str | None = "", **more: Any) -> Reply:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers.setdefault("Authorization", f"Bearer {token or self.token}")
        async with self.client.session.request(method, self.url + path, headers=headers, **more) as response:
            return Reply(response.status, dict(response.headers), await response.read())

    def http(self, method: str, path: str, token: str | None = "", **more: Any) -> Reply:
        reply: Reply = self.run(self.fetch(method, path, token, **more))
        return reply

    def raw(self, request: bytes) -> bytes:
        """Send bytes as they are; all that comes back until the host hangs up."""

        async def talk() -> bytes:
            port = int(self.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request)
                await writer.drain()
                return await asyncio.wait_for(reader.read(), 10)
            finally:
                writer.close()

        answer: bytes = self.run(talk())
        return answer

    def with_stream(
        self, path: str, use: Callable[[aiohttp.ClientResponse], Awaitable[Any]], **more: Any
    ) -> concurrent.futures.Future[Any]:
        """Open a stream in the client's loop and let *use* read it."""

        async def talk() -> Any:
            headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
            async with self.client.session.get(self.url + path, headers=headers, **more) as response:
                return await use(response)

        return self.start(talk())

    def add_job(self, job_id: str = "a", **fields: Any) -> dict[str, Any]:
        record = {
            "job_id": job_id,
            "name": "echo",
            "user_id": "local",
            "kind": "command",
            "command": ["echo"],
            "state": "queued",
            "priority": 50,
            "resources": {"gpus": 0.25},
            "submitted_at": time(),
            "ended_at": None,
            "retries_left": 0,
            "cancel_requested": False,
            "depends_on": [],
            "error": None,
            "attempts": [],
            **fields,
        }
        self.servers["cluster_manager"].jobs[job_id] = record
        return record

    def attempt(self, job_id: str = "a", number: int = 1, **fields: Any) -> dict[str, Any]:
        return {
            "number": number,
            "attempt_id": f"{job_id}.{number}",
            "host": "h1",
            "incarnation": 1,
            "state": "running",
            "token": [1, 7],
            "gpu_uuids": ["GPU-0"],
            "gpu_indexes": [0],
            "placed_at": 1.0,
            "started_at": 1.0,
            "ended_at": None,
            **fields,
        }

    def attempt_folder(self, attempt_id: str = "a.1") -> Path:
        folder = self.host.paths.attempts_dir / attempt_id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def tell_job(self, job_id: str, **fields: Any) -> None:
        """Change a job and let the ledger tell everyone."""
        record = self.servers["cluster_manager"].change(job_id, **fields)
        self.servers["consensus"].apply("job", job_id, record)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostContext:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path) if len(str(tmp_path)) <= 40 else "/nonexistent")
    settings = Settings()
    settings.cluster.base_port = 0
    settings.performance.min_free_bytes = 0
    context = HostContext(HostPaths(tmp_path / "data"), settings, "h1", "box", 1, os.urandom(4).hex())
    context.enrolment = Enrolment("c1", 1, True, "127.0.0.1", free_base_port())
    context.paths.make()
    store_material(context.paths.security_dir, CLUSTER.host("h1", ("127.0.0.1",)))
    return context


@pytest.fixture
def client() -> Iterator[ClientThread]:
    thread = ClientThread()
    yield thread
    thread.close()


@pytest.fixture(autouse=True)
def without_model_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services are written here, and the processes that serve them are not what is tested."""
    monkeypatch.setattr(GatewayKeeper, "_begin", lambda _keeper: None)


@contextmanager
def town_of(kinds: Iterable[type[Server]], host: HostContext, client: ClientThread) -> Iterator[Town]:
    node = InlineNode(real_time=True)
    wake = os.pipe()
    node.watch(wake[0], lambda: os.read(wake[0], 64) and None)
    servers: dict[str, Any] = {}
    try:
        for kind in kinds:
            servers[kind.name] = node.add(kind, host)
        gateway = servers["gateway"] = node.add(Gateway, host)
        assert isinstance(gateway, Gateway)
        yield Town(node, host, client, gateway, wake, servers)
    finally:
        for server in reversed(servers.values()):
            server.stop("test")
        node.unwatch(wake[0])
        node._selector.close()
        for end in wake:
            os.close(end)


@pytest.fixture
def town(host: HostContext, client: ClientThread) -> Iterator[Town]:
    """The gateway among stand-ins."""
    with town_of(STAND_INS, host, client) as here:
        here.until(lambda: bool(here.servers["consensus"].subscribers), "the copy of the ledger")
        here.node.settle()
        yield here


@pytest.fixture
def real_town(host: HostContext, client: ClientThread) -> Iterator[Town]:
    """The gateway among the real servers, but for the one that would start processes."""
    host.settings.gpus.source = "simulated:2xH100-80GB"
    host.enrolment = None  # alone: what only hosts of a cluster have is not among these
    kinds = (
        RealConsensus,
        RealDistributedState,
        RealGPUCoordinator,
        WorkerManager,
        RealClusterManager,
        RealLoadBalancer,
        RealFaultDetector,
        Host,
    )
    with town_of(kinds, host, client) as here:
        here.until(lambda: bool(here.gateway._ledger.hosts), "the host to be registered")
        yield here
