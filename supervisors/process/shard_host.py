"""Light processes on several cores: shards in processes of their own under one supervisor, and who started them.

    with ShardHost(shards=4) as host:
        counter = host.start(Counter, 10)
        print(host.call(counter, "next"))

What is started goes to the shards in turn, unless it is said which. Any Pid and any name leads to its process, from any
shard and from here. Classes and functions go to the shards by their names, so they are at the top level of a module; a
script's own are found, too.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

from actorgrid.errors import BadRequest, NoSuchActor
from actorgrid.hotpath.light import Pid

from ..child import ChildSpec, SupervisorFlags, kind_of
from ..exits import ExitReason
from ..supervisor import Supervisor, WhichChildren
from ..tree import DEFAULTS, Tree
from ..wire import TreeSettings
from .inspecting import ProcessInfo, SortKey
from .shard_server import ShardCall, ShardLookup, ShardSend, ShardServer, ShardStart, ShardTop

SHARDS_MAX = 256
ROOM_S = 30.0


class Shards(Supervisor):
    """Supervises the shards of a host: each is restarted on its own."""

    name = "shards"

    def init(self, *arguments: Any) -> tuple[SupervisorFlags, list[ChildSpec]]:
        """One spec for each shard."""
        count, max_handler_s, *of_each = arguments
        return SupervisorFlags("one_for_one", intensity=10, period_s=30.0), [
            ChildSpec(f"shard_{n}", kind_of(ShardServer), arguments=tuple(of_each), max_handler_s=max_handler_s)
            for n in range(count)
        ]


class ShardHost:
    """Several shards, as the program that starts them sees them. Use it in the main thread, as ``Tree``.

    *root* and *arguments*: a class of light processes (a supervisor, as a rule) that each shard starts with; with its
    end, other than in order, the shard ends. *max_handler_s*: a shard in which one handler of a light process runs
    longer is taken for hung, killed with all its processes, and started again (docs/watchdog.md).
    """

    def __init__(
        self,
        shards: int | None = None,
        root: Any = None,
        *arguments: Any,
        host: str = "",
        max_handler_s: float = 10.0,
        settings: TreeSettings = DEFAULTS,
    ) -> None:
        count = shards if shards is not None else os.cpu_count() or 1
        if not isinstance(count, int) or not 1 <= count <= SHARDS_MAX:
            raise BadRequest("a number of shards out of range", asked=repr(shards), hint=f"1 to {SHARDS_MAX}")
        self.count = count
        self._next = itertools.cycle(range(count))
        self._tree = Tree(settings=settings)
        try:
            self._tree.up(
                Shards,
                None,
                count,
                max_handler_s,
                host or socket.gethostname() or "local",
                root,
                *arguments,
                name="shards",
            )
        except BaseException:
            self._tree.close()
            raise

    def start(self, kind: Any, *args: Any, name: str | None = None, shard: int | None = None) -> Pid:
        """Start a process and wait until its ``init`` has ended.

        Raises what that raised; NoSuchActor while the shard restarts.
        """
        found: Pid = self._ask(shard, ShardStart(kind, args, name))
        return found

    def call(self, to: Pid | str, request: Any, timeout_s: float = 5.0) -> Any:
        """Ask a process and wait for its answer. Raises as ``Shard.call``."""
        return self._ask(None, ShardCall(to, request, timeout_s), timeout_s + ROOM_S)

    def send(self, to: Pid | str, message: Any) -> bool:
        """Send a message; ``False`` when nobody is there, or the way there is full."""
        return bool(self._ask(None, ShardSend(to, message)))

    def exit(self, to: Pid | str, reason: ExitReason | str) -> None:
        """Ask a process to end."""
        self._ask(None, ShardSend(to, reason, True))

    def whereis(self, name: str) -> Pid | None:
        """Who has the name."""
        found: Pid | None = self._ask(None, ShardLookup(name))
        return found

    def members(self, group: str) -> list[Pid]:
        """Who is in the group."""
        found: list[Pid] = self._ask(None, ShardLookup(group, True))
        return found

    def top(self, by: SortKey = "reductions", count: int = 10) -> list[ProcessInfo]:
        """The processes with most of one thing, of all shards."""
        found = [info for n in range(self.count) for info in self._ask(n, ShardTop(by, count))]
        keys = {"mailbox": "mailbox", "reductions": "reductions", "memory": "memory_bytes"}
        return sorted(found, key=lambda info: getattr(info, keys[by]), reverse=True)[:count]

    def pids(self) -> list[int]:
        """The processes of the operating system, by shard; 0 for one that is being restarted."""
        return [child["pid"] or 0 for child in self._tree.call("shards", WhichChildren())]

    def _ask(self, shard: int | None, request: Any, timeout_s: float = 60.0) -> Any:
        if shard is not None:
            return self._tree.call(f"shard_{shard}", request, timeout_s)
        for _ in range(self.count):
            name = f"shard_{next(self._next)}"
            if self._tree.registry.whereis(name) is not None:
                return self._tree.call(name, request, timeout_s)
        raise NoSuchActor("no shard is up", hint="they are being restarted: again in a moment")

    def close(self) -> None:
        """Stop all shards in order."""
        self._tree.__exit__()

    def __enter__(self) -> ShardHost:
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()
