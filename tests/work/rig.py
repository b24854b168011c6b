"""A host with a real ledger and a real WorkerManager, a hand that grants as the scheduler would, and a raw client."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import pickle
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import GrantAttempt, GrantLease, RegisterHost, ReleaseLease, SubmitJobs
from actorgrid.actors.ledger.messages import Propose, Query, Subscribe
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.environment import host_tag
from actorgrid.actors.work.manager import WorkerManager
from actorgrid.actors.work.messages import AttachLease
from actorgrid.actors.work.process_tree import find_marked, living
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.remote_exceptions import raised_by_task
from actorgrid.transports.task_frames import (
    ClientRefused,
    ClientWelcome,
    Output,
    Result,
    decode_failure_body,
    encode_function,
    encode_hello,
    encode_task,
    fn_id_of,
    parse_worker_frame,
)
from tests.patience import Patience

PYTHON = f"{__import__('sys').version_info.major}.{__import__('sys').version_info.minor}"


def gated(gate: Path, then: str) -> list[str]:
    """A command of one process, which says "up", waits until *gate* is opened, and does *then*."""
    os.mkfifo(gate)
    return ["sh", "-c", f"echo up; read line < {gate}; {then}"]


def open_gate(gate: Path) -> None:
    """Let a ``gated`` command go on, once it waits."""
    gate.write_text("on\n")


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "condition") -> Any:
    """Poll a fact of the outside world."""
    patience = Patience(timeout_s)
    while True:
        value = condition()
        if value:
            return value
        if patience.is_over:
            raise AssertionError(f"{what}: not reached in {timeout_s:g} s")
        patience.pause()


def make_context(folder: Path, **settings: Any) -> HostContext:
    paths = HostPaths(folder)
    paths.make()
    made = Settings()
    made.performance.min_free_bytes = 0
    made.performance.reserve_bytes = 65_536
    made.work.kill_grace_s = 0.5
    made.scheduling.retry_backoff_s = 0.0
    made.work.pools.general.warm = 0
    for key, value in settings.items():
        owner: Any = made
        *path, name = key.split("__")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, name, value)
    return HostContext(paths, made, "h1", "h1", 1, "boot-1")


DEVICES = [
    {"uuid": f"GPU-sim-{index}", "index": index, "vendor": vendor, "model": "H100", "memory_mib": 80_000}
    | {"source": "simulated"}
    for index, vendor in enumerate(["nvidia", "nvidia", "nvidia", "nvidia", "amd", "amd", "intel", "intel"])
]


class Rig:
    """One host. Everything real but the scheduler, which is the test."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.context = make_context(folder, **settings)
        self.paths = self.context.paths
        self.tag = host_tag(folder)
        self.node = InlineNode(real_time=True)
        self._seq = itertools.count(1)
        self.consensus = self.node.add(Consensus, self.context)
        self.propose(
            RegisterHost(
                host={
                    "host_id": "h1",
                    "hostname": "h1",
                    "incarnation": 1,
                    "cpu_milli": 64_000,
                    "memory_mib": 64_000,
                    "devices": DEVICES,
                }
            )
        )
        self.term = int(self.node.request("consensus", Subscribe()).term)
        self.manager: WorkerManager | None = None

    # -- servers

    def start_manager(self) -> WorkerManager:
        manager = self.node.add(WorkerManager, self.context)
        assert isinstance(manager, WorkerManager)
        self.manager = manager
        return manager

    def kill_manager(self) -> None:
        """As a SIGKILL would: its descriptors close, nothing is said, its timers never fire again."""
        manager = self.manager
        assert manager is not None
        self.node.remove("worker_manager")
        self.manager = None
        manager._attempts.leave()
        manager._leases.leave()
        manager._zygote.stop()
        manager._attempts._server = manager._leases._server = _Dead()  # type: ignore[assignment]
        manager._renewer._server = _Dead()  # type: ignore[assignment]

    def close(self) -> None:
        if self.manager is not None:
            self.manager.stop("test over")
        self.consensus.stop("test over")
        left = wait_for(lambda: [not living(list(find_marked(self.tag)))], what="no process left")
        assert left
        shutil.rmtree(self.paths.runtime_dir, ignore_errors=True)

    # -- the ledger

    def propose(self, command: Command) -> dict[str, Any]:
        seq = next(self._seq)
        request = Propose(replace(command, at=command.at or time.time()), f"test-{seq}", 1)
        result: dict[str, Any] = self.node.request("consensus", request).result
        return result

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.node.request("consensus", Query("job", {"job_id": job_id}))
        return found

    def host(self) -> dict[str, Any]:
        (record,) = self.node.request("consensus", Query("hosts"))["hosts"]
        return dict(record)

    def allocation(self, allocation_id: str) -> dict[str, Any]:
        held = self.node.request("consensus", Query("allocations"))["allocations"]
        return next(dict(record) for record in held if record["allocation_id"] == allocation_id)

    def submit(self, job_id: str, **fields: Any) -> None:
        resources = {
            "gpus": 0.0,
            "gpu_count": 0,
            "gpu_milli": 0,
            "gpu_memory_mib": 0,
            "gpu_models": [],
            "gpu_affinity": [],
            "cpu_milli": 1000,
            "memory_mib": 0,
            **fields.pop("resources", {}),
        }
        job = {
            "job_id": job_id,
            "name": "",
            "user_id": "me",
            "kind": "command",
            "command": ["true"],
            "payload_digest": None,
            "stdin_digest": None,
            "python": "",
            "priority": 50,
            "policy": "priority",
            "env": {},
            "cwd": None,
            "max_execution_time_s": None,
            "pool": None,
            "depends_on": [],
            "max_isolation_s": 10.0,
            "retries_left": 0,
            "submitted_at": time.time(),
            **fields,
            "resources": resources,
        }
        self.propose(SubmitJobs(jobs=[job]))

    def blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (self.paths.blobs_dir / digest).write_bytes(data)
        return digest

    def submit_function(self, job_id: str, function: Any, *args: Any, **fields: Any) -> None:
        digest = self.blob(dump_call(function, args))
        self.submit(job_id, kind="function", command=[], payload_digest=digest, python=PYTHON, **fields)

    def grant(self, job_id: str, gpu_indexes: list[int] | None = None) -> str:
        number = len(self.job(job_id)["attempts"]) + 1
        self.propose(
            GrantAttempt(
                job_id=job_id, number=number, host="h1", incarnation=1, gpu_indexes=gpu_indexes or [], term=self.term
            )
        )
        return f"{job_id}.{number}"

    def run(self, job_id: str, gpu_indexes: list[int] | None = None, **fields: Any) -> dict[str, Any]:
        """Submit (unless it is there), grant, wait for the attempt's end; gives the job."""
        if fields:
            self.submit(job_id, **fields)
        attempt_id = self.grant(job_id, gpu_indexes)
        return self.ended(attempt_id)

    def ended(self, attempt_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        self.node.run_until(self.dir(attempt_id).reported, timeout_s, what=f"end of {attempt_id}")
        return self.job(attempt_id.rpartition(".")[0])

    def running(self, attempt_id: str) -> None:
        job_id = attempt_id.rpartition(".")[0]
        self.node.run_until(lambda: self.job(job_id)["state"] == "running", what=f"{attempt_id} running")

    # -- disk and processes

    def dir(self, attempt_id: str) -> AttemptDir:
        return AttemptDir(self.paths.attempts_dir, attempt_id)

    def output(self, attempt_id: str, stream: str = "stdout") -> str:
        return self.dir(attempt_id).read_output(stream).decode()

    def marked(self, work_id: str) -> list[int]:
        return living([pid for pid, marked in find_marked(self.tag).items() if marked == work_id])

    # -- sessions

    def lease(self, lease_id: str, gpu_indexes: list[int] | None = None, **fields: Any) -> dict[str, Any]:
        gpu_indexes = gpu_indexes or []
        resources = {
            "gpus": float(len(gpu_indexes)),
            "gpu_count": len(gpu_indexes),
            "gpu_milli": 1000 if gpu_indexes else 0,
            "gpu_memory_mib": 0,
            "cpu_milli": 1000,
            "memory_mib": 0,
            **fields.pop("resources", {}),
        }
        command = GrantLease(
            lease_id=lease_id,
            session_id=fields.pop("session_id", "s1"),
            host="h1",
            incarnation=1,
            gpu_indexes=gpu_indexes,
            resources=resources,
            pool=fields.pop("pool", "gpu_compute" if gpu_indexes else "general"),
            env=fields.pop("env", {}),
            term=self.term,
            **fields,
        )
        self.propose(command)
        return self.attach(lease_id)

    def attach(self, lease_id: str) -> dict[str, Any]:
        grant: dict[str, Any] = self.node.request("worker_manager", AttachLease(lease_id), timeout_s=60)
        return grant

    def release(self, lease_id: str) -> None:
        self.propose(ReleaseLease(lease_id=lease_id))


class _Dead:
    """What a killed server can still do: nothing."""

    def __getattr__(self, name: str) -> Any:
        raise ActorGridError(f"killed: {name}")


def dump_call(function: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> bytes:
    """A job's payload; arguments ``("job", id)`` made with :class:`Input` become references."""
    buffer = io.BytesIO()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> Any:
            return ("job", value.job_id) if isinstance(value, Input) else None

    Pickler(buffer, protocol=5).dump((function, args, kwargs or {}))
    return buffer.getvalue()


class Input:
    """Stands for another job's result."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id


class RawClient:
    """The task protocol over a blocking socket."""

    def __init__(self, grant: dict[str, Any], secret: str | None = None, python: str = PYTHON) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(60)
        self.socket.connect(grant["socket_path"])
        self._decoder = FrameDecoder()
        self._frames: list[Any] = []
        self._ids = itertools.count(1)
        self.known: set[bytes] = set()
        with suppress(BrokenPipeError):  # a worker that has a client hangs up at once; the test reads that
            self.socket.sendall(encode_hello(grant["secret"] if secret is None else secret, python, "s1"))

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self) -> Any:
        """The next frame, or None at the end."""
        while not self._frames:
            data = self.socket.recv(1 << 18)
            if not data:
                return None
            self._frames += [parse_worker_frame(frame) for frame in self._decoder.feed(data)]
        return self._frames.pop(0)

    def welcome(self) -> ClientWelcome:
        frame = self.frame()
        if isinstance(frame, ClientRefused):
            raise frame.error
        assert isinstance(frame, ClientWelcome)
        return frame

    def send(self, function: Any, *args: Any, timeout_s: float | None = None) -> int:
        code = cloudpickle.dumps(function)
        fn_id = fn_id_of(code)
        if fn_id not in self.known:
            self.socket.sendall(encode_function(fn_id, code))
            self.known.add(fn_id)
        task_id = next(self._ids)
        self.socket.sendall(encode_task(task_id, fn_id, pickle.dumps((args, {})), timeout_s))
        return task_id

    def result(self, task_id: int) -> Any:
        """The value of that task (results before it are dropped), or its error raised."""
        self.outputs: list[tuple[str, bytes]] = []
        while True:
            frame = self.frame()
            assert frame is not None, "the worker closed the connection"
            if isinstance(frame, Output):
                self.outputs.append((frame.stream, frame.data))
            if isinstance(frame, Result) and frame.task_id == task_id:
                if frame.status == 0:
                    return pickle.loads(frame.body)
                error, exception = decode_failure_body(frame.body)
                raise raised_by_task(error, exception)

    def call(self, function: Any, *args: Any, timeout_s: float | None = None) -> Any:
        return self.result(self.send(function, *args, timeout_s=timeout_s))


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    return bool(living([pid]))


def my_uid_socket_mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777
