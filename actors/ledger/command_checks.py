"""What makes a command of the ledger well formed: its type, its version, and which fields it has of which kind.

Nothing of the state is looked at here. A command of an unknown type or a higher version is refused, not guessed at.

A refusal of a committed entry is part of what every voter must agree on, its words included. So what ``check`` says
of it depends on the command and on the version that the cluster has (docs/decisions/0017), never on how much more
this program knows: a kind is known to the version that it came with and to later ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from actorgrid.errors import BadRequest, HostsTooOld, LedgerTooNew

from .tables.gangs import MEMBERS_MAX
from .tables.quotas import LIMITS

VERSION = 2
"""What this host knows. A host tells the others (``ledger_version`` of its member record)."""
SINCE: dict[str, int] = {"take_success": 2}
"""The version that a kind of command came with, where that is not 1. A command carries it, so that an older host
knows that it does not know it, and hosts which are newer do not propose it before all are (``refuse_if_too_new``). An
entry that names the kind with a lower version is refused by everybody: the older hosts of then did."""
CHANGED: dict[str, int] = {}
"""The version that a kind's meaning changed with. It is carried in the same way; entries of a lower version keep the
meaning that they had."""
FIELDS_SINCE: dict[str, dict[str, int]] = {
    "acquire_lock": {"request": 2},
    "renew_lock": {"request": 2},
    "release_lock": {"request": 2},
}
"""The version that a field came with, which changes what a command means where it is there. Commands with it carry
that version; in entries of a lower one it is no field, as it was none to the older hosts of then."""
MAX_JOBS = 10_000
MAX_LOST = 10_000
DEPTH_MAX = 16
GRACE_MAX_S = 3600.0
AUTHORITIES_MAX = 2
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LOCK_NAME_MAX, LOCK_SLOTS_MAX = 256, 1_000
LOCK_TTL_MIN_S, LOCK_TTL_MAX_S = 0.5, 86_400.0
OUTCOMES = ("succeeded", "failed", "cancelled", "timed_out", "lost", "preempted")

Command = dict[str, Any]
_Check = Callable[[Any], bool]


def refused(message: str, **more: Any) -> BadRequest:
    """A refusal of something malformed: not the guard's, so that nobody takes it for an answer about the state."""
    return BadRequest(message, **more)


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 65_536


def _id(value: Any) -> bool:
    return isinstance(value, str) and ID.fullmatch(value) is not None


def _job_id(value: Any) -> bool:
    return isinstance(value, str) and JOB_ID.fullmatch(value) is not None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _signed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _user(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable()


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _table(value: Any) -> bool:
    return isinstance(value, dict) and _shallow(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _env(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(part, str) for part in value.values())


def _indexes(value: Any) -> bool:
    return isinstance(value, list) and all(_whole(part) for part in value) and len(set(value)) == len(value) <= 1024


def _token(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_whole(part) for part in value)


def _request(value: Any) -> bool:
    """The number that a client gave its request for a lock (0: none), and the id that its host gave."""
    return isinstance(value, list) and len(value) == 2 and _whole(value[0]) and _id(value[1])


def _held(value: Any) -> bool:
    """Allocations with their tokens."""
    return (
        isinstance(value, list)
        and len(value) <= MAX_LOST
        and all(isinstance(part, list) and len(part) == 2 and _text(part[0]) and _token(part[1]) for part in value)
    )


def _ports(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(_whole(part) for part in value)
        and (1 <= value[0] <= value[1] <= 65_535)
    )


def _places(value: Any) -> bool:
    return isinstance(value, list) and 2 <= len(value) <= MEMBERS_MAX and all(isinstance(part, dict) for part in value)


def _waiting_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"user", "all"} and all(_whole(part) for part in value.values())


def _shallow(value: Any, depth: int = DEPTH_MAX) -> bool:
    """Plain, and nested no deeper than every later reader can follow."""
    if isinstance(value, dict):
        return depth > 0 and all(_shallow(part, depth - 1) for part in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_shallow(part, depth - 1) for part in value)
    return True


def _time(value: Any) -> bool:
    """Seconds since the epoch that are a date: of the years 1 to 9999."""
    return _number(value) and -62_135_596_800 <= value < 253_402_300_800


def _grace(value: Any) -> bool:
    return _number(value) and 0 <= value <= GRACE_MAX_S


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


_HOST: dict[str, _Check] = {
    "host_id": _id,
    "incarnation": _whole,
    "cpu_milli": _whole,
    "memory_mib": _whole,
    "devices": lambda value: isinstance(value, list) and len(value) <= 1024,
}
_HOST_MAY: dict[str, _Check] = {
    "hostname": _text,
    "boot_id": _text,
    "state": lambda value: value in ("up", "down"),
    "address": _or_none(_text),
    "port": _or_none(_whole),
    "rack": _or_none(_text),
}
_DEVICE: dict[str, _Check] = {"uuid": _text, "index": _whole, "memory_mib": _whole}
_DEVICE_MAY: dict[str, _Check] = {
    "vendor": _text,
    "model": _text,
    "source": _text,
    "compute_capability": _or_none(_text),
    "pcie_bus_id": _or_none(_text),
    "numa_node": _or_none(_signed),
    "unfit": _text,
}
_RESOURCES_MAY: dict[str, _Check] = {
    "gpus": lambda value: _number(value) and 0 <= value <= 1024,
    "gpu_count": lambda value: _whole(value) and value <= 1024,
    "gpu_milli": lambda value: _whole(value) and value <= 1000,
    "gpu_memory_mib": _whole,
    "gpu_models": _texts,
    "gpu_affinity": _texts,
    "cpu_milli": _whole,
    "memory_mib": _whole,
    "gang": lambda value: _whole(value) and 2 <= value <= MEMBERS_MAX,
    "spread": _truth,
}
_PLACE: dict[str, _Check] = {"host": _text, "incarnation": _whole, "gpu_indexes": _indexes}
_JOB: dict[str, _Check] = {"job_id": _job_id, "resources": _table}
_JOB_MAY: dict[str, _Check] = {
    "name": _text,
    "user_id": _text,
    "kind": lambda value: value in ("command", "function"),
    "command": _texts,
    "payload_digest": _or_none(_text),
    "stdin_digest": _or_none(_text),
    "python": _or_none(_text),
    "priority": lambda value: _whole(value) and value <= 100,
    "policy": _text,
    "env": _env,
    "cwd": _or_none(_text),
    "max_execution_time_s": _or_none(_number),
    "pool": _or_none(_text),
    "depends_on": lambda value: _texts(value) and len(value) <= 1000 and all(_job_id(part) for part in value),
    "max_isolation_s": lambda value: _number(value) and value >= 0,
    "retries_left": lambda value: _whole(value) and value <= 100,
    "deadline": _or_none(_number),
    "preemptible": _truth,
    "grace_s": _grace,
    "submitted_at": _number,
}
_MEMBER: dict[str, _Check] = {"addresses": _env, "fingerprint": _text}
_MEMBER_MAY: dict[str, _Check] = {"rack": _or_none(_text), "version": _text, "votes": _truth, "ledger_version": _whole}
_JOIN_TOKEN: dict[str, _Check] = {
    "id": _id,
    "cluster_id": _id,
    "authority": _text,
    "verify_key": _text,
    "made_by": _text,
    "made_at": _number,
    "expires_at": _number,
    "uses_max": _whole,
    "roles": _texts,
    "used_by": lambda value: value == [],
    "revoked_at": lambda value: value is None,
}
_API_KEY: dict[str, _Check] = {
    "id": _id,
    "sha256": lambda value: isinstance(value, str) and len(value) == 64,
    "user_id": _user,
    "roles": _texts,
    "made_by": _text,
    "made_at": _number,
    "expires_at": _number,
    "revoked_at": lambda value: value is None,
}
_BUNDLE: dict[str, _Check] = {"format": _whole, "cluster_id": _id, "version": _whole}
_AUTHORITY: dict[str, _Check] = {
    "generation": _whole,
    "state": lambda value: value in ("waiting", "signing", "accepted"),
    "certificate": _text,
    "endorsements": _env,
}
_LOCK: dict[str, _Check] = {
    "name": lambda value: isinstance(value, str) and 0 < len(value) <= LOCK_NAME_MAX,
    "owner": _id,
}
_ENTRY: dict[str, _Check] = {"type": _text, "v": _whole, "at": _number}
_END_FACTS: dict[str, _Check] = {
    "exit_code": _or_none(_signed),
    "signal": _or_none(_signed),
    "max_rss_bytes": _or_none(_whole),
    "cpu_s": _or_none(_number),
    "result_bytes": _or_none(_whole),
}
# type -> (fields that must be there, fields that may be)
_FIELDS: dict[str, tuple[dict[str, _Check], dict[str, _Check]]] = {
    "new_term": ({"term": _whole}, {"epoch": _or_none(_whole)}),
    "register_host": ({"host": _table}, {}),
    "allow_absence": (
        {"host": _id, "incarnation": _whole, "absence_s": lambda value: _number(value) and 0 <= value <= 3600},
        {"began": _or_none(_whole)},
    ),
    "confirm_host": ({"host": _id, "incarnation": _whole, "lost_at": _or_none(_whole)}, {}),
    "lose_host": (
        {
            "host": _id,
            "incarnation": _whole,
            "seen_index": _whole,
            "heard_at": _time,
            "allocations": _held,
            "term": _whole,
        },
        {},
    ),
    "measure_host": ({"host": _id, "incarnation": _whole, "measured": _table}, {}),
    "drain_host": ({"host": _id, "draining": _truth}, {"by": _text}),
    "submit_jobs": (
        {"jobs": lambda value: isinstance(value, list) and len(value) <= MAX_JOBS},
        {"waiting_bytes": _waiting_bytes},
    ),
    "grant_attempt": (
        {
            "job_id": _text,
            "number": _whole,
            "host": _text,
            "incarnation": _whole,
            "gpu_indexes": _indexes,
            "term": _whole,
        },
        {"placement_latency_us": _or_none(_number)},
    ),
    "grant_gang": (
        {"job_id": _text, "number": _whole, "members": _places, "ports": _ports, "term": _whole},
        {"placement_latency_us": _or_none(_number)},
    ),
    "start_attempt": ({"attempt_id": _text, "token": _token}, {}),
    "end_attempt": (
        {"attempt_id": _text, "token": _token, "outcome": lambda value: value in OUTCOMES},
        {"charge": _truth, "error": _or_none(_table), "retry_at": _or_none(_number), **_END_FACTS},
    ),
    "take_success": ({"attempt_id": _text, "token": _token}, _END_FACTS),
    "preempt_attempt": (
        {"attempt_id": _text, "token": _token, "grace_s": _grace, "for_job": _text, "term": _whole},
        {},
    ),
    "cancel_job": ({"job_id": _text}, {"by": _text}),
    "fail_job": ({"job_id": _text, "error": _table}, {}),
    "grant_lease": (
        {
            "lease_id": _id,
            "session_id": _text,
            "host": _text,
            "incarnation": _whole,
            "gpu_indexes": _indexes,
            "resources": _table,
            "term": _whole,
        },
        {
            "pool": _or_none(_text),
            "env": _env,
            "user_id": _text,
            "max_isolation_s": lambda value: _number(value) and value >= 0,
        },
    ),
    "release_lease": ({"lease_id": _text}, {}),
    "acquire_lock": (
        {**_LOCK, "ttl_s": lambda value: _number(value) and LOCK_TTL_MIN_S <= value <= LOCK_TTL_MAX_S},
        {
            "wait": _truth,
            "slots": lambda value: _whole(value) and 1 <= value <= LOCK_SLOTS_MAX,
            "user_id": _text,
            "request": _request,
        },
    ),
    "renew_lock": (_LOCK, {"token": _or_none(_token), "request": _request}),
    "release_lock": (_LOCK, {"token": _or_none(_token), "renewals": _whole, "request": _request}),
    "expire_lock": ({**_LOCK, "renewals": _whole, "term": _whole}, {}),
    "break_lock": ({**_LOCK, "by": _user}, {}),
    "compare_digest": ({"index": _whole, "digest": _env, "format": _whole}, {}),
    "set_setting": (
        {"key": lambda value: _text(value) and 0 < len(value) <= 256, "value": _shallow},
        {"by": _text},
    ),
    "found_cluster": ({"cluster_id": _id, "host_id": _id, **_MEMBER}, {}),
    "add_member": ({"host_id": _id, **_MEMBER}, _MEMBER_MAY),
    "change_member": ({"host_id": _id}, {**_MEMBER, **_MEMBER_MAY}),
    "remove_member": ({"host_id": _id}, {"by": _text, "force": _truth}),
    "publish_bundle": ({"bundle": _table}, {}),
    "report_trust": (
        {
            "host_id": _id,
            "certificate": _text,
            "fingerprint": _text,
            "generation": _whole,
            "valid_until": _number,
            "bundle_version": _whole,
            "keys": _indexes,
        },
        {},
    ),
    "request_certificate": ({"host_id": _id, "csr": _text, "addresses": _texts}, {}),
    "issue_certificate": ({"host_id": _id, "request": _whole, "certificate": _text, "fingerprint": _text}, {}),
    "seal_authority": ({"host_id": _id, "generation": _whole, "fingerprint": _text, "sealed": _text}, {}),
    "create_join_token": ({"token": _table}, {}),
    "revoke_join_token": ({"token_id": _text}, {}),
    "redeem_join_token": ({"token_id": _text, "host_id": _id, **_MEMBER}, _MEMBER_MAY),
    "create_api_key": ({"key": _table}, {}),
    "revoke_api_key": ({"key_id": _text}, {"by": _text}),
    "set_quota": ({"user": _user, "limits": _or_none(_table)}, {"by": _text}),
}
_LIMITS_MAY: dict[str, _Check] = dict.fromkeys(LIMITS, _or_none(_whole))


def version_of(kind: str, fields: Iterable[str] = ()) -> int:
    """The lowest version that knows commands of *kind* with these *fields*."""
    later = FIELDS_SINCE.get(kind)
    least = max(SINCE.get(kind, 1), CHANGED.get(kind, 1))
    return least if later is None else max([least, *(later.get(name, 1) for name in fields)])


def cluster_version(members: Mapping[str, Any]) -> int:
    """The version that every member knows, as the replicated state has it; any where there is no cluster."""
    return min((int(member.get("ledger_version", 1)) for member in members.values()), default=2**53)


def refuse_if_too_new(command: Command, members: Mapping[str, Any]) -> None:
    """Raises HostsTooOld while a member does not know *command*: it would refuse what all others carry out, and its
    state would be another from then on.
    """
    if command["v"] <= 1:
        return
    old = sorted(host_id for host_id, member in members.items() if member.get("ledger_version", 1) < command["v"])
    if old:
        raise HostsTooOld(
            f"some hosts do not know {command['type']} yet",
            asked=f"format version {command['v']}",
            found=f"{len(old)} of {len(members)} hosts are older: {', '.join(old[:3])}" + ", ..." * (len(old) > 3),
            hint="upgrade them: actorgrid upgrade --rolling",
        )


def check(command: object, members: Mapping[str, Any] | None = None) -> Command:
    """*command*, with the fields that its version has, when it is well formed: before it is proposed, or, with the
    *members* of then, as an entry.

    Raises BadRequest that names the field; for an entry that all members know, and this program does not, LedgerTooNew.
    """
    if not isinstance(command, dict):
        raise refused("a command is a dict", found=type(command).__name__)
    _hold("command", command, _ENTRY, {})
    kind, version = command["type"], command["v"]
    known = 1 if version <= 1 else VERSION if members is None else cluster_version(members)
    if version > known:
        raise refused(
            f"the command {kind!r} is of format version {version}",
            found=f"this host knows versions up to {known}",
            hint="upgrade this host",
        )
    if version > VERSION:
        raise LedgerTooNew(
            "the ledger holds what this version of the program does not know",
            asked=f"{kind} of format version {version}",
            found=f"this host knows versions up to {VERSION}; the program that was here before knew more",
            hint="start this host with the version that it had before, or a later one",
        )
    if kind not in _FIELDS or SINCE.get(kind, 1) > version:
        kinds = sorted(name for name in _FIELDS if SINCE.get(name, 1) <= version)
        raise refused(f"there is no command {kind!r}", found=f"known: {', '.join(kinds)}")
    must, may = _FIELDS[kind]
    later = [name for name, since in FIELDS_SINCE.get(kind, {}).items() if since > version and name in command]
    if later:
        command = {name: value for name, value in command.items() if name not in later}
    _hold(kind, command, must, may)
    if kind == "register_host":
        _check_host(command["host"])
    elif kind == "submit_jobs":
        for job in command["jobs"]:
            if not isinstance(job, dict):
                raise refused("a job is a dict", found=type(job).__name__)
            _hold("job", job, _JOB, _JOB_MAY)
            _check_resources(job["resources"])
    elif kind == "grant_lease":
        _check_resources(command["resources"])
        if "gang" in command["resources"]:
            raise refused("a session's worker is one process", found=f"gang={command['resources']['gang']}")
    elif kind == "grant_gang":
        for place in command["members"]:
            _hold("member", place, _PLACE, {})
    elif kind == "create_join_token":
        _hold("token", command["token"], _JOIN_TOKEN, {})
    elif kind == "create_api_key":
        _hold("key", command["key"], _API_KEY, {})
    elif kind == "publish_bundle":
        _check_bundle(command["bundle"])
    elif kind == "set_quota" and command["limits"] is not None:
        _hold("limits", command["limits"], {}, _LIMITS_MAY)
        for name in command["limits"]:
            if name not in _LIMITS_MAY:
                raise refused(f"a quota has no limit {name!r}", found=f"known: {', '.join(LIMITS)}")
    return command


def _check_host(host: dict[str, Any]) -> None:
    _hold("host", host, _HOST, _HOST_MAY)
    for device in host["devices"]:
        if not isinstance(device, dict):
            raise refused("a device is a dict", found=type(device).__name__)
        _hold("device", device, _DEVICE, _DEVICE_MAY)
    for name in ("index", "uuid"):
        if len({device[name] for device in host["devices"]}) != len(host["devices"]):
            raise refused(f"two devices of host {host['host_id']} have the same {name}")


def _check_bundle(bundle: dict[str, Any]) -> None:
    _hold("bundle", bundle, _BUNDLE, {})
    authorities = bundle.get("authorities")
    if not isinstance(authorities, list) or not 1 <= len(authorities) <= AUTHORITIES_MAX:
        raise refused("a bundle has one authority or two")
    for authority in authorities:
        if not isinstance(authority, dict):
            raise refused("an authority is a dict", found=type(authority).__name__)
        _hold("authority", authority, _AUTHORITY, {})
    if [authority["state"] for authority in authorities].count("signing") != 1:
        raise refused("one authority of a bundle signs")
    # Of two of one generation the last counts.
    if "signing" not in {authority["generation"]: authority["state"] for authority in authorities}.values():
        raise refused("two authorities of a bundle are of one generation")


def _check_resources(resources: dict[str, Any]) -> None:
    _hold("resources", resources, {}, _RESOURCES_MAY)
    if resources.get("gpu_count", 0) and not resources.get("gpu_milli", 0):
        raise refused("resources ask for GPUs but for no share of them", found="gpu_milli is 0")


def _hold(what: str, fields: dict[str, Any], must: dict[str, _Check], may: dict[str, _Check]) -> None:
    for name, good in must.items():
        if name not in fields:
            raise refused(f"{what} has no field {name!r}")
        if not good(fields[name]):
            raise refused(f"{what}: field {name!r} is wrong", found=repr(fields[name])[:200])
    for name, good in may.items():
        if name in fields and not good(fields[name]):
            raise refused(f"{what}: field {name!r} is wrong", found=repr(fields[name])[:200])
