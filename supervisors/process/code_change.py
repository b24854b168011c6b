"""New code for living processes: each becomes one of another class, between two messages, and keeps its attributes.

    change = change_code(shard, Counter, CounterV2, share=0.1)     # a tenth of them, for a start
    shard.wait_until(lambda: change.done)
    change.widen(1.0)                                               # now all, and those that are begun from now on

A process handles no message while it changes. The new class's ``code_change(self, old_version, state)`` may give it
what it lacks; *state* is a copy of its attributes, and *old_version* the old class's ``version``. A change has failed
when that raises, when it is interrupted because it runs too long, or when an attribute that the new class declares
(``total: int`` in its body) is not there afterwards: the process then is as it was, of the old class and with the
attributes of before. (What they refer to is not copied: set an attribute anew instead of changing what it holds.)

One failure too many, or one crash too many of changed processes, takes the whole change back. Old and new live side by
side meanwhile. Who calls notices nothing but the time that a change takes.

A process whose life is a coroutine changes where it waits for a message, if its class and the new one have
``async def resume(self)``: the old coroutine is closed there, and *resume* of the new class goes on, from the
attributes. One without that, or that is a function, goes on with its old code, as in Erlang one that never makes a
fully qualified call; those that are begun from then on are of the new class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actorgrid.errors import BadRequest
from actorgrid.hotpath.light import Order, Pid

from ..code_change import attributes_declared_by
from .base import Process, attributes_of

if TYPE_CHECKING:
    from .shard import Shard

FAILURES_KEPT_MAX = 100
CHANGES_KEPT_MAX = 100
"""Crashes of processes of a class that so many changes came after count for none of them."""


@dataclass(frozen=True, slots=True)
class FailedChange:
    """A process that could not be changed, and is as it was."""

    pid: Pid
    error: BaseException


Outcome = Callable[[Process, BaseException | None], None]


class CodeChange:
    """One change under way or done; ``change_code`` makes it. Counts are of the processes of this shard."""

    def __init__(
        self, shard: Shard, old: type[Process], new: type[Process], failures_max: int, crashes_max: int
    ) -> None:
        self.shard = shard
        self.old, self.new = old, new
        self.failures_max = failures_max
        self.crashes_max = crashes_max
        self.changed = 0
        self.skipped = 0
        """Those whose life is a coroutine that cannot be resumed."""
        self.crashed = 0
        self.failed: list[FailedChange] = []
        """The first hundred."""
        self.failures = 0
        self.taken_back = False
        self.share = 0.0
        self._asked: set[Pid] = set()
        self._waiting: dict[Pid, int] = {}  # how many orders to change lie in its mailbox
        self._stays = hasattr(old, "run") and not (hasattr(old, "resume") and hasattr(new, "resume"))

    @property
    def done(self) -> bool:
        """Whether nobody is still to be changed, or changed back."""
        return not self._waiting

    def widen(self, share: float) -> None:
        """Change more of them, up to this share of all.

        At 1.0, those that are begun from now on are of the new class.
        """
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise BadRequest("this is no share", asked=repr(share), hint="more than 0, at most 1")
        if self.taken_back:
            raise BadRequest(f"the change to {self.new.__name__} was taken back", hint="begin another")
        self.share = max(self.share, float(share))
        mine = [process for process in self.shard.core.processes() if type(process) in (self.old, self.new)]
        # At least one, where there is one: a share that changes nobody would show nothing.
        more = max(1, round(self.share * len(mine))) - len(self._asked)
        for process in mine:
            if more <= 0:
                break
            if process.pid not in self._asked and type(process) is self.old:
                more -= 1
                self._asked.add(process.pid)
                self._order(process, self.old, self.new, self._changed)
        if self.share == 1.0:
            self.shard.core.replace_class(self.old, self.new)

    def take_back(self) -> None:
        """Give all the old code again, by the old class's ``code_change``; harmless when that was done."""
        if self.taken_back:
            return
        self.taken_back = True
        self.shard.core.replace_class(self.old, self.old)
        for process in self.shard.core.processes():
            if type(process) is self.new:
                self._order(process, self.new, self.old, self._changed_back)

    def crashed_one(self) -> None:
        """Take note that a process of the new class crashed."""
        self.crashed += 1
        if self.crashed > self.crashes_max:
            self.take_back()

    def ended_one(self, pid: Pid) -> None:
        """Take note that a process has ended, and changes no more."""
        if self._waiting.pop(pid, None) is not None and not self._waiting:
            self.shard.changing.discard(self)

    def _order(self, process: Any, old: type[Process], new: type[Process], outcome: Outcome) -> None:
        if self._stays:
            self.skipped += 1
            return
        self._waiting[process.pid] = self._waiting.get(process.pid, 0) + 1
        self.shard.changing.add(self)

        def change(me: Any) -> None:
            left = self._waiting.get(me.pid, 1) - 1
            if left:
                self._waiting[me.pid] = left
            else:
                self.ended_one(me.pid)
            # One that was taken back meanwhile is not even tried: each might hang as long as the first.
            if type(me) is old and not (self.taken_back and new is self.new):
                outcome(me, change_process(self.shard, me, new))

        self.shard.core.tell(process, Order(change))

    def _changed(self, process: Process, error: BaseException | None) -> None:
        if error is None:
            self.changed += 1
            return
        self.failures += 1
        if len(self.failed) < FAILURES_KEPT_MAX:
            self.failed.append(FailedChange(process.pid, error))
        if self.failures > self.failures_max:
            self.take_back()

    def _changed_back(self, process: Process, error: BaseException | None) -> None:
        if error is None:
            self.changed -= 1
        elif len(self.failed) < FAILURES_KEPT_MAX:
            self.failed.append(FailedChange(process.pid, error))


def change_code(
    shard: Shard,
    old: type[Process],
    new: type[Process],
    share: float = 1.0,
    *,
    failures_max: int = 0,
    crashes_max: int = 3,
) -> CodeChange:
    """Begin to change processes of exactly the class *old* to *new*; see the module. Raises BadRequest.

    It is taken back at more than *failures_max* failures, or more than *crashes_max* crashes of processes of the new
    class.
    """
    for kind in (old, new):
        if not isinstance(kind, type) or not issubclass(kind, Process):
            raise BadRequest("this is no class of processes", asked=repr(kind)[:200], hint="derive it from GenServer")
    if hasattr(old, "run") != hasattr(new, "run"):
        raise BadRequest(
            f"of {old.__name__} and {new.__name__} one lives in a coroutine, and one has handlers",
            hint="processes stay of their kind: start those of the new class beside the old",
        )
    before = shard.changes.get(old)
    if before is not None and not before.done:
        raise BadRequest(f"not all have become {old.__name__} yet", hint="wait until that change is done")
    change = CodeChange(shard, old, new, failures_max, crashes_max)
    shard.changes[new] = change
    if len(shard.changes) > CHANGES_KEPT_MAX:
        del shard.changes[next(iter(shard.changes))]
    change.widen(share)
    return change


def change_process(shard: Shard, process: Process, new: type[Process]) -> BaseException | None:
    """Make *process*, which handles nothing now, one of *new*; gives the error of a change that failed."""
    old: Any = type(process)
    state = attributes_of(process)
    successor: Any = None
    try:
        process.__class__ = new
        process.code_change(old.version, dict(state))
        if hasattr(new, "run"):
            successor = process.resume()  # type: ignore[attr-defined]
            if not inspect.iscoroutine(successor):
                raise BadRequest(f"{new.__name__}.resume is no coroutine", hint="async def resume(self)")
        missing = [name for name in declared_fields(new) if not hasattr(process, name)]
        if missing:
            raise BadRequest(f"{new.__name__} declares {', '.join(missing)}, which is not there after the change")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the user's code_change raises, the process is as it was
        if inspect.iscoroutine(successor):
            successor.close()
        process.__class__ = old
        for name in attributes_of(process).keys() - state.keys():
            delattr(process, name)
        for name, value in state.items():
            setattr(process, name, value)
        return error
    shard.core.take_class_anew(process)
    if successor is not None:
        shard.core.go_on_with(process, successor)
    return None


def declared_fields(kind: type) -> list[str]:
    """The attributes that a class and its bases declare, up to Process."""
    return attributes_declared_by(reversed(kind.__mro__[: kind.__mro__.index(Process)]))
