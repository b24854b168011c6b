"""What a server may do with others: watch them, share their fate, take names, be looked into. On one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, MailboxFull, NameTaken, NoSuchActor, NotSupported
from actorgrid.supervisors import inspection
from actorgrid.supervisors.envelope import Batch
from actorgrid.supervisors.exits import SHUTDOWN, ExitReason
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.inspection import GetState, GetTrace, Inspect, Resume, SetTrace, Suspend
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.signals import Down, Exited, MonitorRef


@dataclass(frozen=True)
class Do:
    """Have a Person do something."""

    what: str
    args: tuple[Any, ...] = ()


class Person(Server):
    """Does as it is told and remembers what it hears."""

    name: ClassVar[str] = "person"

    def start(self) -> None:
        self.heard: list[Any] = []
        self.stopped = ""
        self.api_token = "s3cret"

    def stop(self, reason: str) -> None:
        self.stopped = reason

    @handles(Do)
    def _do_it(self, do: Do, sender: Ref) -> Any:
        if do.what == "who":
            return sender
        if do.what == "heard":
            return self.heard
        if do.what == "fail":
            raise KeyError("x")
        return getattr(self, do.what)(*do.args)

    @handles(Down)
    def _down(self, down: Down) -> None:
        self.heard.append(down)

    @handles(Exited)
    def _exited(self, exited: Exited) -> None:
        self.heard.append(exited)


class Trapper(Person):
    """Lives on when those linked to it die."""

    name: ClassVar[str] = "trapper"
    trap_exit: ClassVar[bool] = True


@pytest.fixture
def node() -> InlineNode:
    node = InlineNode()
    for kind, name in ((Person, "anna"), (Person, "bert"), (Trapper, "trude")):
        node.add(kind, None, name=name)
    return node


def ref(name: str) -> Ref:
    return Ref(name, name)


def test_a_server_hears_why_another_ended(node: InlineNode) -> None:
    monitor = node.request("anna", Do("monitor", ("bert",)))
    assert isinstance(monitor, MonitorRef)
    node.request("bert", Do("leave", (ExitReason("shutdown", "enough"),)))
    node.settle()
    assert node.request("anna", Do("heard")) == [Down(monitor, ref("bert"), ExitReason("shutdown", "enough"))]


def test_a_kill_without_last_words_is_heard_too(node: InlineNode) -> None:
    monitor = node.request("anna", Do("monitor", (ref("bert"),)))
    node.remove("bert")
    node.settle()
    assert node.request("anna", Do("heard")) == [Down(monitor, ref("bert"), ExitReason("killed"))]


@pytest.mark.parametrize("nobody", ["nobody", Ref("gone", "gone")])
def test_a_monitor_of_nobody_tells_at_once(node: InlineNode, nobody: Any) -> None:
    node.request("anna", Do("monitor", (nobody,)))
    node.settle()
    (down,) = node.request("anna", Do("heard"))
    assert down.reason.kind == "noproc"


def test_a_taken_back_monitor_stays_silent(node: InlineNode) -> None:
    monitor = node.request("anna", Do("monitor", ("bert",)))
    node.request("anna", Do("demonitor", (monitor,)))
    node.remove("bert")
    node.settle()
    assert node.request("anna", Do("heard")) == []


def test_linked_servers_share_their_fate_unless_they_trap(node: InlineNode) -> None:
    node.request("anna", Do("link", ("bert",)))
    node.request("trude", Do("link", ("bert",)))
    node.settle()
    node.request("bert", Do("leave", (SHUTDOWN,)))
    node.settle()
    assert node.ended == {"bert": SHUTDOWN, "anna": SHUTDOWN}
    assert node.request("trude", Do("heard")) == [Exited(ref("bert"), SHUTDOWN)]


def test_an_unlinked_server_lives_on(node: InlineNode) -> None:
    node.request("anna", Do("link", ("bert",)))
    node.request("anna", Do("unlink", ("bert",)))
    node.settle()
    node.remove("bert")
    node.settle()
    assert "anna" in node.servers


def test_an_exit_signal_ends_who_does_not_trap_and_kill_ends_all(node: InlineNode) -> None:
    node.request("anna", Do("send_exit", ("trude", SHUTDOWN)))
    node.request("anna", Do("send_exit", ("bert", SHUTDOWN)))
    node.settle()
    assert node.request("trude", Do("heard")) == [Exited(ref("anna"), SHUTDOWN)]
    assert "bert" in node.ended
    node.request("anna", Do("send_exit", ("trude", ExitReason("killed"))))
    node.settle()
    assert node.ended["trude"].kind == "killed"


def test_leaving_runs_stop_with_the_reason(node: InlineNode) -> None:
    bert = node.servers["bert"]
    node.request("bert", Do("leave", (ExitReason("normal", "all done"),)))
    assert isinstance(bert, Person)
    assert bert.stopped == "all done"


def test_names_belong_to_one_and_groups_to_many_and_die_with_their_owner(node: InlineNode) -> None:
    node.request("anna", Do("register", ("till",)))
    with pytest.raises(NameTaken, match="till"):
        node.request("bert", Do("register", ("till",)))
    assert node.request("trude", Do("whereis", ("till",))) == ref("anna")
    assert node.request("till", Do("who")) == ref("test"), "a name is as good as any other"
    for name in ("anna", "bert"):
        node.request(name, Do("join", ("staff",)))
    assert node.request("trude", Do("members", ("staff",))) == [ref("anna"), ref("bert")]
    node.remove("anna")
    assert node.request("trude", Do("whereis", ("till",))) is None
    assert node.request("trude", Do("members", ("staff",))) == [ref("bert")]
    node.request("bert", Do("leave_group", ("staff",)))
    node.request("bert", Do("register", ("till",)))
    node.request("bert", Do("unregister", ("till",)))
    with pytest.raises(NoSuchActor):
        node.request("till", Do("who"))


def test_what_a_server_does_not_take_is_refused_and_kills_nobody(node: InlineNode) -> None:
    with pytest.raises(NotSupported, match="anna does not take int"):
        node.request("anna", 5)
    assert "anna" in node.servers


class Caller(Server):
    """Calls, and lets a delayed cast come or not."""

    name: ClassVar[str] = "caller"

    def start(self) -> None:
        self.answers: list[Any] = []

    @handles(Do)
    async def _ask(self, do: Do) -> Any:
        if do.what == "later":
            keep = self.cast_after(5.0, "caller", "kept")
            self.cast_after(5.0, "caller", "dropped").cancel()
            return keep is not None
        if do.what == "answers":
            return self.answers
        for timeout_s in do.args:
            try:
                self.answers.append(await self.call("slow", do.what, timeout_s))
            except CallTimeout:
                self.answers.append("late")
        return self.answers

    @handles(str)
    def _said(self, said: str) -> None:
        self.answers.append(said)


def test_casts_that_travel_as_one_are_handled_one_after_another() -> None:
    node = InlineNode()
    caller = node.add(Caller, None)
    assert caller.cast_all("caller", Batch(("first", "second", 3, "last")))
    node.settle()
    assert node.request("caller", Do("answers")) == ["first", "second", "last"]  # what is not taken stops no other
    assert caller.handled == 2
    assert not caller.cast_all("nobody", Batch(("first", "second")))


class Slow(Server):
    """Answers after as many seconds as there are letters, with how many questions there were."""

    name: ClassVar[str] = "slow"

    def start(self) -> None:
        self.count = 0

    @handles(str)
    async def _answer(self, said: str) -> int:
        self.count += 1
        mine = self.count
        await self.sleep(len(said))
        return mine


def test_a_handler_that_hides_a_method_of_every_server_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Hiding\.deliver hides Server\.deliver"):

        class Hiding(Server):
            @handles(str)
            def deliver(self, _message: str) -> None: ...  # type: ignore[override]


def test_a_late_reply_never_answers_the_next_call() -> None:
    node = InlineNode()
    node.add(Slow, None)
    node.add(Caller, None)
    assert node.request("caller", Do("abc", (2.0, 10.0)), timeout_s=60.0) == ["late", 2]


def test_a_delayed_cast_comes_unless_it_is_cancelled() -> None:
    node = InlineNode()
    node.add(Caller, None)
    node.request("caller", Do("later"))
    node.advance(4.9)
    assert node.request("caller", Do("answers")) == []
    node.advance(0.2)
    assert node.request("caller", Do("answers")) == ["kept"]


def test_the_state_is_shown_for_people_without_secrets(node: InlineNode) -> None:
    state = node.request("anna", GetState())
    assert state == {"heard": "[]", "stopped": "''", "api_token": "(hidden)"}


def test_an_inspected_server_tells_what_it_is_and_holds(node: InlineNode) -> None:
    node.request("anna", Do("monitor", ("bert",)))
    node.request("anna", Do("link", ("trude",)))
    node.settle()
    found = node.request("anna", Inspect())
    assert found["kind"] == "tests.supervisors.test_server_otp:Person"
    assert (found["name"], found["state"], found["monitors"], found["links"]) == ("anna", "running", 1, 1)
    assert node.request("bert", Inspect())["monitored_by"] == 1


def test_a_suspended_server_keeps_its_mail_and_takes_it_in_order_when_resumed(node: InlineNode) -> None:
    node.request("anna", Suspend(30.0))
    for name in ("first", "second"):
        node.post("anna", _cast(Down(MonitorRef(1), ref(name), SHUTDOWN)), ref("test"))
    node.settle()
    found = node.request("anna", Inspect())
    assert (found["state"], found["held"]) == ("suspended", 2)
    assert node.request("anna", GetState())["heard"] == "[]"
    node.request("anna", Resume())
    assert [down.ref.name for down in node.request("anna", Do("heard"))] == ["first", "second"]


def test_a_forgotten_suspension_ends_by_itself(node: InlineNode) -> None:
    node.request("anna", Suspend(30.0))
    node.advance(31.0)
    assert node.request("anna", Inspect())["state"] == "running"


def test_a_suspended_server_has_room_for_so_many(node: InlineNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "HELD_MAX", 1)
    node.request("anna", Suspend())
    node.post("anna", _cast("one"), ref("test"))
    with pytest.raises(MailboxFull):
        node.request("anna", Do("heard"))
    assert node.request("anna", Inspect())["dropped"] == 1


def test_a_trace_shows_the_last_messages_in_and_out(node: InlineNode) -> None:
    node.request("anna", SetTrace(2))
    node.request("anna", Do("heard"))
    node.request("anna", Do("who"))
    trace = node.request("anna", GetTrace())
    assert [(event["way"], event["kind"], event["peer"]) for event in trace] == [
        ("in", "call", "test"),
        ("out", "reply", "test@test"),
    ]
    assert "who" in trace[0]["message"]
    node.request("anna", SetTrace(0))
    assert node.request("anna", GetTrace()) == []


@dataclass(frozen=True)
class Login:
    """Holds a secret."""

    user: str
    token: str


class Broken(Server):
    """Cannot say how it is."""

    name: ClassVar[str] = "broken"

    def status(self) -> dict[str, Any]:
        raise KeyError("oh")


def test_a_trace_hides_what_is_secret_by_its_name(node: InlineNode) -> None:
    node.request("anna", SetTrace(1))
    node.post("anna", _cast(Login("anna", "s3cret")), ref("test"))
    node.settle()
    assert node.request("anna", GetTrace())[0]["message"] == "Login(user='anna', token=(hidden))"


def test_looking_into_a_server_that_cannot_say_how_it_is_does_not_end_it(node: InlineNode) -> None:
    node.add(Broken, None)
    assert node.request("broken", Inspect())["status"] == {"error": "KeyError('oh')"}
    assert "broken" in node.servers


@pytest.mark.parametrize(
    "wrong", [lambda: Suspend(0), lambda: Suspend(601), lambda: SetTrace(-1), lambda: SetTrace(1001)]
)
def test_wrong_requests_to_look_inside_are_refused(wrong: Any) -> None:
    with pytest.raises(BadRequest):
        wrong()


def test_a_value_whose_repr_fails_is_told_as_such() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert inspection.short(Shy()) == "<Shy whose repr raised ValueError>"
    assert len(inspection.short("x" * 1000)) == inspection.VALUE_CHARACTERS_MAX


def _cast(message: Any) -> Any:
    from actorgrid.supervisors.envelope import CAST, Envelope

    return Envelope(CAST, "test", None, message)


def test_errors_of_exits_keep_their_name() -> None:
    named = ActorGridError("it is so")
    assert ExitReason("error", "it is so", error=named).to_error("x") is named
    assert ExitReason("killed", exit_status=-9).to_error("x").message == "x ended: killed (killed by SIGKILL)"
