"""State machines as their authors and callers see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, NotSupported, QueueFull
from actorgrid.supervisors.envelope import CAST, Envelope, GetStatus
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.signals import Down, Exited
from actorgrid.supervisors.state_machine import (
    From,
    StateMachine,
    Transition,
    any_state,
    keep_state,
    next_event,
    next_state,
    on,
    on_enter,
    postpone,
    state_timeout,
    stop,
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


# -- calls


class Clerk(StateMachine):
    """Does with a call what its text says."""

    name = "clerk"
    states = ("desk", "lunch")

    def init(self) -> None:
        self.kept: From | None = None
        self.seen: list[str] = []

    @on("desk", Ask)
    def ask(self, ask: Ask, sender: str) -> Transition | None:
        self.seen.append(f"{ask.text} from {sender}")
        if ask.text == "answer":
            return keep_state(reply=None)
        if ask.text == "refuse":
            raise QueueFull("not today")
        if ask.text == "defer":
            self.kept = self.defer()
        if ask.text == "defer and refuse":
            self.kept = self.defer()
            raise QueueFull("changed my mind")
        if ask.text == "nonsense":
            return "yes"  # type: ignore[return-value]
        if ask.text == "crash":
            raise ZeroDivisionError
        if ask.text == "nowhere":
            return next_state("dinner")
        if ask.text == "twice":
            self.reply(self.defer(), 1)
            return keep_state(reply=2)
        if ask.text == "both":
            self.defer()
            return keep_state(postpone())
        return None

    @on("desk", Go)
    def go(self, go: Go) -> Transition:
        return next_state(go.to, reply="went")

    @on("lunch", Go)
    def come_back(self, go: Go) -> Transition:
        return next_state(go.to, reply="back")


def test_a_call_may_be_answered_with_none_or_with_an_error() -> None:
    node, clerk = started(Clerk)
    assert node.request("clerk", Ask("answer")) is None
    with pytest.raises(QueueFull, match="not today"):
        node.request("clerk", Ask("refuse"))
    assert clerk.state == "desk" and clerk.seen == ["answer from test", "refuse from test"]


def test_a_call_without_a_handler_is_answered_with_state_and_message() -> None:
    node, _ = started(Clerk)
    node.request("clerk", Go("lunch"))
    with pytest.raises(NotSupported, match="Ask has no handler in state 'lunch'"):
        node.request("clerk", Ask("answer"))
    with pytest.raises(NotSupported, match="int has no handler in state 'lunch'"):
        node.request("clerk", 5)


def test_a_call_that_its_handler_forgets_to_answer_is_answered_for_it() -> None:
    node, _ = started(Clerk)
    with pytest.raises(NotSupported, match="Ask is handled in state 'desk', but not answered"):
        node.request("clerk", Ask("forget"))


def test_a_cast_without_a_handler_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    node, clerk = started(Clerk)
    cast(node, "clerk", 5)
    assert "int has no handler in state 'desk'" in caplog.text
    assert clerk.metrics()["not_supported_events_total"] == 1


def test_a_deferred_call_is_answered_once_and_from_any_state() -> None:
    node, clerk = started(Clerk)
    answers: list[Any] = []

    class Asker(Server):
        name = "asker"

        @handles(Ask)
        async def ask(self, ask: Ask) -> None:
            answers.append(await self.call("clerk", ask))

    node.add(Asker, None)
    cast(node, "asker", Ask("defer"))
    node.request("clerk", Go("lunch"))
    assert answers == [] and clerk.state == "lunch"
    assert clerk.reply(clerk.kept, "here you are") is True
    assert clerk.reply(clerk.kept, "again") is False
    assert clerk.reply_error(clerk.kept, QueueFull("no")) is False
    node.settle()
    assert answers == ["here you are"]


def test_a_handler_that_raises_after_deferring_has_answered() -> None:
    node, clerk = started(Clerk)
    with pytest.raises(QueueFull, match="changed my mind"):
        node.request("clerk", Ask("defer and refuse"))
    assert clerk.reply(clerk.kept, "too late") is False


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nowhere", "there is no state 'dinner' to go to; the states are 'desk', 'lunch'"),
        ("nonsense", "Clerk.ask returned 'yes'"),
        ("twice", "the call Ask is answered twice in state 'desk'"),
        ("both", "the call Ask is both deferred and postponed"),
    ],
)
def test_a_transition_that_cannot_be_ends_the_machine_and_says_why(text: str, says: str) -> None:
    node, clerk = started(Clerk)
    with pytest.raises(AssertionError, match=says):
        node.request("clerk", Ask(text))
    assert clerk.state == "desk"


def test_the_caller_of_a_machine_that_crashes_is_told() -> None:
    node, _ = started(Clerk)
    with pytest.raises(ZeroDivisionError):
        node.request("clerk", Ask("crash"))
    node.settle()
    assert [type(reply.body) for reply in node._replies.values()] == [ActorDown]


def test_only_the_handler_of_a_call_can_defer_it() -> None:
    _, clerk = started(Clerk)
    with pytest.raises(AssertionError, match="only the handler of a call"):
        clerk.defer()


# -- monitors, links and senders


class Brief(StateMachine):
    """Ends at the first push."""

    name = "brief"
    states = ("only",)

    @on("only", Push)
    def push(self, _push: Push) -> Transition:
        return stop(ExitReason("shutdown"))


class Watchman(StateMachine):
    """Deaths and senders as events."""

    name = "watchman"
    states = ("awake", "alarmed")
    trap_exit = True

    def init(self) -> None:
        self.senders: list[Any] = []

    @on("awake", Push)
    def watch(self, _push: Push, sender: Ref) -> None:
        self.senders.append(sender)
        self.monitor("brief")
        self.link("brief")

    @on("awake", Down)
    def alarm(self, down: Down) -> Transition:
        self.senders.append(down.reason.kind)
        return next_state("alarmed", next_event(Tick(1)))

    @on(any_state, Exited)
    def exited(self, exited: Exited) -> None:
        self.senders.append(exited.reason.kind)

    @on("alarmed", Tick)
    def tick(self, _tick: Tick, sender: Ref) -> None:
        self.senders.append(sender)


def test_deaths_are_events_and_a_handler_may_want_the_sender_as_a_ref() -> None:
    node, machine = started(Watchman)
    node.add(Brief, None)
    cast(node, "watchman", Push())
    node.send("brief", Envelope(CAST, "test", None, Push()))
    node.advance(1.0)
    assert machine.state == "alarmed"
    assert machine.senders[0].name == "test"
    assert machine.senders.count("shutdown") == 2 and machine.me in machine.senders


# -- definitions


def test_a_handler_for_a_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"Wrong.go handles Go in a state that does not exist.*'opne'.*'open', 'shut'"):

        class Wrong(StateMachine):
            states = ("open", "shut")

            @on("opne", Go)
            def go(self, _go: Go) -> None: ...


def test_two_handlers_for_one_state_and_message_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"Wrong has two handlers for Go in state 'shut'.*first and second"):

        class Wrong(StateMachine):
            states = ("open", "shut")

            @on(any_state, Go)
            def other(self, _go: Go) -> None: ...

            @on(("open", "shut"), Go)
            def first(self, _go: Go) -> None: ...

            @on("shut", Go)
            def second(self, _go: Go) -> None: ...


def test_two_state_enter_calls_for_one_state_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"two handlers for state enter calls in any state"):

        class Wrong(StateMachine):
            states = ("open", "shut")

            @on_enter(any_state)
            def first(self) -> None: ...

            @on_enter(any_state)
            def second(self) -> None: ...


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"states": ("a", "b", "a")}, "different words"),
        ({"states": ("a", "")}, "different words"),
        ({"states": ("a", 1)}, "different words"),
        ({"go": on("a", Go)(lambda self, go: None)}, "has no states"),
        ({"states": ("a",), "go": on((), Go)(lambda self, go: None)}, "handles Go in no state"),
        ({"states": ("a",), "go": on("a", Go)(lambda self: None)}, "takes 0 arguments besides self"),
        ({"states": ("a",), "go": on("a", Go)(lambda self, go, by, why: None)}, "takes 3 arguments besides self"),
        ({"states": ("a",), "go": on_enter("a")(lambda self, old, new: None)}, "takes 2 arguments besides self"),
        ({"states": ("a",), "go": on("a", GetStatus)(lambda self, go: None)}, "every server answers"),
        ({"states": ("a",), "start": lambda self: None}, "override init"),
    ],
)
def test_wrong_definitions_are_refused_when_the_class_is_made(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        type("Wrong", (StateMachine,), attributes)


def test_a_class_without_states_is_a_base_and_no_machine() -> None:
    class Base(StateMachine):
        name = "base"

    with pytest.raises(BadRequest, match="Base has no states"):
        InlineNode().add(Base, None)


class Counter(StateMachine):
    """Two states, one of them with a handler that is overridden below."""

    name = "counter"
    states = ("off", "on")

    @on("off", Push)
    def switch(self, _push: Push) -> Transition:
        return next_state("on", reply="on")


def test_a_subclass_overrides_a_handler_by_its_name() -> None:
    class Politer(Counter):
        name = "politer"

        def switch(self, push: Push) -> Transition:
            super().switch(push)
            return next_state("on", reply="on, with pleasure")

    node, _ = started(Politer)
    assert node.request("politer", Push()) == "on, with pleasure"


@pytest.mark.parametrize("delay_s", [-1.0, float("nan"), float("inf")])
def test_a_timeout_takes_a_finite_time_of_zero_or_more(delay_s: float) -> None:
    with pytest.raises(AssertionError, match="finite number of seconds"):
        state_timeout(delay_s, Go("a"))


def test_what_is_no_action_is_refused_as_one() -> None:
    with pytest.raises(AssertionError, match="a transition takes actions"):
        keep_state("postpone")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="either answered or postponed"):
        keep_state(postpone(), reply=1)
