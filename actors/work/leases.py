"""Pool workers and session leases: carries out what core.py decides."""

from __future__ import annotations

import math
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import ReleaseLease
from actorgrid.actors.ledger.record_types import NO_ALLOCATION, NO_HOST, NO_JOB, AllocationRecord
from actorgrid.actors.ledger.records import isolation_of
from actorgrid.errors import (
    ActorGridError,
    DiskFull,
    LedgerRefused,
    Overloaded,
    UnknownAllocation,
    WorkerLost,
)
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..gpu.enforcement import enforced_of_lease, kernel_limits
from .attempt_dir import AttemptDir, is_id
from .attempt_specs import lease_environment, pool_worker_spec, worker_socket
from .attempts import COMMIT_AGAIN_S, LOOK_AGAIN_S
from .containment import Containment
from .core import (
    CLOSING,
    RETIRING,
    Instruction,
    LeaseKey,
    LeaseLost,
    LendWorker,
    PoolWorker,
    ReclaimWorker,
    RetireWorker,
    StartWorker,
    WorkerPools,
)
from .credential_files import CredentialFiles
from .environment import PYTHON, device_variables, host_tag
from .housekeeping import end_marked
from .isolation.host import WorkIsolation
from .isolation.plan import keep_worker_apart, own_variables
from .lease_levels import LeaseLevels
from .lease_renewer import LeaseRenewer
from .mps_variables import NO_MPS, may_join, mps_variables
from .process_tree import send
from .shim_link import ShimLink
from .work_records import WorkSpec, uid_of
from .worker_end import WorkerEnding, ending_of, has_lease, read_lease, write_lease
from .worker_figures import PoolFigures, WorkerFigures, use_of
from .zygote_link import ZygoteLink

ATTACH_WAIT_S = 15.0
CANCELLED = "cancelled"
"""Why a worker is stopped whose lease its owner or an administrator ended: its client goes by this word."""
TICK_S = 0.5
START_BACKOFF_MAX_S = 5.0
ENDING_WAIT_S = 2.0
ENDING_LOOK_S = 0.02


class Leases:
    """The workers of this host's pools and the leases they serve."""

    def __init__(
        self,
        server: Server,
        ledger: LedgerClient,
        zygote: ZygoteLink,
        renewer: LeaseRenewer,
        files: CredentialFiles,
        isolation: WorkIsolation,
    ) -> None:
        self._credentials = files
        self._levels = LeaseLevels(server, ledger, isolation)
        pools = server.host.settings.work.pools
        sizes = {name: (getattr(pools, name).warm, getattr(pools, name).max) for name in type(pools).model_fields}
        self.workers_started_total = 0
        self.workers_lost_total = 0
        idle_s = {name: getattr(pools, name).idle_s for name in sizes}
        self._pools = WorkerPools(sizes, secrets.token_hex(4), idle_s)
        self.figures = PoolFigures()
        self._server = server
        self._ledger = ledger
        self._zygote = zygote
        self._renewer = renewer
        self._tag = host_tag(server.host.paths.data_dir)
        self._links: dict[str, ShimLink] = {}
        self._secrets: dict[str, str] = {}  # worker to the secret its next client must know
        self._given: set[str] = set()  # workers whose secret went out
        self._opening: dict[str, list[Waiter]] = {}  # worker to those waiting for its "ready"
        self._attaching: dict[str, list[Waiter]] = {}  # lease to those waiting for a worker
        self._letting_go: dict[str, list[Waiter]] = {}  # worker to those waiting until it is off its devices
        self._detaching: set[str] = set()  # leases on their way out, still in the ledger
        self._failures = 0
        self._stopping = False
        self._left = False
        self.ledger_known = False  # set by the manager once our copy of the ledger is filled

    # -- what the manager tells us

    def recover(self) -> None:
        """Take over workers that live from before this start; clear away what is left of others."""
        orphaned: dict[str, str] = {}
        for folder in sorted(self._server.host.paths.workers_dir.iterdir()):
            if not is_id(folder.name):
                continue
            directory = AttemptDir(folder.parent, folder.name)
            spec = directory.read_spec()
            if spec is None or "worker" not in spec or directory.read_status() is not None:
                continue
            lease = read_lease(folder)
            shim_pid = directory.shim_pid()
            if shim_pid is None:
                if lease is not None:
                    orphaned[lease["lease_id"]] = folder.name
                continue
            if lease is None and has_lease(folder):
                # It has served somebody, and written over whom: it serves nobody else.
                self._server.log.warning("worker %s is ended: what it served cannot be read any more", folder.name)
                send(shim_pid, signal.SIGKILL)
                self._server.spawn(end_marked(self._server, self._tag, directory))
                continue
            key, uid = None, uid_of(spec)
            if lease is not None:
                env = tuple((name, value) for name, value in lease["env"])
                key = LeaseKey(lease["session_id"], tuple(lease["gpu_uuids"]), env, uid)
            worker = spec["worker"]
            lease_id = lease["lease_id"] if lease is not None else None
            self._pools.adopt(folder.name, worker["pool"], worker["number"], lease_id, key, uid)
            if lease is not None:
                self._secrets[folder.name] = lease["secret"]
                self._given.add(folder.name)
            self._server.spawn(self._follow(folder.name, spec))
        for lease_id, worker_id in orphaned.items():
            if self._pools.worker_of(lease_id) is None:
                self._detaching.add(lease_id)  # nobody else works on its devices before it is gone
                self._server.spawn(self._release_lost(lease_id, worker_id))

    def tick(self) -> None:
        """Keep the warm sizes."""
        todo = self._pools.tick(self._now())
        idle = [each for each in todo if isinstance(each, RetireWorker) and self._is_used(each.worker_id)]
        self.figures.idle_ended_total += len(idle)
        self._carry_out(todo)

    def ensure(self, allocation: AllocationRecord) -> None:
        """Serve a lease that the ledger granted to a session here."""
        if allocation["allocation_id"] in self._detaching:
            return
        worker = self._pools.worker_of(allocation["allocation_id"])
        if worker is not None:
            path = self._credential_file(worker.worker_id, allocation["allocation_id"])
            if not self._credentials.has(path):
                self._credentials.write(path, allocation, worker.uid)  # from before our start: the API may have moved
        elif allocation["allocation_id"] not in self._pools.leases():
            if not self._levels.is_open(allocation):
                self._granted(allocation, 0)
            elif self._levels.ask(allocation["allocation_id"]):
                self._server.spawn(self._grant_apart(allocation))

    async def _grant_apart(self, allocation: AllocationRecord) -> None:
        lease_id = allocation["allocation_id"]
        uid = await self._levels.uid_of(allocation)
        if uid is not None and lease_id not in self._detaching:
            self._granted(allocation, uid)
        elif lease_id in self._levels.refused:
            for waiter in self._attaching.pop(lease_id, []):
                waiter.set(None)

    def _granted(self, allocation: AllocationRecord, uid: int) -> None:
        env = tuple(sorted((allocation.get("env") or {}).items()))
        key = LeaseKey(allocation["owner"]["session_id"], tuple(allocation["gpu_uuids"]), env, uid)
        self._carry_out(
            self._pools.lease_granted(allocation["allocation_id"], allocation.get("pool") or "general", key)
        )

    def disowned(self, lease_id: str) -> None:
        """End a lease that the ledger does not hold any more."""
        for waiter in self._attaching.pop(lease_id, []):
            waiter.fail(UnknownAllocation(f"lease {lease_id} was released", asked=lease_id))
        self._detaching.discard(lease_id)
        self._levels.forget(lease_id)
        self._carry_out(self._pools.lease_ended(lease_id))

    def known(self) -> list[str]:
        """The leases that are served or wait."""
        return list(self._pools.leases())

    def renew(self, absence_s: float = 0.0) -> None:
        """Let all shims live as long as the host's lease lets them, or *absence_s*, which the ledger has to allow.

        Those nobody has used yet live as long as we do.
        """
        for worker_id in list(self._links):
            self._renew(worker_id, absence_s)

    def _renew(self, worker_id: str, absence_s: float = 0.0) -> None:
        worker, link = self._pools.workers.get(worker_id), self._links.get(worker_id)
        if worker is None or link is None:
            return
        if worker.key is None:
            link.renew(self._unused_until())
        elif self._renewer.lease.renewed_at is not None:
            link.renew(self._renewer.lease.deadline(max(self._isolation_s(worker.lease_id), absence_s)))

    def _unused_until(self) -> float:
        return self._server.runtime.boottime() + float(self._server.host.settings.work.max_isolation_s)

    def _isolation_s(self, lease_id: str | None) -> float:
        """Seconds that a worker may go on alone: for a lease, those of the ledger, because the leader uses them."""
        return isolation_of(self._ledger.allocations.get(lease_id or "", NO_ALLOCATION), NO_JOB)

    def patience(self) -> float:
        """The least time in seconds that workers with a lease may go on alone; infinite without any."""
        return min((self._isolation_s(lease_id) for lease_id in self._pools.leases()), default=math.inf)

    def strays(self) -> list[str]:
        """The workers that serve, or are letting go of, leases that the ledger does not hold."""
        return [
            worker.worker_id
            for worker in self._pools.workers.values()
            if worker.state in (CLOSING, RETIRING)
            or (worker.lease_id is not None and worker.lease_id not in self._ledger.allocations)
        ]

    def stop_all(self) -> int:
        """End all workers and start none; gives how many."""
        self._stopping = True
        instructions = self._pools.stop()
        self._carry_out(instructions)
        return len(instructions)

    def leave(self) -> None:
        """Hang up on all shims without ending them."""
        self._left = True
        for link in list(self._links.values()):
            link.hang_up()

    def counts(self) -> dict[tuple[str, str], int]:
        """Workers by pool and state."""
        return self._pools.counts()

    def workers(self) -> list[PoolWorker]:
        """The workers that there are."""
        return list(self._pools.workers.values())

    def _now(self) -> float:
        return self._server.runtime.monotonic()

    def _is_used(self, worker_id: str) -> bool:
        worker = self._pools.workers.get(worker_id)
        return worker is not None and worker.key is not None

    def rows(self) -> list[dict[str, Any]]:
        """What each worker has done and takes, by pool and number."""
        workers = sorted(self._pools.workers.values(), key=lambda each: (each.pool, each.number))
        return [self.figures.row(each, self.pid_of(each.worker_id), self._now()) for each in workers]

    def pid_of(self, worker_id: str) -> int | None:
        """The process id of the worker."""
        link = self._links.get(worker_id)
        return link.pid if link is not None else None

    # -- grants

    async def attach(self, lease_id: str) -> dict[str, Any]:
        """Await a lease's worker; gives the grant. Each call gives a new secret and voids the one before.

        Raises IsolationNotGiven, UnknownAllocation, WorkerLost, HostIsolated; Overloaded when no worker came in time.
        """
        await self._renewer.until_may_start(ATTACH_WAIT_S)
        worker = self._pools.worker_of(lease_id)
        if worker is None and lease_id not in self._levels.refused:
            waiter = Waiter()
            self._attaching.setdefault(lease_id, []).append(waiter)
            self._server.runtime.after(ATTACH_WAIT_S, lambda: waiter.fail(self._no_worker(lease_id)))
            await waiter
            worker = self._pools.worker_of(lease_id)
        if refused := self._levels.refused.get(lease_id):
            await self.detach(lease_id)
            raise refused
        if worker is None:
            raise self._no_worker(lease_id)
        if worker.worker_id in self._given:
            self._open(worker.worker_id, lease_id)
        if worker.worker_id in self._opening:
            waiter = Waiter()
            self._opening[worker.worker_id].append(waiter)
            self._server.runtime.after(ATTACH_WAIT_S, lambda: waiter.fail(self._no_worker(lease_id)))
            await waiter
        self._given.add(worker.worker_id)
        return self._grant(lease_id, worker)

    def socket_of(self, lease_id: str) -> str:
        """See ``messages.FindWorker``."""
        worker = self._pools.worker_of(lease_id)
        if worker is None or worker.worker_id not in self._given:
            raise UnknownAllocation("no worker serves that lease here", asked=lease_id[:80])
        return str(self._socket_path(worker.worker_id))

    def output(self, lease_id: str, stream: str, offset: int, limit: int) -> dict[str, Any]:
        """See ``messages.LeaseOutput``."""
        worker = self._pools.worker_of(lease_id)
        if worker is None:
            return {"exists": False, "data": b"", "size": 0}
        directory = AttemptDir(self._server.host.paths.workers_dir, worker.worker_id)
        lease = read_lease(directory.path)
        start: int | None = None
        if lease is not None:
            start = lease.get("stdout_from") if stream == "stdout" else lease.get("stderr_from")
        begin = directory.output_size(stream) if start is None else start
        data = directory.read_output(stream, begin + offset, limit)
        return {"exists": True, "data": data, "size": max(0, directory.output_size(stream) - begin)}

    async def detach(self, lease_id: str, cancelled: bool = False) -> None:
        """End a lease: first its worker lets go (or is ended: *cancelled*), then its devices may be given to others."""
        while not self.ledger_known:
            await self._server.sleep(LOOK_AGAIN_S)  # a lease that is in the ledger looks like one that is not
        self._detaching.add(lease_id)
        worker = self._pools.worker_of(lease_id)
        if cancelled and worker is not None:
            self._pools.worker_spoiled(worker.worker_id)  # what was cut off in the middle serves nobody else
            link = self._links.get(worker.worker_id)
            if link is not None:
                link.send(["stop", CANCELLED, self._server.host.settings.work.kill_grace_s])
        self._carry_out(self._pools.lease_ended(lease_id))
        if worker is not None and worker.worker_id in self._pools.workers and worker.state in (CLOSING, RETIRING):
            waiter = Waiter()
            self._letting_go.setdefault(worker.worker_id, []).append(waiter)
            await waiter
        await self._release(lease_id)
        self._detaching.discard(lease_id)
        self._levels.forget(lease_id)

    def end_worker_of(self, lease_id: str, reason: str) -> bool:
        """End the worker of a lease at once, for that *reason*; whether it has one."""
        worker = self._pools.worker_of(lease_id)
        link = None if worker is None else self._links.get(worker.worker_id)
        if worker is None or link is None:
            return False
        self._pools.worker_spoiled(worker.worker_id)
        return bool(link.send(["stop", reason, 0.0]))

    def _let_go(self, worker_id: str) -> None:
        for waiter in self._letting_go.pop(worker_id, []):
            waiter.set(None)

    async def ending(self, worker_id: str, lease_id: str) -> WorkerEnding:
        """The ending of a lease's worker; waits a little for one that is about to be found dead."""
        deadline = self._server.runtime.monotonic() + ENDING_WAIT_S
        while True:
            found = ending_of(self._server.host.paths.workers_dir, worker_id, lease_id)
            if found["ended"] or self._server.runtime.monotonic() > deadline:
                return found
            if not (self._server.host.paths.workers_dir / worker_id).is_dir():
                return found
            await self._server.sleep(ENDING_LOOK_S)

    def _no_worker(self, lease_id: str) -> Overloaded | UnknownAllocation:
        if lease_id not in self._ledger.allocations:
            return UnknownAllocation(f"no lease {lease_id} is granted on this host", asked=lease_id)
        return Overloaded(
            f"no worker became ready for lease {lease_id} in {ATTACH_WAIT_S:g} s",
            hint="give leases back, or raise work.pools.*.max",
        )

    def _grant(self, lease_id: str, worker: PoolWorker) -> dict[str, Any]:
        allocation = self._ledger.allocations.get(lease_id)
        if allocation is None:
            raise self._no_worker(lease_id)
        enforced, weakest = enforced_of_lease(self._ledger.hosts.get(allocation["host"], NO_HOST), allocation)
        kept = self._zygote.containment or Containment("none")
        return {
            "lease_id": lease_id,
            "worker_id": worker.worker_id,
            "socket_path": str(self._socket_path(worker.worker_id)),
            "secret": self._secrets[worker.worker_id],
            "token": list(allocation["token"]),
            "gpu_uuids": list(allocation["gpu_uuids"]),
            "enforcement": weakest,
            "enforced_by": enforced,
            "tenancy": "single",  # workers run under the agent's user
            "containment": kept.kind,
            "containment_limit": kept.limit(os.getuid()),
            "python": PYTHON,
        }

    # -- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartWorker(worker_id, pool, number, uid):
                    self._server.spawn(self._start(worker_id, pool, number, uid))
                case LendWorker(worker_id, lease_id):
                    self.figures.lent(worker_id, self._now())
                    self._open(worker_id, lease_id)
                    for waiter in self._attaching.pop(lease_id, []):
                        waiter.set(None)
                case ReclaimWorker(worker_id):
                    self.figures.let_go(worker_id, self._now())
                    self._close(worker_id)
                case RetireWorker(worker_id):
                    self.figures.let_go(worker_id, self._now())
                    self._retire(worker_id)
                case LeaseLost(lease_id, worker_id):
                    if not self._stopping:
                        self.workers_lost_total += 1
                        self._server.log.warning("worker %s died under lease %s", worker_id, lease_id)
                    self._detaching.add(lease_id)
                    self._server.spawn(self._release_lost(lease_id, worker_id))

    async def _release_lost(self, lease_id: str, worker_id: str) -> None:
        await end_marked(self._server, self._tag, AttemptDir(self._server.host.paths.workers_dir, worker_id))
        while not self.ledger_known:
            await self._server.sleep(LOOK_AGAIN_S)
        await self._release(lease_id)
        self._detaching.discard(lease_id)

    def _socket_path(self, worker_id: str) -> Path:
        return worker_socket(self._server, self._tag, worker_id)

    async def _start(self, worker_id: str, pool: str, number: int, uid: int) -> None:
        if self._left:
            return
        paths = self._server.host.paths
        directory = AttemptDir(paths.workers_dir, worker_id)
        spec = pool_worker_spec(self._server, self._tag, worker_id, pool, number)
        if uid:
            under_mps = self._server.host.settings.gpus.mps
            keep_worker_apart(spec, uid, self._levels.user_of(uid), paths, mps=under_mps)
        try:
            directory.create(spec)
            await self._zygote.fork(str(directory.path), self._unused_until())
        except (DiskFull, WorkerLost) as error:
            self._failures += 1
            self._server.log.warning("no worker for pool %s: %s", pool, error)
            directory.remove()
            await self._server.sleep(min(START_BACKOFF_MAX_S, 0.1 * 2 ** min(self._failures, 10)))
            self._carry_out(self._pools.worker_ended(worker_id))
            return
        self._failures = 0
        self.workers_started_total += 1
        self.figures.workers[worker_id] = WorkerFigures(self._now())
        await self._follow(worker_id, spec)

    async def _follow(self, worker_id: str, spec: WorkSpec) -> None:
        link = ShimLink(self._server.runtime, lambda frame: self._worker_said(worker_id, frame))
        if link.connect(spec):
            self._links[worker_id] = link
            if await link.known:
                self._renew(worker_id)
                worker = self._pools.workers.get(worker_id)
                if worker is not None and worker.state == "retiring":
                    self._retire(worker_id)
                self._carry_out(self._pools.worker_ready(worker_id))
            await link.closed
        if not self._left and AttemptDir(self._server.host.paths.workers_dir, worker_id).read_status() is None:
            # Its shim was killed, and could not clear up: what its tasks started may still use its devices.
            await end_marked(self._server, self._tag, AttemptDir(self._server.host.paths.workers_dir, worker_id))
        self._ended(worker_id)

    def _ended(self, worker_id: str) -> None:
        self._links.pop(worker_id, None)
        if self._left:
            return  # we hung up; the worker lives on
        self._let_go(worker_id)
        self._credentials.remove_all(self._server.host.paths.workers_dir / worker_id)
        self._secrets.pop(worker_id, None)
        self._given.discard(worker_id)
        self.figures.workers.pop(worker_id, None)
        for waiter in self._opening.pop(worker_id, []):
            waiter.fail(WorkerLost(f"worker {worker_id} died before it was ready"))
        self._carry_out(self._pools.worker_ended(worker_id))

    def _credential_file(self, worker_id: str, lease_id: str) -> Path:
        # One for each lease: what the lease before left running must not find the next one's.
        return AttemptDir(self._server.host.paths.workers_dir, worker_id).path / f"credential-{lease_id}.json"

    async def _open_under_mps(self, worker_id: str, lease_id: str, allocation: AllocationRecord) -> None:
        worker = self._pools.workers.get(worker_id)
        mps = await mps_variables(self._server, allocation, worker.uid if worker else 0)
        worker = self._pools.worker_of(lease_id)
        if worker is not None and worker.worker_id == worker_id:
            # What it has begun with CUDA keeps its share, and the next lease may have another.
            self._pools.worker_spoiled(worker_id)
            self._open(worker_id, lease_id, mps)

    def _open(self, worker_id: str, lease_id: str, mps: Mapping[str, str] | None = None) -> None:
        allocation = self._ledger.allocations.get(lease_id, NO_ALLOCATION)
        if allocation and mps is None and may_join(self._server, allocation):
            self._given.discard(worker_id)
            self._opening.setdefault(worker_id, [])
            self._server.spawn(self._open_under_mps(worker_id, lease_id, allocation))
            return
        uid = self._pools.workers[worker_id].uid
        if allocation:
            self._credentials.write(self._credential_file(worker_id, lease_id), allocation, uid)
        devices = self._ledger.hosts.get(str(allocation.get("host")), NO_HOST).get("devices", [])
        key = self._pools.key_of(lease_id)
        file = self._credential_file(worker_id, lease_id) if allocation else None
        fixed = {**device_variables(devices, key.gpu_uuids), **(mps or NO_MPS)}
        env = lease_environment(self._tag, worker_id, dict(key.env), fixed, allocation, file)
        if uid:
            folder = self._server.host.paths.workers_dir / worker_id
            env = own_variables(env, folder, str(allocation.get("user_id", "")), uid)
        secret = secrets.token_urlsafe(32)
        self._secrets[worker_id] = secret
        self._given.discard(worker_id)
        self._opening.setdefault(worker_id, [])
        remembered = write_lease(
            self._server.host.paths.workers_dir / worker_id,
            {
                "lease_id": lease_id,
                "session_id": key.session_id,
                "gpu_uuids": list(key.gpu_uuids),
                "env": [list(pair) for pair in key.env],
                "secret": secret,
                "stderr_from": AttemptDir(self._server.host.paths.workers_dir, worker_id).output_size("stderr"),
                "stdout_from": AttemptDir(self._server.host.paths.workers_dir, worker_id).output_size("stdout"),
            },
        )
        session = {"secret": secret, "session": lease_id, "env": env, "gpu_uuids": list(key.gpu_uuids)}
        link = self._links.get(worker_id)
        memory_bytes = int(allocation.get("memory_mib", 0)) * 2**20
        self._renew(worker_id)  # from here on it lives as long as the host's lease lets it
        # Our next start would take a worker whose lease it does not find for one that nobody has used.
        slack_bytes = int(self._server.host.settings.gpus.memory_slack)
        gpu_memory_mib = allocation.get("gpu_memory_mib", 0)
        on_devices = kernel_limits(devices, allocation.get("gpu_uuids", ()), gpu_memory_mib, slack_bytes)
        limits = ["limits", memory_bytes, *([on_devices] if on_devices else [])]
        told = remembered and link is not None and link.send(limits)
        if link is None or not (told and link.send(["worker", ["session", session]])):
            self._server.log.warning("worker %s does not take lease %s", worker_id, lease_id)
            if link is not None:
                self._retire(worker_id)

    def _worker_said(self, worker_id: str, frame: list[Any]) -> None:
        match frame:
            case ["ready", *_]:
                for waiter in self._opening.pop(worker_id, []):
                    waiter.set(None)
            case ["idle"]:
                self._let_go(worker_id)
                self._spoil_if_grown(worker_id)
                self._carry_out(self._pools.worker_idle(worker_id, self._now()))
            case ["spoiled", str(why)]:
                self._server.log.info("worker %s is not used again: %s", worker_id, why)
                self._pools.worker_spoiled(worker_id)

    def _spoil_if_grown(self, worker_id: str) -> None:
        """Have a worker end that has let go of its client, and of too little of its memory: what leaks goes with it."""
        worker, use = self._pools.workers.get(worker_id), use_of(self.pid_of(worker_id))
        if worker is None or use is None:
            return
        most = getattr(self._server.host.settings.work.pools, worker.pool).memory_max_bytes
        if use.rss_bytes > most:
            self.figures.memory_ended_total += 1
            self._server.log.info("worker %s is ended: it keeps %d bytes, of %d", worker_id, use.rss_bytes, most)
            self._pools.worker_spoiled(worker_id)

    def _close(self, worker_id: str) -> None:
        self._credentials.remove_all(self._server.host.paths.workers_dir / worker_id)
        link = self._links.get(worker_id)
        if link is None or not link.send(["worker", ["close"]]):
            self._carry_out(self._pools.worker_overdue(worker_id))
            return
        grace_s = self._server.host.settings.work.kill_grace_s
        self._server.runtime.after(grace_s, lambda: self._carry_out(self._pools.worker_overdue(worker_id)))

    def _retire(self, worker_id: str) -> None:
        self._credentials.remove_all(self._server.host.paths.workers_dir / worker_id)
        link = self._links.get(worker_id)
        if link is not None:
            link.send(["stop", "retired", self._server.host.settings.work.kill_grace_s])

    async def _release(self, lease_id: str) -> None:
        while lease_id in self._ledger.allocations:
            try:
                await self._ledger.propose(ReleaseLease(lease_id))
                return
            except LedgerRefused as refused:
                self._server.log.info("lease %s was not released: %s", lease_id, refused)
                return
            except ActorGridError as error:
                self._server.log.warning("lease %s is not released yet: %s", lease_id, error)
            await self._server.sleep(COMMIT_AGAIN_S)
