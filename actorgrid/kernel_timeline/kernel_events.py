"""Events of a timeline, in whole nanoseconds, and what is said of many of them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TypedDict

EVENTS_MAX = 5_000_000
NAME_CHARS_MAX = 4096
KINDS = ("kernel", "copy", "set", "call", "operator", "range")
"""On a device: kernels, copies, and settings of memory. On the host: calls of the driver or its runtime, operators of a
framework, and ranges that the program named."""
ON_DEVICE = KINDS[:3]
TIME_NS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One thing that took time."""

    name: str
    kind: str
    """One of KINDS."""
    start_ns: int
    """Since 1970 by the clock of the host, where the source tells it; else since a beginning of its own."""
    duration_ns: int
    process: int
    """Of the operating system, or of the source's own counting."""
    thread: int
    """On a device: the same as ``stream``."""
    device: int | None = None
    """The device's number, as the process counts them; ``None`` on the host."""
    stream: int | None = None
    correlation: int | None = None
    """The same for a call and for what it brought about on a device."""
    n_bytes: int | None = None
    """Of a copy, or of memory that was set."""


@dataclass(slots=True)
class KernelTimeline:
    """Events of one process (a source), and how sure their times are."""

    source: str
    events: list[KernelEvent] = field(default_factory=list)
    dropped: int = 0
    """Events that were not kept: the source had no room, or said what makes no sense."""
    clock_error_ns: int = 0
    """How far the times may be from the host's clock, by the source's own measurement."""


class KernelTotals(TypedDict):
    """What all events of one name took together; times in nanoseconds."""

    name: str
    kind: str
    count: int
    total_ns: int
    median_ns: int
    max_ns: int


class DeviceBusy(TypedDict):
    """How much of the time between a device's first and last event something ran on it."""

    source: str
    device: int
    span_ns: int
    busy_ns: int
    events: int


def totals(timelines: Iterable[KernelTimeline]) -> list[KernelTotals]:
    """By name and kind, what took longest together first."""
    found: dict[tuple[str, str], list[int]] = {}
    for timeline in timelines:
        for event in timeline.events:
            found.setdefault((event.name, event.kind), []).append(event.duration_ns)
    rows = [
        KernelTotals(
            name=name,
            kind=kind,
            count=len(times),
            total_ns=sum(times),
            median_ns=round(median(times)),
            max_ns=max(times),
        )
        for (name, kind), times in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["total_ns"], row["name"]))


def device_busy(timelines: Iterable[KernelTimeline]) -> list[DeviceBusy]:
    """For each source and device: what ran beside something else counts once."""
    rows = []
    for timeline in timelines:
        spans: dict[int, list[tuple[int, int]]] = {}
        for event in timeline.events:
            if event.device is not None:
                spans.setdefault(event.device, []).append((event.start_ns, event.start_ns + event.duration_ns))
        for device, each in sorted(spans.items()):
            each.sort()
            busy = until = 0
            for position, (start, end) in enumerate(each):
                until = start if position == 0 else max(until, start)
                busy += max(0, end - until)
                until = max(until, end)
            span = max(end for _, end in each) - each[0][0]
            rows.append(DeviceBusy(source=timeline.source, device=device, span_ns=span, busy_ns=busy, events=len(each)))
    return rows
