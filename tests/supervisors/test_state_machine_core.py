"""The engine of state machines against a naive model: random machines, events, timeouts and slow handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import ActorDown, MailboxFull, NotSupported
from actorgrid.supervisors import state_machine_core as core
from actorgrid.supervisors.state_machine_definition import Handler, any_state, define
from actorgrid.supervisors.transitions import (
    EVENT_TIMER,
    STATE_TIMER,
    Action,
    CancelTimeout,
    StartTimeout,
    TimerKey,
    Transition,
    keep_state,
    next_event,
    next_state,
    postpone,
    repeat_state,
    stop,
)

STATES = ("a", "b", "c")
ANY = "*"
NAMED = (TimerKey("named", "x"), TimerKey("named", "y"))


@dataclass(frozen=True)
class Message:
    label: str
    fuel: int  # how many generations of further events it may cause


class Red(Message):
    pass


class Green(Message):
    pass


class Blue(Message):
    pass


TYPES = (Red, Green, Blue)


@dataclass(frozen=True)
class Script:
    """What a handler does, whenever it is called."""

    move: str  # a state, "keep", "repeat", "stop" or "raise"
    answer: str  # "reply", "defer", "postpone" or "nothing"
    inserts: tuple[int, ...] = ()
    timers: tuple[tuple[TimerKey, int | None, int], ...] = ()  # key, delay or None to cancel, type of the message
    slow: bool = False


@dataclass(frozen=True)
class Entry:
    """What a state enter call does; ``repeats`` times it asks to be repeated."""

    timers: tuple[tuple[TimerKey, int | None, int], ...] = ()
    repeats: int = 0


@dataclass(frozen=True)
class Plan:
    handlers: dict[tuple[str, int], Script]
    entries: dict[str, Entry]
    postponed_max: int
    waiting_max: int

    def script(self, state: str, message: Message) -> Script | None:
        number = TYPES.index(type(message))
        return self.handlers.get((state, number)) or self.handlers.get((ANY, number))

    def entry(self, state: str) -> Entry | None:
        return self.entries.get(state) or self.entries.get(ANY)


def child(parent: Message | None, number: int, place: str) -> Message:
    if parent is None:
        return TYPES[number](place, 2)
    return TYPES[number](f"{parent.label}/{place}", parent.fuel - 1)


def fertile(message: Message, postponed: set[str]) -> bool:
    """Whether handling it may cause events: only once if it is postponed, so that nothing goes on for ever."""
    return message.fuel > 0 and message.label not in postponed


def moved(script: Script, state: str) -> str:
    """Where a script leads; one that postpones only leads upwards, so that it cannot go round for ever."""
    if script.move not in STATES or (script.answer == "postpone" and script.move < state):
        return state
    return script.move


# -- the naive model


@dataclass(eq=False)
class ModelTimer:
    key: TimerKey
    due: int
    message: Message
    zero: bool
    alive: bool = True


@dataclass(eq=False)
class ModelEvent:
    message: Message
    call: bool
    owed: bool
    deferred: bool = False


@dataclass
class Model:
    """gen_statem as its manual tells it, with lists, and a flag on every timer that was ever started."""

    plan: Plan
    state: str = "a"
    clock: int = 0
    queue: list[ModelEvent] = field(default_factory=list)
    postponed: list[ModelEvent] = field(default_factory=list)
    mailbox: list[ModelEvent | ModelTimer] = field(default_factory=list)
    timers: list[ModelTimer] = field(default_factory=list)
    trace: list[tuple[str, ...]] = field(default_factory=list)
    running: tuple[ModelEvent, Script] | None = None
    stopped: bool = False
    dropped: int = 0
    known: set[str] = field(default_factory=set)

    def begin(self) -> None:
        self.set_timers(self.enter_calls("a", None, []))
        self.pump()

    def send(self, message: Message, call: bool) -> None:
        event = ModelEvent(message, call, call)
        if self.stopped:
            self.refuse("down", event)
        elif self.running and sum(isinstance(each, ModelEvent) for each in self.mailbox) >= self.plan.waiting_max:
            self.drop(event)
        else:
            self.mailbox.append(event)
            self.pump()

    def advance(self, seconds: int) -> None:
        end = self.clock + seconds
        while True:
            due = [each for each in self.timers if each.alive and not each.zero and each not in self.mailbox]
            due = sorted((each for each in due if each.due <= end), key=lambda each: each.due)
            if not due:
                break
            self.clock = due[0].due
            self.mailbox.append(due[0])
            self.pump()
        self.clock = end

    def finish(self) -> None:
        if self.running:
            (event, script), self.running = self.running, None
            self.end_of_handler(event, script)
            self.pump()

    def pump(self) -> None:
        while not self.running and not self.stopped:
            event = self.next_event()
            if event is None:
                return
            self.kill(EVENT_TIMER)
            script = self.plan.script(self.state, event.message)
            if script is None:
                self.refuse("unsupported", event)
                continue
            self.trace.append(("handle", event.message.label, self.state))
            if script.slow:
                self.running = (event, script)
            else:
                self.end_of_handler(event, script)

    def next_event(self) -> ModelEvent | None:
        if self.queue:
            return self.queue.pop(0)
        for timer in self.timers:
            if timer.alive and timer.zero:
                timer.alive = False
                return ModelEvent(timer.message, False, False)
        while self.mailbox:
            first = self.mailbox.pop(0)
            if isinstance(first, ModelEvent):
                return first
            if first.alive:
                first.alive = False
                return ModelEvent(first.message, False, False)
        return None

    def end_of_handler(self, event: ModelEvent, script: Script) -> None:
        if script.move == "raise":
            self.refuse("error", event)
            return
        postponed = script.answer == "postpone" and script.move != "stop"
        if event.call and script.answer == "reply":
            self.trace.append(("answer", event.message.label))
            event.owed = False
        event.deferred = event.deferred or (event.call and script.answer == "defer")
        if script.move == "stop":
            self.stop(event)
            return
        old, self.state = self.state, moved(script, self.state)
        fruitful = fertile(event.message, self.known)
        if postponed:
            self.known.add(event.message.label)
        wanted = list(script.timers) if fruitful else []
        wanted_timers = [(key, delay, child(event.message, kind, f"t{kind}")) for key, delay, kind in wanted]
        if script.move == "repeat" or self.state != old:
            wanted_timers = self.enter_calls(old, event.message, wanted_timers, fruitful)
        if postponed and len(self.postponed) >= self.plan.postponed_max:
            self.drop(event)
        elif postponed:
            self.postponed.append(event)
        elif event.owed and not event.deferred:
            self.refuse("unanswered", event)
        if self.state != old:
            self.queue = self.postponed + self.queue
            self.postponed = []
            self.kill(STATE_TIMER)
        if fruitful:
            inserted = [child(event.message, kind, f"n{place}") for place, kind in enumerate(script.inserts)]
            self.queue = [ModelEvent(message, False, False) for message in inserted] + self.queue
        self.set_timers(wanted_timers)

    def enter_calls(self, old: str, parent: Message | None, wanted: list[Any], fruitful: bool = True) -> list[Any]:
        entry = self.plan.entry(self.state)
        if entry is None:
            return wanted
        for _ in range(entry.repeats + 1):
            self.trace.append(("enter", self.state, old))
            if fruitful:
                wanted = wanted + [(key, delay, child(parent, kind, f"e{kind}")) for key, delay, kind in entry.timers]
        return wanted

    def set_timers(self, wanted: list[Any]) -> None:
        for place, (key, delay, message) in enumerate(wanted):
            if any(later[0] == key for later in wanted[place + 1 :]):
                continue
            self.kill(key)
            if delay is not None:
                self.timers.append(ModelTimer(key, self.clock + delay, message, delay == 0))

    def kill(self, key: TimerKey) -> None:
        for timer in self.timers:
            if timer.key == key:
                timer.alive = False

    def stop(self, event: ModelEvent) -> None:
        self.stopped = True
        held = [] if event.deferred else [event]
        held += self.postponed + self.queue + [each for each in self.mailbox if isinstance(each, ModelEvent)]
        for each in held:
            self.refuse("down", each)
        self.trace.append(("stop",))
        self.queue, self.postponed, self.mailbox, self.timers = [], [], [], []

    def drop(self, event: ModelEvent) -> None:
        if event.owed:
            self.refuse("full", event)
        else:
            self.dropped += 1

    def refuse(self, why: str, event: ModelEvent) -> None:
        if event.owed or why == "unsupported":
            self.trace.append((why, event.message.label))
        event.owed = False

    def alive(self) -> list[tuple[str, int]]:
        """The timers, and when they fire: 0 for zero timeouts, -1 for those that fired and wait to be handled."""
        alive = [each for each in self.timers if each.alive]
        return sorted((str(each.key), 0 if each.zero else -1 if each in self.mailbox else each.due) for each in alive)


# -- the engine, driven by a clock that stands still


class Driver:
    """Carries out what the engine says, and does what the plan's handlers do."""

    def __init__(self, plan: Plan) -> None:
        marks = [
            Handler(f"{state} {number}", any_state if state == ANY else state, TYPES[number])
            for state, number in plan.handlers
        ]
        marks += [Handler(f"{state} enter", any_state if state == ANY else state, None) for state in plan.entries]
        self.plan = plan
        self.machine = core.Machine(define("Plan", STATES, marks))
        self.clock = 0
        self.started: dict[int, int] = {}
        self.trace: list[tuple[str, ...]] = []
        self.running: tuple[core.MachineEvent, Script] | None = None
        self.entered = 0
        self.event: core.MachineEvent | None = None
        self.fruitful = True
        self.known: set[str] = set()

    def begin(self) -> None:
        self.carry_out(self.machine.begin(None))

    def send(self, message: Message, call: bool) -> None:
        self.carry_out(self.machine.receive(core.MachineEvent("call" if call else "cast", message, owed=call)))

    def advance(self, seconds: int) -> None:
        end = self.clock + seconds
        while due := sorted((at, timer_id) for timer_id, at in self.started.items() if at <= end):
            self.clock, timer_id = due[0]
            del self.started[timer_id]
            self.carry_out(self.machine.fired(timer_id))
        self.clock = end

    def finish(self) -> None:
        if self.running is not None:
            (event, script), self.running = self.running, None
            self.carry_out(self.returned(event, script))

    def carry_out(self, instructions: list[core.Instruction]) -> None:
        while instructions:
            following: list[core.Instruction] = []
            for instruction in instructions:
                assert not following, "Handle and Enter come last"
                following = self.carry_out_one(instruction)
            instructions = following

    def carry_out_one(self, instruction: core.Instruction) -> list[core.Instruction]:
        if isinstance(instruction, core.StartTimer):
            assert instruction.timer_id not in self.started and instruction.delay_s > 0
            self.started[instruction.timer_id] = self.clock + int(instruction.delay_s)
        elif isinstance(instruction, core.StopTimer):
            del self.started[instruction.timer_id]
        elif isinstance(instruction, core.AnswerCall):
            self.trace.append(("answer", instruction.event.message.label))
        elif isinstance(instruction, core.RefuseCall):
            error = instruction.error
            unsupported = "unsupported" if "no handler" in error.message else "unanswered"
            why = {ActorDown: "down", MailboxFull: "full", NotSupported: unsupported}[type(error)]
            self.trace.append((why, instruction.event.message.label))
        elif isinstance(instruction, core.LeaveProcess):
            self.trace.append(("stop",))
        elif isinstance(instruction, core.Handle):
            return self.handle(instruction)
        else:
            return self.enter(instruction)
        return []

    def handle(self, instruction: core.Handle) -> list[core.Instruction]:
        event, state = instruction.event, self.machine.state
        self.entered, self.event = 0, event
        self.trace.append(("handle", event.message.label, state))
        script = self.plan.script(state, event.message)
        assert script is not None
        if script.slow:
            self.running = (event, script)
            return []
        return self.returned(event, script)

    def returned(self, event: core.MachineEvent, script: Script) -> list[core.Instruction]:
        if script.move == "raise":
            if event.owed:
                self.trace.append(("error", event.message.label))
                event.owed = False
            return self.machine.handled(None)
        if event.kind == "call" and script.answer == "defer":
            event.deferred = True
        reply: dict[str, Any] = {"reply": None} if script.answer == "reply" else {}
        if script.move == "stop":
            return self.machine.handled(stop(**reply))
        self.fruitful = fertile(event.message, self.known)
        actions: list[Action] = [postpone()] if script.answer == "postpone" else []
        if actions:
            self.known.add(event.message.label)
        if self.fruitful:
            actions += self.timers(event.message, script.timers, "t")
            actions += [
                next_event(child(event.message, kind, f"n{place}")) for place, kind in enumerate(script.inserts)
            ]
        return self.machine.handled(self.transition(script, actions, reply))

    def transition(self, script: Script, actions: list[Action], reply: dict[str, Any]) -> Transition:
        if script.move in ("keep", "repeat"):
            return (keep_state if script.move == "keep" else repeat_state)(*actions, **reply)
        return next_state(moved(script, self.machine.state), *actions, **reply)

    def enter(self, instruction: core.Enter) -> list[core.Instruction]:
        state = self.machine.state
        entry = self.plan.entry(state)
        assert entry is not None
        self.trace.append(("enter", state, instruction.old_state))
        parent = None if self.event is None else self.event.message
        actions = self.timers(parent, entry.timers, "e") if self.fruitful else []
        self.entered += 1
        again = self.entered <= entry.repeats
        return self.machine.handled(repeat_state(*actions) if again else keep_state(*actions))

    def timers(self, parent: Message | None, wanted: tuple[Any, ...], place: str) -> list[Action]:
        return [
            CancelTimeout(key) if delay is None else StartTimeout(key, delay, child(parent, kind, f"{place}{kind}"))
            for key, delay, kind in wanted
        ]

    def alive(self) -> list[tuple[str, int]]:
        zero = self.machine._zero
        return sorted(
            (str(key), 0 if key in zero else self.started.get(timer_id, -1)) for timer_id, key in self.machine.timers()
        )


# -- the property

kinds = st.integers(0, len(TYPES) - 1)
timers = st.lists(
    st.tuples(st.sampled_from((STATE_TIMER, EVENT_TIMER, *NAMED)), st.sampled_from((None, 0, 1, 2, 3)), kinds).filter(
        lambda each: each[0] != EVENT_TIMER or each[1] is not None
    ),
    max_size=3,
).map(tuple)
scripts = st.builds(
    Script,
    move=st.sampled_from(("a", "b", "c", "keep", "keep", "repeat", "raise")) | st.sampled_from((*STATES, "stop")),
    answer=st.sampled_from(("reply", "defer", "postpone", "postpone", "nothing")),
    inserts=st.lists(kinds, max_size=2).map(tuple),
    timers=timers,
    slow=st.sampled_from((False, False, True)),
)
plans = st.builds(
    Plan,
    handlers=st.dictionaries(st.tuples(st.sampled_from((*STATES, *STATES, ANY)), kinds), scripts, min_size=3),
    entries=st.dictionaries(
        st.sampled_from((*STATES, ANY)), st.builds(Entry, timers=timers, repeats=st.integers(0, 2)), max_size=3
    ),
    postponed_max=st.sampled_from((2, 10_000)),
    waiting_max=st.sampled_from((1, 10_000)),
)
steps = st.lists(
    st.tuples(st.just("send"), kinds, st.booleans())
    | st.tuples(st.just("send"), kinds, st.booleans())
    | st.tuples(st.just("advance"), st.integers(0, 3))
    | st.tuples(st.just("finish")),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(plans, steps)
def test_every_machine_does_what_the_manual_says(plan: Plan, todo: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "POSTPONED_MAX", plan.postponed_max)
        patch.setattr(core, "WAITING_MAX", plan.waiting_max)
        model, driver = Model(plan), Driver(plan)
        for number, (what, *values) in enumerate([("begin",), *todo, ("finish",), ("advance", 9), ("finish",)]):
            if what == "send":
                values = [TYPES[values[0]](str(number), 2), values[1]]
            getattr(model, what)(*values)
            getattr(driver, what)(*values)
            assert driver.trace == model.trace
            machine = driver.machine
            assert (machine.state, machine.dropped) == (model.state, model.dropped)
            assert machine.postponed == len(model.postponed)
            assert machine.waiting == len(model.queue) + sum(isinstance(each, ModelEvent) for each in model.mailbox)
            assert driver.alive() == model.alive()


# -- what the property meets too rarely


def machine_of(*types: type) -> core.Machine:
    machine = core.Machine(define("Plan", STATES, [Handler("any", any_state, each) for each in types]))
    assert machine.begin(None) == []
    return machine


def handled_in(instructions: list[core.Instruction]) -> list[str]:
    return [each.event.message.label for each in instructions if isinstance(each, core.Handle)]


def test_the_last_action_for_a_timer_counts_and_in_its_place() -> None:
    machine = machine_of(Red, Blue)
    machine.receive(core.MachineEvent("cast", Red("start", 0)))
    x, y = NAMED
    wanted = [
        StartTimeout(x, 0, Blue("x", 0)),
        StartTimeout(y, 0, Blue("y", 0)),
        StartTimeout(x, 0, Blue("x again", 0)),
    ]
    assert handled_in(machine.handled(keep_state(*wanted))) == ["y"]
    assert handled_in(machine.handled(None)) == ["x again"]


def test_a_zero_timeout_comes_after_inserted_events_and_before_received_ones() -> None:
    machine = machine_of(Red, Blue)
    machine.receive(core.MachineEvent("cast", Red("start", 0)))
    machine.receive(core.MachineEvent("cast", Red("received", 0)))
    out = machine.handled(keep_state(StartTimeout(STATE_TIMER, 0, Blue("zero", 0)), next_event(Blue("inserted", 0))))
    assert handled_in(out) == ["inserted"]
    assert handled_in(machine.handled(None)) == ["zero"]
    assert handled_in(machine.handled(None)) == ["received"]


def test_a_zero_event_timeout_is_ended_by_an_event_that_is_queued() -> None:
    machine = machine_of(Red, Blue)
    machine.receive(core.MachineEvent("cast", Red("start", 0)))
    out = machine.handled(keep_state(StartTimeout(EVENT_TIMER, 0, Blue("zero", 0)), next_event(Blue("inserted", 0))))
    assert handled_in(out) == ["inserted"]
    assert machine.handled(None) == []


def test_a_cancelled_timer_that_fires_all_the_same_means_nothing() -> None:
    machine = machine_of(Red, Blue)
    machine.receive(core.MachineEvent("cast", Red("start", 0)))
    (started,) = machine.handled(keep_state(StartTimeout(STATE_TIMER, 5.0, Blue("late", 0))))
    assert isinstance(started, core.StartTimer)
    machine.receive(core.MachineEvent("cast", Red("change", 0)))
    assert machine.handled(next_state("b")) == [core.StopTimer(started.timer_id)]
    assert machine.fired(started.timer_id) == []


def test_who_waits_is_told_of_the_stop_in_order_of_the_queue() -> None:
    machine = machine_of(Red)
    calls = [core.MachineEvent("call", Red(label, 0), owed=True) for label in ("first", "second", "third", "last")]
    for call in calls[:2]:
        machine.receive(call)
        machine.handled(keep_state(postpone()))
    machine.receive(calls[2])
    machine.receive(calls[3])
    out = machine.handled(next_state("b", postpone()))  # the first is tried again, the others are queued
    assert handled_in(out) == ["first"]
    refused = [each.event.message.label for each in machine.handled(stop()) if isinstance(each, core.RefuseCall)]
    assert refused == ["first", "second", "third", "last"]
    late = core.MachineEvent("call", Red("late", 0), owed=True)
    assert isinstance(machine.receive(late)[0], core.RefuseCall) and machine.receive(late) == []
