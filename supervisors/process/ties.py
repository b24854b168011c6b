"""What ties light processes to each other: links, monitors, names, groups. Kept beside a process that has any.

Semantics are Erlang's, as for the servers that are processes of the operating system (``supervisors/signals.py``). Both
ends of a tie within a shard are changed at once; for one over shards each shard keeps its end, and an index by the
other shard (``RemoteTies``), by which a lost shard is told to all who are tied to it.

Bound: a process holds 100,000 ties of each kind; one more raises Overloaded.
"""

from __future__ import annotations

from typing import Any

from actorgrid.errors import Overloaded
from actorgrid.hotpath.light import LightProcess, Pid, ProcessCall, ShardAddress

TIES_MAX = 100_000


class ProcessTies:
    """The ties of one process. Empty ones are ``None``: most processes have one or two of these."""

    __slots__ = (
        "dictionary",
        "ending",
        "groups",
        "label",
        "links",
        "monitors",
        "names",
        "start",
        "stop_reason",
        "trap_exit",
        "watchers",
    )

    def __init__(self) -> None:
        self.trap_exit = False
        self.ending = False
        self.links: dict[Pid, None] | None = None
        self.monitors: dict[int, Pid] | None = None  # mine, by number: whom they watch
        self.watchers: dict[tuple[Pid, int], None] | None = None  # who watches me, under which number of theirs
        self.names: dict[str, None] | None = None
        self.groups: dict[str, None] | None = None
        self.dictionary: dict[Any, Any] | None = None
        self.start: Any = None  # what is told when the start has ended
        self.stop_reason: Any = None
        self.label: str = ""


def ties_of(process: LightProcess) -> ProcessTies:
    """The ties of a process, made now where there are none."""
    ties = process.attachments
    if ties is None:
        ties = process.attachments = ProcessTies()
    found: ProcessTies = ties
    return found


def check_room(held: Any, what: str, process: LightProcess) -> None:
    """Raises Overloaded when *held* is full."""
    if held is not None and len(held) >= TIES_MAX:
        raise Overloaded(
            f"{process.pid} has {TIES_MAX} {what} already", hint="end those that are no longer of interest"
        )


class RemoteTies:
    """What ties processes of this shard to those of another one: whom to tell when that is lost."""

    __slots__ = ("calls", "links", "monitors", "watchers")

    def __init__(self) -> None:
        self.links: dict[tuple[Pid, Pid], None] = {}  # (ours, theirs)
        self.monitors: dict[int, tuple[Pid, Pid]] = {}  # number: (ours, whom it watches)
        self.watchers: dict[tuple[Pid, int, Pid], None] = {}  # (theirs, its number, ours)
        self.calls: dict[int, ProcessCall] = {}  # ours, that wait for an answer of theirs

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not (self.links or self.monitors or self.watchers or self.calls)


class RemoteIndex(dict[ShardAddress, RemoteTies]):
    """The ties to other shards, by shard."""

    def __missing__(self, address: ShardAddress) -> RemoteTies:
        ties = self[address] = RemoteTies()
        return ties
