"""A server: one process's state, its handlers, and calls to other servers, free of any transport.

OTP's gen_server without the process: handlers get a message and give a reply; ``start`` is OTP's
``init``, ``stop`` its ``terminate``. A handler may be ``async def``; it then runs interleaved with others
at its ``await`` points, all in one thread. The process around it is a :class:`Runtime`: a Thespian actor
(``actor.py``) in production, an in-process one (``inline.py``) in tests and embedding.

A handler that raises an :class:`ActorGridError` answers its caller with it and lives on. Any other
exception is a broken invariant: the caller gets :class:`ActorDown` and the runtime lets the process crash.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from actorgrid.errors import ActorDown, ActorGridError, CallTimeout, NoSuchActor

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)

CALL, CAST, REPLY, ERROR = "call", "cast", "reply", "error"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What travels between servers. ``ref`` ties a reply to its call; a reply nobody waits for is dropped."""

    kind: str
    sender: str
    ref: tuple[int, int] | None
    body: Any


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """Ask any server for its figures: ``{name: number}``."""


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Ask any server how it is: plain values, for people."""


@dataclass(frozen=True, slots=True)
class SettingChanged:
    """A live setting has a new value, already committed."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Beat:
    """Cast to ``fault_detector`` by every server's runtime, from its message loop."""

    name: str
    pid: int
    handled: int


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Never call it; harmless when it was called already."""


class Runtime(Protocol):
    """What a server may ask of the process it lives in. All callbacks run in the server's thread."""

    def send(self, to: str, envelope: Envelope) -> None:
        """Queue for the server named *to*; raises NoSuchActor or MailboxFull."""

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, no earlier than *delay_s* from now."""

    def watch(
        self, fd: int, on_readable: Callable[[], None] | None, on_writable: Callable[[], None] | None = None
    ) -> None:
        """Call back while *fd* is ready (level-triggered); replaces an earlier watch of the same fd."""

    def unwatch(self, fd: int) -> None:
        """Forget *fd*; harmless when it was not watched."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back."""

    def crash(self, error: BaseException) -> None:
        """Let the process die of *error* after the current handler."""


class Waiter:
    """One awaited answer: what a handler's ``await self.call(...)`` suspends on."""

    __slots__ = ("_callback", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callback: Callable[[], None] | None = None

    def set(self, value: Any) -> None:
        """Give the value; a second answer is ignored."""
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        """Raise *error* where it is awaited; a second answer is ignored."""
        self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        if self._callback is not None:
            self._callback()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back when answered (at once if it was already)."""
        if self.done:
            callback()
        else:
            self._callback = callback

    def result(self) -> Any:
        """The value, or the error raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Waiter, None, Any]:
        if not self.done:
            yield self
        return self.result()


def handles(message_type: type) -> Callable[[F], F]:
    """Mark a method as the handler of one message type.

    The method takes the message, and the caller's name too if it has a second parameter. Its return value
    is the reply; for a cast it is dropped.
    """

    def mark(method: F) -> F:
        method.__dict__.setdefault("handled_types", []).append(message_type)
        return method

    return mark


class Server:
    """Base of every server: subclasses set ``name``, mark handlers with ``@handles`` and keep state."""

    name: ClassVar[str] = "server"
    max_handler_s: ClassVar[float] = 5.0
    _handlers: ClassVar[dict[type, tuple[str, bool]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        table: dict[type, tuple[str, bool]] = {}
        for base in reversed(cls.__mro__):
            for attribute, method in vars(base).items():
                for message_type in getattr(method, "handled_types", ()):
                    table[message_type] = (attribute, len(inspect.signature(method).parameters) > 2)
        cls._handlers = table

    def __init__(self, host: Any, runtime: Runtime) -> None:
        self.host = host
        self.runtime = runtime
        self.log = logging.getLogger(f"actorgrid.{self.name}")
        self.handled = 0
        self._call_refs = itertools.count(1)
        self._open_calls: dict[tuple[int, int], tuple[Waiter, Timer, str]] = {}
        # Tells our calls from those of the process that had this name before: its late replies match nothing.
        self._call_boot = int.from_bytes(os.urandom(6), "big")

    # -- for subclasses to override

    def start(self) -> Any:
        """Build the state; may be ``async def``. Raising stops the host's start with that reason."""

    def stop(self, reason: str) -> Any:
        """Let go in order; may be ``async def``. Not called after a crash, nor before ``start`` has ended."""

    def peer_restarted(self, name: str) -> None:
        """Another server came back with empty hands: what it was told must be told again."""

    def setting_changed(self, key: str) -> None:
        """``self.host.settings`` holds a new value for *key*."""

    def metrics(self) -> dict[str, float]:
        """Figures for ``/metrics``; counters end in ``_total``."""
        return {}

    def status(self) -> dict[str, Any]:
        """Plain values for people."""
        return {}

    # -- for handlers to use

    def cast(self, to: str, message: Any) -> bool:
        """Send without an answer; ``False`` when there is no such server right now or its queue is full."""
        try:
            self.runtime.send(to, Envelope(CAST, self.name, None, message))
        except (NoSuchActor, ActorGridError):
            return False
        return True

    def call(self, to: str, request: Any, timeout_s: float = 5.0) -> Waiter:
        """Await the answer of server *to*. Raises what it raised, CallTimeout, or NoSuchActor."""
        waiter = Waiter()
        ref = (self._call_boot, next(self._call_refs))
        timer = self.runtime.after(timeout_s, lambda: self._expire_call(ref, to, request, timeout_s))
        self._open_calls[ref] = (waiter, timer, to)
        try:
            self.runtime.send(to, Envelope(CALL, self.name, ref, request))
        except ActorGridError as error:
            self._settle_call(ref, None, error)
        return waiter

    def sleep(self, delay_s: float) -> Waiter:
        """Await the passing of time without blocking other handlers."""
        waiter = Waiter()
        self.runtime.after(delay_s, lambda: waiter.set(None))
        return waiter

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run *work* in the background; an ActorGridError it raises is logged, anything else crashes us."""
        self._advance_work(work, self._background_done)

    def every(self, interval_s: float, action: Callable[[], Any]) -> None:
        """Call *action* (or run its coroutine) again and again, *interval_s* after it last ended."""

        async def loop() -> None:
            while True:
                await self.sleep(interval_s)
                result = action()
                if inspect.iscoroutine(result):
                    try:
                        await result
                    except ActorGridError as error:
                        self.log.warning("periodic %s: %s", getattr(action, "__name__", action), error)

        self.spawn(loop())

    # -- for runtimes to drive

    def begin(self, done: Callable[[BaseException | None], None]) -> None:
        """Run ``start`` to its end, then call *done* with what it raised, if anything."""
        try:
            result = self.start()
        except Exception as error:  # noqa: BLE001 - the outermost loop: a failed start is told to the supervisor
            done(error)
            return
        if inspect.iscoroutine(result):
            self._advance_work(result, lambda _, error: done(error))
        else:
            done(None)

    def fail_calls(self, to: str, error: ActorGridError) -> None:
        """End all open calls to server *to* with *error*: its process is gone and will not answer."""
        for ref in [ref for ref, (_waiter, _timer, callee) in self._open_calls.items() if callee == to]:
            self._settle_call(ref, None, error)

    def deliver(self, envelope: Envelope) -> None:
        """Take one message from the runtime."""
        self.handled += 1
        if envelope.kind in (REPLY, ERROR):
            if envelope.ref is not None:
                failed = envelope.kind == ERROR
                self._settle_call(envelope.ref, None if failed else envelope.body, envelope.body if failed else None)
            return
        entry = self._handlers.get(type(envelope.body))
        if entry is None:
            self._answer_call(
                envelope, None, ActorGridError(f"{self.name} does not take {type(envelope.body).__name__}")
            )
            return
        attribute, wants_sender = entry
        method = getattr(self, attribute)
        try:
            result = method(envelope.body, envelope.sender) if wants_sender else method(envelope.body)
        except Exception as error:  # noqa: BLE001 - the outermost loop: _answer_call decides between reply and crash
            self._answer_call(envelope, None, error)
            return
        if inspect.iscoroutine(result):
            self._advance_work(result, lambda value, error: self._answer_call(envelope, value, error))
        else:
            self._answer_call(envelope, result, None)

    def _answer_call(self, envelope: Envelope, value: Any, error: BaseException | None) -> None:
        expected = error is None or isinstance(error, ActorGridError)
        if not expected:
            self.log.error("%s crashed on %s", self.name, type(envelope.body).__name__, exc_info=error)
        if envelope.kind == CALL:
            if error is None:
                body, kind = value, REPLY
            else:
                body, kind = (error if expected else ActorDown(f"{self.name} crashed: {error!r}")), ERROR
            try:
                self.runtime.send(envelope.sender, Envelope(kind, self.name, envelope.ref, body))
            except ActorGridError:
                self.log.info("reply to %s dropped: it is gone", envelope.sender)
        elif error is not None and expected:
            self.log.warning("cast %s from %s: %s", type(envelope.body).__name__, envelope.sender, error)
        if error is not None and not expected:
            self.runtime.crash(error)

    def _background_done(self, _value: Any, error: BaseException | None) -> None:
        if error is None:
            return
        if isinstance(error, ActorGridError):
            self.log.warning("background work of %s ended: %s", self.name, error)
            return
        self.log.error("%s crashed in background work", self.name, exc_info=error)
        self.runtime.crash(error)

    def _advance_work(self, work: Coroutine[Any, Any, Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            waiter = work.send(None)
        except StopIteration as end:
            done(end.value, None)
            return
        except Exception as error:  # noqa: BLE001 - handed to *done*, which replies or crashes
            done(None, error)
            return
        waiter.on_done(lambda: self._advance_work(work, done))

    def _expire_call(self, ref: tuple[int, int], to: str, request: Any, timeout_s: float) -> None:
        error = CallTimeout(
            f"{to} did not answer {type(request).__name__} in {timeout_s:g} s",
            hint="it may be restarting; whether it acted is unknown",
        )
        self._settle_call(ref, None, error)

    def _settle_call(self, ref: tuple[int, int], value: Any, error: BaseException | None) -> None:
        entry = self._open_calls.pop(ref, None)
        if entry is None:
            return
        waiter, timer, _to = entry
        timer.cancel()
        if error is not None:
            waiter.fail(error)
        else:
            waiter.set(value)

    @handles(GetMetrics)
    def _get_metrics(self, _request: GetMetrics) -> dict[str, float]:
        return self.metrics()

    @handles(GetStatus)
    def _get_status(self, _request: GetStatus) -> dict[str, Any]:
        return self.status()

    @handles(SettingChanged)
    def change_setting(self, change: SettingChanged) -> None:
        """Take over a committed value; told by the ledger's followers and by ClusterManager."""
        if self.host.settings.get(change.key) == change.value:
            return
        self.host.settings.set_live(change.key, change.value)
        self.setting_changed(change.key)
