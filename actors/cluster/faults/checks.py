"""How a host's readings are judged: each check gives a result with its reason and figures; decisions only.

What failed keeps work from being done there, and counts towards recovery. What is degraded is slow, short or on its way
to fail: it is told, and acted upon by nobody but people. Time and load excuse: a host that has no CPU time is starved,
not dead, and its servers get longer before they count as silent (Lifeguard's local health: Dadgar, Phillips and
Currey, DSN 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from actorgrid.amounts import duration

from .check_results import CheckResult, CheckStatus
from .pairs import PairFigures
from .prediction import Trend

SLOW_DISK_S, HANGING_DISK_S = 0.5, 10.0
"""An fdatasync of 4 KiB takes 10 ms on a disk that turns; Raft's heartbeats are late from half a second on."""
AHEAD_S = 3600.0
"""What is predicted to happen later than that is told to nobody."""
LOW_MEMORY_BYTES, NO_MEMORY_BYTES = 256 * 2**20, 48 * 2**20
STALLED_PERCENT = 40.0
"""Of ten seconds, in which all that runs waited for memory."""
STARVED_PERCENT = 60.0
"""Of ten seconds, in which something waited for a CPU."""
STEP_S, STEP_TOLD_S = 0.5, 600.0
OFFSET_S = 0.5
LOSSY = 0.1
RESTARTS, RESTARTS_WITHIN_S = 3, 300.0
ECC_CORRECTED_PER_HOUR = 100.0
"""Corrected errors are corrected; so many in an hour precede uncorrected ones (Tiwari et al., HPCA 2015)."""
LATENESS_MAX = 8.0


@dataclass(frozen=True, slots=True)
class DiskReading:
    """What the disk of the data directory did. ``waits_s``: for how long a write has not come back."""

    free_bytes: int
    floor_bytes: int
    latencies_s: tuple[float, ...] = ()
    waits_s: float = 0.0
    error: str = ""
    latency_trend: Trend | None = None
    free_trend: Trend | None = None


def check_disk(reading: DiskReading) -> CheckResult:
    """Room, errors and latency of the disk."""
    latency_s = median(reading.latencies_s) if reading.latencies_s else 0.0
    figures = {
        "free_bytes": float(reading.free_bytes),
        "fdatasync_ms": round(1000 * latency_s, 3),
        "waits_s": round(reading.waits_s, 3),
    }
    if reading.error:
        return CheckResult("disk", CheckStatus.FAILED, f"the disk refuses a write: {reading.error}", figures)
    if reading.waits_s >= HANGING_DISK_S:
        reason = f"a write of 4 KiB has not come back for {duration(reading.waits_s)}"
        return CheckResult("disk", CheckStatus.FAILED, reason, figures)
    if reading.free_bytes < reading.floor_bytes:
        reason = f"the data directory's disk has {reading.free_bytes >> 20} MiB free"
        return CheckResult("disk", CheckStatus.DEGRADED, reason, figures)
    if max(latency_s, reading.waits_s) >= SLOW_DISK_S:
        reason = f"a write of 4 KiB takes {1000 * max(latency_s, reading.waits_s):.0f} ms"
        return CheckResult("disk", CheckStatus.DEGRADED, reason, figures)
    return CheckResult("disk", CheckStatus.OK, "", figures)


def check_disk_trends(reading: DiskReading) -> Iterable[CheckResult]:
    """Whether the disk gets slower, or full, within the hour if it goes on as it does."""
    latency, free = reading.latency_trend, reading.free_trend
    if latency is not None:
        slow_in_s = latency.reaches_in_s(SLOW_DISK_S)
        figures = {"ms_per_minute": round(60_000 * latency.per_s, 3), "now_ms": round(1000 * latency.level, 3)}
        coming = slow_in_s is not None and slow_in_s < AHEAD_S and latency.per_s > 0
        reason = f"predicted: its writes get slower, and take {1000 * SLOW_DISK_S:.0f} ms in {duration(slow_in_s or 0)}"
        yield _predicted("disk_latency_trend", coming, reason, figures, slow_in_s)
    if free is not None:
        full_in_s = free.reaches_in_s(float(reading.floor_bytes))
        figures = {"mib_per_minute": round(60 * free.per_s / 2**20, 1)}
        coming = full_in_s is not None and full_in_s < AHEAD_S and free.per_s < 0
        reason = f"predicted: the disk is full in {duration(full_in_s or 0)}"
        yield _predicted("disk_room_trend", coming, reason, figures, full_in_s)


def _predicted(name: str, coming: bool, reason: str, figures: dict[str, float], in_s: float | None) -> CheckResult:
    if not coming:
        return CheckResult(name, CheckStatus.OK, "", figures)
    return CheckResult(name, CheckStatus.DEGRADED, reason, {**figures, "in_s": round(in_s or 0.0, 1)})


@dataclass(frozen=True, slots=True)
class PressureReading:
    """Memory, and the kernel's pressure stall figures: percent of the last 10 s; ``None``: the kernel has none."""

    available_bytes: int
    cpu_some_percent: float | None = None
    memory_full_percent: float | None = None
    io_full_percent: float | None = None


def check_memory(reading: PressureReading) -> CheckResult:
    """Memory that is left, and whether all that runs waits for some."""
    full = reading.memory_full_percent
    figures = {"available_bytes": float(reading.available_bytes)}
    if full is not None:
        figures["full_percent"] = full
    short = f"only {reading.available_bytes >> 20} MiB of host memory are available"
    if reading.available_bytes < NO_MEMORY_BYTES and (full is None or full >= STALLED_PERCENT):
        return CheckResult("memory", CheckStatus.FAILED, short, figures)
    if reading.available_bytes < LOW_MEMORY_BYTES:
        return CheckResult("memory", CheckStatus.DEGRADED, short, figures)
    if full is not None and full >= STALLED_PERCENT:
        reason = f"all that runs waited for memory for {full:.0f} % of the time"
        return CheckResult("memory", CheckStatus.DEGRADED, reason, figures)
    return CheckResult("memory", CheckStatus.OK, "", figures)


def check_processor(reading: PressureReading, lateness: float) -> CheckResult:
    """Whether the host is starved of CPU time. *lateness*: how many times as long a second took here."""
    some = reading.cpu_some_percent or 0.0
    figures = {"some_percent": some, "lateness": round(lateness, 2)}
    if lateness >= 2.0 or (some >= STARVED_PERCENT and lateness >= 1.5):
        reason = f"starved: a second took {lateness:.1f} s here, something waited for a CPU {some:.0f} % of the time"
        return CheckResult("processor", CheckStatus.DEGRADED, reason, figures)
    return CheckResult("processor", CheckStatus.OK, "", figures)


def patience_factor(lateness: float) -> float:
    """How many times as long the servers of a host that is late itself get before they count as silent; 1 to 8."""
    return max(1.0, min(LATENESS_MAX, lateness))


def check_servers(
    silent_s: Mapping[str, float], restarted_at: Mapping[str, Iterable[float]], names: Iterable[str], now_s: float
) -> Iterable[CheckResult]:
    """Each server: whether it is silent, for how long, and how often it was restarted lately."""
    for name in names:
        restarts = sum(now_s - at <= RESTARTS_WITHIN_S for at in restarted_at.get(name, ()))
        figures = {"silent_s": round(silent_s.get(name, 0.0), 1), "restarts": float(restarts)}
        if name in silent_s:
            reason = f"{name} is silent for {duration(silent_s[name])}"
            yield CheckResult(f"server:{name}", CheckStatus.FAILED, reason, figures)
        elif restarts >= RESTARTS:
            reason = f"{name} was restarted {restarts} times within {duration(RESTARTS_WITHIN_S)}"
            yield CheckResult(f"server:{name}", CheckStatus.DEGRADED, reason, figures)
        else:
            yield CheckResult(f"server:{name}", CheckStatus.OK, "", figures)


def check_clock(stepped_s: float, stepped_ago_s: float | None, offsets_s: Iterable[float]) -> CheckResult:
    """Whether the wall clock was set lately, or is not that of the other hosts. *offsets_s*: theirs less ours."""
    offsets = list(offsets_s)
    # With one other host nobody can say whose clock is wrong, so both say it.
    offset_s = median(offsets) if offsets else 0.0
    figures = {"offset_s": round(offset_s, 3), "peers": float(len(offsets)), "stepped_s": round(stepped_s, 3)}
    if abs(offset_s) >= OFFSET_S:
        word = "behind" if offset_s > 0 else "ahead"
        reason = f"the clock is {duration(abs(offset_s))} {word} of the other hosts'"
        return CheckResult("clock", CheckStatus.DEGRADED, reason, figures)
    if stepped_ago_s is not None and stepped_ago_s < STEP_TOLD_S:
        reason = f"the clock was set by {stepped_s:+.1f} s {duration(stepped_ago_s)} ago"
        return CheckResult("clock", CheckStatus.DEGRADED, reason, figures)
    return CheckResult("clock", CheckStatus.OK, "", figures)


def check_network(pairs: Mapping[str, PairFigures]) -> CheckResult:
    """The paths to other hosts. It failed where most others, of two and more, do not answer: then it is this host."""
    silent = sorted(host for host, pair in pairs.items() if pair.silent)
    lossy = sorted(host for host, pair in pairs.items() if pair.loss >= LOSSY and not pair.silent)
    answered = [pair.rtt_ms for pair in pairs.values() if pair.rtt_ms is not None]
    figures = {
        "peers": float(len(pairs)),
        "silent": float(len(silent)),
        "lossy": float(len(lossy)),
        "rtt_ms": round(median(answered), 3) if answered else 0.0,
    }
    if len(pairs) >= 2 and 2 * len(silent) > len(pairs):
        reason = f"{len(silent)} of {len(pairs)} other hosts do not answer this one"
        return CheckResult("network", CheckStatus.FAILED, reason, figures)
    if silent or lossy:
        parts = [f"{host} does not answer" for host in silent[:2]]
        parts += [f"{pairs[host].loss:.0%} of calls to {host} are lost" for host in lossy[:2]]
        return CheckResult("network", CheckStatus.DEGRADED, "; ".join(parts), figures)
    return CheckResult("network", CheckStatus.OK, "", figures)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one device reads. Counts rise since the driver was loaded; ``None``: the device does not say."""

    index: int
    trouble: str = ""
    temperature_celsius: float | None = None
    ecc_corrected_per_hour: float | None = None
    ecc_uncorrected: int | None = None
    uncorrected_lately: float = 0.0
    throttled: str = ""


def check_gpus(readings: Iterable[GpuReading]) -> Iterable[CheckResult]:
    """Each device, and ``gpus``, which failed when none of several works.

    One device in trouble takes nothing new already; the host goes on with the others.
    """
    found = list(readings)
    for each in found:
        figures = {
            "ecc_corrected_per_hour": each.ecc_corrected_per_hour,
            "ecc_uncorrected": each.ecc_uncorrected,
            "temperature_celsius": each.temperature_celsius,
        }
        known = {name: float(value) for name, value in figures.items() if value is not None}
        reason = each.trouble
        if not reason and each.uncorrected_lately:
            reason = f"{each.uncorrected_lately:.0f} uncorrected memory errors within the hour"
        if not reason and (each.ecc_corrected_per_hour or 0.0) >= ECC_CORRECTED_PER_HOUR:
            reason = f"predicted: {each.ecc_corrected_per_hour:.0f} corrected memory errors an hour, others will follow"
        if not reason and each.throttled:
            reason = f"slowed down: {each.throttled}"
        yield CheckResult(f"gpu:{each.index}", CheckStatus.DEGRADED if reason else CheckStatus.OK, reason, known)
    bad = sum(bool(each.trouble) for each in found)
    if found:
        status = CheckStatus.FAILED if bad == len(found) else CheckStatus.OK
        reason = f"none of {len(found)} GPUs works: {found[0].trouble}" if status is CheckStatus.FAILED else ""
        yield CheckResult("gpus", status, reason, {"gpus": float(len(found)), "in_trouble": float(bad)})
