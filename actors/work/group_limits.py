"""What the cgroup of an attempt holds it to beside its memory, where it can: processors, processes, devices."""

from __future__ import annotations

from contextlib import suppress

from .groups import FreezerGroup, KillGroup
from .isolation.device_filter import attach_filter
from .limits import pids_max
from .work_records import WorkSpec

PERIOD_US, QUOTA_US_MIN = 100_000, 1000
"""Of ``cpu.max``: the kernel's own period, and the least that it takes."""


def limit_group(group: KillGroup | FreezerGroup, spec: WorkSpec) -> None:
    """Set them, each where it can be had: what the host enforces was tried and told before (isolation/probes.py)."""
    if not isinstance(group, KillGroup):
        return
    cpu_milli = spec.get("cpu_milli", 0)
    if cpu_milli and (group.path / "cpu.max").exists():
        with suppress(OSError):
            (group.path / "cpu.max").write_text(f"{max(QUOTA_US_MIN, cpu_milli * PERIOD_US // 1000)} {PERIOD_US}")
    if (group.path / "pids.max").exists():
        with suppress(OSError):
            (group.path / "pids.max").write_text(str(pids_max()))
    denied = spec.get("devices_denied")
    if denied:
        with suppress(OSError):
            attach_filter(group.path, [(major, minor) for major, minor in denied])
