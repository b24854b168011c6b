"""The watchdog that finds which children hang: a judge over their heartbeats, free of clocks and processes.

A child promises two things: its loop turns (it beats each interval, or begins or ends a handler), and no handler
runs longer than it declared. Who breaks one is hung. Who is starting is judged by its start timeout, not here; who is
stopping, by the time its stop declared.

Time is counted, not read. A child's deadline runs in the judge's own steps, so that nobody dies of time that nobody
had:

* A step of one interval or less counts in full. A later one counts interval²/step: twice as late, half an interval.
  The judge is late because the host is loaded; then the child is as slow, and it gets that doubt twice over.
* A step of more than three intervals was a pause of the host or of the judge. Every deadline starts anew from there,
  in full, and nobody is judged in that step: the children had no time to show that they live.
* Time in which a child waited for a CPU does not count, where the kernel tells.

So the bound below is in counted time: equal to the clock's on a host that is not overloaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .heartbeat import HeartbeatReading

BEATS_MISSED_MAX = 3
"""Beats that an idle child may miss, besides the margin."""

PAUSE_INTERVALS = 3.0
"""A step longer than so many intervals was a pause."""


@dataclass(frozen=True, slots=True)
class Hung:
    """A child to kill because it hangs, and in one sentence why. It is watched no more."""

    child_id: str
    message: str


class _Watched:
    __slots__ = ("evidence", "max_handler_s", "silent_s", "waited_s")

    def __init__(self, max_handler_s: float | None) -> None:
        self.max_handler_s = max_handler_s
        self.evidence: tuple[object, ...] = ()
        self.silent_s = 0.0  # counted time since the evidence was new
        self.waited_s: float | None = None


class Watchdog:
    """Judges the children of one supervisor. Call ``judge`` every *interval_s*, in which each child beats once.

    In counted time, a hung child is named at the latest ``limit + margin_s + interval_s`` after its handler (or stop)
    began, or ``(BEATS_MISSED_MAX + 2) * interval_s + margin_s`` after its idle loop last turned. A child that keeps
    its promises is never named on a clock without pauses; nor with them, if the margin is at least an interval and
    no deadline has more than one pause in it that is too short to be seen (three intervals).
    """

    def __init__(self, interval_s: float, margin_s: float) -> None:
        if not interval_s > 0 or not margin_s >= 0:
            raise AssertionError(f"a watchdog cannot work with interval {interval_s} s and margin {margin_s} s")
        self.interval_s = interval_s
        self.margin_s = margin_s
        self._children: dict[str, _Watched] = {}
        self._judged_s: float | None = None

    def watch(self, child_id: str, max_handler_s: float | None) -> None:
        """Watch a new process. *max_handler_s* is for handlers that declare nothing; ``None``: they have no limit."""
        self._children[child_id] = _Watched(max_handler_s)

    def forget(self, child_id: str) -> None:
        """Stop watching a process that ended; harmless when it was not watched."""
        self._children.pop(child_id, None)

    def judge(self, readings: Mapping[str, HeartbeatReading], now_s: float) -> list[Hung]:
        """The watched children that hang, by their readings. Take *now_s* after the readings, or directly before."""
        step_s = 0.0 if self._judged_s is None else max(0.0, now_s - self._judged_s)
        self._judged_s = now_s
        paused = step_s > PAUSE_INTERVALS * self.interval_s
        counted_s = step_s if step_s <= self.interval_s else self.interval_s * self.interval_s / step_s
        hung = []
        for child_id, watched in list(self._children.items()):
            reading = readings.get(child_id)
            if reading is None or reading.state in ("new", "starting"):
                continue
            # In a pause as well: what the child shows now is what its next reading is compared with.
            self._count(watched, reading, counted_s, now_s)
            if paused:
                watched.silent_s = 0.0
                continue
            message = self._accuse(watched, reading)
            if message:
                del self._children[child_id]
                hung.append(Hung(child_id, message))
        return hung

    def _count(self, watched: _Watched, reading: HeartbeatReading, counted_s: float, now_s: float) -> None:
        evidence = _evidence(reading)
        if evidence != watched.evidence:
            # It began after the last step, so at most this step's time ago, however long its clock says.
            began_s = now_s if reading.started_s is None else reading.started_s
            watched.evidence = evidence
            watched.silent_s = min(max(0.0, now_s - began_s), counted_s)
            watched.waited_s = reading.waited_s
            return
        if reading.waited_s is not None:
            if watched.waited_s is not None:
                counted_s = max(0.0, counted_s - max(0.0, reading.waited_s - watched.waited_s))
            watched.waited_s = reading.waited_s
        watched.silent_s += counted_s

    def _accuse(self, watched: _Watched, reading: HeartbeatReading) -> str:
        idle = reading.started_s is None
        declared_s = watched.max_handler_s if reading.limit_s is None else reading.limit_s
        limit_s = BEATS_MISSED_MAX * self.interval_s if idle else math.inf if declared_s is None else declared_s
        if watched.silent_s <= limit_s + self.margin_s:
            return ""
        within_s = limit_s + self.margin_s + (2 if idle else 1) * self.interval_s
        if idle:
            said = f"its loop has not turned for {watched.silent_s:.1f} s, a beat is due every {self.interval_s:g} s"
        else:
            what = "its stop" if reading.state == "stopping" else "a handler"
            said = f"{what} has run {watched.silent_s:.1f} s, declared at most {limit_s:g} s"
            if reading.handler and reading.state != "stopping":
                said += f" ({reading.handler})"
        return f"{said}; the hung are found within {within_s:g} s"


def _evidence(reading: HeartbeatReading) -> tuple[object, ...]:
    """What must change in a reading to show that the child goes on: beats say nothing of a handler or a stop."""
    if reading.started_s is not None:
        return (reading.state, reading.started_s)
    return (reading.state, reading.beats, reading.handled)
