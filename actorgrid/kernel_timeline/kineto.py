"""Reads the traces of PyTorch's profiler (Kineto's JSON, as ``export_chrome_trace`` writes it; ``.gz`` too).

Times are decimal fractions of microseconds, with the nanoseconds behind the point. They are read as decimals, never
as floating point: near 2026 a float's step is 256 ns. Since PyTorch 2.4 they count from ``baseTimeNanoseconds``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from actorgrid.errors import InvalidTimeline, NotFound

from .kernel_events import EVENTS_MAX, NAME_CHARS_MAX, TIME_NS_MAX, KernelEvent, KernelTimeline

FILE_BYTES_MAX = 1 << 30
"""Of the JSON, unpacked."""
_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "cpu_op": "operator",
    "user_annotation": "range",
    "gpu_user_annotation": "range",
    "python_function": "range",
}
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_TIME = TIME_NS_MAX // 4
"""Bounds each of the three that are added, so that no sum leaves 64 bits."""


def read_kineto(path: Path, source: str = "") -> KernelTimeline:
    """The timeline in *path*, called *source* (by default the file's name).

    Complete events of the categories that say what ran are taken; flows, marks and the rest are left out. One that
    has no sensible time is dropped and counted. Raises InvalidTimeline, NotFound.
    """
    document = _document(path)
    listed = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise _invalid(path, "it has no traceEvents", "give a file that torch.profiler's export_chrome_trace wrote")
    if len(listed) > EVENTS_MAX:
        raise _invalid(path, f"{len(listed)} events, and at most {EVENTS_MAX} are read", "profile fewer steps")
    base = _whole(document.get("baseTimeNanoseconds", 0))
    if base is None or abs(base) > _TIME:
        raise _invalid(path, "baseTimeNanoseconds is no time", "")
    timeline = KernelTimeline(source or path.name.removesuffix(".gz").removesuffix(".json"))
    for each in listed:
        if not isinstance(each, dict) or each.get("ph") != "X" or not isinstance(each.get("cat"), str):
            continue
        if each["cat"].lower() not in _KINDS:
            continue
        event = _event(each, base)
        if event is None:
            timeline.dropped += 1
        else:
            timeline.events.append(event)
    timeline.events.sort(key=lambda event: event.start_ns)
    return timeline


def _document(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", asked=str(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise _invalid(path, str(error), "") from error
    if len(data) > FILE_BYTES_MAX:
        raise _invalid(path, f"it is larger than {FILE_BYTES_MAX >> 20} MiB unpacked", "profile fewer steps")
    try:
        return json.loads(data, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise _invalid(path, f"it is no JSON: {error}"[:300], "") from error


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON's")


def _event(each: dict[str, Any], base: int) -> KernelEvent | None:
    name, start, duration = each.get("name"), _nanoseconds(each.get("ts")), _nanoseconds(each.get("dur"))
    if not isinstance(name, str) or start is None or duration is None or duration < 0 or not base + start >= 0:
        return None
    told = each.get("args")
    arguments = told if isinstance(told, dict) else {}
    category = each["cat"].lower()
    device = stream = None
    process, thread = _whole(each.get("pid")) or 0, _whole(each.get("tid")) or 0
    if category in _ON_DEVICE:
        device, stream = _whole(arguments.get("device", each.get("pid"))), _whole(arguments.get("stream", thread))
        if device is None or stream is None:
            return None
        thread = stream
    return KernelEvent(
        name=name[:NAME_CHARS_MAX],
        kind=_KINDS[category],
        start_ns=base + start,
        duration_ns=duration,
        process=process,
        thread=thread,
        device=device,
        stream=stream,
        correlation=_whole(arguments.get("correlation")),
        n_bytes=_whole(arguments.get("bytes")),
    )


def _nanoseconds(value: object) -> int | None:
    """Microseconds with a fraction, rounded to whole nanoseconds; ``None`` for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    if isinstance(value, Decimal) and value.adjusted() > 18:  # not even to be multiplied out
        return None
    found = round(value * 1000)
    return found if abs(found) <= _TIME else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > TIME_NS_MAX:
        return None
    return value


def _invalid(path: Path, found: str, hint: str) -> InvalidTimeline:
    return InvalidTimeline("this is no timeline that can be read", asked=str(path), found=found, hint=hint)
