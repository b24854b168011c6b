"""A graph's timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Trace Event Format, JSON.

A process for each host, a thread for each lane, a complete event (``X``) for each step; flow events (``s``, ``f``)
along the critical path.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from .step_view import GraphView
from .timeline import lanes_of

MICROSECONDS = 1e6


def trace_json(view: GraphView) -> str:
    """The trace. Empty of steps where none has begun."""
    events: list[dict[str, Any]] = []
    places: dict[int, tuple[int, int]] = {}
    processes: dict[str, int] = {}
    path = view.critical_path()
    critical = set(path)
    for thread, lane in enumerate(lanes_of(view), start=1):
        if lane.host not in processes:
            processes[lane.host] = len(processes) + 1
            name = view.hosts.get(lane.host, lane.host) or "host"
            events.append(_named("process_name", processes[lane.host], 0, name))
        process = processes[lane.host]
        events.append(_named("thread_name", process, thread, lane.device))
        for number in lane.steps:
            step = view.steps[number]
            places.setdefault(number, (process, thread))
            begin_s, end_s = step.start_s or 0.0, step.end_s or 0.0
            events.append(
                {
                    "ph": "X",
                    "name": step.id,
                    "cat": f"{step.kin},critical" if number in critical else step.kin,
                    "pid": process,
                    "tid": thread,
                    "ts": round(begin_s * MICROSECONDS),
                    "dur": max(1, round((end_s - begin_s) * MICROSECONDS)),
                    "args": {"state": step.state, "expected_s": step.expected_s, "bytes": step.size},
                }
            )
    drawn = [number for number in path if number in places]
    for flow, (first, second) in enumerate(pairwise(drawn), start=1):
        ends = ((first, "s", (view.steps[first].end_s or 0.0)), (second, "f", (view.steps[second].start_s or 0.0)))
        for number, phase, at_s in ends:
            process, thread = places[number]
            event: dict[str, Any] = {"ph": phase, "id": flow, "name": "critical path", "cat": "critical"}
            event |= {"pid": process, "tid": thread, "ts": round(at_s * MICROSECONDS)}
            events.append({**event, "bp": "e"} if phase == "f" else event)
    return json.dumps({"displayTimeUnit": "ms", "otherData": {"graph": view.title}, "traceEvents": events}) + "\n"


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
