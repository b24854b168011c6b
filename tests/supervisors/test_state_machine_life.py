"""State machines from their start to their end, with handlers that await, and at their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from actorgrid.errors import ActorDown, MailboxFull, QueueFull
from actorgrid.supervisors import state_machine_core
from actorgrid.supervisors.envelope import CALL, CAST, Envelope, GetStatus
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.state_machine import (
    StateMachine,
    Transition,
    any_state,
    cancel_state_timeout,
    keep_state,
    next_event,
    next_state,
    on,
    on_enter,
    postpone,
    repeat_state,
    state_timeout,
    stop,
    timeout,
)


def started(kind: type[StateMachine]) -> tuple[InlineNode, Any]:
    node = InlineNode()
    return node, node.add(kind, None)


def cast(node: InlineNode, to: str, message: Any) -> None:
    node.send(to, Envelope(CAST, "test", None, message))
    node.settle()


@dataclass(frozen=True)
class Ask:
    text: str


@dataclass(frozen=True)
class Go:
    to: str


@dataclass(frozen=True)
class Push:
    pass


@dataclass(frozen=True)
class Tick:
    number: int


@dataclass(frozen=True)
class Fetch:
    number: int


# -- start, state enter calls, stop


class Starter(StateMachine):
    """Begins in its second state, with an event of its own and timers."""

    name = "starter"
    states = ("first", "second")

    async def init(self) -> Transition:
        self.seen: list[str] = []
        await self.sleep(1.0)
        return next_state("second", next_event(Tick(1)), timeout("named", 0.0, Tick(2)), state_timeout(3.0, Tick(3)))

    @on_enter(any_state)
    def entered(self, old_state: str) -> None:
        self.seen.append(f"{old_state} -> {self.state}")

    @on(any_state, Tick)
    def tick(self, tick: Tick, sender: str) -> Transition | None:
        self.seen.append(f"{tick.number} from {sender}")
        return repeat_state() if tick.number == 9 else None


def test_a_machine_begins_where_init_says_and_enters_that_state_before_its_first_event() -> None:
    node = InlineNode()
    machine = node.add(Starter, None)
    node.settle()
    assert machine.seen == ["second -> second", "1 from starter", "2 from starter"]  # type: ignore[attr-defined]
    node.advance(3.0)
    assert machine.seen[-1] == "3 from starter"  # type: ignore[attr-defined]


def test_what_comes_before_the_start_has_ended_is_handled_after_the_state_enter_call() -> None:
    class Hasty(Starter):
        async def init(self) -> Transition:
            self.cast(self.me, Tick(7))
            return await super().init()

    node, machine = started(Hasty)
    node.settle()
    assert machine.seen == ["second -> second", "1 from starter", "2 from starter", "7 from starter"]


def test_a_repeated_state_is_entered_again_from_itself() -> None:
    node, machine = started(Starter)
    cast(node, "starter", Tick(9))
    assert machine.seen[-2:] == ["9 from test", "second -> second"]


def test_an_init_that_raises_stops_the_start() -> None:
    class Broken(StateMachine):
        name = "broken"
        states = ("only",)

        def init(self) -> None:
            raise QueueFull("no room")

    with pytest.raises(QueueFull, match="no room"):
        InlineNode().add(Broken, None)


def test_an_init_that_returns_no_transition_stops_the_start() -> None:
    class Broken(StateMachine):
        name = "broken"
        states = ("only",)

        def init(self) -> str:
            return "only"

    with pytest.raises(AssertionError, match=r"Broken.init returned 'only'"):
        InlineNode().add(Broken, None)


def test_an_init_that_names_no_state_of_ours_stops_the_start() -> None:
    class Broken(StateMachine):
        name = "broken"
        states = ("only",)

        async def init(self) -> Transition:
            return next_state("other")

    with pytest.raises(AssertionError, match="there is no state 'other' to go to"):
        InlineNode().add(Broken, None)


class Enterer(StateMachine):
    """Its state enter call returns what it was told."""

    name = "enterer"
    states = ("out", "in")
    result: Transition | None = None

    @on("out", Go)
    def go(self, _go: Go) -> Transition:
        return next_state("in", reply="went")

    @on("out", Ask)
    def ask(self, _ask: Ask) -> Transition:
        return next_state("in")

    @on_enter("in")
    def entered(self) -> Transition | None:
        if self.result is None:
            raise QueueFull("cannot be entered")
        return self.result

    @on("in", Go)
    def stay(self, _go: Go) -> Transition:
        return keep_state(reply="in")

    @on("in", Fetch)
    def wait_no_more(self, _fetch: Fetch) -> Transition:
        return keep_state(cancel_state_timeout(), reply=None)

    @on("in", Push)
    def crash(self, _push: Push) -> Transition:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (next_state("out"), "may not change the state"),
        (keep_state(postpone()), "may start and cancel timeouts only"),
        (keep_state(next_event(Go("a"))), "may start and cancel timeouts only"),
        (keep_state(reply=1), "has no call to reply to"),
    ],
)
def test_a_state_enter_call_may_not_do_what_only_events_may(result: Transition, says: str) -> None:
    node, machine = started(Enterer)
    machine.result = result
    with pytest.raises(AssertionError, match=says):
        node.request("enterer", Go("in"))


def test_a_state_enter_call_may_name_its_own_state_and_start_timeouts() -> None:
    node, machine = started(Enterer)
    machine.result = next_state("in", state_timeout(5.0, Go("a")))
    assert node.request("enterer", Go("in")) == "went"
    assert machine.status()["timeouts"] == {"state timeout": 5.0}


def test_a_state_timeout_is_cancelled_without_a_change_of_state() -> None:
    node, machine = started(Enterer)
    machine.result = keep_state(state_timeout(5.0, Push()), timeout("other", 7.0, Fetch(1)))
    node.request("enterer", Go("in"))
    node.request("enterer", Fetch(1))
    assert machine.status()["timeouts"] == {"other": 7.0}


def test_a_state_enter_call_that_raises_ends_the_machine_and_tells_who_waits() -> None:
    node, _ = started(Enterer)
    with pytest.raises(QueueFull):
        cast(node, "enterer", Go("in"))
    node, machine = started(Enterer)
    node.send("enterer", Envelope(CALL, "test", (1, 1), Ask("let me in")))
    with pytest.raises(QueueFull):
        node.settle()
    node.settle()
    reply = node._replies[(1, 1)].body
    assert isinstance(reply, ActorDown) and "crashed in state 'in'" in str(reply)
    assert machine.status()["waiting"] == 0


def test_endless_state_enter_calls_are_found() -> None:
    node, machine = started(Enterer)
    machine.result = repeat_state()
    with pytest.raises(AssertionError, match="an endless loop"):
        cast(node, "enterer", Go("in"))


class Stopper(StateMachine):
    """Stops when told, with calls of others still waiting."""

    name = "stopper"
    states = ("only",)

    def init(self) -> Transition:
        self.told: list[str] = []
        return keep_state(timeout("tick", 5.0, Tick(1)))

    @on("only", Tick)
    def tick(self, _tick: Tick) -> None:
        self.told.append("tick")

    @on("only", Ask)
    def ask(self, _ask: Ask) -> Transition:
        return keep_state(postpone())

    @on("only", Go)
    async def go(self, go: Go) -> Transition:
        await self.sleep(1.0)
        return stop(ExitReason("shutdown", "as told"), reply="gone") if go.to == "home" else stop()

    def stop(self, reason: str) -> None:
        self.told.append(reason)


def test_a_machine_stops_in_order_and_answers_who_waits() -> None:
    node, machine = started(Stopper)
    for _ in range(3):
        cast(node, "stopper", Tick(0))
    node.send("stopper", Envelope(CALL, "test", (1, 1), Ask("postponed")))
    node.settle()
    node.send("stopper", Envelope(CALL, "test", (1, 3), Go("home")))
    node.send("stopper", Envelope(CALL, "test", (1, 2), Ask("waits")))
    node.advance(1.0)
    replies = {ref: reply.body for ref, reply in node._replies.items()}
    assert replies[(1, 3)] == "gone"
    assert "stopped in state 'only'" in str(replies[(1, 1)]) and isinstance(replies[(1, 1)], ActorDown)
    assert isinstance(replies[(1, 2)], ActorDown)
    assert machine.told == ["tick", "tick", "tick", "as told"]
    assert node.ended[machine.me.address].kind == "shutdown"
    node.advance(10.0)
    assert machine.told[-1] == "as told"  # no timer fires any more


def test_the_call_that_stops_a_machine_without_a_reply_is_told_so() -> None:
    node, machine = started(Stopper)
    with pytest.raises(ActorDown, match="stopped in state 'only'"):
        node.request("stopper", Go("anywhere"))
    assert node.ended[machine.me.address].kind == "normal"


def test_init_may_stop_the_machine_at_once() -> None:
    class Brief(Stopper):
        name = "brief"

        def init(self) -> Transition:
            super().init()
            return stop()

    node, machine = started(Brief)
    assert machine.told == ["normal"] and machine.me.address in node.ended


# -- handlers that await


class Slow(StateMachine):
    """Fetches with an ``await``; while it waits, everything else does."""

    name = "slow"
    states = ("idle", "fetched")

    def init(self) -> None:
        self.seen: list[str] = []

    @on(any_state, Fetch)
    async def fetch(self, fetch: Fetch) -> Transition:
        self.seen.append(f"begin {fetch.number}")
        await self.sleep(1.0)
        if fetch.number < 0:
            raise QueueFull("nothing there")
        self.seen.append(f"end {fetch.number}")
        return next_state("fetched", state_timeout(0.5, Tick(fetch.number)), reply=fetch.number)

    @on_enter("fetched")
    async def rest(self) -> None:
        await self.sleep(1.0)
        self.seen.append("rested")

    @on("fetched", Tick)
    def tick(self, tick: Tick) -> None:
        self.seen.append(f"tick {tick.number}")


def test_events_wait_while_a_handler_awaits() -> None:
    node, machine = started(Slow)
    for number in (1, 2):
        cast(node, "slow", Fetch(number))
    assert machine.seen == ["begin 1"] and machine.status()["waiting"] == 1
    node.advance(1.0)
    assert machine.seen == ["begin 1", "end 1"]
    node.advance(1.0)
    assert machine.seen == ["begin 1", "end 1", "rested", "begin 2"]


def test_a_timeout_that_fires_while_a_handler_awaits_comes_after_it() -> None:
    node, machine = started(Slow)
    cast(node, "slow", Fetch(1))
    node.advance(2.0)
    cast(node, "slow", Fetch(2))
    assert machine.seen[-1] == "begin 2"
    node.advance(0.9)
    cast(node, "slow", Fetch(-1))
    node.advance(0.1)
    # The first state timeout fired in time, but its state repeated it before it was handled: it is cancelled.
    assert machine.seen == ["begin 1", "end 1", "rested", "begin 2", "end 2", "begin -1"]
    node.advance(0.9)
    assert machine.seen[-1] == "begin -1"
    node.advance(0.1)
    assert machine.seen[-1] == "tick 2"


def test_an_async_handler_may_raise_a_named_error() -> None:
    node, machine = started(Slow)
    with pytest.raises(QueueFull, match="nothing there"):
        node.request("slow", Fetch(-1))
    assert node.request("slow", Fetch(3)) == 3 and machine.state == "fetched"


def test_a_request_that_every_server_answers_does_not_wait() -> None:
    node, _ = started(Slow)
    cast(node, "slow", Fetch(1))
    status = node.request("slow", GetStatus(), timeout_s=0.1)
    assert status == {"state": "idle", "postponed": 0, "waiting": 0, "dropped": 0, "timeouts": {}}


def test_ten_thousand_async_handlers_in_a_row_need_no_deep_stack() -> None:
    class Eager(StateMachine):
        name = "eager"
        states = ("shut", "open")

        def init(self) -> None:
            self.count = 0

        @on("shut", Tick)
        def later(self, _tick: Tick) -> Transition:
            return keep_state(postpone())

        @on("open", Tick)
        async def now(self, _tick: Tick) -> None:
            self.count += 1

        @on(any_state, Go)
        def go(self, go: Go) -> Transition:
            return next_state(go.to)

    node, machine = started(Eager)
    for number in range(state_machine_core.POSTPONED_MAX + 5):
        node.send("eager", Envelope(CAST, "test", None, Tick(number)))
    node.settle()
    assert machine.status()["postponed"] == state_machine_core.POSTPONED_MAX
    assert machine.metrics()["dropped_events_total"] == 5
    with pytest.raises(MailboxFull, match="no room to keep Tick"):
        node.request("eager", Tick(-1))
    cast(node, "eager", Go("open"))
    assert machine.count == state_machine_core.POSTPONED_MAX


# -- bounds


class Looper(StateMachine):
    """Every way to go round for ever."""

    name = "looper"
    states = ("a", "b")

    @on("a", Tick)
    def tick_a(self, tick: Tick) -> Transition:
        return keep_state(next_event(Tick(tick.number - 1))) if tick.number else keep_state(reply="done")

    @on("a", Fetch)
    def zero(self, fetch: Fetch) -> Transition:
        return keep_state(state_timeout(0.0, fetch))

    @on("a", Go)
    def there(self, _go: Go) -> Transition:
        return next_state("b", postpone())

    @on("b", Go)
    def and_back(self, _go: Go) -> Transition:
        return next_state("a", postpone())

    @on("a", Push)
    def timers(self, _push: Push) -> Transition:
        return keep_state(*(timeout(f"timer {number}", 1.0, Tick(0)) for number in range(1_001)))


def test_an_endless_chain_of_inserted_events_is_named() -> None:
    node, _ = started(Looper)
    cast(node, "looper", Tick(1_000))
    with pytest.raises(AssertionError, match=r"an endless loop.*events of our own.*Tick in 'a', then Tick in 'a'"):
        cast(node, "looper", Tick(1_001))


@pytest.mark.parametrize("message", [Fetch(1), Go("a")])
def test_other_endless_loops_are_named_too(message: Any) -> None:
    node, _ = started(Looper)
    with pytest.raises(AssertionError, match=f"an endless loop.*{type(message).__name__} in 'a'"):
        cast(node, "looper", message)


def test_a_thousand_timers_run_and_no_more() -> None:
    node, _ = started(Looper)
    with pytest.raises(AssertionError, match="1000 timers run already: timer 1000 is one too many"):
        cast(node, "looper", Push())


def test_a_machine_that_crashed_leaves_no_timer_behind() -> None:
    node, machine = started(Enterer)
    machine.result = keep_state(timeout("a", 5.0, Fetch(1)))
    cast(node, "enterer", Go("in"))
    assert machine.status()["timeouts"] == {"a": 5.0}
    with pytest.raises(ZeroDivisionError):
        cast(node, "enterer", Push())
    assert machine.status()["timeouts"] == {}
    node.advance(10.0)
