"""Tasks that died with their worker: what the host is asked about it, and what the task fails with."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actorgrid.endings import for_want_of_memory, how_it_ended, last_lines
from actorgrid.errors import ActorGridError, NotFound, TaskCancelled, WorkerLost, WorkerOverDisk, WorkerOverMemory

from .http import segment

if TYPE_CHECKING:
    from .http import AdminHttp

END_LOOK_S, END_LOOK_MAX_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A task that ran when its worker went: the host is asked whether to try it again."""

    session_id: str
    lease_id: str
    settle: Callable[[ActorGridError | None], None]


def cancelled(lease_id: str) -> TaskCancelled:
    """The error of a task whose lease somebody ended."""
    return TaskCancelled(
        "the task was cancelled while it ran",
        found=f"its owner or an administrator ended lease {lease_id}, and its worker with it",
        hint="submit it again if you still want it",
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """A task that died with its worker."""

    session_id: str
    lease_id: str
    error: WorkerLost
    settle: Callable[[ActorGridError], None]


def with_ending(error: WorkerLost, ending: dict[str, Any]) -> WorkerLost:
    """The loss with the signal or exit code, and the last that the worker said."""
    code, number, stderr = ending.get("exit_code"), ending.get("signal"), str(ending.get("stderr") or "")
    how = how_it_ended(code, number) + for_want_of_memory(int(ending.get("oom_kills") or 0))
    kind, hint = WorkerLost, error.hint
    if number == signal.SIGKILL or ending.get("reason") == "shim":
        hint = "if nobody killed it, the host ran out of memory (dmesg tells); ask for enough with memory="
    if ending.get("reason") == "shim":
        how = "killed together with its shim"
    elif ending.get("reason") == "memory":
        how, kind = "killed for using more memory than it asked for (memory=)", WorkerOverMemory
        hint = "ask for more with memory="
    elif str(ending.get("reason")).startswith("gpu_memory"):
        how, kind = "killed for using more memory of a GPU than it asked for (gpu_memory=)", WorkerOverMemory
        hint = "ask for more with gpu_memory=; a process's own share of the driver counts, too"
    elif str(ending.get("reason")).startswith("disk "):
        how, kind = "killed for what it held of its host's disk", WorkerOverDisk
        hint = "write less, or to another disk; work.disk_bytes_max, work.disk_free_min_bytes there say how much"
    elif str(ending.get("reason")).startswith("gpu_heat"):
        how, hint = "ended because its GPU was about to switch itself off for heat", "look at the host's cooling"
    said = last_lines(stderr)
    return kind(
        f"{error.message}: {how}",
        found=f"{error.found}" + (f"; its last words: {said}" if said else "; it said nothing on stderr"),
        hint=hint,
        exit_code=code,
        signal=number,
        stderr=stderr,
    )


def end_lease(http: AdminHttp, lease_id: str, wait: Callable[[float], bool]) -> None:
    """End a lease; returns when its worker is gone, or nobody can be working under it any more.

    *wait*: for so many seconds; true when it is not wanted any more.
    """
    delay_s = END_LOOK_S
    while not wait(delay_s):
        delay_s = min(END_LOOK_MAX_S, 2 * delay_s)
        try:
            http.post(f"/api/leases/{segment(lease_id)}/cancel", {}, repeat=True)
        except NotFound:
            return
        except ActorGridError:
            continue  # no host that knows is reached: the worker may go on
