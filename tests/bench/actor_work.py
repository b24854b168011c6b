"""The work that every actor system is given, ours and the others, and the figures it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .figures import Figure, latency, percentile


@dataclass(frozen=True, slots=True)
class Work:
    """How much of each is done in one run. What is done is the same everywhere and written in each program.

    Calls one at a time, then ``pipelined`` calls with 64 in flight; casts with 40 ahead of the acknowledgements, one
    for every 20; the same with 1 MB each; calls with 64 MB each; timers of 10 ms; kills; actors started and let idle.
    A system that needs minutes for it does ``1 / slow`` of the pipelined calls and small casts.
    """

    calls: int = 1_000
    pipelined: int = 10_000
    casts: int = 10_000
    mb1: int = 400
    mb64: int = 4
    timers: int = 100
    deaths: int = 20
    actors: int = 400
    slow: int = 5


IN_FLIGHT = 64
AHEAD = 40
ACKNOWLEDGED_EVERY = 20
MB1_BYTES = 1_000_000
MB64_BYTES = 64_000_000
TIMER_S = 0.01

Measured = dict[str, Any]  # what one run of one system gave; the keys are those of `compared`


def compared(system: str, measured: Sequence[Measured], note: str) -> Iterator[Figure]:
    """Figures of one system, without bars: what it did not do is left out."""

    def runs(key: str) -> list[Any]:
        return [run[key] for run in measured if key in run]

    for key, name, unit, scale in (
        ("trips", "call, one at a time", "µs", 1e6),
        ("timers", "timer of 10 ms, lateness", "µs", 1e6),
        ("noticed", "death noticed by parent", "ms", 1e3),
        ("down", "death noticed by monitor", "ms", 1e3),
        ("restart", "restart after a kill", "ms", 1e3),
    ):
        if runs(key):
            yield latency(f"{system}: {name}", runs(key), unit, scale, note=note)
    for key, name, unit, higher in (
        ("calls", "calls, 64 in flight", "calls/s", True),
        ("casts", "casts, 40 ahead", "casts/s", True),
        ("mb1", "1 MB casts, 40 ahead", "casts/s", True),
        ("mb64", "64 MB calls", "calls/s", True),
        ("start_s", "400 actors started", "s", False),
        ("pss_mb", "idle actor, memory", "MB", False),
    ):
        if runs(key):
            yield Figure(f"{system}: {name}", unit, runs(key), higher, note=note)


def ours(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Our figures against our bars. A bar on the 99th percentile is held by a figure of its own: one p99 per run."""

    def runs(key: str) -> list[Any]:
        return [run[key] for run in measured]

    def p99(key: str, scale: float) -> list[float]:
        return [percentile(samples, 0.99) * scale for samples in runs(key)]

    yield latency("actor call between processes", runs("trips"), "µs", 1e6, must=150, stretch=100)
    yield Figure("actor call, p99 of each run", "µs", p99("trips", 1e6), False, must=500, stretch=300)
    yield Figure("actor calls, 64 in flight", "calls/s", runs("calls"), True, must=12_000, stretch=20_000)
    yield Figure("actor casts, 40 ahead", "casts/s", runs("casts"), True, must=12_000, stretch=20_000)
    yield Figure("actor casts of 1 MB, 40 ahead", "casts/s", runs("mb1"), True, must=500)
    yield Figure("actor calls with 64 MB", "calls/s", runs("mb64"), True)
    yield Figure("death noticed by supervisor, p99", "ms", p99("noticed", 1e3), False, must=10)
    yield Figure("death noticed by monitor, p99", "ms", p99("down", 1e3), False, must=10)
    yield latency("actor restart after a kill", runs("restart"), "ms", 1e3, must=30)
    yield Figure("timer of 10 ms, lateness, p99", "ms", p99("timers", 1e3), False, must=2)
    bare = "the kernel's own sleep of 10 ms in the same process, in turn with the timers above"
    yield Figure("sleep of 10 ms, lateness, p99", "ms", p99("bare_timers", 1e3), False, note=bare)
    yield Figure("400 actors started", "s", runs("start_s"), False)
    yield Figure("idle actor of 400, PSS", "MB", runs("pss_mb"), False, must=6)
