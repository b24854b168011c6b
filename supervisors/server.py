"""A server: one process's state, its handlers, and calls to other servers, free of any transport.

OTP's gen_server without the process: handlers get a message and give a reply; ``start`` is OTP's
``init``, ``stop`` its ``terminate``. A handler may be ``async def``; it then runs interleaved with others
at its ``await`` points, all in one thread. The process around it is a :class:`Runtime`: a Thespian actor
(``actor.py``) in production, an in-process one (``inline.py``) in tests and embedding.

A handler that raises an :class:`ActorGridError` answers its caller with it and lives on. Any other
exception is a broken invariant: the caller gets :class:`ActorDown` and the runtime lets the process crash.

Another server is named by its registered name or by its :class:`Ref`. A name means whoever has it at the moment of
sending; a Ref means that one process, for ever.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from actorgrid.errors import ActorDown, ActorGridError, CallTimeout, ConfigError, MailboxFull, NoSuchActor, NotSupported

from .envelope import CALL, CAST, ERROR, REPLY, SIGNAL, Batch, Envelope, GetMetrics, GetStatus, SettingChanged
from .exits import NORMAL, ExitReason
from .inspection import SYSTEM_REQUESTS, Inspector, shown_attributes
from .ref import Ref
from .runtime import Runtime, Timer, Waiter
from .signals import (
    Deliver,
    Instruction,
    MonitorRef,
    SendSignal,
    Signals,
    gone,
)

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)


def handles(message_type: type) -> Callable[[F], F]:
    """Mark a method as the handler of one message type.

    The method takes the message, and the sender too if it has a second parameter: its Ref if that is annotated
    ``Ref``, else its name. Its return value is the reply; for a cast it is dropped.
    """

    def mark(method: F) -> F:
        method.__dict__.setdefault("handled_types", []).append(message_type)
        return method

    return mark


def _sender_as(method: Handler) -> str:
    """In which form a handler takes its sender: not at all (``""``), ``name`` or ``ref``."""
    parameters = list(inspect.signature(method).parameters.values())
    if len(parameters) < 3:
        return ""
    return "ref" if parameters[2].annotation in ("Ref", Ref) else "name"


class Server:
    """Base of every server: subclasses set ``name``, mark handlers with ``@handles`` and keep state.

    ``max_handler_s``: a handler that runs longer without an ``await`` is taken for hung, and the process is killed.
    ``version``: what ``code_change`` of the class that follows is told.
    ``trap_exit``: the end of a linked actor comes as an Exited message instead of ending this one.
    """

    name: ClassVar[str] = "server"
    max_handler_s: ClassVar[float] = 5.0
    version: ClassVar[str] = ""
    trap_exit: ClassVar[bool] = False
    _handlers: ClassVar[dict[type, tuple[str, str]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        table: dict[type, tuple[str, str]] = {}
        for base in reversed(cls.__mro__):
            for attribute, method in vars(base).items():
                if base is not Server and hasattr(Server, attribute) and hasattr(method, "handled_types"):
                    raise TypeError(
                        f"{cls.__name__}.{attribute} hides Server.{attribute}: give the handler another name"
                    )
                for message_type in getattr(method, "handled_types", ()):
                    table[message_type] = (attribute, _sender_as(method))
        cls._handlers = table

    def __init__(self, host: Any, runtime: Runtime) -> None:
        self.host = host
        self.runtime = runtime
        self.title = runtime.me.name or self.name  # several servers may be of one class
        self.log = logging.getLogger(f"actorgrid.{self.title}")
        self.handled = 0
        self._call_refs = itertools.count(1)
        self._open_calls: dict[tuple[int, int], tuple[Waiter, Timer, str]] = {}  # the last: the callee's address
        # Tells our calls from those of the process that had this name before: its late replies match nothing.
        self._call_boot = int.from_bytes(os.urandom(6), "big")
        self._signals = Signals(self.trap_exit)
        self._inspector = Inspector(self)
        self.crashed_on: Envelope | None = None  # the message whose handler crashed
        self._base_attributes = frozenset(vars(self)) | {"_base_attributes"}

    # -- for subclasses to override

    def start(self) -> Any:
        """Build the state; may be ``async def``. Raising stops the host's start with that reason."""

    def stop(self, reason: str) -> Any:
        """Let go in order; may be ``async def``. Not called after a crash, nor before ``start`` has ended."""

    def peer_restarted(self, name: str) -> None:
        """Called when another server was started again: what it had been told must be told again."""

    def setting_changed(self, key: str) -> None:
        """Called when ``self.host.settings`` holds a new value for *key*."""

    def code_change(self, old_version: str, state: dict[str, Any]) -> Any:
        """Called when a server of another version's class has become one of this (``code_change.py``).

        *state*: its attributes, which it has still. What this raises takes the change back.
        """

    def metrics(self) -> dict[str, float]:
        """Figures for ``/metrics``; counters end in ``_total``."""
        return {}

    def status(self) -> Mapping[str, Any]:
        """What ``actorgrid inspect`` shows of this server, in plain values; override it to say more."""
        return {}

    def format_state(self) -> dict[str, str]:
        """What GetState shows: every attribute of the subclass, cut short, secrets hidden by their name."""
        return shown_attributes(self, self._base_attributes)

    # -- for handlers to use: messages

    @property
    def me(self) -> Ref:
        """The reference to this process."""
        return self.runtime.me

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments that the child spec, and StartChild after it, gave this server."""
        return self.runtime.arguments

    def cast(self, to: str | Ref, message: Any) -> bool:
        """Send without an answer; ``False`` when there is no such server right now or its queue is full."""
        try:
            self._send(to, Envelope(CAST, self.title, None, message))
        except ActorGridError:
            return False
        return True

    def cast_all(self, to: str | Ref, batch: Batch) -> bool:
        """Cast several messages, which travel as one and are handled in their order; ``False``: none of them went."""
        return self.cast(to, batch)

    def cast_after(self, delay_s: float, to: str | Ref, message: Any) -> Timer:
        """``erlang:send_after``: cast once *delay_s* have passed, unless the timer is cancelled before."""

        def send() -> None:
            self.cast(to, message)

        return self.runtime.after(delay_s, send)

    def call(self, to: str | Ref, request: Any, timeout_s: float = 5.0) -> Waiter:
        """Await the answer of *to*. Raises what it raised, CallTimeout, ActorDown, NoSuchActor or MailboxFull.

        A late answer is dropped: it never answers a later call.
        """
        waiter = Waiter()
        ref = (self._call_boot, next(self._call_refs))
        try:
            address = self._send(to, Envelope(CALL, self.title, ref, request))
        except ActorGridError as error:
            waiter.fail(error)
            return waiter
        timer = self.runtime.after(timeout_s, lambda: self._expire_call(ref, to, request, timeout_s))
        self._open_calls[ref] = (waiter, timer, address)
        return waiter

    def await_capacity(self, to: str | Ref) -> Waiter:
        """Await that less than half of the queue to *to* is used: what to do after MailboxFull, or every so often.

        Messages are handled meanwhile, so two servers that flood each other and await capacity cannot deadlock.
        """
        waiter = Waiter()
        self.runtime.when_capacity(to, lambda: waiter.set(None))
        return waiter

    def _send(self, to: str | Ref, envelope: Envelope) -> str:
        address = self.runtime.send(to, envelope)
        self._inspector.saw("out", str(to), envelope)
        return address

    # -- for handlers to use: names

    def register(self, key: str) -> None:
        """Take the unique name *key* on this host until we end or ``unregister`` it. Raises NameTaken, BadRequest."""
        self.runtime.registry.register(key, self.me)

    def unregister(self, key: str) -> None:
        """Give the unique name *key* back; harmless when this server does not have it."""
        self.runtime.registry.unregister(key, self.me)

    def whereis(self, key: str) -> Ref | None:
        """Who has the name *key* now."""
        return self.runtime.registry.whereis(key)

    def join(self, key: str) -> None:
        """Become a member of the group *key* until we end or leave it."""
        self.runtime.registry.join(key, self.me)

    def leave_group(self, key: str) -> None:
        """Leave the group *key*; harmless when this server is no member."""
        self.runtime.registry.leave(key, self.me)

    def members(self, key: str) -> list[Ref]:
        """The living members of the group *key*."""
        return self.runtime.registry.members(key)

    # -- for handlers to use: links, monitors, ends

    def monitor(self, to: str | Ref) -> MonitorRef:
        """Get one Down message when *to* ends, with the reason; at once, of kind ``noproc``, if it is gone already.

        A name is looked up now: the monitor is of that process, not of its successors. Raises Overloaded.
        """
        target = self._find(to)
        monitor, instructions = self._signals.monitor(target)
        self._do(instructions)
        return monitor

    def demonitor(self, monitor: MonitorRef) -> None:
        """End the monitor: no Down comes of it any more. Harmless when it came already."""
        self._do(self._signals.demonitor(monitor))

    def link(self, to: str | Ref) -> None:
        """Share the fate of *to*: when one of us ends other than ``normal``, so does the other (see ``trap_exit``)."""
        self._do(self._signals.link(self._find(to)))

    def unlink(self, to: str | Ref) -> None:
        """Remove the link to *to*; harmless when there is none."""
        self._do(self._signals.unlink(self._find(to)))

    def send_exit(self, to: str | Ref, reason: ExitReason) -> None:
        """``exit/2``: ask *to* to end of *reason*; it may trap all but ``killed``. Nothing happens if it is gone."""
        self._do(self._signals.send_exit(self._find(to), reason))

    def leave(self, reason: ExitReason = NORMAL) -> None:
        """End in order after this handler: ``stop`` is run, then the supervisor, links and monitors hear *reason*."""
        self.runtime.leave(reason)

    def _find(self, to: str | Ref) -> Ref:
        if isinstance(to, Ref):
            return to
        return self.runtime.registry.whereis(to) or Ref("", to)  # the address of nobody

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, SendSignal):
                self._send_signal(instruction)
            elif isinstance(instruction, Deliver):
                # From the loop, not from inside the handler that asked.
                message = instruction.message
                self.runtime.after(0.0, lambda message=message: self._told(message))  # type: ignore[misc]
            else:
                self.runtime.die(instruction.reason)

    def _send_signal(self, instruction: SendSignal) -> None:
        target = instruction.to
        try:
            if self._signals.watches(target.address):
                self.runtime.watch_peer(target)
            self.runtime.send(target, Envelope(SIGNAL, self.title, None, instruction.signal))
        except NoSuchActor:
            self._do(self._signals.ended(target, gone(target)))

    def _told(self, message: Any) -> None:
        if type(message) in self._handlers:
            self.deliver(Envelope(CAST, self.title, None, message, message.ref))
        else:
            self.log.info("nobody handles %s", message)

    # -- for handlers to use: time

    def sleep(self, delay_s: float) -> Waiter:
        """Await *delay_s* seconds without blocking other handlers."""
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
                result = self._latest(action)()
                if inspect.iscoroutine(result):
                    try:
                        await result
                    except ActorGridError as error:
                        self.log.warning("periodic %s: %s", getattr(action, "__name__", action), error)

        self.spawn(loop())

    def _latest(self, action: Callable[[], Any]) -> Callable[[], Any]:
        """The method of our present class in place of that of one before."""
        if inspect.ismethod(action) and action.__self__ is self:
            found: Callable[[], Any] = getattr(self, action.__name__, action)
            return found
        return action

    # -- for a change of code

    def check_can_change(self) -> None:
        """Raise WrongState while our code cannot be changed."""

    def code_changed(self, result: Any) -> None:
        """Take what ``code_change`` gave: the last step of a change. What this raises takes it back."""

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

    def fail_calls(self, ref: Ref, reason: ExitReason | None = None) -> None:
        """End all open calls to the process *ref*: it is gone and will not answer. *reason* if that is known."""
        for call in [call for call, (_waiter, _timer, address) in self._open_calls.items() if address == ref.address]:
            why = f": {reason}" if reason is not None else ""
            self._settle_call(call, None, ActorDown(f"{ref.name or ref.address} died before it answered{why}"))

    def signal_counts(self) -> dict[str, int]:
        """How many monitors and links there are, and open calls."""
        return {"open_calls": len(self._open_calls), **self._signals.counts()}

    def watches(self, address: str) -> bool:
        """Whether this server has to hear of the end of that process, by ``peer_ended``."""
        return self._signals.watches(address)

    def peer_ended(self, ref: Ref, reason: ExitReason) -> None:
        """Deal with the end of the process *ref*, which said nothing to us; *reason* is what its supervisor knows."""
        self._do(self._signals.ended(ref, reason))

    def say_ending(self, reason: ExitReason) -> None:
        """Tell links and monitors that we end."""
        for instruction in self._signals.ending(reason):
            if isinstance(instruction, SendSignal):
                try:
                    self.runtime.send(instruction.to, Envelope(SIGNAL, self.title, None, instruction.signal))
                except ActorGridError as error:  # it hears of our end from the kernel, and why from our supervisor
                    self.log.debug("%s does not hear our last words: %s", instruction.to, error)

    def deliver(self, envelope: Envelope) -> None:
        """Take one message from the runtime."""
        self.handled += 1
        if isinstance(envelope.body, SYSTEM_REQUESTS) and envelope.kind == CALL:
            self._answer_system(envelope)
        elif self._inspector.held is None or envelope.kind == SIGNAL:  # links and exits are not the server's to suspend
            self.deliver_now(envelope)
        else:
            self._inspector.hold(envelope)

    def _answer_system(self, envelope: Envelope) -> None:
        # Past the trace: who looks at it must not fill it.
        try:
            answer = Envelope(REPLY, self.title, envelope.ref, self._inspector.answer(envelope.body))
        except ActorGridError as error:
            answer = Envelope(ERROR, self.title, envelope.ref, error)
        try:
            self.runtime.send(envelope.source or envelope.sender, answer)
        except ActorGridError as error:
            self.log.info("%s does not hear what it asked: %s", envelope.sender, error)

    def deliver_now(self, envelope: Envelope) -> None:
        """Handle one message now."""
        self._inspector.saw("in", envelope.sender, envelope)
        if envelope.kind in (REPLY, ERROR):
            if envelope.ref is not None:
                failed = envelope.kind == ERROR
                self._settle_call(envelope.ref, None if failed else envelope.body, envelope.body if failed else None)
        elif envelope.kind == SIGNAL:
            if envelope.source is not None:
                self._do(self._signals.received(envelope.source, envelope.body))
        else:
            self._handle(envelope)

    def _handle(self, envelope: Envelope) -> None:
        if type(envelope.body) is Batch and envelope.kind == CAST:
            for message in envelope.body.messages:
                self._handle(replace(envelope, body=message))
            return
        entry = self._handlers.get(type(envelope.body))
        if entry is None:
            self.answer_call(envelope, None, NotSupported(f"{self.title} does not take {type(envelope.body).__name__}"))
            return
        attribute, sender_as = entry
        method = getattr(self, attribute)
        try:
            if not sender_as:
                result = method(envelope.body)
            else:
                result = method(envelope.body, envelope.source if sender_as == "ref" else envelope.sender)
        except Exception as error:  # noqa: BLE001 - the outermost loop: answer_call decides between reply and crash
            self.answer_call(envelope, None, error)
            return
        if inspect.iscoroutine(result):
            self._advance_work(result, lambda value, error: self.answer_call(envelope, value, error))
        else:
            self.answer_call(envelope, result, None)

    def answer_call(self, envelope: Envelope, value: Any, error: BaseException | None) -> None:
        """End the handling of *envelope*: reply if it was a call, crash if *error* is a broken invariant."""
        expected = error is None or isinstance(error, ActorGridError)
        if not expected:
            self.crashed_on = envelope  # its supervisor logs it, with all else that is known of the crash
        if envelope.kind == CALL:
            if error is None:
                body, kind = value, REPLY
            else:
                body, kind = (error if expected else ActorDown(f"{self.title} crashed: {error!r}")), ERROR
            try:
                self._send(envelope.source or envelope.sender, Envelope(kind, self.title, envelope.ref, body))
            except ActorGridError as refused:
                self._reply_refused(envelope, refused)
        elif error is not None and expected:
            self.log.warning("cast %s from %s: %s", type(envelope.body).__name__, envelope.sender, error)
        if error is not None and not expected:
            self.runtime.crash(error)

    def _reply_refused(self, envelope: Envelope, refused: ActorGridError) -> None:
        self.log.info("reply to %s dropped: %s", envelope.sender, refused)
        if not isinstance(refused, NoSuchActor | MailboxFull):
            # Too large, most likely: the caller lives and waits, so it is told what became of its answer.
            try:
                self._send(envelope.source or envelope.sender, Envelope(ERROR, self.title, envelope.ref, refused))
            except ActorGridError as error:
                self.log.info("%s is not told either: %s", envelope.sender, error)

    def _background_done(self, _value: Any, error: BaseException | None) -> None:
        if error is None:
            return
        if isinstance(error, ActorGridError):
            self.log.warning("background work of %s ended: %s", self.title, error)
            return
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

    def _expire_call(self, ref: tuple[int, int], to: str | Ref, request: Any, timeout_s: float) -> None:
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

    # -- asked of every server

    @handles(GetMetrics)
    def _get_metrics(self, _request: GetMetrics) -> dict[str, float]:
        return self.metrics()

    @handles(GetStatus)
    def _get_status(self, _request: GetStatus) -> Mapping[str, Any]:
        return self.status()

    @handles(SettingChanged)
    def change_setting(self, change: SettingChanged) -> None:
        """Take over a committed value of a live setting; told by the ledger's subscribers and by ClusterManager.

        One that this version does not take (it knows no such setting, or bounds it otherwise than the version that
        committed it) is passed over, with a warning: it stands in the ledger, and would end this server at every start.
        """
        try:
            if self.host.settings.get(change.key) == change.value:
                return
            self.host.settings.set_live(change.key, change.value)
        except ConfigError as refused:
            self.log.warning("a committed setting is not taken over: %s", refused)
            return
        self.setting_changed(change.key)
