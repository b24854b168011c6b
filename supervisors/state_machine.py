"""State machines as servers: OTP's gen_statem, in Python's form.

A subclass of :class:`StateMachine` names its states and marks methods as handlers of a message in a state. A handler
changes the machine's data (attributes of ``self``) and returns what is to happen: a transition with actions, or
``None`` to stay. The order in which that happens is gen_statem's, step by step: see ``state_machine_core.py``. What a
handler can return: see ``transitions.py``; all of it can be imported from here.

Handlers, state enter calls and ``init`` may be ``async def``. The machine is busy until one has ended, as a gen_statem
is during a call of its own: what comes meanwhile waits, and is handled after it, in order. Requests that any server
answers (GetStatus, GetMetrics and the like) and methods marked ``@handles`` do not wait and see no state; they must not
change what the handlers rely on.

Errors: a handler that raises an :class:`ActorGridError` answers its caller with it and the machine stays in its
state. Any other exception, a transition that cannot be and any exception of a state enter call end the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from actorgrid.errors import ActorDown, ActorGridError, BadRequest, NotSupported, WrongState

from .envelope import CALL, Envelope
from .ref import Ref
from .runtime import Runtime, Timer
from .server import Server
from .state_machine_core import (
    AnswerCall,
    Enter,
    Handle,
    Instruction,
    LeaveProcess,
    Machine,
    MachineEvent,
    RefuseCall,
    StartTimer,
    StopTimer,
)
from .state_machine_definition import AnyState, Definition, Handler, any_state, define
from .transitions import (
    Action,
    Transition,
    cancel_state_timeout,
    cancel_timeout,
    event_timeout,
    keep_state,
    next_event,
    next_state,
    postpone,
    repeat_state,
    state_timeout,
    stop,
    timeout,
)

__all__ = [
    "Action",
    "From",
    "StateMachine",
    "Transition",
    "any_state",
    "cancel_state_timeout",
    "cancel_timeout",
    "event_timeout",
    "keep_state",
    "next_event",
    "next_state",
    "on",
    "on_enter",
    "postpone",
    "repeat_state",
    "state_timeout",
    "stop",
    "timeout",
]

F = TypeVar("F", bound=Callable[..., Any])

_MARKS = "state_machine_marks"


def on(states: str | Iterable[str] | AnyState, message_type: type) -> Callable[[F], F]:
    """Mark a method as the handler of a message type in a state, in several, or in ``any_state``.

    The method takes the message, and the sender too if it has a second parameter: its Ref if that is annotated
    ``Ref``, else its name (its own, for timeouts and inserted events). It returns a transition or ``None``. A
    handler for a state goes before one for any state. Sections "State Callback" and "All State Events".
    """
    return _mark(states, message_type)


def on_enter(states: str | Iterable[str] | AnyState) -> Callable[[F], F]:
    """Mark a method as the state enter call of a state, of several, or of ``any_state``. Section "State Enter Calls".

    It is called when the state changes to that one, when it is repeated, and for the first state. It takes the state
    we come from, if it has a parameter; for the first state and for ``repeat_state`` that is the state itself. It
    may return ``keep_state`` or ``repeat_state`` with timeouts, ``stop``, or ``None``: it may not change the state,
    postpone or insert events.
    """
    return _mark(states, None)


def _mark(states: str | Iterable[str] | AnyState, message_type: type | None) -> Callable[[F], F]:
    frozen = states if isinstance(states, str | AnyState) else tuple(states)

    def mark(method: F) -> F:
        method.__dict__.setdefault(_MARKS, []).append(Handler(method.__name__, frozen, message_type))
        return method

    return mark


def _marks(cls: type, attribute: str) -> list[Handler]:
    """The marks of a method: those of its definition, or of what overrides it."""
    for base in cls.__mro__:
        found: list[Handler] = getattr(vars(base).get(attribute), _MARKS, [])
        if found:
            return found
    return []


def _second(cls: type, mark: Handler) -> str:
    """What a handler takes besides the message: nothing, the sender's ``name`` or ``ref``, or the old ``state``."""
    parameters = list(inspect.signature(getattr(cls, mark.method)).parameters.values())[1:]
    enters = mark.message_type is None
    if not 0 <= len(parameters) - (not enters) <= 1:
        takes = "nothing or the old state" if enters else "the message, and the sender if it wants"
        raise BadRequest(
            f"{cls.__name__}.{mark.method} takes {len(parameters)} arguments besides self", hint=f"it gets {takes}"
        )
    if enters:
        return "state" if parameters else ""
    if len(parameters) < 2:
        return ""
    return "ref" if parameters[1].annotation in ("Ref", Ref) else "name"


class From:
    """A call that is answered later, by ``reply`` or ``reply_error``: gen_statem's ``From``. Made by ``defer``."""

    __slots__ = ("_event",)

    def __init__(self, event: MachineEvent) -> None:
        self._event = event


class StateMachine(Server):
    """Base of every state machine. Subclasses set ``name`` and ``states``, and mark handlers.

    A wrong definition is refused with BadRequest when the class is made: see ``state_machine_definition.py``. A class
    without states and handlers is a base for others. Override ``init``, not ``start``.
    """

    states: ClassVar[tuple[str, ...]] = ()
    _definition: ClassVar[Definition] = Definition()
    _events: ClassVar[frozenset[type]] = frozenset()
    _takes: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        marks = [
            Handler(attribute, mark.states, mark.message_type)
            for attribute in dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
            for mark in _marks(cls, attribute)
        ]
        if cls.start is not StateMachine.start:
            raise BadRequest(f"{cls.__name__} overrides start", hint="override init: start is what calls it")
        if not marks and not cls.states:
            return
        cls._definition = define(cls.__name__, cls.states, marks)
        cls._events = cls._definition.message_types()
        both = sorted(each.__name__ for each in cls._events & cls._handlers.keys())
        if both:
            raise BadRequest(
                f"{cls.__name__} has handlers with @on for what is handled in no state, by @handles",
                asked=", ".join(both),
                hint="requests that every server answers, such as GetStatus, cannot be events",
            )
        cls._takes = {mark.method: _second(cls, mark) for mark in marks}
        # So that Server takes them for handled: it asks before it makes a message of an exit signal.
        cls._handlers = cls._handlers | dict.fromkeys(cls._events, ("_machine", ""))

    def __init__(self, host: Any, runtime: Runtime) -> None:
        super().__init__(host, runtime)
        if not self._definition.states:
            raise BadRequest(f"{type(self).__name__} has no states", hint='set them: states = ("first", "second")')
        self._machine = Machine(self._definition)
        self._initial: Transition | None = None
        self._running: dict[int, tuple[Timer, float]] = {}  # the machine's timers, and when they fire
        self._not_supported = 0
        self._base_attributes |= set(vars(self))

    # -- for subclasses to override

    def init(self) -> Any:
        """Build the data; may be ``async def``. Raising stops the start with that reason. Section "The First State".

        May return ``next_state(name, *actions)`` to begin in another state than the first of ``states``, or
        ``keep_state(*actions)`` to begin there. The process counts as started when this has ended; the state enter
        call and inserted events come after it: insert one for what takes long.
        """

    def status(self) -> dict[str, Any]:
        """State, postponed and waiting events, seconds left for each timer; add to it, do not replace it."""
        now_s = self.runtime.monotonic()
        return {
            "state": self.state,
            "postponed": self._machine.postponed,
            "waiting": self._machine.waiting,
            "dropped": self._machine.dropped,
            "timeouts": {
                str(key): round(max(0.0, self._running[timer_id][1] - now_s), 3) if timer_id in self._running else 0.0
                for timer_id, key in self._machine.timers()
            },
        }

    def metrics(self) -> dict[str, float]:
        """Postponed events now; events dropped, and refused for want of a handler, so far. Add to it."""
        return {
            "postponed_events": self._machine.postponed,
            "dropped_events_total": self._machine.dropped,
            "not_supported_events_total": self._not_supported,
        }

    def format_state(self) -> dict[str, str]:
        """What GetState shows: the state, and every attribute of the subclass."""
        return {"state": self.state, **super().format_state()}

    def code_change(self, old_version: str, state: dict[str, Any]) -> str | None:
        """As a server's; may give the state of the new definition in which it is now. OTP's ``code_change/4``.

        Without one it is in the state that it was in, which the new definition then must have. Timers and postponed
        events stay; no state enter call is made.
        """
        return None

    def check_can_change(self) -> None:
        """Raise WrongState while a handler awaits something: what it returns is of the present definition."""
        if not self._machine.is_waiting:
            raise WrongState(f"{self.title} is within a handler", found=f"state {self.state!r}", hint="ask again soon")

    def code_changed(self, result: Any) -> None:
        """Take the new definition over."""
        self._machine.change_definition(self._definition, self.state if result is None else result)

    # -- for handlers to use

    @property
    def state(self) -> str:
        """The present state; in a state enter call, the one that is entered."""
        return self._machine.state

    def defer(self) -> From:
        """Keep the call that is being handled open, to answer it later, from any state. For handlers of calls only."""
        event = self._machine.event
        assert event is not None and event.kind == "call", "only the handler of a call can defer its answer"
        event.deferred = True
        return From(event)

    def reply(self, caller: From, value: Any) -> bool:
        """Answer a deferred call; ``False`` if it was answered before. Section "All State Events"."""
        return self._settle(caller._event, value, None)

    def reply_error(self, caller: From, error: ActorGridError) -> bool:
        """Answer a deferred call with an error, which is raised at the caller; ``False`` if it was answered before."""
        return self._settle(caller._event, None, error)

    # -- the server's side

    def start(self) -> Any:
        """Run ``init``; not for subclasses to override."""
        result = self.init()
        if inspect.iscoroutine(result):
            return self._await_init(result)
        self._begin_with(result)
        return None

    async def _await_init(self, work: Any) -> None:
        self._begin_with(await work)

    def _begin_with(self, result: Any) -> None:
        self._initial = self._checked(result, "init")
        if self._initial is not None and self._initial.kind == "next":
            self._definition.check(self._initial.state)

    def begin(self, done: Callable[[BaseException | None], None]) -> None:
        """Run ``start``, say so, and enter the first state; events that came meanwhile are handled after it."""

        def started(error: BaseException | None) -> None:
            done(error)
            if error is None:
                self._advance(lambda: self._machine.begin(self._initial))

        super().begin(started)

    def _handle(self, envelope: Envelope) -> None:
        message_type = type(envelope.body)
        if message_type in self._handlers and message_type not in self._events:
            super()._handle(envelope)
            return
        call = envelope.kind == CALL
        event = MachineEvent("call" if call else "cast", envelope.body, envelope, owed=call)
        self._advance(lambda: self._machine.receive(event))

    def _advance(self, step: Callable[[], list[Instruction]] | None) -> None:
        """Feed the machine, and carry out what it says, until it waits for an event or a handler that awaits."""
        while step is not None:
            try:
                instructions = step()
            except AssertionError as error:
                self._die(error)
                return
            step = None
            for instruction in instructions:
                if isinstance(instruction, Handle | Enter):
                    step = self._run(instruction)
                else:
                    self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, AnswerCall):
            self._send_answer(instruction.event, instruction.value, None)
        elif isinstance(instruction, RefuseCall):
            self._not_supported += isinstance(instruction.error, NotSupported)
            self._send_answer(instruction.event, None, instruction.error)
        elif isinstance(instruction, StartTimer):
            timer_id = instruction.timer_id
            timer = self.runtime.after(instruction.delay_s, lambda: self._fire(timer_id))
            self._running[timer_id] = (timer, self.runtime.monotonic() + instruction.delay_s)
        elif isinstance(instruction, StopTimer):
            self._running.pop(instruction.timer_id)[0].cancel()
        elif isinstance(instruction, LeaveProcess):
            self.leave(instruction.reason)

    def _fire(self, timer_id: int) -> None:
        del self._running[timer_id]
        self._advance(lambda: self._machine.fired(timer_id))

    def _run(self, instruction: Handle | Enter) -> Callable[[], list[Instruction]] | None:
        """Call the handler's method. Gives the machine's next step, or nothing while the method awaits."""
        event = instruction.event if isinstance(instruction, Handle) else None
        try:
            result = getattr(self, instruction.method)(*self._arguments_of(instruction))
        except Exception as error:  # noqa: BLE001 - the outermost loop: _ended decides between reply and crash
            return self._ended(instruction.method, event, None, error)
        if not inspect.iscoroutine(result):
            return self._ended(instruction.method, event, result, None)
        at_once: list[Callable[[], list[Instruction]] | None] = []
        awaiting = False

        def done(value: Any, error: BaseException | None) -> None:
            step = self._ended(instruction.method, event, value, error)
            if awaiting:
                self._advance(step)
            else:
                at_once.append(step)

        self._advance_work(result, done)
        awaiting = True
        return at_once[0] if at_once else None

    def _arguments_of(self, instruction: Handle | Enter) -> tuple[Any, ...]:
        second = self._takes[instruction.method]
        if isinstance(instruction, Enter):
            return (instruction.old_state,) if second else ()
        envelope, message = instruction.event.origin, instruction.event.message
        if not second:
            return (message,)
        if second == "ref":
            return (message, envelope.source if envelope is not None else self.me)
        return (message, envelope.sender if envelope is not None else self.title)

    def _ended(
        self, method: str, event: MachineEvent | None, value: Any, error: BaseException | None
    ) -> Callable[[], list[Instruction]] | None:
        if error is None:
            return lambda: self._machine.handled(self._checked(value, method))
        if event is None or not isinstance(error, ActorGridError):
            self._die(error, event)
            return None
        if event.kind == "call" and not self._settle(event, None, error):
            self.log.warning("call %s, answered already: %s", event.type_name, error)
        elif event.kind != "call":
            self._send_answer(event, None, error)
        return lambda: self._machine.handled(None)

    def _checked(self, value: Any, method: str) -> Transition | None:
        assert value is None or isinstance(value, Transition), (
            f"{type(self).__name__}.{method} returned {value!r}; a handler returns None or a transition, such as "
            "keep_state(reply=...)"
        )
        return value

    def _settle(self, event: MachineEvent, value: Any, error: ActorGridError | None) -> bool:
        if not event.owed:
            return False
        event.owed = False
        self._send_answer(event, value, error)
        return True

    def _send_answer(self, event: MachineEvent, value: Any, error: ActorGridError | None) -> None:
        if event.origin is not None:
            self.answer_call(event.origin, value, error)
        elif error is not None:
            self.log.warning("%s %s of our own: %s", event.kind, event.type_name, error)

    def _die(self, error: BaseException, event: MachineEvent | None = None) -> None:
        event = event or self._machine.event
        self._machine.halt()
        for timer, _ in self._running.values():
            timer.cancel()
        self._running.clear()
        if event is not None:
            self.crashed_on = event.origin if isinstance(event.origin, Envelope) else None
            self._settle(event, None, ActorDown(f"{self.title} crashed in state {self.state!r}: {error!r}"))
        self.runtime.crash(error)
