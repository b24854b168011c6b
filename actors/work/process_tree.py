"""Processes and their descendants, read from /proc, and how to end them all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .linux import MARK_ATTEMPT, MARK_HOST, read_kernel_file
from .work_records import WorkSpec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_ROUNDS = 50
_MAX_LISTINGS = 10


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process, as the process table shows it."""

    pid: int
    parent: int
    state: str
    rss_bytes: int


def read_process(pid: int) -> ProcessFacts | None:
    """Read one process, or None when it is gone."""
    try:
        fields = read_kernel_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 22:
        return None
    return ProcessFacts(pid, int(fields[1]), fields[0].decode(), int(fields[21]) * _PAGE_BYTES)


def process_table() -> list[ProcessFacts]:
    """Read every process there is; those that vanish meanwhile are left out."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [facts for facts in map(read_process, pids) if facts is not None]


def children_of(pid: int) -> list[int]:
    """Direct children of *pid*'s threads, zombies included."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, read_kernel_file(f"/proc/{pid}/task/{thread}/children").split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}") and not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return [facts.pid for facts in process_table() if facts.parent == pid]  # kernel without the children file
    except ProcessLookupError:
        return found
    return found


def descendants(pid: int) -> list[int]:
    """All processes below *pid*, parents before children. Misses what was reparented away from the tree."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for child in children_of(todo.pop()):
            found.append(child)
            todo.append(child)
    return found


def living(pids: list[int]) -> list[int]:
    """The *pids* that are neither gone nor zombies."""
    facts = (read_process(pid) for pid in pids)
    return [fact.pid for fact in facts if fact is not None and fact.state not in "ZX"]


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with. Raises OSError."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def tree_rss_bytes(pid: int) -> int:
    """Resident memory of all descendants of *pid*; pages that they share count once for each.

    Without shared memory: what a task reads in the object store is not the task's.
    """
    return sum(map(own_rss_bytes, descendants(pid)))


def own_rss_bytes(pid: int) -> int:
    """Resident memory of a process without what it has of shared memory; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if line.startswith((b"RssAnon:", b"RssFile:")))
        return sum(int(text.split()[0]) for text in lines.values()) * 1024
    except (OSError, ValueError, IndexError):
        return 0


def send(pid: int, number: int) -> None:
    """Signal a process; one that is gone is fine."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def start_ticks(pid: int) -> int | None:
    """When the process was started, in clock ticks since boot: with its pid, this tells it from any other. Or None.

    A zombie counts as gone.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def stop_until_still(members: Callable[[], list[int]]) -> set[int]:
    """SIGSTOP what *members* finds, again until it finds nobody new; gives all that were stopped."""
    stopped: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        fresh = [pid for pid in members() if pid not in stopped]
        if not fresh:
            break
        for pid in fresh:
            send(pid, signal.SIGSTOP)
            stopped.add(pid)
    return stopped


def kill_descendants(pid: int) -> None:
    """SIGKILL everything below *pid*. The tree is stopped first, so that it cannot fork faster than we look.

    Zombies are left for their parents to reap. Call it again until :func:`descendants` shows nobody living:
    where *pid* is a subreaper, orphans of those killed move up to it.
    """
    stop_until_still(lambda: living(descendants(pid)))
    for child in living(descendants(pid)):
        send(child, signal.SIGKILL)


def find_marked(host_tag: str) -> dict[int, str]:
    """Processes of this host's work: pid to attempt or worker id, by the marks in their environment.

    Sees processes of our own user (all, as root). One that changed its own memory can hide. One that forks and exits
    between a listing of the processes and its turn to be read is not missed: who came meanwhile is read too, until
    nobody new comes.
    """
    host = f"{MARK_HOST}={host_tag}".encode()
    found: dict[int, str] = {}
    seen: set[str] = set()
    for _ in range(_MAX_LISTINGS):
        fresh = [name for name in os.listdir("/proc") if name.isdigit() and name not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for name in fresh:
            work_id = _marked_as(name, host)
            if work_id is not None:
                found[int(name)] = work_id
    return found


def processes_of_work(shim: int, work_id: str, spec: WorkSpec | None, members: Iterable[int] = ()) -> list[int]:
    """The processes of an attempt or worker: below its shim, *members* of its group, and those of its container."""
    pids = list(dict.fromkeys([*living(descendants(shim)), *members]))
    if spec is not None and spec.get("container"):
        # Of docker they are children of its daemon, and are told by their marks alone.
        marked = find_marked(str(spec["env"].get(MARK_HOST, "")))
        pids += [pid for pid, owner in marked.items() if owner == work_id and pid not in pids]
    return pids


def owners_of(pids: Iterable[int], host_tag: str) -> dict[int, str]:
    """The attempt or worker that each of *pids* is of by its marks, empty for none; those that are gone are missing.

    One of another user, whose environment cannot be read, is nobody's.
    """
    host = f"{MARK_HOST}={host_tag}".encode()
    return {pid: _marked_as(str(pid), host) or "" for pid in pids if os.path.exists(f"/proc/{pid}")}


def _marked_as(name: str, host: bytes) -> str | None:
    """The id of the attempt or worker whose mark, with that of *host*, the process carries."""
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return None  # gone, or another user's
    if host not in environment:
        return None
    prefix = f"{MARK_ATTEMPT}=".encode()
    entries = environment.split(b"\0")
    if host not in entries:
        return None
    ids = (entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix))
    return next((work_id.decode("utf-8", "replace") for work_id in ids), None)
