"""What goes on in a shard, as figures and as its busiest processes: what BEAM's observer and etop show."""

from __future__ import annotations

import heapq
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from actorgrid.hotpath.light import LightProcess, Pid

if TYPE_CHECKING:
    from .shard import Shard

SortKey = Literal["mailbox", "reductions", "memory"]
TOP_MAX = 1_000
VALUE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process, as it is now."""

    pid: Pid
    kind: str
    """Its class; of a function, that."""
    label: str
    names: tuple[str, ...]
    status: str
    """``ready``, ``running``, ``waiting``, ``awaiting``; with ``, suspended``."""
    mailbox: int
    """Messages that wait."""
    reductions: int
    """Messages handled since it began."""
    memory_bytes: int
    """Of itself, its attributes and its coroutine, without what these refer to."""
    parent: Pid | None
    links: int
    monitors: int
    watchers: int


def process_info(process: LightProcess) -> ProcessInfo:
    """What is known of a process."""
    ties = process.attachments
    return ProcessInfo(
        process.pid,
        _kind(process),
        ties.label if ties is not None else "",
        tuple(ties.names or ()) if ties is not None else (),
        process.status + (", suspended" if process.is_held else ""),
        process.mailbox_length,
        process.reductions,
        _memory_bytes(process),
        process.parent,
        len(ties.links or ()) if ties is not None else 0,
        len(ties.monitors or ()) if ties is not None else 0,
        len(ties.watchers or ()) if ties is not None else 0,
    )


def _kind(process: LightProcess) -> str:
    coroutine = process.running_coroutine
    if getattr(process, "runs_a_function", False) and coroutine is not None:
        return str(coroutine.__qualname__)
    return type(process).__qualname__


def _memory_bytes(process: LightProcess) -> int:
    size = sys.getsizeof(process) + sys.getsizeof(process.pid) + 8 * process.mailbox_length
    attributes = getattr(process, "__dict__", None)
    if attributes:
        size += 8 * (len(attributes) + 2)
    coroutine = process.running_coroutine
    while inspect.iscoroutine(coroutine):
        size += sys.getsizeof(coroutine)
        coroutine = coroutine.cr_await
    return size


def top(shard: Shard, by: SortKey = "reductions", count: int = 10) -> list[ProcessInfo]:
    """The processes with most of one thing, the most first; at most 1,000."""
    keys: dict[str, Any] = {
        "mailbox": lambda process: process.mailbox_length,
        "reductions": lambda process: process.reductions,
        "memory": _memory_bytes,
    }
    if by not in keys:
        from actorgrid.errors import BadRequest

        raise BadRequest("processes are not sorted by that", asked=by, hint="one of " + ", ".join(keys))
    found = heapq.nlargest(min(count, TOP_MAX), shard.core.processes(), key=keys[by])
    return [process_info(process) for process in found]


def shard_figures(shard: Shard) -> dict[str, float]:
    """Counts for metrics; those that end in ``_total`` only grow."""
    core = shard.core
    return {
        "processes": core.living,
        "processes_ready": core.ready_count,
        "process_timers": core.timer_count,
        "process_names": len(shard.names.names),
        "process_groups": len(shard.names.groups),
        "process_messages_total": core.messages,
        "process_messages_refused_total": core.refused,
        "processes_spawned_total": core.spawned,
        "processes_ended_total": core.ended,
        "process_crashes_total": shard.crash_log.crashes,
        "process_overruns_total": shard.overruns.count,
    }
