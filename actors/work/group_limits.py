"""What the cgroup of an attempt holds it to beside its memory: how many processes, and which devices; where it can."""

from __future__ import annotations

from contextlib import suppress

from .groups import FreezerGroup, KillGroup
from .isolation.device_filter import attach_filter
from .limits import pids_max
from .work_records import WorkSpec


def limit_group(group: KillGroup | FreezerGroup, spec: WorkSpec) -> None:
    """Set them, each where it can be had: what the host enforces was tried and told before (isolation/probes.py)."""
    if not isinstance(group, KillGroup):
        return
    if (group.path / "pids.max").exists():
        with suppress(OSError):
            (group.path / "pids.max").write_text(str(pids_max()))
    denied = spec.get("devices_denied")
    if denied:
        with suppress(OSError):
            attach_filter(group.path, [(major, minor) for major, minor in denied])
