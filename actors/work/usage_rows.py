"""Usage as people ask for it: what each piece of work has used, brought together by user, job, device or label. No I/O.

A row sums only what is known. Beside a sum that has gaps stands for how many GPU-seconds it is known
(``memory_of_gpu_s``, ``energy_of_gpu_s``), and where nothing is known it is ``None``, never 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NotRequired, TypedDict, TypeVar

import msgpack

from .usage_meter import WorkUsage

GROUPS = ("user", "tenant", "job", "gpu", "model", "host", "kind", "label")
"""By what usage is brought together; also ``label:KEY``, the values of one label. Hosts know users alone: the door
brings those of a tenant together. Work with several labels stands in each of their rows."""
ROWS_MAX = 10_000
"""Of one answer; what is beyond is brought together in the row ``OTHERS``."""
OTHERS = "(others)"


class DeviceEntry(TypedDict):
    """What work used of one device."""

    uuid: str
    model: str
    simulated: bool
    gpu_s: float
    memory_mib_s: float | None
    memory_high_mib: int | None
    energy_j: float | None
    energy_estimated_s: float
    unsampled_s: float


class UsageEntry(TypedDict):
    """What one piece of work used on its host: an attempt, a member of a gang, a session's lease."""

    id: str
    kind: str
    job_id: str
    user_id: str
    labels: dict[str, str]
    began_at: float
    ended_at: float | None
    """``None``: it is not over."""
    held_s: float
    core_s: float
    """CPU that it was granted: core-seconds."""
    cpu_s: float | None
    """CPU that it used, in seconds. Of a session's leases it is not known: its worker serves several."""
    max_rss_bytes: int | None
    incomplete: str
    """What is missing of it; empty: nothing."""
    devices: list[DeviceEntry]


class UsageRow(TypedDict):
    """What all work of one group used."""

    key: str
    works: int
    """Attempts, members and leases."""
    running: int
    """How many of them are not over."""
    held_s: float
    gpu_s: float
    simulated_gpu_s: float
    """How much of it was of simulated devices."""
    models: dict[str, float]
    memory_mib_s: float | None
    memory_of_gpu_s: float
    memory_high_mib: int | None
    energy_j: float | None
    energy_of_gpu_s: float
    energy_estimated_s: float
    unsampled_s: float
    core_s: float
    cpu_s: float | None
    max_rss_bytes: int | None
    incomplete: int
    """How many of them lack a part, as their agent or host was away at their end."""
    host: NotRequired[str]


T = TypeVar("T", int, float)


def entry_of(
    usage: WorkUsage,
    ended_at: float | None,
    cpu_s: float | None = None,
    max_rss_bytes: int | None = None,
    incomplete: str = "",
) -> UsageEntry:
    """The entry of what work used; *ended_at*: on the wall clock."""
    work, gpu_s = usage.work, usage.device_gpu_s
    return {
        "id": work.work_id,
        "kind": work.kind,
        "job_id": work.job_id,
        "user_id": work.user_id,
        "labels": work.labels,
        "began_at": work.began_at,
        "ended_at": ended_at,
        "held_s": usage.held_s,
        "core_s": usage.held_s * work.cpu_milli / 1000,
        "cpu_s": cpu_s,
        "max_rss_bytes": max_rss_bytes,
        "incomplete": incomplete,
        "devices": [
            {
                "uuid": device.uuid,
                "model": device.model,
                "simulated": device.simulated,
                "gpu_s": gpu_s,
                "memory_mib_s": used.memory_mib_s,
                "memory_high_mib": used.memory_high_mib,
                "energy_j": used.energy_j,
                "energy_estimated_s": used.energy_estimated_s,
                "unsampled_s": used.unsampled_s,
            }
            for device, used in ((device, usage.devices[device.uuid]) for device in work.devices)
        ],
    }


def empty_row(key: str) -> UsageRow:
    """The row of a group in which nothing is known yet."""
    return {
        "key": key,
        "works": 0,
        "running": 0,
        "held_s": 0.0,
        "gpu_s": 0.0,
        "simulated_gpu_s": 0.0,
        "models": {},
        "memory_mib_s": None,
        "memory_of_gpu_s": 0.0,
        "memory_high_mib": None,
        "energy_j": None,
        "energy_of_gpu_s": 0.0,
        "energy_estimated_s": 0.0,
        "unsampled_s": 0.0,
        "core_s": 0.0,
        "cpu_s": None,
        "max_rss_bytes": None,
        "incomplete": 0,
    }


def rows_of(
    entries: Iterable[UsageEntry],
    by: str,
    since: float,
    now: float,
    host_id: str = "",
    only: Container[str] | None = None,
) -> list[UsageRow]:
    """The rows of *entries* by *by*, with most GPU-seconds first, then most CPU.

    Of work that began before *since* as much is counted as of its time on the wall clock was after it. *only*: the keys
    that have rows of their own; all others are brought together.
    """
    rows: dict[str, UsageRow] = {}
    for entry in entries:
        part = _part_since(entry, since, now)
        if part <= 0.0:
            continue
        for key, devices, of_host in _keys(entry, by, host_id):
            if only is not None and key not in only:
                key = OTHERS
            row = rows.get(key)
            if row is None:
                row = rows[key] = empty_row(key)
            _add(row, entry, devices, part, of_host)
    return in_order(rows.values())


def jobs_with_most(entries: Iterable[UsageEntry], since: float, now: float, count: int) -> frozenset[str]:
    """The *count* jobs that used most, as ``in_order`` has them; of all others no more is kept than two numbers."""
    used: dict[str, tuple[float, float]] = {}
    for entry in entries:
        part = _part_since(entry, since, now)
        if part > 0.0:
            gpu_s, cpu_s = used.get(entry["job_id"], (0.0, 0.0))
            gpu_s += part * sum(device["gpu_s"] for device in entry["devices"])
            used[entry["job_id"]] = gpu_s, cpu_s + part * (entry["cpu_s"] or 0.0)
    most = heapq.nsmallest(count, used.items(), key=lambda each: (-each[1][0], -each[1][1], each[0]))
    return frozenset(key for key, _ in most)


def merged(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """Rows of several hosts as those of all; of what is beyond ``ROWS_MAX`` one row."""
    found: dict[str, UsageRow] = {}
    for row in rows:
        known = found.get(row["key"])
        if known is None:
            found[row["key"]] = {**row, "models": dict(row["models"])}
        else:
            add_row(known, row)
    ordered = in_order(found.values())
    return ordered if len(ordered) <= ROWS_MAX else _first(ordered, ROWS_MAX - 1)


def within(rows: list[UsageRow], bytes_max: int) -> list[UsageRow]:
    """*rows*, in their order, as far as they take *bytes_max* in an answer to another host; of the rest one row."""
    size = 0
    for count, row in enumerate(rows):
        size += len(msgpack.packb(row))
        if size > bytes_max:
            return _first(rows, count)
    return rows


def _first(ordered: list[UsageRow], count: int) -> list[UsageRow]:
    """The first rows, and one of all behind them, in which a row of that name is as well."""
    others = empty_row(OTHERS)
    for place, row in enumerate(ordered):
        if place >= count or row["key"] == OTHERS:
            add_row(others, row)
    return [*(row for row in ordered[:count] if row["key"] != OTHERS), others]


def joined(first: UsageEntry, then: UsageEntry) -> UsageEntry:
    """One entry of two parts of the same work, the first of which the machine took along when it went down."""
    devices = {device["uuid"]: device for device in first["devices"]}
    for device in then["devices"]:
        before = devices.get(device["uuid"])
        devices[device["uuid"]] = device if before is None else _both(before, device)
    return {
        **then,
        "began_at": min(first["began_at"], then["began_at"]),
        "held_s": first["held_s"] + then["held_s"],
        "core_s": first["core_s"] + then["core_s"],
        "cpu_s": _plus(first["cpu_s"], then["cpu_s"]),
        "max_rss_bytes": _most(first["max_rss_bytes"], then["max_rss_bytes"]),
        "incomplete": first["incomplete"],
        "devices": list(devices.values()),
    }


def _both(first: DeviceEntry, then: DeviceEntry) -> DeviceEntry:
    return {
        **then,
        "gpu_s": first["gpu_s"] + then["gpu_s"],
        "memory_mib_s": _plus(first["memory_mib_s"], then["memory_mib_s"]),
        "memory_high_mib": _most(first["memory_high_mib"], then["memory_high_mib"]),
        "energy_j": _plus(first["energy_j"], then["energy_j"]),
        "energy_estimated_s": first["energy_estimated_s"] + then["energy_estimated_s"],
        "unsampled_s": first["unsampled_s"] + then["unsampled_s"],
    }


def in_order(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """*rows*, those that used most first."""
    return sorted(rows, key=lambda row: (-row["gpu_s"], -(row["cpu_s"] or 0.0), row["key"]))


def add_row(to: UsageRow, other: UsageRow) -> None:
    """Add what *other* has to *to*."""
    to["works"] += other["works"]
    to["running"] += other["running"]
    to["incomplete"] += other["incomplete"]
    to["held_s"] += other["held_s"]
    to["gpu_s"] += other["gpu_s"]
    to["simulated_gpu_s"] += other["simulated_gpu_s"]
    to["memory_of_gpu_s"] += other["memory_of_gpu_s"]
    to["energy_of_gpu_s"] += other["energy_of_gpu_s"]
    to["energy_estimated_s"] += other["energy_estimated_s"]
    to["unsampled_s"] += other["unsampled_s"]
    to["core_s"] += other["core_s"]
    for model, gpu_s in other["models"].items():
        to["models"][model] = to["models"].get(model, 0.0) + gpu_s
    to["memory_mib_s"] = _plus(to["memory_mib_s"], other["memory_mib_s"])
    to["energy_j"] = _plus(to["energy_j"], other["energy_j"])
    to["cpu_s"] = _plus(to["cpu_s"], other["cpu_s"])
    to["memory_high_mib"] = _most(to["memory_high_mib"], other["memory_high_mib"])
    to["max_rss_bytes"] = _most(to["max_rss_bytes"], other["max_rss_bytes"])


def _part_since(entry: UsageEntry, since: float, now: float) -> float:
    """Which part of its time lies behind *since*."""
    end = now if entry["ended_at"] is None else entry["ended_at"]
    if end < since:
        return 0.0
    if entry["began_at"] >= since or end <= entry["began_at"]:  # the second: its clock was set back
        return 1.0
    return (end - since) / (end - entry["began_at"])


def _keys(entry: UsageEntry, by: str, host_id: str) -> Iterator[tuple[str, list[DeviceEntry], bool]]:
    """The groups that an entry stands in: key, devices that count there, and whether its CPU counts there too."""
    devices = entry["devices"]
    if by in ("user", "tenant"):
        yield entry["user_id"], devices, True
    elif by == "job":
        yield entry["job_id"], devices, True
    elif by == "kind":
        yield entry["kind"], devices, True
    elif by == "host":
        yield host_id, devices, True
    elif by == "label":
        for name, value in entry["labels"].items() or (("", ""),):
            yield f"{name}={value}" if name else "", devices, True
    elif by.startswith("label:"):
        yield entry["labels"].get(by.removeprefix("label:"), ""), devices, True
    else:
        grouped: dict[str, list[DeviceEntry]] = {}
        for device in devices:
            grouped.setdefault(device["uuid"] if by == "gpu" else device["model"], []).append(device)
        for key, some in grouped.items():
            yield key, some, False


def _add(row: UsageRow, entry: UsageEntry, devices: list[DeviceEntry], part: float, of_host: bool) -> None:
    row["works"] += 1
    row["running"] += entry["ended_at"] is None
    row["incomplete"] += bool(entry["incomplete"])
    row["held_s"] += entry["held_s"] * part
    for device in devices:
        gpu_s = device["gpu_s"] * part
        row["gpu_s"] += gpu_s
        row["simulated_gpu_s"] += gpu_s if device["simulated"] else 0.0
        row["models"][device["model"]] = row["models"].get(device["model"], 0.0) + gpu_s
        if device["memory_mib_s"] is not None:
            row["memory_mib_s"] = _plus(row["memory_mib_s"], device["memory_mib_s"] * part)
            row["memory_of_gpu_s"] += gpu_s
        if device["energy_j"] is not None:
            row["energy_j"] = _plus(row["energy_j"], device["energy_j"] * part)
            row["energy_of_gpu_s"] += gpu_s
        row["memory_high_mib"] = _most(row["memory_high_mib"], device["memory_high_mib"])
        row["energy_estimated_s"] += device["energy_estimated_s"] * part
        row["unsampled_s"] += device["unsampled_s"] * part
    if of_host:
        row["core_s"] += entry["core_s"] * part
        row["cpu_s"] = _plus(row["cpu_s"], None if entry["cpu_s"] is None else entry["cpu_s"] * part)
        row["max_rss_bytes"] = _most(row["max_rss_bytes"], entry["max_rss_bytes"])


def _plus(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else one + other


def _most(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


_COUNTS = ("works", "running", "incomplete")
_SUMS = (
    "held_s",
    "gpu_s",
    "simulated_gpu_s",
    "memory_of_gpu_s",
    "energy_of_gpu_s",
    "energy_estimated_s",
    "unsampled_s",
    "core_s",
)
_MAYBE = ("memory_mib_s", "energy_j", "cpu_s", "memory_high_mib", "max_rss_bytes")


def row_from(told: object) -> UsageRow | None:
    """The row that another host told, or ``None`` for what is none: a member may send anything."""
    if not isinstance(told, Mapping) or not isinstance(told.get("key"), str) or len(told["key"]) > 1000:
        return None
    models = told.get("models")
    if not isinstance(models, Mapping) or len(models) > 1024:
        return None
    amounts = [*models.values(), *(told.get(name) for name in (*_COUNTS, *_SUMS))]
    amounts += [told[name] for name in _MAYBE if told.get(name) is not None]
    if not all(_is_amount(value) for value in amounts) or not all(isinstance(name, str) for name in models):
        return None
    row: Any = empty_row(told["key"])
    row.update({name: int(told[name]) for name in _COUNTS})
    row.update({name: float(told[name]) for name in _SUMS})
    row.update({name: told.get(name) for name in _MAYBE})
    row["models"] = {str(name)[:300]: float(gpu_s) for name, gpu_s in models.items()}
    found: UsageRow = row
    return found


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
