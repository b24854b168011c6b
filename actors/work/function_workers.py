"""The workers of this host that serve function jobs one after another, and which job may have which.

A process of its own for each call costs more than most small calls do. So the worker of a call that succeeded and left
its process as it was (``function_shim.py`` looks) is kept for a while, and serves another call of the same user, with
the same environment and demand. What needs more than that apart has a process of its own, as ever: commands, gangs,
work with GPUs or a limit of memory, input on stdin; and all work where ``work.calls_per_process`` is 1.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorgrid.actors.ledger.record_types import AllocationRecord, JobRecord
from actorgrid.errors import WorkerLost
from actorgrid.import_environment import ImportEnvironment, environment_of
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from .attempt_dir import AttemptDir
from .attempt_specs import ServedBy, standby_spec
from .environment import work_environment
from .frame_link import FrameLink
from .python_environment_spec import asked_of, environment_of_job, environments_in, limits_of
from .shim_link import MAX_FRAME, connected_stream
from .work_records import WorkSpec, WorkStatus, status_of
from .worker_figures import use_of
from .zygote_link import ZygoteLink

IDLE_MAX = 32
"""Idle workers kept in all; beyond, the one that has been idle for longest goes."""
IDLE_S = 10.0
FOOTER_BYTES_MAX = 64 * 1024
"""What is read of the end of a payload; the environment behind it takes less."""
READY_S = 20.0


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """What all calls of one worker have in common."""

    user_id: str
    pool: str
    cpu_milli: int
    env: tuple[tuple[str, str], ...]
    imports: ImportEnvironment | None
    """Where their client imports from: two modules of one name, from two places, are not one."""
    environment: str = ""
    """The digest of their Python environment."""


def key_of(
    job: JobRecord, allocation: AllocationRecord, blobs_dir: Path, is_built: Callable[[str], bool]
) -> FunctionKey | None:
    """What a worker must have in common with *job* to serve it; None when that needs a process of its own.

    *is_built*: whether the Python environment of that digest is on this host; one is built by a process of its own.
    """
    resources = job["resources"]
    alone = (
        job.get("kind") != "function"
        or allocation["owner"].get("rank") is not None
        or allocation["gpu_uuids"]
        or resources.get("gpu_count", 0)
        or resources.get("memory_mib", 0)
        or job.get("stdin_digest")
        or job.get("outputs")
        or "checkpoint" in job
        or "secrets" in job
    )
    environment = environment_of_job(job)
    if alone or (environment and not is_built(environment)):
        return None
    env = tuple(sorted((job.get("env") or {}).items()))
    try:
        imports = environment_of(_tail(blobs_dir / str(job["payload_digest"])))
    except OSError:
        return None  # it is not there; why, the process that is to run it finds out
    cpu_milli = int(resources.get("cpu_milli", 0))
    return FunctionKey(job["user_id"], str(job.get("pool") or ""), cpu_milli, env, imports, environment)


def _tail(payload: Path) -> bytes:
    with open(payload, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - FOOTER_BYTES_MAX))
        return file.read()


class ServedCall:
    """The link to an attempt that a worker serves: what ``ShimLink`` is to one with a shim of its own.

    ``status`` is how it ended, once ``closed`` is answered; None when its worker was lost, or we hung up.
    """

    def __init__(self, worker: FunctionWorker, attempt_id: str) -> None:
        self.closed = Waiter()
        self.pid = worker.pid
        self.status: WorkStatus | None = None
        self._worker = worker
        self._attempt_id = attempt_id

    def send(self, frame: list[Any]) -> bool:
        """Send a frame for this attempt; ``False`` when nobody takes it."""
        return self._worker.send(["for", self._attempt_id, frame])

    def renew(self, deadline: float) -> None:
        """Let the attempt live to *deadline*, on CLOCK_BOOTTIME."""
        self.send(["renew", deadline])

    def hang_up(self) -> None:
        """Leave the attempt alone: its worker ends after it."""
        self._worker.hang_up()


class FunctionWorker:
    """One worker, and the connection to its shim."""

    def __init__(self, server: Server, spec: WorkSpec, key: FunctionKey) -> None:
        self.worker_id = str(spec["id"])
        self.served_by = ServedBy(self.worker_id, spec["control_path"])
        self.key = key
        self.pid: int | None = None
        self.shim_pid: int | None = None
        self.idle_since = 0.0
        self.started_at = server.runtime.monotonic()
        self.calls = 0
        self.ready = Waiter()
        self.call: ServedCall | None = None
        self.on_idle: Callable[[FunctionWorker], None] = lambda _worker: None
        self.on_gone: Callable[[FunctionWorker], None] = lambda _worker: None
        self._answer: Waiter | None = None
        self._link = FrameLink(server.runtime, self._heard, self.hang_up, MAX_FRAME)

    def connect(self, spec: WorkSpec) -> bool:
        """Connect to the shim; ``False`` when nobody listens there."""
        stream = connected_stream(spec)
        if stream is not None:
            self._link.attach(stream)
        return stream is not None

    async def serve(self, attempt_id: str, deadline: float) -> ServedCall | None:
        """Have the attempt in that folder begun; None when the worker did not take it, and is of no more use."""
        call = self.call = ServedCall(self, attempt_id)
        self._answer = Waiter()
        if not self.send(["serve", attempt_id, deadline]):
            self._answer.set(False)
        taken = await self._answer
        self._answer = None
        self.calls += taken
        if not taken:
            self.call = None
            self.hang_up()
        return call if taken else None

    def send(self, frame: list[Any]) -> bool:
        """Send a frame to the shim; ``False`` when it is gone or does not read."""
        return self._link.send(frame)

    def hang_up(self) -> None:
        """Close our side: the shim ends its worker as soon as that serves nothing."""
        self._link.close()
        self.ready.set(False)
        if self._answer is not None:
            self._answer.set(False)
        if self.call is not None:
            self.call.closed.set(None)
        self.on_gone(self)

    def _heard(self, frames: list[list[Any]]) -> None:
        for frame in frames:
            match frame:
                case ["state", {"pid": int(pid), "ready": bool(ready)}]:
                    self.pid = pid
                    if ready:
                        self.ready.set(True)
                case ["ready"]:
                    self.ready.set(True)
                case ["serving", str()] if self._answer is not None:
                    self._answer.set(True)
                case ["not_serving", str(), str()] if self._answer is not None:
                    self._answer.set(False)
                case ["ended", str(attempt_id), dict(status), bool(again)]:
                    self._ended(attempt_id, status_of(status), again)

    def _ended(self, attempt_id: str, status: WorkStatus | None, again: bool) -> None:
        call, self.call = self.call, None
        if again:
            self.on_idle(self)
        if call is not None and call._attempt_id == attempt_id:
            call.status = status
            call.closed.set(None)


class FunctionWorkers:
    """All of one host."""

    def __init__(self, server: Server, zygote: ZygoteLink, host_tag: str) -> None:
        self.started_total = 0
        self.served_total = 0
        self._server = server
        self._zygote = zygote
        self._tag = host_tag
        self._prefix = secrets.token_hex(4)
        self._idle: list[FunctionWorker] = []  # the longest idle first
        self._all: set[FunctionWorker] = set()
        self._closed = False

    async def worker_for(self, job: JobRecord, allocation: AllocationRecord) -> FunctionWorker | None:
        """The worker that is to serve an attempt; None when it needs a process of its own."""
        host = self._server.host
        if host.settings.work.calls_per_process <= 1:
            return None
        built = environments_in(limits_of(host.paths, host.settings))
        key = key_of(job, allocation, host.paths.blobs_dir, lambda digest: built.found(digest) is not None)
        return None if key is None else await self.take(key)

    async def take(self, key: FunctionKey) -> FunctionWorker:
        """A worker for *key* that serves nothing now: an idle one, or a new one. Raises WorkerLost, DiskFull."""
        found = next((each for each in reversed(self._idle) if each.key == key), None)
        if found is not None:
            self._idle.remove(found)
            return found
        return await self._start(key)

    def give_back(self, worker: FunctionWorker) -> None:
        """Keep a worker for another call; beyond the most, the one that has been idle for longest goes."""
        if self._closed or worker not in self._all:
            worker.hang_up()
            return
        worker.idle_since = self._server.runtime.monotonic()
        self._idle.append(worker)
        if len(self._idle) > IDLE_MAX:
            self._idle[0].hang_up()

    def tick(self) -> None:
        """Let go of those that were idle for long, and have the others live on."""
        now = self._server.runtime.monotonic()
        most_s = min(IDLE_S, float(self._server.host.settings.work.max_isolation_s))
        for worker in list(self._idle):
            if now - worker.idle_since > most_s or not worker.send(["renew", self._unused_until()]):
                worker.hang_up()

    def leave(self) -> None:
        """Hang up on all: the idle ones end, those that serve end after that."""
        self._closed = True
        for worker in list(self._all):
            worker.hang_up()

    def rows(self) -> list[dict[str, Any]]:
        """What each has done and takes, the oldest first."""
        now = self._server.runtime.monotonic()
        rows = []
        for each in sorted(self._all, key=lambda worker: worker.started_at):
            use = use_of(each.pid)
            rows.append(
                {
                    "worker": each.worker_id,
                    "pool": each.key.pool or "general",
                    "state": "idle" if each in self._idle else "serving",
                    "pid": each.pid,
                    "age_s": round(now - each.started_at, 1),
                    "calls": each.calls,
                    "cpu_s": None if use is None else round(use.cpu_s, 2),
                    "memory_bytes": None if use is None else use.rss_bytes,
                    "memory_most_bytes": None if use is None else use.max_rss_bytes,
                }
            )
        return rows

    def counts(self) -> tuple[int, int]:
        """How many there are, and how many of them are idle."""
        return len(self._all), len(self._idle)

    def _unused_until(self) -> float:
        return self._server.runtime.boottime() + float(self._server.host.settings.work.max_isolation_s)

    async def _start(self, key: FunctionKey) -> FunctionWorker:
        self.started_total += 1
        worker_id = f"functions-{self._prefix}-{self.started_total}"
        directory = AttemptDir(self._server.host.paths.workers_dir, worker_id)
        spec = self._spec(worker_id, key)
        directory.create(spec, durably=False)
        worker = FunctionWorker(self._server, spec, key)
        worker.shim_pid = await self._zygote.fork(str(directory.path), self._unused_until())
        worker.on_idle, worker.on_gone = self.give_back, self._gone
        if self._closed or not worker.connect(spec):
            raise WorkerLost(f"the shim of {worker_id} does not answer", hint="it is tried again")
        self._all.add(worker)
        timer = self._server.runtime.after(READY_S, worker.hang_up)
        ready = await worker.ready
        timer.cancel()
        if not ready:
            raise WorkerLost(f"worker {worker_id} ended before it was ready", hint="it is tried again")
        return worker

    def _gone(self, worker: FunctionWorker) -> None:
        self._all.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)

    def _spec(self, worker_id: str, key: FunctionKey) -> WorkSpec:
        host = self._server.host
        env = work_environment(
            os.environ, dict(key.env), {}, host_tag=self._tag, work_id=worker_id, cpu_milli=key.cpu_milli
        )
        title = f"actorgrid: worker {key.pool or 'general'} functions"
        asked = asked_of(key.environment, host.paths, host.settings) if key.environment else None
        return {
            "environment": asked,
            **standby_spec(self._server, self._tag, "functions", worker_id, title, env),
            "attempts_dir": str(host.paths.attempts_dir),
            "calls_max": host.settings.work.calls_per_process,
            "cpu_milli": key.cpu_milli if host.settings.work.cpu_limit == "granted" else 0,
        }
