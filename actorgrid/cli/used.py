"""What work has used of devices, as people read it: in a line on a job, and in the cells of a table."""

from __future__ import annotations

from typing import Any

_MIB_HOURS = 1024 * 3600


def gpu_time(seconds: float) -> str:
    """GPU-seconds as text: ``12.5 s``, ``3.25 h``."""
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 3600:.2f} h"


def memory_time(mib_s: float | None) -> str:
    """Memory times time as text: ``1.5 GiB·h``."""
    return "-" if mib_s is None else f"{mib_s / _MIB_HOURS:.3g} GiB·h"


def energy(joules: float | None) -> str:
    """Joules as text: ``340 J``, ``1.2 kWh``."""
    if joules is None:
        return "-"
    return f"{joules:.0f} J" if joules < 100_000 else f"{joules / 3.6e6:.3g} kWh"


def used_by(job: dict[str, Any]) -> str:
    """A line on what all attempts of a job have used of devices; empty where nothing is known of that."""
    known = [
        part["usage"]
        for attempt in job.get("attempts", [])
        for part in (attempt.get("members") or [attempt])
        if part.get("usage")
    ]
    if not known:
        return ""
    parts = [f"{gpu_time(sum(each['gpu_s'] for each in known))} of GPU"]
    high = [each["memory_high_mib"] for each in known if each.get("memory_high_mib") is not None]
    if high:
        parts.append(f"at most {max(high)} MiB of one")
    joules = [each["energy_j"] for each in known if each.get("energy_j") is not None]
    reasons = {reason for each in known for reason in each.get("unsupported", {}).values()}
    if joules:
        parts.append(energy(sum(joules)) + ("" if len(joules) == len(known) else ", as far as it is known"))
    elif reasons:
        parts.append(f"energy unknown ({sorted(reasons)[0]})")
    simulated = " (simulated)" if any(each.get("simulated") for each in known) else ""
    return f"used: {', '.join(parts)}{simulated}"
