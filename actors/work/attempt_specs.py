"""What the manager writes for a shim to run: the spec of an attempt, where its sockets lie, and what it finds."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from actorgrid.actors.ledger.attempt_ids import number_of
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.actors.ledger.graph_checks import steps_of
from actorgrid.actors.ledger.record_types import NO_ATTEMPT, NO_HOST, AllocationRecord, JobRecord
from actorgrid.actors.ledger.records import isolation_of
from actorgrid.configs.paths import HostPaths
from actorgrid.supervisors.server import Server

from ..gpu.enforcement import kernel_limits
from .attempt_dir import AttemptDir
from .attempt_spans import trace_variable
from .checkpoint_spec import add_checkpoint, with_checkpoint_link
from .containers import name_of
from .environment import agent_variables, by_vendor, device_variables, work_environment
from .gang_environment import launcher_variables, rank_variables
from .inputs import BroughtInputs
from .isolation.device_nodes import denied_nodes
from .isolation.plan import basic_spec
from .mps_variables import NO_MPS
from .python_environment_spec import asked_of, enter_environment, environment_of_job, environments_in, limits_of
from .secret_files import secrets_spec
from .service_ports import give_port, give_python, give_rank
from .shim_link import SPEC_VERSION
from .work_records import WorkSpec
from .working_dir_spec import with_working_dir


class ServedBy(NamedTuple):
    """The function worker that an attempt is for: its id, and the socket of its shim."""

    worker_id: str
    control_path: str


@cache
def _sockets_dir(paths: HostPaths) -> Path:
    """Which takes some 50 µs to say, and stays what it is while the agent runs."""
    return paths.work_sockets_dir


def attempt_spec(
    server: Server,
    ledger: LedgerClient,
    host_tag: str,
    job: JobRecord,
    allocation: AllocationRecord,
    inputs: BroughtInputs,
    served_by: ServedBy | None = None,
    mps: Mapping[str, str] = NO_MPS,
) -> WorkSpec:
    """The spec of an attempt of *job* (what it means: ``shim.py``); *inputs*: where results of others are.

    *mps*: the variables of its share, where it runs under MPS.
    """
    paths, settings = server.host.paths, server.host.settings
    attempt_id = allocation["allocation_id"]
    devices = ledger.hosts.get(allocation["host"], NO_HOST).get("devices", [])
    resources = job["resources"]
    kind = job.get("kind", "command")
    steps = steps_of(cast("Plain", job)) if "step_of" in job else None
    env, fixed = job.get("env") or {}, {**device_variables(devices, allocation["gpu_uuids"]), **mps}
    rank, attempt = allocation["owner"].get("rank"), (job.get("attempts") or [NO_ATTEMPT])[-1]
    ranks = {} if rank is None else rank_variables(attempt, rank)
    if rank is not None:
        env = {**launcher_variables(attempt, rank, len(allocation["gpu_uuids"])), **env}
        fixed |= ranks
    sockets = _sockets_dir(paths)
    spec: WorkSpec = {
        "v": SPEC_VERSION,
        "kind": kind,
        "id": attempt_id,
        "job_id": job["job_id"],
        "ledger_token": list(allocation["token"]),
        "token": secrets.token_hex(16),
        "title": f"actorgrid: worker {job.get('pool') or allocation.get('pool') or 'general'} job {attempt_id}",
        "command": list(job.get("command") or []),
        "env": work_environment(
            agent_variables(),
            env,
            {**fixed, **trace_variable(job, attempt_id, traced=bool(settings.monitoring.otlp_endpoint))},
            host_tag=host_tag,
            work_id=attempt_id,
            token=allocation["token"],
            attempt_number=number_of(attempt_id) or 1,
            job_id=job["job_id"],
            credential_file=AttemptDir(paths.attempts_dir, attempt_id).credential_file,
            cpu_milli=resources.get("cpu_milli", 0),
            grace_s=float(job.get("grace_s") or 0.0) if job.get("preemptible") else None,
        ),
        "cwd": job.get("cwd") or default_folder(),
        "stdin": str(paths.blobs_dir / job["stdin_digest"]) if job.get("stdin_digest") else None,
        "timeout_s": job.get("max_execution_time_s"),
        "grace_s": settings.work.kill_grace_s,
        "max_output_bytes": settings.work.max_output_bytes,
        "memory_bytes": resources.get("memory_mib", 0) * 2**20,
        "isolation_s": isolation_of(allocation, job),
        "control_path": str(socket_path(sockets, f"{host_tag}/{attempt_id}", "s"))
        if served_by is None
        else served_by.control_path,
        "guard_path": str(guard_path(sockets, host_tag)),
    }
    slack_bytes = int(settings.gpus.memory_slack)
    limits = kernel_limits(devices, allocation["gpu_uuids"], allocation["gpu_memory_mib"], slack_bytes)
    if limits and "container" not in job:
        spec["device_memory"] = limits
    takes = list(inputs.of_steps.values()) if kind == "command" else []
    if steps is not None and kind == "command":
        spec["step"] = {
            "tells": bool(steps.get("tells")),
            "takes": takes,
            "gives": bool(job.get("outputs")),
            "bytes_max": settings.work.max_result_bytes,
        }
    if job.get("outputs") or takes:
        folder = AttemptDir(paths.attempts_dir, attempt_id)
        spec["outputs"] = {
            "paths": list(job.get("outputs") or ()),  # none: for a directory of its own alone
            "bytes_max": settings.work.outputs_bytes_max,
            "folder": str(folder.outputs),
            "own_cwd": str(folder.own_cwd),
        }
    add_checkpoint(spec, job, paths, rank)
    if inputs.secrets:
        spec["secrets"] = secrets_spec(job, inputs.secrets)
    if "container" in job:
        spec["container"] = {
            "wish": job["container"],
            "allowed": settings.work.containers,
            "mounts": list(settings.work.container_mounts),
            "name": name_of(host_tag, attempt_id),
            "folder": str(paths.attempts_dir / attempt_id),
            "gpus": by_vendor(devices, allocation["gpu_uuids"]),
        }
    if job.get("pty"):
        spec["pty"] = True
    if "service" in job:
        give_port(spec)
        if ranks:
            give_rank(spec, ranks)
    environment = environment_of_job(job)
    if environment:
        asked = asked_of(environment, paths, settings)
        spec["environment"] = asked
        # Other work has it from its own process, which knows where it is, and whether it is there.
        built = environments_in(asked).found(environment) if served_by is not None else None
        if built is not None:
            enter_environment(built, spec["env"])
    if "service" in job:
        give_python(spec)
    if served_by is not None:
        spec["served_by"] = served_by.worker_id
    elif os.geteuid() == 0 and (denied := denied_nodes(devices, allocation["gpu_uuids"])):
        spec["devices_denied"] = [list(node) for node in denied]
    if kind == "function":
        spec["function"] = {
            "payload_path": str(paths.blobs_dir / str(job["payload_digest"])),
            "digest": str(job["payload_digest"]),
            "python": job.get("python") or "",
            "inputs": inputs.of_jobs,
            "max_result_bytes": settings.work.max_result_bytes,
            "result_path": str(AttemptDir(paths.attempts_dir, attempt_id).result),
            "objects": str(object_store_path(sockets, host_tag)),
            "host_id": server.host.host_id,
        }
        if steps is not None:
            spec["function"]["step_inputs"] = inputs.of_steps
            live = [number for number in steps.get("streams", ()) if str(number) not in inputs.of_steps]
            if live:
                spec["function"]["live_inputs"] = live
            spec["function"]["steps"] = [[number, offset, size] for number, _, offset, size in steps["steps"]]
    return with_checkpoint_link(with_working_dir(spec, job, paths), job)


def standby_spec(server: Server, host_tag: str, kind: str, worker_id: str, title: str, env: dict[str, str]) -> WorkSpec:
    """The spec of a worker that is there before its work. It has no limit of time or memory of its own."""
    paths, settings = server.host.paths, server.host.settings
    spec: WorkSpec = {
        "v": SPEC_VERSION,
        "kind": kind,
        "id": worker_id,
        "token": secrets.token_hex(16),
        "title": title,
        "command": [],
        "env": env,
        "cwd": default_folder(),
        "stdin": None,
        "timeout_s": None,
        "grace_s": settings.work.kill_grace_s,
        "max_output_bytes": settings.work.max_output_bytes,
        "memory_bytes": 0,
        "isolation_s": settings.work.max_isolation_s,
        "control_path": str(socket_path(paths.work_sockets_dir, f"{host_tag}/{worker_id}", "s")),
        "guard_path": str(guard_path(paths.work_sockets_dir, host_tag)),
    }
    apart = None if kind == "objects" else basic_spec(settings.work.isolation, paths)
    if apart is not None:
        spec["apart"] = apart
    return spec


def pool_worker_spec(server: Server, host_tag: str, worker_id: str, pool: str, number: int) -> WorkSpec:
    """The spec of a worker of a pool, for sessions."""
    paths = server.host.paths
    env = work_environment(os.environ, {}, {}, host_tag=host_tag, work_id=worker_id)
    return {
        **standby_spec(server, host_tag, "worker", worker_id, f"actorgrid: worker {pool} {number}", env),
        "job_id": "",
        "worker": {
            "worker_id": worker_id,
            "pool": pool,
            "number": number,
            "socket_path": str(worker_socket(server, host_tag, worker_id)),
            "working_dirs": str(paths.working_dirs_dir),
            "environments": limits_of(paths, server.host.settings),
            "objects": str(object_store_path(paths.work_sockets_dir, host_tag)),
            "host_id": server.host.host_id,
        },
    }


def lease_environment(
    host_tag: str,
    worker_id: str,
    user: dict[str, str],
    fixed: dict[str, str],
    allocation: AllocationRecord,
    credential_file: Path | None,
) -> dict[str, str]:
    """The variables of a worker under the lease of *allocation*: those that *user* asks for, and over them *fixed*."""
    return work_environment(
        os.environ,
        user,
        fixed,
        host_tag=host_tag,
        work_id=worker_id,
        token=allocation.get("token", ()),
        lease_id=allocation.get("allocation_id", ""),
        credential_file=credential_file,
        cpu_milli=int(allocation.get("cpu_milli", 0)),
    )


def worker_socket(server: Server, host_tag: str, worker_id: str) -> Path:
    """Where clients come to a worker of a pool."""
    return socket_path(server.host.paths.work_sockets_dir, f"{host_tag}/{worker_id}", "w")


def socket_path(folder: Path, name: str, kind: str) -> Path:
    """A short path for a socket (an AF_UNIX path holds 107 bytes), the same for the same name."""
    return folder / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def guard_path(folder: Path, host_tag: str) -> Path:
    """The socket of the guard of that data directory."""
    return socket_path(folder, f"{host_tag}/guard", "g")


def object_store_path(folder: Path, host_tag: str) -> Path:
    """The socket of the object store of that data directory."""
    return socket_path(folder, f"{host_tag}/objects", "o")


def default_folder() -> str:
    """The folder in which work runs that names none: the user's home, else the root."""
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"
