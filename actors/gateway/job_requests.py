"""From what is asked at a door to the records the ledger keeps."""

from __future__ import annotations

import os
import platform
import re
from typing import Any, cast

from actorgrid.container_models import ContainerRequest
from actorgrid.container_words import is_container
from actorgrid.demand import Demand
from actorgrid.errors import MalformedBody, PythonMismatch
from actorgrid.models import Resources, TaskRequest
from actorgrid.working_dir import VARIABLE

from ..ledger.record_checks import JOB_FIELDS_SINCE
from ..ledger.record_types import JobRecord, ResourcesRecord
from ..ledger.records import UNKNOWN_USER

_MODELS = ("container", "checkpoint")
"""Fields of a request that are models of their own, and written for the ledger by themselves."""
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def host_python() -> str:
    """Major and minor version of the Python that workers run."""
    return ".".join(platform.python_version_tuple()[:2])


def check_python(python: str) -> None:
    """Refuse another Python than the workers': functions travel between equal ones only. Raises PythonMismatch."""
    given = ".".join(python.split(".")[:2])
    if given and given != host_python():
        raise PythonMismatch(
            "functions can only be exchanged between equal Python versions",
            asked=f"client Python {python}",
            found=f"worker Python {host_python()}",
            hint=f"run the client with Python {host_python()}, or submit a command instead of a function",
        )


def check_env(env: dict[str, str], where: str) -> None:
    """Refuse variables no process can be given. Raises MalformedBody."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise MalformedBody(
                f"{where}: {name!r} cannot be set for a process",
                asked=name[:100],
                hint="names hold neither '=' nor NUL and are not empty; values hold no NUL",
                field=where,
            )


def resources_record(request: Resources) -> ResourcesRecord:
    """The ledger's record of what is asked for, per member; ``gpus`` as the request spelled it."""
    return {**Demand.of_request(request).to_record(), "gpus": request.gpus}


def job_record(
    request: TaskRequest,
    payload_digest: str | None,
    stdin_digest: str | None,
    max_isolation_s: float,
    kill_grace_s: float,
    now: float,
) -> JobRecord:
    """The record of a job as submitted: everything but its state and attempts, which are the ledger's.

    The deadline counts from *now*; what the request leaves open is as the host has it now.
    """
    deadline = request.deadline.timestamp() if request.deadline is not None else None
    if request.deadline_s is not None:
        deadline = now + request.deadline_s
    if request.kind == "function":
        name = request.name or "function"
    else:
        name = request.name or os.path.basename(request.command[0])[:200]
    sent = request.working_dir is not None
    record = {
        "job_id": request.task_id,
        "name": name,
        "user_id": request.user_id or UNKNOWN_USER,
        "kind": request.kind,
        "command": list(request.command) if request.kind == "command" else [],
        # Of its two files the one that its kind has no use for is the archive of its working directory: brought,
        # spread and kept as the other is. Its variable says so (``working_dir_of``).
        "payload_digest": request.working_dir if sent and request.kind == "command" else payload_digest,
        "stdin_digest": request.working_dir if sent and request.kind == "function" else stdin_digest,
        "python": request.python,
        "priority": request.priority,
        "policy": request.scheduling_policy.value,
        "env": _env(request),
        "cwd": request.cwd,
        "max_execution_time_s": request.max_execution_time_s,
        "pool": request.pool.value if request.pool else None,
        "depends_on": list(dict.fromkeys(request.depends_on)),
        "max_isolation_s": request.max_isolation_s if request.max_isolation_s is not None else max_isolation_s,
        "resources": resources_record(request),
        "retries_left": request.retries,
        "deadline": deadline,
        "preemptible": request.preemptible,
        "grace_s": request.grace_s if request.grace_s is not None else kill_grace_s,
        "submitted_at": now,
        **{each: value for each in JOB_FIELDS_SINCE if each not in _MODELS and (value := getattr(request, each))},
        **({} if request.checkpoint is None else {"checkpoint": request.checkpoint.model_dump(exclude_none=True)}),
        **({} if request.container is None else {"container": _container(request.container)}),
    }
    return cast("JobRecord", record)


def _container(asked: ContainerRequest) -> dict[str, Any]:
    """The container as the ledger has it. Raises MalformedBody."""
    wish = asked.model_dump(exclude_defaults=True)
    if asked.mounts:
        wish["mounts"] = [mount.model_dump() for mount in asked.mounts]
    if not is_container(wish):
        raise MalformedBody(
            "container: an image is a name without spaces, mounts are absolute paths without ',' and ':'",
            asked=str(wish)[:200],
            field="container",
        )
    return wish


def _env(request: TaskRequest) -> dict[str, str]:
    env = {name: value for name, value in request.env.items() if name != VARIABLE}
    return {**env, VARIABLE: request.working_dir} if request.working_dir is not None else env


def job_checks(request: TaskRequest, where: str = "") -> None:
    """Check what the request's model cannot know. Raises PythonMismatch or MalformedBody."""
    check_env(request.env, f"{where}env")
    if request.spread and request.gang == 1:
        raise MalformedBody(
            f"{where}spread: only the members of a gang can be spread over hosts",
            asked="spread",
            found="gang=1",
            hint="say how many members with gang (--gang N)",
            field=f"{where}spread",
        )
    if request.kind == "function" and request.environment is None:
        check_python(request.python)
    if request.secrets and request.container is not None:
        raise MalformedBody(
            f"{where}secrets: work in a container cannot be given any yet",
            asked=", ".join(request.secrets)[:200],
            hint="run it without --container",
            field=f"{where}secrets",
        )
    if request.task_id in request.depends_on:
        raise MalformedBody(
            f"{where}depends_on: job {request.task_id} would wait for itself",
            asked=request.task_id,
            hint="leave its own id out",
            field=f"{where}depends_on",
        )
    for name in request.depends_on:
        if not _JOB_ID.fullmatch(name):
            raise MalformedBody(
                f"{where}depends_on: {name[:100]!r} is not a job id",
                asked=name[:100],
                hint="ids are letters, digits, '_', '.', '-'; at most 64",
                field=f"{where}depends_on",
            )
    if request.cwd is not None and (not os.path.isabs(request.cwd) or "\0" in request.cwd):
        raise MalformedBody(
            f"{where}cwd: not an absolute path", asked=request.cwd[:200], hint="write it from /", field=f"{where}cwd"
        )
