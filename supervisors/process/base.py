"""A light process as people write it: what it may do beyond sending, and the two ways to write one.

With a coroutine: ``async def run(self, ...)``, or a function ``async def counter(me, ...)`` that is spawned as it is.
It takes messages where it awaits ``receive``. With handlers: derive from ``GenServer`` (``gen_server.py``).

Everything here is called from within the process: from its handlers, or its coroutine.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar

from actorgrid.errors import NotSupported
from actorgrid.hotpath.light import LightProcess, Pid, ProcessCall

from ..exits import NORMAL, ExitReason
from .events import reason_of
from .ties import ties_of

if TYPE_CHECKING:
    from .shard import Shard

log = logging.getLogger("actorgrid.process")


class Process(LightProcess):
    """Base of all light processes; see the module. Its attributes are its state.

    ``version``: what ``code_change`` of the class that follows is told.
    """

    __slots__ = ()  # so that a class may have them, too
    version: ClassVar[str] = ""

    @property
    def shard(self) -> Shard:
        """The shard it lives in."""
        shard: Shard = self.hooks
        return shard

    # -- others

    def spawn_link(self, kind: Any, *args: Any) -> Pid:
        """``spawn`` and ``link``, as one step."""
        return self.shard.spawn_opt(kind, args, parent=self, link=True)

    def spawn_monitor(self, kind: Any, *args: Any) -> tuple[Pid, int]:
        """``spawn`` and ``monitor``, as one step."""
        pid = self.spawn(kind, *args)
        return pid, self.monitor(pid)

    def start(self, kind: Any, *args: Any, link: bool = True, timeout_s: float = 60.0) -> Awaitable[Pid]:
        """Await this: begin a process, linked to us unless told otherwise, and wait until its ``init`` has ended.

        Gives its Pid. Raises what ``init`` raised; StartFailed when it ended meanwhile, or took longer.
        """
        return self.shard.start_for(self, kind, args, link, timeout_s)

    # -- links, monitors, ends

    @property
    def trap_exit(self) -> bool:
        """Whether ends of linked processes come as ProcessExit messages instead of ending this one."""
        return self.attachments is not None and self.attachments.trap_exit

    @trap_exit.setter
    def trap_exit(self, value: bool) -> None:
        ties_of(self).trap_exit = bool(value)

    def monitor(self, to: Pid | str) -> int:
        """Get one ProcessDown when *to* ends; at once, of kind ``noproc``, if it has ended already.

        Raises Overloaded.
        """
        return self.shard.monitor(self, to)

    def demonitor(self, monitor: int) -> None:
        """End a monitor: no ProcessDown comes of it any more, not even one that is in the mailbox."""
        self.shard.demonitor(self, monitor)

    def link(self, to: Pid | str) -> None:
        """Share the fate of *to*: when one ends other than ``normal``, so does the other (but see ``trap_exit``)."""
        self.shard.link(self, to)

    def unlink(self, to: Pid | str) -> None:
        """Remove the link; harmless when there is none."""
        self.shard.unlink(self, to)

    def exit(self, to: Pid | str, reason: ExitReason | str) -> None:
        """``exit/2``: ask *to* to end of *reason*.

        Who traps exits gets a message, but of ``killed`` one ends anyhow.
        """
        self.shard.exit(to, reason, self.pid)

    def stop(self, reason: ExitReason | str = NORMAL) -> None:
        """End after the present handler; a coroutine ends where it awaits a message next, or returns."""
        ties_of(self).stop_reason = reason_of(reason)
        self.shard.core.stop_later(self)

    def terminate(self, reason: ExitReason) -> None:
        """Called once, last, however it ends, unless it is killed or never started; its messages still go out."""

    # -- names and groups

    def register(self, name: str) -> None:
        """Take the name until we end or ``unregister`` it. Raises NameTaken, BadRequest."""
        self.shard.register(name, self.pid)

    def register_global(self, name: str, timeout_s: float = 30.0) -> Awaitable[None]:
        """Await this: take a name of all shards of the set, on whichever hosts, until we end or ``unregister`` it.

        Raises NameTaken, CallTimeout where who grants it is not reached, BadRequest, Overloaded.
        """
        return self.shard.register_global(self, name, timeout_s)

    def claim_global(self, name: str) -> None:
        """``register_global`` without waiting: the name is ours soon, or we end, as it is another's.

        For many at once. Raises NameTaken where another process of this shard has it, BadRequest.
        """
        self.shard.claim_global(self, name)

    def name_token(self, name: str) -> str:
        """The fencing token under which we have a name of the set: of two holders, that of the later one is greater.

        It grows as a text, through all moves of the name between shards and hosts: what we write to keeps the greatest
        that it has seen, and refuses a smaller one. Raises NoSuchActor when the name is not ours, NotSupported.
        """
        return self.shard.name_token(self, name)

    def unregister(self, name: str) -> bool:
        """Give a name of ours back."""
        return self.shard.unregister(name, self.pid)

    def whereis(self, name: str) -> Pid | None:
        """Who has the name now."""
        return self.shard.whereis(name)

    def join(self, group: str) -> None:
        """Become a member of the group until we end or ``leave`` it."""
        self.shard.join(group, self.pid)

    def leave(self, group: str) -> bool:
        """End our membership."""
        return self.shard.leave(group, self.pid)

    def members(self, group: str) -> list[Pid]:
        """The members of a group, the oldest first."""
        return self.shard.members(group)

    # -- more

    @property
    def dictionary(self) -> dict[Any, Any]:
        """The process dictionary.

        What code that runs in a process may keep with it (``current_process().dictionary``).
        """
        ties = ties_of(self)
        if ties.dictionary is None:
            ties.dictionary = {}
        return ties.dictionary

    @property
    def label(self) -> str:
        """What people read beside its pid."""
        return self.attachments.label if self.attachments is not None else ""

    @label.setter
    def label(self, text: str) -> None:
        ties_of(self).label = str(text)[:200]

    def format_state(self) -> dict[str, Any]:
        """What ``inspect`` shows of it: its attributes."""
        return attributes_of(self)

    def code_change(self, old_version: str, state: dict[str, Any]) -> None:
        """Called when a process of another class has become one of this.

        *state* are its attributes, which it has still.
        """

    def handle_info(self, message: Any) -> Any:
        """Take any message that is no call and no cast; this one only logs it."""
        log.info("%s has no handler for %.200r", self.pid, message)

    def handle_call(self, request: Any, caller: ProcessCall) -> Any:
        """Answer a call: by what this returns, or later by ``caller.reply`` where it returns NO_REPLY."""
        raise NotSupported(f"{type(self).__name__} takes no {type(request).__name__}", hint="define handle_call")

    def handle_cast(self, message: Any) -> Any:
        """Take a cast; this one only logs it."""
        log.info("%s has no handler for the cast %.200r", self.pid, message)


class FunctionProcess(Process):
    """A process that is an ``async`` function: ``spawn(function, *args)`` calls ``function(me, *args)``."""

    __slots__ = ()
    runs_a_function = True

    async def run(self) -> None:
        """Never called: the function is."""


def attributes_of(process: Process) -> dict[str, Any]:
    """The attributes of a process, in ``__slots__`` too: its state."""
    found = dict(getattr(process, "__dict__", {}))
    for name in getattr(LightProcess, "__annotations__", ()):  # the plain core keeps its own there
        found.pop(name, None)
    for base in type(process).__mro__:
        for name in vars(base).get("__slots__", ()):
            if not name.startswith("__") and hasattr(process, name):
                found[name] = getattr(process, name)
    return found
