"""What light processes are known by, wait for and are sent, in plain Python: pids, calls, receives, timers.

The kernel has all of it in ``process_core.pyx``; ``process_core.py`` beside this file runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorGridError, BadRequest, ReceiveTimeout

if TYPE_CHECKING:
    from .light_process import LightProcess
    from .process_core import ProcessCore

SECONDS_MAX = 1e9
PENDING, DONE, FAILED = 0, 1, 2
PRIORITY = {"max": 0, "high": 1, "normal": 2, "low": 3}


class NoReply:
    """What ``handle_call`` returns to answer later: ``caller.reply(value)``."""

    def __repr__(self) -> str:
        return "NO_REPLY"

    def __reduce__(self) -> str:
        return "NO_REPLY"


NO_REPLY = NoReply()


class ShardAddress:
    """The name of a host, and the number of one of its shards: never another's, not even after a restart."""

    __slots__ = ("host", "shard")

    def __init__(self, host: str, shard: int) -> None:
        if not isinstance(host, str) or not 0 <= shard < 1 << 64:
            raise OverflowError(f"no shard has the number {shard} of {host!r}")
        self.host = host
        self.shard = shard

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardAddress, (self.host, self.shard)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardAddress) and (self.host, self.shard) == (other.host, other.shard)

    def __hash__(self) -> int:
        return hash((self.host, self.shard))

    def __repr__(self) -> str:
        return f"{self.host}.{self.shard}"


class Pid:
    """One process, for ever: host, shard, its number there, and which process this is that has the number.

    Equal where all four are. It may be sent, kept and pickled; that of a dead process stays valid as its name.
    """

    __slots__ = ("address", "generation", "id", "process")

    def __init__(self, address: ShardAddress, id: int, generation: int) -> None:
        if not isinstance(address, ShardAddress):
            raise TypeError("a pid begins with a ShardAddress")
        if not 0 <= id < 1 << 32 or not 0 <= generation < 1 << 64:
            raise OverflowError(f"no process has the number {id} in generation {generation}")
        self.address = address
        self.id = id
        self.generation = generation
        self.process: LightProcess | None = None

    @property
    def host(self) -> str:
        """The name of its host."""
        return self.address.host

    @property
    def shard(self) -> int:
        """The number of its shard, which no other shard of that host ever has, not even after a restart."""
        return self.address.shard

    def __reduce__(self) -> tuple[Any, ...]:
        return Pid, (self.address, self.id, self.generation)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pid):
            return NotImplemented
        return (self.id, self.generation, self.address) == (other.id, other.generation, other.address)

    def __hash__(self) -> int:
        return hash((self.address.shard, self.id, self.generation))

    def __repr__(self) -> str:
        return f"<{self.address!r}.{self.id}.{self.generation}>"


class Waiting:
    """Something awaited that comes once; ``settle`` and ``fail`` bring it."""

    def __init__(self, process: LightProcess | None) -> None:
        self.process = process
        self.value: Any = None
        self.timer = -1
        self.outcome_state = PENDING

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]  # an iterator is enough

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.outcome_state == DONE:
            raise StopIteration(self.value)
        if self.outcome_state == FAILED:
            raise self.value
        return self

    @property
    def done(self) -> bool:
        """Whether it has come."""
        return self.outcome_state != PENDING

    def settle(self, value: Any) -> bool:
        """Bring the value; ``False`` when something was brought already."""
        return self._bring(value, DONE)

    def fail(self, error: BaseException) -> bool:
        """Raise *error* where this is awaited; ``False`` when something was brought already."""
        return self._bring(error, FAILED)

    def _bring(self, value: Any, state: int) -> bool:
        if self.outcome_state != PENDING:
            return False
        process, self.process = self.process, None
        self.outcome_state, self.value = state, value
        self.wake(process)
        return True

    def wake(self, process: LightProcess | None) -> None:
        """Let the one who waits go on."""
        if process is not None and process._awaited is self and process._phase == "awaiting":
            process.make_ready()


class ProcessCall(Waiting):
    """A call: what is asked, who asks, the answer. Whoever asks awaits it; ``handle_call`` gets it as its caller."""

    def __init__(
        self,
        core: ProcessCore,
        process: LightProcess | None,
        server: Any,
        request: Any,
        timeout_s: float | None,
        label: tuple[Any] | None,
        on_answer: Callable[[ProcessCall], None] | None,
    ) -> None:
        super().__init__(process)
        self.core = core
        self.server = server
        self.request = request
        self.timeout_s = timeout_s
        self.label = label
        self.on_answer = on_answer
        self.holder: LightProcess | None = None

    @property
    def pid(self) -> Pid | None:
        """Who asks; ``None`` when that is no process of this shard."""
        return self.process.pid if self.process is not None else None

    def reply(self, value: Any) -> bool:
        """Answer; ``False`` when it was answered, has timed out, or nobody waits any more."""
        return self._bring(value, DONE)

    @property
    def outcome(self) -> tuple[Any, BaseException | None]:
        """(value, error) once it is done."""
        return (None, self.value) if self.outcome_state == FAILED else (self.value, None)

    def _bring(self, value: Any, state: int) -> bool:
        holder, self.holder = self.holder, None
        if holder is not None and holder._deferred is not None:
            holder._deferred.pop(self, None)
        process = self.process
        if self.outcome_state != PENDING:
            return False
        self.outcome_state, self.value, self.process = state, value, None
        self.core.cancel(self)
        if process is not None:
            if process._awaited is self:
                self.wake(process)
            elif self.label is not None and process._core is not None:
                self.core.tell(process, self.core.hooks.reply_message(self))
        elif self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer(self)
        return True


class Receive(Waiting):
    """The oldest message of the mailbox, or the oldest that is *wanted*: of a class, or as a function says."""

    def __init__(self, process: LightProcess, wanted: Any, timeout_s: float | None) -> None:
        super().__init__(process)
        self.wanted = wanted
        self.timeout_s = timeout_s
        self.seen = 0

    def __next__(self) -> Any:
        process = self.process
        if self.outcome_state == PENDING and process is not None:
            core = process.living()
            found = self._look(process)
            if process._core is None or core.successor is not None:
                return self
            if not found and self.timeout_s is not None and self.timer < 0:
                if self.timeout_s > 0:
                    self.timer = core.set_timer(self.timeout_s, self)
                elif process._left > 0:
                    self.outcome_state, self.value = FAILED, ReceiveTimeout("no such message is there")
        if self.outcome_state == PENDING:
            return self
        if process is not None and process._core is not None:
            process._core.cancel(self)
        self.process = None
        if self.outcome_state == FAILED:
            raise self.value
        value, self.value = self.value, None
        raise StopIteration(value)

    def _look(self, process: LightProcess) -> bool:
        """Take the message that is wanted out of the mailbox, if it is there."""
        while self.seen < len(process._mail):
            if process._left <= 0:
                return False
            message = process._mail[self.seen]
            if type(message) is Order:
                del process._mail[self.seen]
                message.action(process)
                if process._core is None or process._core.successor is not None:
                    return False
                continue
            if self.wanted is not None:
                if isinstance(self.wanted, (type, tuple)):
                    if not isinstance(message, self.wanted):
                        self.seen += 1
                        continue
                elif not self.wanted(message):
                    self.seen += 1
                    continue
            process._left -= 1
            del process._mail[self.seen]
            self.value, self.outcome_state = message, DONE
            if type(message) is ProcessCall and message.outcome_state == PENDING:
                process.owe(message)
            return True
        return False


class ProcessCast:
    """A message for ``handle_cast``."""

    __slots__ = ("message",)

    def __init__(self, message: Any) -> None:
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessCast, (self.message,)


class Order:
    """Something to be done to a process between two messages, by the shard."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[Any], None]) -> None:
        self.action = action


class SendTimer:
    """A message that is sent later; ``cancel`` it or not."""

    __slots__ = ("core", "message", "timer", "to")

    def __init__(self, core: ProcessCore, to: Any, message: Any) -> None:
        self.core: ProcessCore | None = core
        self.to = to
        self.message = message
        self.timer = -1

    def cancel(self) -> bool:
        """Do not send; ``False`` when it was sent or cancelled already."""
        core, self.core = self.core, None
        if core is None:
            return False
        core.wheel.cancel(self.timer)
        return True


def nanoseconds(delay_s: float) -> int:
    """Seconds in nanoseconds. Raises BadRequest for what is no time, or none that anybody will see the end of."""
    if not isinstance(delay_s, (int, float)) or isinstance(delay_s, bool):
        raise BadRequest("this is no time in seconds", asked=repr(delay_s)[:200], hint="give a number")
    if not 0 <= delay_s <= SECONDS_MAX:
        raise BadRequest("a time out of range", asked=f"{delay_s} s", hint=f"0 to {SECONDS_MAX:g} s")
    return int(delay_s * 1e9)


def level_of(priority: str) -> int:
    """The level of a priority by its name. Raises BadRequest."""
    if not isinstance(priority, str) or priority not in PRIORITY:
        raise BadRequest("there is no such priority", asked=repr(priority)[:200], hint="one of " + ", ".join(PRIORITY))
    return PRIORITY[priority]


def is_expected(error: BaseException) -> bool:
    """Whether an error is an answer to a caller, and no reason to end."""
    return isinstance(error, ActorGridError)
