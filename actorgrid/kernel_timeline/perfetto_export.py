"""Writes timelines as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Trace Event Format, JSON.

Each device of each source is a process with a thread for each stream, the host's side another one. Flows lead from a
call to what it brought about. Times count from the first event, whose own time is ``baseTimeNanoseconds``, so that no
reader that takes them for floating point loses a nanosecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from .kernel_events import ON_DEVICE, KernelEvent, KernelTimeline


def perfetto_json(timelines: Sequence[KernelTimeline]) -> Iterator[str]:
    """The trace, in pieces to be written one after the other."""
    begin = min((event.start_ns for timeline in timelines for event in timeline.events), default=0)
    yield f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{begin},"traceEvents":['
    first = True
    flow = 0
    tracks: dict[tuple[int, str, int], int] = {}
    named: set[tuple[int, int]] = set()
    for number, timeline in enumerate(timelines):
        calls: dict[int, tuple[int, KernelEvent]] = {}
        for event in timeline.events:
            where = ("GPU", event.device) if event.device is not None else ("host, process", event.process)
            track = tracks.setdefault((number, *where), len(tracks) + 1)
            lines = []
            if (track, -1) not in named:
                named.add((track, -1))
                lines.append(_name("process_name", track, 0, f"{timeline.source}: {where[0]} {where[1]}"))
            if event.device is not None and (track, event.thread) not in named:
                named.add((track, event.thread))
                lines.append(_name("thread_name", track, event.thread, f"stream {event.thread}"))
            lines.append(_complete(event, track, begin))
            if event.correlation is not None and event.kind == "call":
                calls.setdefault(event.correlation, (track, event))
            elif event.correlation in calls and event.kind in ON_DEVICE:
                flow += 1
                lines += _flow(flow, calls[event.correlation], (track, event), begin)
            for line in lines:
                yield line if first else f",\n{line}"
                first = False
    yield "]}\n"


def _time(nanoseconds: int) -> str:
    """Microseconds with three digits: exactly the nanoseconds."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _complete(event: KernelEvent, track: int, begin: int) -> str:
    told = {
        name: value
        for name, value in (("bytes", event.n_bytes), ("correlation", event.correlation), ("stream", event.stream))
        if value is not None
    }
    return (
        f'{{"ph":"X","cat":"{event.kind}","name":{json.dumps(event.name)},"pid":{track},"tid":{event.thread},'
        f'"ts":{_time(event.start_ns - begin)},"dur":{_time(event.duration_ns)},"args":{json.dumps(told)}}}'
    )


def _flow(number: int, call: tuple[int, KernelEvent], work: tuple[int, KernelEvent], begin: int) -> list[str]:
    head = f'"id":{number},"cat":"launch","name":"launch"'
    (one, cause), (other, effect) = call, work
    return [
        f'{{"ph":"s",{head},"pid":{one},"tid":{cause.thread},"ts":{_time(cause.start_ns - begin)}}}',
        f'{{"ph":"f","bp":"e",{head},"pid":{other},"tid":{effect.thread},"ts":{_time(effect.start_ns - begin)}}}',
    ]


def _name(what: str, track: int, thread: int, name: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{track},"tid":{thread},"args":{{"name":{json.dumps(name)}}}}}'
