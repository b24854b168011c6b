"""A light process as others see it, in plain Python: what it may do, and what is read of its class.

``process_core.py`` beside this file gives it its turns, and says what the two kinds of processes are.
"""

from __future__ import annotations

from collections import deque
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar

from actorgrid.errors import BadRequest, NoSuchActor

from .process_records import PRIORITY, Pid, ProcessCall, ProcessCast, Receive, SendTimer, Waiting

if TYPE_CHECKING:
    from .process_core import ProcessCore

SLICE_MAX = 1_000_000
ON_FULL = ("refuse", "drop_oldest", "exit")


class Behaviour:
    """What is known of a class of processes: read once."""

    def __init__(self, kind: type) -> None:
        if not issubclass(kind, LightProcess):
            raise BadRequest(f"{kind!r} is no class of processes", hint="derive it from Process or GenServer")
        main = getattr(kind, "run", None)
        self.coroutine = main is not None
        self.start = main or getattr(kind, "begin", None) or getattr(kind, "init", None)
        self.message = getattr(kind, "handle_info", None)
        self.call = getattr(kind, "handle_call", None)
        self.cast = getattr(kind, "handle_cast", None)
        self.function = bool(getattr(kind, "runs_a_function", False))
        self.limit = _checked(kind, "mailbox_limit", 1, 1 << 30)
        self.slice = _checked(kind, "slice_messages", 1, SLICE_MAX)
        self.on_full = _word(kind, "on_full", ON_FULL)
        self.level = PRIORITY[_word(kind, "priority", tuple(PRIORITY))]


def _checked(kind: type, name: str, least: int, most: int) -> int:
    value = getattr(kind, name)
    if not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(
            f"{kind.__qualname__}.{name} is out of range", asked=repr(value), hint=f"a whole number, {least} to {most}"
        )
    return value


def _word(kind: type, name: str, words: tuple[str, ...]) -> str:
    value = getattr(kind, name)
    if not isinstance(value, str) or value not in words:
        raise BadRequest(
            f"{kind.__qualname__}.{name} is not known", asked=repr(value), hint="one of " + ", ".join(words)
        )
    return value


class LightProcess:
    """Base of all processes: what they say to others. Never made by hand: ``spawn`` makes them.

    Class attributes: ``mailbox_limit``; ``on_full``: ``refuse``, ``drop_oldest`` or ``exit``; ``priority``: ``max``,
    ``high``, ``normal`` or ``low``; ``slice_messages``, how many messages are handled in a turn.
    """

    mailbox_limit: ClassVar[int] = 10_000
    on_full: ClassVar[str] = "refuse"
    priority: ClassVar[str] = "normal"
    slice_messages: ClassVar[int] = 256

    pid: Pid
    parent: Pid | None
    attachments: Any
    """What the layers above keep with it."""
    _core: ProcessCore | None
    _behaviour: Behaviour
    _mail: deque[Any]
    _running: CoroutineType[Any, Any, Any] | None
    _awaited: Any
    _answering: ProcessCall | None
    _deferred: dict[ProcessCall, None] | None
    _phase: str
    _level: int
    _flags: set[str]
    _left: int
    _reduced: int

    def living(self) -> ProcessCore:
        """The core it lives in. Raises NoSuchActor when it has ended."""
        if self._core is None:
            raise NoSuchActor(f"process {self.pid} has ended", hint="only a living process sends, calls and waits")
        return self._core

    def send(self, to: Any, message: Any) -> bool:
        """Send *message* to a Pid or name; ``True`` when it is in the mailbox, ``False`` when it is refused or lost."""
        return self.living().send(to, message)

    def cast(self, to: Any, message: Any) -> bool:
        """``send`` to the other's ``handle_cast``."""
        return self.living().send(to, ProcessCast(message))

    def call(self, to: Any, request: Any, timeout_s: float | None = 5.0) -> ProcessCall:
        """Await this: the answer of *to*. Raises what it raised, CallTimeout, ActorDown, NoSuchActor or MailboxFull."""
        return self.living().place_call(self, to, request, timeout_s, None, None)

    def send_request(self, to: Any, request: Any, label: Any = None, timeout_s: float | None = 5.0) -> None:
        """``call`` without waiting: a CallReply with this *label* comes as a message."""
        self.living().place_call(self, to, request, timeout_s, (label,), None)

    def receive(self, wanted: Any = None, timeout_s: float | None = None) -> Receive:
        """Await this: the oldest message, or the oldest that is *wanted*. Raises ReceiveTimeout."""
        self.living()
        return Receive(self, wanted, timeout_s)

    def sleep(self, delay_s: float) -> Waiting:
        """Await this: *delay_s* seconds. Messages wait meanwhile."""
        waiting = Waiting(self)
        waiting.timer = self.living().set_timer(delay_s, waiting)
        return waiting

    def send_after(self, delay_s: float, to: Any, message: Any) -> SendTimer:
        """``send`` in *delay_s* seconds, unless the timer that this gives is cancelled."""
        return self.living().send_after(delay_s, to, message)

    def spawn(self, kind: Any, *args: Any) -> Pid:
        """Begin a process of that class, or of an ``async`` function that takes it first; gives its Pid."""
        return self.living().spawn(kind, args, self.pid).pid

    def spin(self, reductions: int) -> None:
        """Count that much more work against the slice of this turn."""
        self._left -= reductions

    def hibernate(self) -> None:
        """Give back what the mailbox once needed and does not need now."""

    @property
    def hooks(self) -> Any:
        """What the core it lives in was made with. Raises NoSuchActor when it has ended."""
        return self.living().hooks

    @property
    def mailbox_length(self) -> int:
        """How many messages wait."""
        return len(self._mail)

    @property
    def reductions(self) -> int:
        """Messages handled, and what ``spin`` added."""
        return self._reduced + (self._behaviour.slice - self._left if self._phase == "running" else 0)

    @property
    def status(self) -> str:
        """``ready``, ``running``, ``waiting`` for messages, ``awaiting`` something else, or ``ended``."""
        return self._phase

    @property
    def is_held(self) -> bool:
        """Whether it is suspended."""
        return "held" in self._flags

    @property
    def has_started(self) -> bool:
        """Whether its ``init`` has ended well; of a coroutine, whether it has waited for something."""
        return "starting" not in self._flags

    @property
    def running_coroutine(self) -> Any:
        """The coroutine that runs for it, or ``None``."""
        return self._running

    def owe(self, call: ProcessCall) -> None:
        """Have the call, to answer it later; if we end before, whoever asked is told."""
        call.holder = self
        if self._deferred is None:
            self._deferred = {}
        self._deferred[call] = None

    def make_ready(self) -> None:
        """Put it into the run queue."""
        self._phase = "ready"
        self.living().ready.push(self, self._level)
