"""What the devices of a host read together, as hosts tell each other, and those of a cluster. Decisions only.

Sums, and means with their counts: so that the totals of many hosts are those of all their devices, and no host has to
hear of each device of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ..ledger.field_checks import is_number
from ..replication.namespaces import cluster_key

TOTALS_PREFIX = cluster_key("devices", "")
"""Keys of the shared state that hosts put their totals under: ``_cluster/devices/HOST_ID``."""
TELL_AGAIN_S = 60.0
TELL_S = 5.0
"""Totals that changed are told at most this often."""
TOLD_A_SECOND_MAX = 20
"""By all hosts together; in a larger cluster each tells less often."""
CHANGE = 0.05
"""A share of all, or of what was told last, that moved by so much has changed."""
DEVICES_MAX = 4096
"""Of one host: more than any has, parts of devices counted."""
BYTES_MAX = 1 << 60
WATTS_MAX = 1e8


class DeviceTotals(TypedDict):
    """The readings of a host's devices together."""

    at: float
    """When they were read, in seconds since the epoch, by that host's clock."""
    devices: int
    unavailable: int
    """Of these, in trouble or too hot: they take nothing new."""
    memory_bytes: int
    memory_used_bytes: int
    memory_known: int
    """How many of the devices tell what is used of their memory. The next four counts are of the same kind."""
    utilization_percent: float
    """The sum, over those that tell it."""
    utilization_known: int
    watts: float
    watts_known: int
    hottest_celsius: float | None
    """``None``: none of them tells its temperature."""


_COUNTS = ("devices", "unavailable", "memory_known", "utilization_known", "watts_known")


def totals_of(picture: Mapping[str, Any], at: float) -> DeviceTotals:
    """The totals that *picture* holds, an answer of ``GpuClusteringManager.get_aggregated_metrics``."""
    devices, unknown = int(picture["device_count"]), picture["unknown"]
    utilized = devices - unknown.get("compute_utilization_percent", 0)
    return {
        "at": at,
        "devices": devices,
        "unavailable": int(picture["devices_unavailable"]),
        "memory_bytes": int(picture["total_memory_bytes"]),
        "memory_used_bytes": int(picture["used_memory_bytes"] or 0),
        "memory_known": devices - unknown.get("memory_used_bytes", 0),
        "utilization_percent": float(picture["average_utilization_percent"] or 0.0) * utilized,
        "utilization_known": utilized,
        "watts": float(picture["total_power_watts"] or 0.0),
        "watts_known": devices - unknown.get("power_watts", 0),
        "hottest_celsius": picture["max_temperature_celsius"],
    }


def tell_every_s(hosts: int) -> float:
    """How long one of so many hosts waits at least before it tells again."""
    return max(TELL_S, hosts / TOLD_A_SECOND_MAX)


def is_worth_telling(told: DeviceTotals | None, now: DeviceTotals, hosts: int) -> bool:
    """Whether to tell *now*, of one of *hosts* that has told *told* last."""
    if told is None:
        return True
    passed_s, longer = now["at"] - told["at"], tell_every_s(hosts) / TELL_S
    if not 0 <= passed_s < TELL_AGAIN_S * longer:  # also when the clock was set back
        return True
    if passed_s < tell_every_s(hosts):
        return False
    if any(now[name] != told[name] for name in _COUNTS):  # type: ignore[literal-required]
        return True
    scales = {
        "memory_used_bytes": max(1.0, now["memory_bytes"]),
        "utilization_percent": 100.0 * max(1, now["devices"]),
        "watts": max(1.0, told["watts"]),
    }
    moved = [abs(now[name] - told[name]) / scale for name, scale in scales.items()]  # type: ignore[literal-required]
    hotter = abs((now["hottest_celsius"] or 0.0) - (told["hottest_celsius"] or 0.0)) / 100.0
    return bool(max(*moved, hotter) >= CHANGE)


def read_totals(value: Any) -> DeviceTotals | None:
    """The totals in a value of the shared state, which anybody may have put there; ``None`` for what are none."""
    if not isinstance(value, Mapping):
        return None
    counts = [value.get(name) for name in _COUNTS]
    sizes = [value.get(name) for name in ("memory_bytes", "memory_used_bytes")]
    amounts = [value.get(name) for name in ("at", "utilization_percent", "watts")]
    hottest = value.get("hottest_celsius")
    if not all(type(each) is int for each in (*counts, *sizes)) or not all(map(is_number, amounts)):
        return None
    devices, *of_them = (int(each) for each in counts if each is not None)
    memory_bytes, used_bytes = (int(each) for each in sizes if each is not None)
    at, utilization, watts = (float(each) for each in amounts if each is not None)
    if not 0 <= devices <= DEVICES_MAX or not all(0 <= count <= devices for count in of_them):
        return None
    unavailable, memory_known, utilization_known, watts_known = of_them
    if not (0 <= used_bytes <= BYTES_MAX and 0 <= memory_bytes <= BYTES_MAX and 0 <= at < 1e12):
        return None
    if not (0 <= utilization <= 100.0 * utilization_known and 0 <= watts <= WATTS_MAX):
        return None  # also for NaN, which is in no range
    if hottest is not None and not (is_number(hottest) and -100 <= hottest <= 300):
        return None
    return {
        "at": at,
        "devices": devices,
        "unavailable": unavailable,
        "memory_bytes": memory_bytes,
        "memory_used_bytes": used_bytes,
        "memory_known": memory_known,
        "utilization_percent": utilization,
        "utilization_known": utilization_known,
        "watts": watts,
        "watts_known": watts_known,
        "hottest_celsius": None if hottest is None else float(hottest),
    }


def together(totals: Iterable[DeviceTotals]) -> DeviceTotals:
    """Those of all devices of several hosts; ``at`` is that of the oldest, 0.0 where there are none."""
    found = list(totals)
    hottest = [each["hottest_celsius"] for each in found if each["hottest_celsius"] is not None]
    return {
        "at": min((each["at"] for each in found), default=0.0),
        "devices": sum(each["devices"] for each in found),
        "unavailable": sum(each["unavailable"] for each in found),
        "memory_bytes": sum(each["memory_bytes"] for each in found),
        "memory_used_bytes": sum(each["memory_used_bytes"] for each in found),
        "memory_known": sum(each["memory_known"] for each in found),
        "utilization_percent": math.fsum(each["utilization_percent"] for each in found),
        "utilization_known": sum(each["utilization_known"] for each in found),
        "watts": math.fsum(each["watts"] for each in found),
        "watts_known": sum(each["watts_known"] for each in found),
        "hottest_celsius": max(hottest, default=None),
    }
