"""What makes a record well formed that comes within a command: a host, a job, what it asks for, a token, a bundle."""

from typing import Any

from actorgrid.access import ROLES, TENANT_MAX
from actorgrid.actors.ledger.credential_records import ApiKeyRecord, JoinTokenRecord
from actorgrid.actors.ledger.record_types import GangPlace, HostFacts, JobRecord, QuotaRecord, ResourcesRecord
from actorgrid.actors.ledger.trust_records import BundleRecord
from actorgrid.checkpoints import is_wish
from actorgrid.container_words import is_container
from actorgrid.digests import is_digest
from actorgrid.labels import is_labels
from actorgrid.notification_words import is_events, is_targets
from actorgrid.output_paths import is_outputs
from actorgrid.secret_words import is_wishes
from actorgrid.sizes import ANNOTATION_BYTES_MAX, ANNOTATIONS_MAX
from actorgrid.trace_context import is_traceparent

from .field_checks import (
    GANG_MEMBERS_MAX,
    Check,
    check_fields,
    is_env,
    is_grace,
    is_id,
    is_indexes,
    is_isolation,
    is_job_id,
    is_near,
    is_number,
    is_priority,
    is_signed,
    is_table,
    is_text,
    is_texts,
    is_truth,
    is_user,
    is_whole,
    or_none,
    refused,
)
from .isolation_records import is_kept_apart

AUTHORITIES_MAX = 2
PROFILES_MAX = 32
"""Kinds of instances that a device can be cut into."""
HELD_LIMITS = ("gpu_milli", "gpu_memory_mib", "cpu_milli", "memory_mib")
"""What a quota limits of what allocations hold, summed over all devices of each."""
WAITING_LIMIT = "jobs_waiting"
LIMITS = (*HELD_LIMITS, WAITING_LIMIT)
"""The fields of a quota; ``None`` is no limit."""


def _is_annotations(value: Any) -> bool:
    """Whether *value* is annotations: texts by name, bounded in number and in length together."""
    if not is_env(value) or len(value) > ANNOTATIONS_MAX or "" in value:
        return False
    parts = [part.encode("utf-8", "surrogatepass") for pair in value.items() for part in pair]
    return sum(map(len, parts)) <= ANNOTATION_BYTES_MAX


_HOST: dict[str, Check] = {
    "host_id": is_id,
    "incarnation": is_whole,
    "cpu_milli": is_whole,
    "memory_mib": is_whole,
    "devices": lambda value: isinstance(value, list) and len(value) <= 1024,
}
_HOST_MAY: dict[str, Check] = {
    "hostname": is_text,
    "boot_id": is_text,
    "state": lambda value: value in ("up", "down"),
    "address": or_none(is_text),
    "port": or_none(is_whole),
    "rack": or_none(is_text),
}
_DEVICE: dict[str, Check] = {"uuid": is_text, "index": is_whole, "memory_mib": is_whole}
_DEVICE_MAY: dict[str, Check] = {
    "vendor": is_text,
    "model": is_text,
    "source": is_text,
    "compute_capability": or_none(is_text),
    "pcie_bus_id": or_none(is_text),
    "numa_node": or_none(is_signed),
    "unfit": is_text,
}
PARTS_SINCE = 9
_DEVICE_PARTS: dict[str, Check] = {
    "parent": is_text,
    "share_milli": lambda value: is_whole(value) and 1 <= value <= 1000,
    "cut": is_truth,
    "whole_mib": is_whole,
    "profiles": lambda value: is_texts(value) and len(value) <= PROFILES_MAX,
}
"""What came with version 9. Of an entry of a lower one it is not checked, as the hosts of then did: who reads it does
not trust it."""
WATCHED_SINCE = 10
_HOST_TOLD: dict[str, Check] = {"told": is_whole, "kept_apart": is_kept_apart}
_DEVICE_WATCHED: dict[str, Check] = {"watched": is_truth, "mps": is_truth, "dmem": is_truth, "near": is_near}
_RESOURCES_MAY: dict[str, Check] = {
    "gpus": lambda value: is_number(value) and 0 <= value <= 1024,
    "gpu_count": lambda value: is_whole(value) and value <= 1024,
    "gpu_milli": lambda value: is_whole(value) and value <= 1000,
    "gpu_memory_mib": is_whole,
    "gpu_models": is_texts,
    "gpu_affinity": is_texts,
    "cpu_milli": is_whole,
    "memory_mib": is_whole,
    "gang": lambda value: is_whole(value) and 2 <= value <= GANG_MEMBERS_MAX,
    "spread": is_truth,
}
_PLACE: dict[str, Check] = {"host": is_text, "incarnation": is_whole, "gpu_indexes": is_indexes}
_JOB: dict[str, Check] = {"job_id": is_job_id, "resources": is_table}
JOB_CHECKS: dict[str, Check] = {
    "name": is_text,
    "user_id": is_text,
    "kind": lambda value: value in ("command", "function"),
    "command": is_texts,
    "payload_digest": or_none(is_text),
    "stdin_digest": or_none(is_text),
    "python": or_none(is_text),
    "priority": is_priority,
    "policy": is_text,
    "env": is_env,
    "cwd": or_none(is_text),
    "max_execution_time_s": or_none(is_number),
    "pool": or_none(is_text),
    "depends_on": lambda value: is_texts(value) and len(value) <= 1000 and all(is_job_id(part) for part in value),
    "max_isolation_s": is_isolation,
    "retries_left": lambda value: is_whole(value) and value <= 100,
    "deadline": or_none(is_number),
    "preemptible": is_truth,
    "grace_s": is_grace,
    "submitted_at": is_number,
    "annotations": _is_annotations,
    "environment": is_digest,
    "outputs": is_outputs,
    "container": is_container,
    "labels": is_labels,
    "pty": is_truth,
    "stop_when_idle_s": lambda value: is_number(value) and 0 < value <= 1e9,
    "notify": is_targets,
    "notify_on": is_events,
    "traceparent": is_traceparent,
    "checkpoint": is_wish,
    "secrets": is_wishes,
}
JOB_FIELDS_SINCE: dict[str, int] = {
    "annotations": 3,
    "environment": 7,
    "outputs": 7,
    "container": 7,
    "labels": 9,
    "pty": 9,
    "stop_when_idle_s": 9,
    "notify": 9,
    "notify_on": 9,
    "traceparent": 9,
    "checkpoint": 9,
    "secrets": 10,
}
"""The version that a field of ``JOB_CHECKS`` came with, where that is not 1: a command with such a job carries it. A
record has it only where it was given. In entries of a lower version it is kept as it is, as the hosts of then did, and
may be anything."""
JOB_FILES = ("payload_digest", "stdin_digest", "environment", "checkpoint_digest")
"""The fields of a job that name files by their digests: kept, spread and brought for as long as the job lives."""
_JOIN_TOKEN: dict[str, Check] = {
    "id": is_id,
    "cluster_id": is_id,
    "authority": is_text,
    "verify_key": is_text,
    "made_by": is_text,
    "made_at": is_number,
    "expires_at": is_number,
    "uses_max": is_whole,
    "roles": is_texts,
    "used_by": lambda value: value == [],
    "revoked_at": lambda value: value is None,
}
_API_KEY: dict[str, Check] = {
    "id": is_id,
    "sha256": lambda value: isinstance(value, str) and len(value) == 64,
    "user_id": is_user,
    "roles": is_texts,
    "made_by": is_text,
    "made_at": is_number,
    "expires_at": is_number,
    "revoked_at": lambda value: value is None,
}
API_KEY_FIELDS_SINCE: dict[str, int] = {"tenant": 10, "name": 10, "last": 10, "serving": 10}
"""The version that a field of ``_API_KEY_MAY`` came with: a command with such a key carries it."""
KEY_LAST = 4
KEY_NAME_MAX = 64
_API_KEY_MAY: dict[str, Check] = {
    "tenant": lambda value: is_text(value) and 0 < len(value) <= TENANT_MAX,
    "name": lambda value: is_text(value) and 0 < len(value) <= KEY_NAME_MAX,
    "last": lambda value: is_text(value) and len(value) == KEY_LAST,
    "serving": lambda value: isinstance(value, dict) and value.keys() - _SERVING_MAY.keys() == _SERVING.keys(),
}
_SERVING: dict[str, Check] = {
    "models": lambda value: is_texts(value) and len(value) <= 256 and all(0 < len(each) <= 256 for each in value),
    "requests_per_minute": is_whole,
    "tokens_per_minute": is_whole,
    "tokens_per_month": is_whole,
}
_SERVING_MAY: dict[str, Check] = {"requests_per_month": is_whole}
_BUNDLE: dict[str, Check] = {"format": is_whole, "cluster_id": is_id, "version": is_whole}
_AUTHORITY: dict[str, Check] = {
    "generation": is_whole,
    "state": lambda value: value in ("waiting", "signing", "accepted"),
    "certificate": is_text,
    "endorsements": is_env,
}
_LIMITS_MAY: dict[str, Check] = dict.fromkeys(LIMITS, or_none(is_whole))


def check_host(host: HostFacts, version: int) -> None:
    """Check what a host registers, in an entry of that *version*.

    Raises BadRequest that names the field, also of a device; so do all of these.
    """
    check_fields("host", host, _HOST, _HOST_MAY | (_HOST_TOLD if version >= WATCHED_SINCE else {}))
    for device in host["devices"]:
        if not isinstance(device, dict):
            raise refused("a device is a dict", found=type(device).__name__)
        parts = _DEVICE_PARTS if version >= PARTS_SINCE else {}
        watched = _DEVICE_WATCHED if version >= WATCHED_SINCE else {}
        check_fields("device", device, _DEVICE, _DEVICE_MAY | parts | watched)
    for name in ("index", "uuid"):
        if len({device[name] for device in host["devices"]}) != len(host["devices"]):
            raise refused(f"two devices of host {host['host_id']} have the same {name}")


def host_version(host: HostFacts) -> int:
    """The lowest version that knows all fields of *host* and its devices."""
    said = set().union(*host["devices"])
    if not said.isdisjoint(_DEVICE_WATCHED) or not _HOST_TOLD.keys().isdisjoint(host):
        return WATCHED_SINCE
    return 1 if said.isdisjoint(_DEVICE_PARTS) else PARTS_SINCE


def check_job(job: object, version: int) -> None:
    """Check a job that is submitted, with the resources it asks for, in an entry of that *version*."""
    if not isinstance(job, dict):
        raise refused("a job is a dict", found=type(job).__name__)
    known = {name: check for name, check in JOB_CHECKS.items() if JOB_FIELDS_SINCE.get(name, 1) <= version}
    check_fields("job", job, _JOB, known)
    check_resources(job["resources"])


def job_version(job: JobRecord) -> int:
    """The lowest version that knows all fields of *job*."""
    resources: object = job.get("resources")
    later = isinstance(resources, dict) and not resources.keys().isdisjoint(("min_isolation", "gpu_topology"))
    least = WATCHED_SINCE if later else 1
    return max([least, *(since for name, since in JOB_FIELDS_SINCE.items() if name in job)])


def check_resources(resources: ResourcesRecord) -> None:
    """Check the resources that a job or a lease asks for."""
    check_fields("resources", resources, {}, _RESOURCES_MAY)
    if resources.get("gpu_count", 0) and not resources.get("gpu_milli", 0):
        raise refused("resources ask for GPUs but for no share of them", found="gpu_milli is 0")


def check_grant_target(place: GangPlace) -> None:
    """Check the place of a gang's member."""
    check_fields("member", place, _PLACE, {})


def check_join_token(token: JoinTokenRecord) -> None:
    """Check a join token's record as the ledger keeps it."""
    check_fields("token", token, _JOIN_TOKEN, {})


def check_api_key(key: ApiKeyRecord, version: int) -> None:
    """Check an API key's record as the ledger keeps it, in an entry of that *version*."""
    known = {name: check for name, check in _API_KEY_MAY.items() if API_KEY_FIELDS_SINCE[name] <= version}
    check_fields("key", key, _API_KEY, known)
    if (
        version >= API_KEY_FIELDS_SINCE["tenant"]
        and "tenant" in key
        and (len(key["roles"]) != 1 or key["roles"][0] not in ROLES)
    ):
        raise refused("an API key of a tenant has one role", found=f"known: {', '.join(ROLES)}")
    if version >= API_KEY_FIELDS_SINCE["tenant"] and "name" in key and "tenant" not in key:
        raise refused("an API key with a name is of a tenant")
    if version >= API_KEY_FIELDS_SINCE["serving"] and "serving" in key:
        check_fields("serving", key["serving"], _SERVING, _SERVING_MAY)
        if "tenant" not in key:
            raise refused("an API key for models is of a tenant")


def api_key_version(key: ApiKeyRecord) -> int:
    """The lowest version that knows all fields of *key*."""
    return max((since for name, since in API_KEY_FIELDS_SINCE.items() if name in key), default=1)


def check_bundle(bundle: BundleRecord) -> None:
    """Check a trust bundle: one authority signs, and no two are of one generation."""
    check_fields("bundle", bundle, _BUNDLE, {})
    authorities = bundle.get("authorities")
    if not isinstance(authorities, list) or not 1 <= len(authorities) <= AUTHORITIES_MAX:
        raise refused("a bundle has one authority or two")
    for authority in authorities:
        if not isinstance(authority, dict):
            raise refused("an authority is a dict", found=type(authority).__name__)
        check_fields("authority", authority, _AUTHORITY, {})
    if [authority["state"] for authority in authorities].count("signing") != 1:
        raise refused("one authority of a bundle signs")
    # Of two of one generation the last counts.
    if "signing" not in {authority["generation"]: authority["state"] for authority in authorities}.values():
        raise refused("two authorities of a bundle are of one generation")


def check_limits(limits: QuotaRecord) -> None:
    """Check the limits of a quota."""
    check_fields("limits", limits, {}, _LIMITS_MAY)
    for name in limits:
        if name not in _LIMITS_MAY:
            raise refused(f"a quota has no limit {name!r}", found=f"known: {', '.join(LIMITS)}")
