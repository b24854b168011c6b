"""What makes well formed what commands say of services."""

from __future__ import annotations

import re
from typing import Annotated, Any

from .field_checks import (
    Check,
    Plain,
    check_fields,
    is_job_id,
    is_number,
    is_table,
    is_text,
    is_user,
    is_whole,
    refused,
)
from .record_checks import JOB_CHECKS, JOB_FIELDS_SINCE, check_resources
from .schedule_checks import NOT_SCHEDULED

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""Its jobs are called after it, with a number behind it, and a job's id has 64 characters."""
REVISION = re.compile(r"[0-9a-f]{12}")
PATH = re.compile(r"/[!-~]{0,255}")
REPLICAS_MAX = 256
"""Of one service, at once, those that leave not counted."""
CONCURRENCY_MAX = 10_000
BODY_CHARS_MAX = 16_384
MODEL_CHARS_MAX = 256
REASON_CHARS_MAX = 500
SERVICE_BYTES_MAX = 65_536
"""Of what the replicas of one revision run, packed."""
SECONDS_MAX = 7 * 86_400.0
DECIDED_MAX = 64
"""Replicas that one entry starts, drains or ends."""
PROTOCOLS = ("openai", "http")
PRESETS = ("", "vllm", "sglang", "llama.cpp")
STRATEGIES = ("auto", "surge", "replace")
ROUTE_WORDS = ("prefix_cost", "prefix_hash", "round_robin", "weighted_round_robin", "least_loaded", "affinity_aware")
"""The ways in which gateways choose a replica (``RoutingStrategy`` of ``serving/table.py``)."""
HEADER = re.compile(r"[a-z0-9-]{0,64}")
ADAPTERS_MAX, FALLBACKS_MAX = 64, 8
TOLD_STATES = ("starting", "ready", "unhealthy")
OUTCOMES = ("", "promoted", "aborted")
NOT_SERVED = (*NOT_SCHEDULED, "retries_left", "stop_when_idle_s", "max_execution_time_s")
"""Fields of a job that are about one moment, one other job, or an end: a replica goes on."""


def is_service_name(value: Any) -> bool:
    """The name of a service."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def is_path(value: Any) -> bool:
    """A path of a URL, with what follows it."""
    return isinstance(value, str) and PATH.fullmatch(value) is not None


def _is_seconds(value: Any) -> bool:
    return is_number(value) and 0 < value <= SECONDS_MAX


def _is_reason(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= REASON_CHARS_MAX


def _is_revision(value: Any) -> bool:
    return isinstance(value, str) and REVISION.fullmatch(value) is not None


def _is_model(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MODEL_CHARS_MAX


def _is_model_name(value: Any) -> bool:
    return _is_model(value) and value != "" and value.isprintable()


def _is_adapter(value: Any) -> bool:
    return (
        isinstance(value, dict) and value.keys() == {"model", "served_as"} and all(map(_is_model_name, value.values()))
    )


def _are_few(check: Check, most: int) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


_SERVICE: dict[str, Check] = {
    "name": is_service_name,
    "user_id": is_user,
    "made_by": is_text,
    "job": is_table,
    "serving": is_table,
    "scale": is_table,
}
_SERVING: dict[str, Check] = {
    "protocol": lambda value: value in PROTOCOLS,
    "model": _is_model,
    "ready_path": lambda value: value == "" or is_path(value),
    "ready_body": lambda value: isinstance(value, str) and len(value) <= BODY_CHARS_MAX,
    "live_path": is_path,
    "start_timeout_s": _is_seconds,
    "preset": lambda value: value in PRESETS,
}
_SCALE: dict[str, Check] = {
    "min": lambda value: is_whole(value) and value <= REPLICAS_MAX,
    "max": lambda value: is_whole(value) and 1 <= value <= REPLICAS_MAX,
    "concurrency": lambda value: is_whole(value) and 1 <= value <= CONCURRENCY_MAX,
    "idle_s": _is_seconds,
    "drain_s": _is_seconds,
    "strategy": lambda value: value in STRATEGIES,
}


_SERVICE_MAY: dict[str, Check] = {"routing": is_table}
_ROUTING: dict[str, Check] = {
    "strategy": lambda value: value in ROUTE_WORDS,
    "affinity_header": lambda value: isinstance(value, str) and HEADER.fullmatch(value) is not None,
    "adapters": _are_few(_is_adapter, ADAPTERS_MAX),
    "fallbacks": _are_few(_is_model_name, FALLBACKS_MAX),
}


def check_service(service: object) -> None:
    """Check a service that is written. Raises BadRequest that names the field."""
    if not isinstance(service, dict):
        raise refused("a service is a dict", found=type(service).__name__)
    check_fields("service", service, _SERVICE, _SERVICE_MAY)
    _no_more("service", service, {**_SERVICE, **_SERVICE_MAY})
    if "routing" in service:
        _check("routing", service["routing"], _ROUTING)
    _check("serving", service["serving"], _SERVING)
    check_scale(service["scale"])
    job = service["job"]
    check_fields("job", job, {"resources": is_table}, JOB_CHECKS)
    _no_more("job", job, {**JOB_CHECKS, "resources": is_table})
    for name in NOT_SERVED:
        if name in job:
            raise refused(f"the job of a service has no field {name!r}", found=repr(job[name])[:100])
    check_resources(job["resources"])


def check_scale(scale: Plain) -> None:
    """Check how many replicas there are to be. Raises BadRequest."""
    _check("scale", scale, _SCALE)
    if scale["min"] > scale["max"]:
        raise refused("a service has no more replicas at least than at most", found=f"{scale['min']}:{scale['max']}")


def service_version(service: Plain) -> int:
    """The lowest version that knows all fields of the job in *service*."""
    job = service.get("job")
    return max((since for name, since in JOB_FIELDS_SINCE.items() if isinstance(job, dict) and name in job), default=1)


def _check(what: str, given: Plain, known: dict[str, Check]) -> None:
    check_fields(what, given, known, {})
    _no_more(what, given, known)


def _no_more(what: str, given: Plain, known: dict[str, Check]) -> None:
    for name in given:
        if name not in known:
            raise refused(f"{what} has no field {name!r}", found=f"known: {', '.join(sorted(known))}")


def _is_few(check: Check) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= DECIDED_MAX and all(map(check, value))


ServiceName = Annotated[str, is_service_name]
Service = Annotated[Plain, lambda value: isinstance(value, dict)]
Percent = Annotated[int, lambda value: is_whole(value) and value <= 99]
ServiceSeconds = Annotated[float, _is_seconds]
ServiceReason = Annotated[str, _is_reason]
Replicas = Annotated[int, lambda value: is_whole(value) and value <= REPLICAS_MAX]
Revisions = Annotated[list[str], _is_few(_is_revision)]
ReplicaIds = Annotated[list[str], _is_few(is_job_id)]
ReplicaState = Annotated[str, lambda value: value in TOLD_STATES]
RolloutOutcome = Annotated[str, lambda value: value in OUTCOMES]
Port = Annotated[int, lambda value: is_whole(value) and value <= 65_535]
ServedModel = Annotated[str, _is_model]
