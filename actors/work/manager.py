"""WorkerManager: runs on this host what the ledger granted to it, and tells the ledger how it ended.

It follows the ledger: an attempt's allocation is an order to run it, a session's allocation an order to keep a
worker for it, a vanished allocation an order to stop. All of its own memory can be lost: what runs is under
shims, what was asked is in the ledger, and how it ended is on disk.
"""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

from actorgrid.actors.ledger.attempt_ids import job_of
from actorgrid.actors.ledger.client import LedgerClient, LedgerFollower
from actorgrid.actors.ledger.isolation_records import KeptApartRecord
from actorgrid.actors.ledger.messages import Applied, LedgerSnapshot, Query
from actorgrid.actors.ledger.query_answers import FilesInUse
from actorgrid.actors.ledger.record_types import NO_ALLOCATION, NO_HOST, AllocationRecord
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.runtime import Runtime
from actorgrid.supervisors.server import handles
from actorgrid.supervisors.span_sender import sender_for

from .attempt_dir import AttemptDir
from .attempt_spans import AttemptSpans
from .attempt_specs import guard_path
from .attempts import HostAttempts
from .collected_outputs import bound_outputs
from .credential_files import CredentialFiles
from .device_memory_limits import limitable_devices
from .disk_watch import DiskWatch
from .environment import host_tag
from .guard import remove_socket_of_gone
from .housekeeping import (
    RoundRobin,
    kill_escaped,
    old_attempts,
    old_blobs,
    remove_attempts,
    remove_blobs,
    remove_dead_actors_of_users,
    remove_dead_sockets,
    remove_old_workers,
    sizes_of_outputs,
)
from .kept_attempts import CachedResults
from .lease_renewer import LeaseRenewer
from .leases import TICK_S, Leases
from .live_attempt import channel_of
from .messages import (
    AttachLease,
    ContainmentAsked,
    DetachLease,
    DevicesSampled,
    EndAllWork,
    EndIdle,
    EndOverdrawn,
    EndOverheated,
    EndUngranted,
    FindChannel,
    FindWorker,
    IsolationAsked,
    LeaseOutput,
    LimitableDevices,
    ListAttempts,
    ObjectStoreWanted,
    OwnersOf,
    ReadWorkUsage,
    ReportObjects,
    StartDelay,
    TellWorkerEnd,
)
from .object_store import ObjectStoreProcess
from .outcomes import idle_reason, overdrawn, overdrawn_reason, overheated, overheated_reason
from .process_tree import owners_of, send
from .strangers import end_stranger
from .usage_keeper import WRITE_S, UsageKeeper
from .work_records import WorkStatus
from .worker_end import WorkerEnding
from .zygote_link import ZygoteLink

CLEAN_S = 30.0
IN_USE_S = 20.0
LOOKS_MAX = 1_000
"""Folders and blobs asked about in one round."""
PIDS_MAX = 4096
"""Processes whose owners are told in one answer."""
STOP_MARGIN_S = 2.0
STOP_MAX_S = 30.0
GUARD_LEAVES_S = 1.0


class WorkerManager(LedgerFollower):
    """The server that runs the ledger's grants on this host; see the head of the module."""

    name: ClassVar[str] = "worker_manager"
    max_handler_s: ClassVar[float] = 10.0

    def __init__(self, host: Any, runtime: Runtime) -> None:
        super().__init__(host, runtime)
        self._tag = host_tag(host.paths.data_dir)
        self._guard = guard_path(host.paths.work_sockets_dir, self._tag)
        self._zygote = ZygoteLink(runtime, self.log.warning, host.settings.work.containment, str(self._guard))
        self._ledger = LedgerClient(self, self._on_snapshot, self._on_applied, jobs="begun")
        self._renewer = LeaseRenewer(self, self._ledger, self._renew, self._take_up_all, self._patience, self._strays)
        self._credentials = CredentialFiles(self)
        self._attempts = HostAttempts(self, self._ledger, self._zygote, self._renewer, self._credentials)
        isolation = self._attempts.apart
        self._leases = Leases(self, self._ledger, self._zygote, self._renewer, self._credentials, isolation)
        self._objects = ObjectStoreProcess(self, self._zygote)
        self._usage = UsageKeeper(self, self._ledger)
        self._disk = DiskWatch(self, self._ledger, self._attempts, self._leases, self._end_now)
        self._attempts.usage_of = self._usage.usage_of
        self._spans = sender_for(host)
        self._attempt_spans = None if self._spans is None else AttemptSpans(self._spans, host.host_id, self._status_of)
        self._follows = False
        self._killed_escaped = 0
        self._cached_results = CachedResults()
        self._attempts_round, self._blobs_round = RoundRobin(LOOKS_MAX), RoundRobin(LOOKS_MAX)

    # -- life

    def start(self) -> None:
        """Start the zygote and take up what lives. The ledger is followed as soon as it answers."""
        remove_dead_sockets(self.host.paths.work_sockets_dir)
        remove_dead_actors_of_users(self.host.paths.users_dir)
        self._zygote.on_ready = lambda _containment: self._note_containment()
        self._credentials.start()
        self._zygote.start()
        self._attempts.recover()
        self._leases.recover()
        self._objects.recover()
        self._usage.recover()
        self._killed_escaped = len(self._kill_escaped())
        self.every(TICK_S, self._leases.tick)
        self.every(TICK_S, self._objects.tick)
        self.every(TICK_S, self._attempts.give_back_late)
        self.every(TICK_S, self._attempts.functions.tick)
        self.every(CLEAN_S, self._clean)
        self.every(WRITE_S, self._usage.write)
        self._leases.tick()
        self.spawn(self._ledger.start())
        self.spawn(self._renewer.run())
        self.spawn(self._disk.run())

    def stop(self, reason: str) -> None:
        """End all work, or leave it to the next start: as ``work.on_stop`` says, and always when that comes at once.

        Takes at most the grace and two seconds.

        What ends here is reported by the next start. To have it reported at once, ask EndAllWork before.
        """
        mark = self.host.restart_mark
        if mark.exists():
            self._prolong(int(mark.read_text()))
        elif self.host.settings.work.on_stop == "end":
            grace_s = min(self.host.settings.work.kill_grace_s, STOP_MAX_S)
            folders = self._folders()
            self._attempts.stop_all(grace_s)
            self._leases.stop_all()
            self._objects.stop_all()
            told: set[int] = set()
            deadline = time.monotonic() + grace_s + STOP_MARGIN_S
            while time.monotonic() < deadline:
                pids = {pid for pid in (folder.shim_pid() for folder in folders) if pid is not None}
                for pid in pids - told:
                    send(pid, signal.SIGTERM)  # some have no link yet; to a shim, it says the same as "stop"
                told |= pids
                if not pids:
                    break
                time.sleep(0.005)
        self._usage.leave()
        if self._spans is not None:
            self._spans.close()
        self._attempts.leave()
        self._leases.leave()
        self._objects.leave()
        self._zygote.stop()
        # The guard leaves when nobody is connected to it any more: not where work was left to the next start.
        left = any(folder.shim_pid() is not None for folder in self._folders())
        gone_by = time.monotonic() + (0.0 if left else GUARD_LEAVES_S)
        while not remove_socket_of_gone(self._guard) and time.monotonic() < gone_by:
            time.sleep(0.005)

    def _folders(self) -> list[AttemptDir]:
        """The folders of all that runs here."""
        folders = [attempt.directory for attempt in self._attempts.live.values()]
        folders += [AttemptDir(self.host.paths.workers_dir, worker.worker_id) for worker in self._leases.workers()]
        folders += self._objects.folders()
        return folders

    def _status_of(self, attempt_id: str) -> WorkStatus | None:
        return AttemptDir(self.host.paths.attempts_dir, attempt_id).read_status()

    def _prolong(self, absence_index: int) -> None:
        """Let what runs go on for as long as the ledger has everybody wait for this host."""
        own = self._ledger.hosts.get(self.host.host_id, NO_HOST)
        if absence_index and own.get("absence_index") == absence_index and own["incarnation"] == self.host.incarnation:
            self._attempts.renew(own["absence_s"])
            self._leases.renew(own["absence_s"])
            self._objects.renew(self.runtime.boottime() + own["absence_s"])
        else:
            self.log.warning("what runs is given no more time than usual for this restart")

    # -- the ledger

    def _on_snapshot(self, _snapshot: LedgerSnapshot) -> None:
        self._follows = self._attempts.ledger_known = self._leases.ledger_known = True
        self._usage.follow()
        self._attempts.checkpoints.snapshot(self._ledger.jobs)
        self._take_up_all()
        for attempt_id, attempt in list(self._attempts.live.items()):
            if attempt_id not in self._ledger.allocations and attempt.directory.read_started() is not None:
                self._attempts.disowned(attempt_id)
        for lease_id in self._leases.known():
            if lease_id not in self._ledger.allocations:
                self._leases.disowned(lease_id)
        self._renewer.review()

    def _on_applied(self, message: Applied) -> None:
        self._usage.applied(message)
        if self._attempt_spans is not None:
            self._attempt_spans.applied(message)
        for kind, identity, record in message.changes:
            if kind == "allocation":
                if record is None:
                    self._attempts.disowned(identity)
                    self._leases.disowned(identity)
                    self._renewer.review()
                else:
                    self._take_up(record)
            elif kind == "job" and record is not None:
                self._attempts.obey_ledger(record)
                self._attempts.checkpoints.job_changed(record)
            elif kind == "host" and identity == self.host.host_id:
                self._renewer.review()

    def _take_up_all(self) -> None:
        for allocation in list(self._ledger.allocations.values()):
            self._take_up(allocation)
        if self._attempts.ledger_known:
            self._remove_unreadable()

    def _remove_unreadable(self) -> None:
        """Remove what attempts left that are over and whose specs cannot be read.

        What the ledger still names has begun, and is told as lost: without its folder it would begin again, under the
        token that it had.
        """
        for directory in self._attempts.unreadable:
            if directory.attempt_id not in self._attempts.live and directory.shim_pid() is None:
                directory.remove()
        self._attempts.unreadable.clear()

    def _take_up(self, allocation: AllocationRecord) -> None:
        if allocation["host"] != self.host.host_id:
            return
        if allocation["owner"]["kind"] == "attempt":
            self._attempts.ensure(allocation)  # it waits by itself until something may be started
        elif self._renewer.may_start():
            self._leases.ensure(allocation)

    # -- requests

    @handles(AttachLease)
    async def _attach_lease(self, request: AttachLease) -> dict[str, Any]:
        return await self._leases.attach(request.lease_id)

    @handles(FindWorker)
    def _find_worker(self, request: FindWorker) -> str:
        return self._leases.socket_of(request.lease_id)

    @handles(FindChannel)
    def _find_channel(self, request: FindChannel) -> dict[str, Any]:
        return channel_of(self._attempts.live.get(request.attempt_id), request.attempt_id)

    @handles(DetachLease)
    async def _detach_lease(self, request: DetachLease) -> None:
        await self._leases.detach(request.lease_id, request.cancelled)

    @handles(LeaseOutput)
    def _lease_output(self, request: LeaseOutput) -> dict[str, Any]:
        return self._leases.output(request.lease_id, request.stream, request.offset, request.limit)

    @handles(TellWorkerEnd)
    async def _tell_worker_end(self, request: TellWorkerEnd) -> WorkerEnding:
        return await self._leases.ending(request.worker_id, request.lease_id)

    @handles(ObjectStoreWanted)
    def _object_store_wanted(self, _request: ObjectStoreWanted) -> None:
        self._objects.want()

    @handles(ReportObjects)
    async def _report_objects(self, request: ReportObjects) -> dict[str, Any]:
        return await self._objects.report(request.objects_max)

    @handles(ListAttempts)
    def _list_attempts(self, _request: ListAttempts) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for attempt_id, attempt in self._attempts.live.items():
            allocation = self._ledger.allocations.get(attempt_id, NO_ALLOCATION)
            found.append(
                {
                    "id": attempt_id,
                    "kind": "attempt",
                    "state": attempt.state,
                    "pid": attempt.link.pid if attempt.link is not None else None,
                    "shim_pid": attempt.shim_pid,
                    "pool": allocation.get("pool"),
                    "gpus": list(allocation.get("gpu_uuids", ())),
                }
            )
        for worker in self._leases.workers():
            found.append(
                {
                    "id": worker.worker_id,
                    "kind": "worker",
                    "state": worker.state,
                    "pid": self._leases.pid_of(worker.worker_id),
                    "shim_pid": AttemptDir(self.host.paths.workers_dir, worker.worker_id).shim_pid(),
                    "pool": worker.pool,
                    "gpus": list(worker.key.gpu_uuids) if worker.key is not None else [],
                }
            )
        return found

    @handles(OwnersOf)
    def _owners_of(self, request: OwnersOf) -> dict[int, str]:
        found = owners_of(request.pids[:PIDS_MAX], self._tag)
        serving = {worker.worker_id: worker.lease_id or "" for worker in self._leases.workers()}
        # A pool's worker is marked as itself: its memory is that of the lease it serves, or nobody's.
        return {pid: serving.get(work_id, work_id) for pid, work_id in found.items()}

    @handles(LimitableDevices)
    def _limitable_devices(self, _request: LimitableDevices) -> list[str] | None:
        kept = self._zygote.containment
        if kept is None:
            return None
        return sorted(limitable_devices(Path(kept.folder))) if kept.kind == "cgroup" else []

    @handles(EndOverdrawn)
    def _end_overdrawn(self, request: EndOverdrawn) -> bool:
        reason = overdrawn_reason(request.gpu_index, request.used_mib, request.granted_mib)
        return self._end_now(request.work_id, reason, overdrawn(request.work_id, reason).message)

    @handles(EndUngranted)
    def _end_ungranted(self, request: EndUngranted) -> str:
        live = {*self._attempts.live, *self._leases.known(), *(each.worker_id for each in self._leases.workers())}
        return end_stranger(request, self._tag, live | self._ledger.allocations.keys())

    @handles(EndOverheated)
    def _end_overheated(self, request: EndOverheated) -> bool:
        reason = overheated_reason(request.gpu_index, request.celsius)
        return self._end_now(request.work_id, reason, overheated(request.work_id, reason).message)

    def _end_now(self, work_id: str, reason: str, why: str) -> bool:
        """End an attempt, or the worker of a lease, at once; whether it ran."""
        if work_id in self._attempts.live:
            self.log.warning("%s is ended: %s", work_id, why)
            self._attempts.end_early(work_id, reason, 0.0)
            return True
        return self._leases.end_worker_of(work_id, reason)

    @handles(EndIdle)
    def _end_idle(self, request: EndIdle) -> bool:
        if request.work_id not in self._attempts.live:
            return False
        self._attempts.end_early(request.work_id, idle_reason(request.idle_s), self.host.settings.work.kill_grace_s)
        return True

    @handles(DevicesSampled)
    def _devices_sampled(self, message: DevicesSampled) -> None:
        self._usage.sampled(message)

    @handles(ReadWorkUsage)
    async def _read_usage(self, request: ReadWorkUsage) -> dict[str, Any]:
        return await self._usage.answer(request)

    @handles(StartDelay)
    def _start_delay(self, request: StartDelay) -> dict[str, Any]:
        return self._attempts.start_delay(request.attempt_id)

    @handles(IsolationAsked)
    async def _isolation_asked(self, _request: IsolationAsked) -> KeptApartRecord:
        return await self._attempts.apart.kept_apart()

    @handles(ContainmentAsked)
    def _containment_asked(self, _request: ContainmentAsked) -> str | None:
        kept = self._zygote.containment
        return None if kept is None else kept.kind

    @handles(EndAllWork)
    async def _end_all_work(self, request: EndAllWork) -> int:
        count = self._attempts.stop_all(request.grace_s, self._ledger.jobs) + self._leases.stop_all()
        deadline = self.runtime.monotonic() + request.grace_s + STOP_MARGIN_S
        while (self._attempts.live or self._leases.workers()) and self.runtime.monotonic() < deadline:
            await self.sleep(0.01)
        return count

    # -- rounds

    def _renew(self) -> None:
        self._attempts.renew()
        self._leases.renew()

    def _patience(self) -> float:
        attempts = (attempt.isolation_s for attempt in self._attempts.live.values())
        return min(self._leases.patience(), min(attempts, default=math.inf))

    def _strays(self) -> list[str]:
        """The work that lives here unknown to the ledger, what escaped its shims included."""
        return [*self._attempts.strays(), *self._leases.strays(), *map(str, self._kill_escaped())]

    async def _clean(self) -> None:
        if not self._follows:
            return
        self._kill_escaped()
        alive = {worker.worker_id for worker in self._leases.workers()} | self._objects.folder_names()
        remove_old_workers(self.host.paths.workers_dir, alive)
        paths = self.host.paths
        bound_outputs(
            paths.attempts_dir, self.host.settings.work.outputs_bytes_max, sizes_of_outputs(paths.attempts_dir)
        )
        attempts = {folder.name: folder for folder in old_attempts(paths.attempts_dir, self._kept())}
        folders = [attempts[name] for name in self._attempts_round.next(attempts)]
        blobs = self._blobs_round.next(old_blobs(paths.blobs_dir))
        if not folders and not blobs:
            return
        # Which of them jobs still want, the ledger says: a long queue is not kept here for that.
        asked = {"digests": blobs, "job_ids": sorted({job_of(folder.name) for folder in folders})}
        try:
            used: FilesInUse = await self.call("consensus", Query("files_in_use", asked), timeout_s=IN_USE_S)
        except ActorGridError as error:
            self.log.info("which files are still wanted: %s", error)
            return
        cached = set(used["cached_job_ids"])
        for_later = [folder for folder in folders if job_of(folder.name) in cached]
        others = [folder for folder in folders if job_of(folder.name) not in cached]
        gone = self._cached_results.too_many(for_later, others, self.host.settings.work.step_cache_bytes_max)
        remove_attempts([*gone, *others], set(used["job_ids"]))
        remove_blobs(paths.blobs_dir, [name for name in blobs if name not in used["digests"]])

    def _kept(self) -> int:
        return int(self.host.settings.work.keep_finished_jobs)

    def _note_containment(self) -> None:
        """Take the kind of containment that was found, and end what earlier starts left in it."""
        kept = self._zygote.containment
        if kept is not None and not kept.holds:
            self.log.warning("%s (%s)", kept.text, kept.why)
        self._kill_escaped()

    def _kill_escaped(self) -> list[int]:
        kept = self._zygote.containment
        groups_dir = Path(kept.folder) if kept is not None and kept.folder else None
        killed = kill_escaped(self._tag, self.host.paths.attempts_dir, self.host.paths.workers_dir, groups_dir)
        if killed:
            self.log.warning("killed processes that had escaped their attempts: %s", killed)
        return killed

    # -- figures

    def metrics(self) -> dict[str, float]:
        """Workers and attempts, started and ended."""
        figures: dict[str, float] = {
            "attempts_running": float(len(self._attempts.live)),
            "attempts_started_total": float(self._attempts.started_total),
            "attempts_adopted_total": float(self._attempts.adopted_total),
            "workers_started_total": float(self._leases.workers_started_total),
            "workers_lost_total": float(self._leases.workers_lost_total),
            "workers_idle_ended_total": float(self._leases.figures.idle_ended_total),
            "workers_memory_ended_total": float(self._leases.figures.memory_ended_total),
            "disk_ended_total": float(self._disk.ended_total),
            "functions_served_total": float(self._attempts.functions.served_total),
            "function_workers_started_total": float(self._attempts.functions.started_total),
            "checkpoints_entered_total": float(self._attempts.checkpoints.entered_total),
            "checkpoints_refused_total": float(self._attempts.checkpoints.refused_total),
            "zygote_restarts_total": float(self._zygote.restarts),
        }
        age_s = self._renewer.age_s()
        if age_s is not None:
            figures["lease_age_seconds"] = age_s
            figures["lease_age_max_seconds"] = self._renewer.age_max_s() or 0.0
        figures["usage_ends_lost_total"] = float(self._usage.lost_total)
        figures["lease_lapses_total"] = float(self._renewer.lease.lapses)
        for outcome, count in self._attempts.ended_total.items():
            figures[f"attempts_ended_{outcome}_total"] = float(count)
        for (pool, state), count in self._leases.counts().items():
            figures[f"workers_{pool}_{state}"] = float(count)
        if self._spans is not None:
            figures |= self._spans.figures()
        figures["object_stores_started_total"] = float(self._objects.starts_total)
        return {**figures, **{name: float(value) for name, value in self._objects.figures.items()}}

    def status(self) -> dict[str, Any]:
        """What ``actorgrid inspect`` shows of this server, in plain values."""
        workers: dict[str, dict[str, int]] = {}
        for (pool, state), count in self._leases.counts().items():
            workers.setdefault(pool, {})[state] = count
        return {
            "attempts": sorted(self._attempts.live),
            "workers": workers,
            "each_worker": [*self._leases.rows(), *self._attempts.functions.rows()],
            "leases": self._leases.known(),
            "zygote_pid": self._zygote.pid,
            "containment": None if self._zygote.containment is None else self._zygote.containment.to_plain(),
            "follows_ledger": self._follows,
            "lease_age_s": self._renewer.age_s(),
            "lease_age_max_s": self._renewer.age_max_s(),
            "may_start": self._renewer.may_start(),
            "killed_escaped_at_start": self._killed_escaped,
            "objects": {"pid": self._objects.pid, "starts": self._objects.starts_total, **self._objects.figures},
        }
