"""ActorRuntime without a process around it: starts, early mail, who is where, and descriptors."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import (
    ActorDown,
    ActorGridError,
    MailboxFull,
    NoSuchActor,
    PeerGone,
    PortInUse,
    StartFailed,
)
from actorgrid.supervisors import actor as actor_module
from actorgrid.supervisors.actor import ActorRuntime, load_server
from actorgrid.supervisors.server import CALL, CAST, ERROR, REPLY, Envelope, Server, Waiter, handles
from actorgrid.supervisors.wire import HostServer, Place, ServerStarted, ServerStartFailed, pack, unpack
from actorgrid.transports.thespian_unix import Parcel, address_of, name_of

HERE = "tests.supervisors.test_actor_runtime:"


class Left(BaseException):
    """The process would have ended here."""


class Wire:
    """Takes the place of the process's actor: remembers what it is to send, and who is gone."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.gone: set[str] = set()
        self.last_words: list[tuple[Any, int]] = []
        self.myAddress = address_of("me")

    def send(self, address: Any, message: Any) -> None:
        if name_of(address) in self.gone:
            raise PeerGone(f"{name_of(address)} closed its socket")
        self.sent.append((name_of(address), message))

    def wakeupAfter(self, _delay: Any) -> None:
        """Alarms never come here."""

    def leave(self, last_words: Any, status: int) -> None:
        self.last_words.append((last_words, status))
        raise Left

    def envelopes(self, to: str) -> list[Envelope]:
        return [unpack(message.data)[0] for name, message in self.sent if name == to and isinstance(message, Parcel)]

    def words(self, kind: type) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]


class Slow(Server):
    """Starts when the test says so, and remembers its mail."""

    name: ClassVar[str] = "slow"
    ready: ClassVar[Waiter]
    mail: ClassVar[list[Any]]
    restarted: ClassVar[list[str]]

    async def start(self) -> None:
        await Slow.ready

    def peer_restarted(self, name: str) -> None:
        Slow.restarted.append(name)

    @handles(str)
    def _mail(self, message: str) -> str:
        Slow.mail.append(message)
        return message.upper()


class Refuses(Server):
    name: ClassVar[str] = "refuses"

    def start(self) -> None:
        raise PortInUse("taken")


class Buggy(Server):
    name: ClassVar[str] = "buggy"

    def start(self) -> None:
        raise ZeroDivisionError("a bug")


class Rig:
    def __init__(self, tmp_path: Path, kind: str = "Slow", **places: Place) -> None:
        Slow.ready, Slow.mail, Slow.restarted = Waiter(), [], []
        self.wire = Wire()
        host = SimpleNamespace(settings=Settings(), paths=HostPaths(tmp_path))
        order = HostServer("slow", HERE + kind, host, 1, dict(places))
        made: Any = self.wire
        self.runtime = ActorRuntime(made, order, "owner")
        self.order = order

    def begin(self) -> Rig:
        self.runtime.begin(self.order)
        return self

    def up(self) -> Rig:
        self.begin()
        Slow.ready.set(None)
        return self

    def mail(self, body: Any, kind: int = CALL, sender: str = "peer", generation: int = 1, ref: Any = (1, 1)) -> None:
        self.runtime.receive(pack(Envelope(kind, sender, ref, body), generation), f"socket-of-{sender}")

    def close(self) -> None:
        self.runtime._epoll.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def rig(kind: str = "Slow", **places: Place) -> Rig:
        made.append(Rig(tmp_path, kind, **places))
        return made[-1]

    yield rig
    for each in made:
        each.close()


def test_mail_that_came_before_the_start_ended_is_answered_after_it_in_order(make: Callable[..., Rig]) -> None:
    rig = make().begin()
    rig.mail("one")
    rig.mail("two")
    assert Slow.mail == [] and not rig.wire.words(ServerStarted)
    Slow.ready.set(None)
    assert Slow.mail == ["one", "two"]
    assert [envelope.body for envelope in rig.wire.envelopes("socket-of-peer")] == ["ONE", "TWO"]
    assert rig.wire.words(ServerStarted)[0].pid == os.getpid()


def test_early_mail_is_bounded_and_callers_beyond_it_are_told(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "HELD_MAX", 2)
    rig = make().begin()
    for number in range(4):
        rig.mail(f"m{number}", CALL if number % 2 else CAST)
    refusals = rig.wire.envelopes("socket-of-peer")
    assert [(refusal.kind, type(refusal.body)) for refusal in refusals] == [(ERROR, MailboxFull)]
    rig.wire.gone.add("socket-of-peer")
    rig.mail("one more")  # nobody to tell: no reason to die
    Slow.ready.set(None)
    assert Slow.mail == ["m0", "m1"]


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps(1), pickle.dumps((1, 2))])
def test_a_message_that_cannot_be_read_is_logged_and_the_server_lives(
    make: Callable[..., Rig], data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make().up()
    rig.runtime.receive(data, "somebody")
    assert "a message from somebody cannot be read" in caplog.text
    rig.mail("still here")
    assert Slow.mail == ["still here"] and rig.runtime.fatal is None


def test_an_expected_failure_to_start_is_told_as_it_is_and_a_bug_by_name(make: Callable[..., Rig]) -> None:
    for kind, error in (("Refuses", PortInUse), ("Buggy", StartFailed), ("Nothing", StartFailed)):
        rig = make(kind)
        with pytest.raises(Left):
            rig.begin()
        words, status = rig.wire.last_words[0]
        assert isinstance(words, ServerStartFailed) and type(words.error) is error
        assert status == actor_module.START_FAILED_EXIT_STATUS


@pytest.mark.parametrize("kind", ["no.such.module:X", HERE + "Absent", HERE + "Wire", HERE + "HERE", "", ".x:Y"])
def test_a_kind_that_is_no_server_is_refused(kind: str) -> None:
    with pytest.raises(StartFailed):
        load_server(kind)


def test_who_is_not_there_is_no_such_actor_and_so_is_who_just_died(make: Callable[..., Rig]) -> None:
    rig = make(peer=Place("p1", 1, True)).up()
    with pytest.raises(NoSuchActor, match="nobody"):
        rig.runtime.send("nobody", Envelope(CAST, "slow", None, "x"))
    rig.wire.gone.add("p1")
    with pytest.raises(NoSuchActor, match="is down") as down:
        rig.runtime.send("peer", Envelope(CAST, "slow", None, "x"))
    assert "restarted" in down.value.hint


def call_outcome(rig: Rig, to: str) -> list[Any]:
    """Starts a call; what it ends with appears in the list."""
    outcome: list[Any] = []

    async def call() -> None:
        try:
            outcome.append(await rig.runtime.server.call(to, "question", timeout_s=60.0))  # type: ignore[union-attr]
        except ActorGridError as error:
            outcome.append(type(error))

    assert rig.runtime.server is not None
    rig.runtime.server.spawn(call())
    return outcome


def test_calls_to_a_process_that_died_fail_when_the_supervisor_says_so(make: Callable[..., Rig]) -> None:
    rig = make(peer=Place("p1", 1, True)).up()
    dropped, replaced = call_outcome(rig, "peer"), call_outcome(rig, "peer")
    rig.runtime.take_directory({"peer": Place("p1", 1, True)})
    assert dropped == []
    rig.runtime.take_directory({})
    assert dropped == replaced == [ActorDown]
    rig.runtime.take_directory({"peer": Place("p2", 2, True)})
    again = call_outcome(rig, "peer")
    rig.runtime.take_directory({"peer": Place("p3", 3, False)})
    assert again == [ActorDown]
    assert Slow.restarted == ["peer"]
    rig.runtime.take_directory({"peer": Place("p3", 3, True)})
    assert Slow.restarted == ["peer", "peer"]


def test_news_from_the_process_itself_beats_older_news_of_the_supervisor(make: Callable[..., Rig]) -> None:
    rig = make(peer=Place("p1", 1, True)).up()
    rig.mail("hello from the new one", sender="peer", generation=2)
    assert [envelope.body for envelope in rig.wire.envelopes("socket-of-peer")] == ["HELLO FROM THE NEW ONE"]
    rig.runtime.take_directory({"peer": Place("p1", 1, True)})
    assert rig.runtime.directory["peer"].address == "socket-of-peer"


def test_an_answer_reaches_its_call_even_while_the_start_goes_on(make: Callable[..., Rig]) -> None:
    rig = make(peer=Place("p1", 1, True)).begin()
    outcome = call_outcome(rig, "peer")
    [question] = rig.wire.envelopes("p1")
    rig.mail("answer", REPLY, ref=question.ref)
    assert outcome == ["answer"]


def test_watched_descriptors_report_until_unwatched_even_if_closed_meanwhile(make: Callable[..., Rig]) -> None:
    rig = make().up()
    ours, theirs = socket.socketpair()
    events: list[str] = []
    with theirs:
        fd = ours.fileno()
        rig.runtime.watch(fd, lambda: events.append(ours.recv(1).decode()), lambda: events.append("writable"))
        theirs.send(b"ab")
        rig.runtime.descriptors_ready()
        assert events == ["a", "writable"]
        rig.runtime.watch(fd, lambda: events.append(ours.recv(1).decode()))
        rig.runtime.descriptors_ready()
        assert events == ["a", "writable", "b"]
        rig.runtime.watch(fd, None)
        theirs.send(b"c")
        rig.runtime.descriptors_ready()
        assert len(events) == 3
        rig.runtime.watch(fd, lambda: None)
        ours.close()
        rig.runtime.unwatch(fd)
        rig.runtime.unwatch(fd)


def test_a_callback_that_unwatches_keeps_the_other_from_being_called(make: Callable[..., Rig]) -> None:
    rig = make().up()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        called: list[str] = []
        rig.runtime.watch(ours.fileno(), lambda: rig.runtime.unwatch(ours.fileno()), lambda: called.append("written"))
        theirs.send(b"x")
        rig.runtime.descriptors_ready()
        assert called == []


def test_nothing_is_called_after_a_crash_and_its_first_cause_stays(make: Callable[..., Rig]) -> None:
    rig = make().up()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        called: list[int] = []
        rig.runtime.watch(ours.fileno(), lambda: called.append(1), lambda: called.append(2))
        rig.runtime.after(0.0, lambda: called.append(3))
        first = ZeroDivisionError("first")
        rig.runtime.crash(first)
        rig.runtime.crash(ValueError("second"))
        theirs.send(b"x")
        rig.runtime.descriptors_ready()
        rig.runtime.alarm()
        assert called == [] and rig.runtime.fatal is first


def test_stopping_twice_stops_once_and_an_unfinished_start_is_left_at_once(make: Callable[..., Rig]) -> None:
    rig = make().begin()
    rig.runtime.stop("asked to")
    rig.runtime.stop("again")
    assert [name for name, _ in rig.wire.sent] == ["me"]
