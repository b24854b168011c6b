"""State machines one meets in books: a pushbutton, a door with a code lock, a connection that retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.errors import ActorDown, ActorGridError
from actorgrid.supervisors.envelope import CAST, Envelope
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.state_machine import (
    From,
    StateMachine,
    Transition,
    any_state,
    cancel_timeout,
    event_timeout,
    keep_state,
    next_event,
    next_state,
    on,
    on_enter,
    postpone,
    state_timeout,
    timeout,
)


def started(kind: type[StateMachine]) -> tuple[InlineNode, Any]:
    node = InlineNode()
    return node, node.add(kind, None)


def cast(node: InlineNode, to: str, message: Any) -> None:
    node.send(to, Envelope(CAST, "test", None, message))
    node.settle()


# -- pushbutton: OTP Design Principles, "gen_statem Behaviour", "Event-Driven State Machines"


@dataclass(frozen=True)
class Push:
    pass


@dataclass(frozen=True)
class GetCount:
    pass


class Pushbutton(StateMachine):
    """Counts how often it was switched on."""

    name = "pushbutton"
    states = ("off", "on")

    def init(self) -> None:
        self.count = 0

    @on("off", Push)
    def switch_on(self, _push: Push) -> Transition:
        self.count += 1
        return next_state("on", reply="on")

    @on("on", Push)
    def switch_off(self, _push: Push) -> Transition:
        return next_state("off", reply="off")

    @on(any_state, GetCount)
    def get_count(self, _request: GetCount) -> Transition:
        return keep_state(reply=self.count)


def test_a_pushbutton_goes_on_and_off_and_counts() -> None:
    node, button = started(Pushbutton)
    assert button.state == "off"
    assert [node.request("pushbutton", Push()) for _ in range(3)] == ["on", "off", "on"]
    assert node.request("pushbutton", GetCount()) == 2
    cast(node, "pushbutton", Push())
    assert button.state == "off" and node.request("pushbutton", GetCount()) == 2


# -- the door with a code lock: same chapter, "Example" up to "Example Revisited"


@dataclass(frozen=True)
class Button:
    digit: int
    pressed: bool


@dataclass(frozen=True)
class Digit:
    """A button pressed and released: made by the machine itself."""

    digit: int


@dataclass(frozen=True)
class Forget:
    pass


@dataclass(frozen=True)
class Lock:
    pass


@dataclass(frozen=True)
class CodeLength:
    pass


class CodeLock(StateMachine):
    """A door. The right code opens it for ten seconds; digits that are too far apart are forgotten."""

    name = "code_lock"
    states = ("locked", "open")

    def init(self) -> None:
        self.code = (1, 2, 3)
        self.down: int | None = None
        self.entered: tuple[int, ...] = ()
        self.door: list[str] = []

    @on_enter("locked")
    def lock(self, old_state: str) -> None:
        self.entered = ()
        self.door.append(f"lock ({old_state})")

    @on_enter("open")
    def unlock(self) -> Transition:
        self.door.append("unlock")
        return keep_state(state_timeout(10.0, Lock()))

    @on(any_state, Button)
    def button(self, button: Button) -> Transition | None:
        if button.pressed:
            self.down = button.digit
            return None
        released, self.down = self.down == button.digit, None
        return keep_state(next_event(Digit(button.digit))) if released else None

    @on("locked", Digit)
    def digit(self, digit: Digit) -> Transition:
        self.entered = (*self.entered, digit.digit)[-len(self.code) :]
        if self.entered == self.code:
            return next_state("open")
        return keep_state(event_timeout(30.0, Forget()))

    @on("locked", Forget)
    def forget(self, _forget: Forget) -> None:
        self.entered = ()

    @on("open", Digit)
    def too_early(self, _digit: Digit) -> Transition:
        return keep_state(postpone())

    @on("open", Lock)
    def time_is_up(self, _lock: Lock) -> Transition:
        return next_state("locked")

    @on(any_state, CodeLength)
    def code_length(self, _request: CodeLength) -> Transition:
        return keep_state(reply=len(self.code))


def press(node: InlineNode, *digits: int) -> None:
    for digit in digits:
        cast(node, "code_lock", Button(digit, pressed=True))
        cast(node, "code_lock", Button(digit, pressed=False))


def test_the_right_code_opens_the_door_for_ten_seconds() -> None:
    node, lock = started(CodeLock)
    press(node, 1, 2, 3)
    assert lock.state == "open" and lock.door == ["lock (locked)", "unlock"]
    node.advance(9.9)
    assert lock.state == "open"
    node.advance(0.2)
    assert lock.state == "locked" and lock.door[-1] == "lock (open)"


def test_the_last_digits_count() -> None:
    node, lock = started(CodeLock)
    press(node, 3, 1, 2)
    assert lock.state == "locked"
    press(node, 3)
    assert lock.state == "open"


def test_digits_are_forgotten_when_nothing_is_pressed_for_thirty_seconds() -> None:
    node, lock = started(CodeLock)
    press(node, 1, 2)
    node.advance(31.0)
    press(node, 3)
    assert lock.state == "locked" and lock.entered == (3,)


def test_digits_pressed_at_an_open_door_are_tried_when_it_is_locked_again() -> None:
    node, lock = started(CodeLock)
    press(node, 1, 2, 3, 1, 2, 3)
    assert lock.state == "open" and lock.status()["postponed"] == 3
    node.advance(10.0)
    assert lock.state == "open" and lock.status()["postponed"] == 0
    assert lock.door == ["lock (locked)", "unlock", "lock (open)", "unlock"]


def test_an_event_for_any_state_is_answered_in_each() -> None:
    node, lock = started(CodeLock)
    assert node.request("code_lock", CodeLength()) == 3
    press(node, 1, 2, 3)
    assert node.request("code_lock", CodeLength()) == 3
    assert lock.state == "open"


# -- a connection that retries


@dataclass(frozen=True)
class Dial:
    attempt: int


@dataclass(frozen=True)
class DialResult:
    attempt: int
    ok: bool


@dataclass(frozen=True)
class Request:
    text: str


@dataclass(frozen=True)
class Answered:
    text: str


@dataclass(frozen=True)
class Connect:
    pass


@dataclass(frozen=True)
class GiveUp:
    pass


@dataclass(frozen=True)
class Lost:
    pass


class Line(Server):
    """The other end: takes what it is sent, and says nothing by itself."""

    name = "line"

    def start(self) -> None:
        self.dialled: list[int] = []
        self.sent: list[str] = []

    @handles(Dial)
    def dial(self, dial: Dial) -> None:
        self.dialled.append(dial.attempt)

    @handles(Request)
    def request(self, request: Request) -> None:
        self.sent.append(request.text)


class Connection(StateMachine):
    """Dials, backs off after a failure, gives up after five tries; requests wait until it is up."""

    name = "connection"
    states = ("dialling", "waiting", "up", "failed")

    def init(self) -> Transition:
        self.attempt = 0
        self.callers: list[From] = []
        return keep_state(timeout("give up", 60.0, GiveUp()))

    @on_enter("dialling")
    def dial(self) -> Transition:
        self.attempt += 1
        self.cast("line", Dial(self.attempt))
        return keep_state(state_timeout(5.0, DialResult(self.attempt, ok=False)))

    @on("dialling", DialResult)
    def dialled(self, result: DialResult) -> Transition | None:
        if result.attempt != self.attempt:
            return None
        if result.ok:
            return next_state("up", cancel_timeout("give up"))
        return next_state("waiting")

    @on_enter("waiting")
    def back_off(self) -> Transition:
        return keep_state(state_timeout(2.0**self.attempt, Connect()))

    @on("waiting", Connect)
    def try_again(self, _connect: Connect) -> Transition:
        return next_state("dialling")

    @on(("dialling", "waiting"), Request)
    def not_yet(self, _request: Request) -> Transition:
        return keep_state(postpone())

    @on(("dialling", "waiting"), GiveUp)
    def give_up(self, _give_up: GiveUp) -> Transition:
        return next_state("failed")

    @on("up", Request)
    def pass_on(self, request: Request) -> None:
        self.callers.append(self.defer())
        self.cast("line", request)

    @on("up", Answered)
    def answered(self, answered: Answered) -> None:
        self.reply(self.callers.pop(0), answered.text)

    @on("up", Lost)
    def lost(self, _lost: Lost) -> Transition:
        for caller in self.callers:
            self.reply_error(caller, ActorDown("the line was lost"))
        self.callers, self.attempt = [], 0
        return next_state("dialling")

    @on("failed", Request)
    def refuse(self, request: Request) -> Transition:
        raise ActorDown(f"no connection for {request.text}")


class Caller(Server):
    """Somebody with requests."""

    name = "caller"

    def start(self) -> None:
        self.answers: list[str] = []

    @handles(Request)
    async def ask(self, request: Request) -> None:
        try:
            self.answers.append(await self.call("connection", request, timeout_s=1_000.0))
        except ActorGridError as error:
            self.answers.append(type(error).__name__)


def connection() -> tuple[InlineNode, Line, Caller, Connection]:
    node = InlineNode()
    line, caller = node.add(Line, None), node.add(Caller, None)
    machine = node.add(Connection, None)
    assert isinstance(line, Line) and isinstance(caller, Caller) and isinstance(machine, Connection)
    node.settle()
    return node, line, caller, machine


def test_a_connection_backs_off_longer_after_each_failure() -> None:
    node, line, _, machine = connection()
    assert (machine.state, line.dialled) == ("dialling", [1])
    cast(node, "connection", DialResult(1, ok=False))
    assert machine.status()["timeouts"] == {"give up": 60.0, "state timeout": 2.0}
    node.advance(2.0)
    assert line.dialled == [1, 2]
    node.advance(5.0)  # nobody answers: the state timeout says so
    assert machine.state == "waiting"
    node.advance(4.0)
    assert line.dialled == [1, 2, 3]


def test_requests_wait_for_the_connection_and_go_out_in_order() -> None:
    node, line, caller, machine = connection()
    for text in ("a", "b", "c"):
        cast(node, "caller", Request(text))
    assert machine.status()["postponed"] == 3 and line.sent == []
    cast(node, "connection", DialResult(1, ok=True))
    assert line.sent == ["a", "b", "c"] and caller.answers == []
    for text in ("A", "B"):
        cast(node, "connection", Answered(text))
    assert caller.answers == ["A", "B"]
    cast(node, "connection", Lost())
    assert caller.answers == ["A", "B", "ActorDown"] and machine.state == "dialling"


def test_a_connection_gives_up_in_whatever_state_it_is_then() -> None:
    node, line, caller, machine = connection()
    cast(node, "caller", Request("a"))
    node.advance(60.0)
    assert machine.state == "failed" and caller.answers == ["ActorDown"] and len(line.dialled) > 2


def test_a_late_answer_to_an_earlier_attempt_means_nothing() -> None:
    node, _, _, machine = connection()
    node.advance(5.0 + 2.0)
    cast(node, "connection", DialResult(1, ok=True))
    assert machine.state == "dialling" and machine.attempt == 2
    node.advance(0.0)
    cast(node, "connection", DialResult(2, ok=True))
    assert machine.state == "up"
    node.advance(100.0)
    assert machine.state == "up"  # the timer "give up" was cancelled
