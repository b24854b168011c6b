"""ActorRuntime without a process around it: starts, early mail, names, ends of others, and descriptors."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
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
from actorgrid.supervisors import actor_runtime
from actorgrid.supervisors.actor_runtime import ActorRuntime, load_server
from actorgrid.supervisors.envelope import CALL, CAST, ERROR, REPLY, SIGNAL, Envelope
from actorgrid.supervisors.exits import SHUTDOWN, ExitReason
from actorgrid.supervisors.heartbeat import Heartbeat, OwnHeartbeat
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.registry import Registry
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.signals import Down, DownSignal, MonitorSignal
from actorgrid.supervisors.wire import Ended, HostServer, LastWords, ServerStarted, ServerStartFailed, WhyEnded, pack

HERE = "tests.supervisors.test_actor_runtime:"


class Left(BaseException):
    """The process would have ended here."""


class Wire:
    """Takes the place of the process's actor: remembers what it is to send, and who is gone."""

    def __init__(self, folder: Path) -> None:
        self.boot_folder = folder
        self.address = "a.1"
        (folder / self.address).touch()
        self.posted: list[tuple[str, Envelope]] = []
        self.told: list[tuple[str, Any]] = []
        self.gone: set[str] = set()
        self.watched: list[str] = []
        self.last_words: list[tuple[Any, int]] = []
        self.left = False

    def post(self, to: str, data: bytes) -> None:
        if to in self.gone:
            raise PeerGone(f"{to} closed its socket")
        kind, sender, ref, body = pickle.loads(data)
        self.posted.append((to, Envelope(kind, sender, ref, body)))

    def tell(self, to: str, message: Any) -> None:
        self.told.append((to, message))

    def watch_peer(self, address: str) -> None:
        if address in self.gone:
            raise PeerGone(f"{address} closed its socket")
        self.watched.append(address)

    def when_capacity(self, _address: str, callback: Callable[[], None]) -> None:
        callback()

    def wakeupAfter(self, _delay: timedelta) -> None:
        """Alarms never come here."""

    def watch_descriptors(self, _fds: list[int]) -> None:
        """The tests call descriptors_ready themselves."""

    def leave_in_order(self) -> None:
        self.left = True

    def end_now(self, last_words: Any, status: int) -> None:
        self.last_words.append((last_words, status))
        raise Left

    def envelopes(self, to: str) -> list[Envelope]:
        return [envelope for name, envelope in self.posted if name == to and envelope.kind != SIGNAL]

    def words(self, kind: type) -> list[Any]:
        return [message for _, message in self.told if isinstance(message, kind)]


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

    @handles(Down)
    def _down(self, down: Down) -> None:
        Slow.mail.append(down)

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
    def __init__(self, tmp_path: Path, kind: str = "Slow", **peers: str) -> None:
        Slow.ready, Slow.mail, Slow.restarted = Waiter(), [], []
        folder = tmp_path / "boot"
        folder.mkdir(exist_ok=True)
        self.wire = Wire(folder)
        for name, address in peers.items():
            (folder / address).touch()
            Registry(folder).register(name, Ref(address, name))
        host = SimpleNamespace(settings=Settings(), paths=HostPaths(tmp_path))
        self._shared = Heartbeat()
        self.heartbeat = OwnHeartbeat(os.dup(self._shared._fd))
        order = HostServer("slow", HERE + kind, host, heartbeat=self._shared.number)
        self.runtime = ActorRuntime(self.wire, order, "owner", self.heartbeat)

    def begin(self) -> Rig:
        self.runtime.begin()
        return self

    def up(self) -> Rig:
        self.begin()
        Slow.ready.set(None)
        return self

    def mail(self, body: Any, kind: str = CALL, sender: str = "peer", ref: Any = (1, 1)) -> None:
        self.runtime.receive(pack(Envelope(kind, sender, ref, body)), f"socket-of-{sender}")

    def server(self) -> Server:
        assert self.runtime.server is not None
        return self.runtime.server

    def close(self) -> None:
        self.runtime._epoll.close()
        self.heartbeat.close()
        self._shared.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def rig(kind: str = "Slow", **peers: str) -> Rig:
        made.append(Rig(tmp_path, kind, **peers))
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
    monkeypatch.setattr(actor_runtime, "HELD_MAX", 2)
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
    assert Slow.mail == ["still here"] and rig.runtime.end is None


def test_an_expected_failure_to_start_is_told_as_it_is_and_a_bug_by_name(make: Callable[..., Rig]) -> None:
    for kind, error in (("Refuses", PortInUse), ("Buggy", StartFailed), ("Nothing", StartFailed)):
        rig = make(kind)
        with pytest.raises(Left):
            rig.begin()
        words, status = rig.wire.last_words[0]
        assert isinstance(words, ServerStartFailed) and type(words.error) is error
        assert status == actor_runtime.START_FAILED_EXIT_STATUS


@pytest.mark.parametrize("kind", ["no.such.module:X", HERE + "Absent", HERE + "Wire", HERE + "HERE", "", ".x:Y"])
def test_a_kind_that_is_no_server_is_refused(kind: str) -> None:
    with pytest.raises(StartFailed):
        load_server(kind)


def test_who_is_not_there_is_no_such_actor_and_so_is_who_just_died(make: Callable[..., Rig]) -> None:
    rig = make(peer="p1").up()
    with pytest.raises(NoSuchActor, match="nobody"):
        rig.runtime.send("nobody", Envelope(CAST, "slow", None, "x"))
    rig.wire.gone.add("p1")
    with pytest.raises(NoSuchActor, match="is down") as down:
        rig.runtime.send("peer", Envelope(CAST, "slow", None, "x"))
    assert "restarted" in down.value.hint


def call_outcome(rig: Rig, to: str | Ref) -> list[Any]:
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


def test_calls_to_a_process_that_died_fail_when_the_kernel_says_so(make: Callable[..., Rig]) -> None:
    rig = make(peer="p1", other="p2").up()
    by_name, by_ref, elsewhere = call_outcome(rig, "peer"), call_outcome(rig, Ref("p1")), call_outcome(rig, "other")
    assert by_name == by_ref == []
    rig.runtime.peer_lost("p1")
    assert by_name == by_ref == [ActorDown]
    assert elsewhere == []


def test_a_restarted_server_is_news_for_others_and_not_for_itself(make: Callable[..., Rig]) -> None:
    rig = make().begin()
    rig.runtime.came_back("peer", "owner")
    rig.runtime.came_back("slow", "owner")
    assert Slow.restarted == ["peer"]


def test_who_watched_a_silent_death_asks_its_parent_why(make: Callable[..., Rig]) -> None:
    rig = make(peer="a.7.2").up()
    target = Ref("a.7.2", "peer")
    monitor = rig.server().monitor("peer")
    assert rig.wire.watched == ["a.7.2"]
    assert [envelope.body for to, envelope in rig.wire.posted if to == "a.7.2"] == [MonitorSignal(monitor.id)]
    rig.wire.told.clear()
    rig.runtime.peer_lost("a.7.2")
    rig.runtime.peer_lost("a.7.2")
    assert [(to, word) for to, word in rig.wire.told if isinstance(word, WhyEnded)] == [("a.7", WhyEnded(Ref("a.7.2")))]
    rig.runtime.ended(Ended(target, ExitReason("killed", exit_status=-9)))
    rig.runtime.alarm()
    assert Slow.mail == [Down(monitor, target, ExitReason("killed", exit_status=-9))]


def test_the_parent_of_a_monitored_process_is_asked_ahead_and_once(make: Callable[..., Rig]) -> None:
    rig = make(peer="a.7.2").up()
    rig.server().monitor("peer")
    rig.server().link("peer")
    rig.runtime.receive(pack(Envelope(SIGNAL, "peer", None, MonitorSignal(1))), "a.7.2")
    assert [(to, word) for to, word in rig.wire.told if isinstance(word, WhyEnded)] == [
        ("a.7", WhyEnded(Ref("a.7.2", "peer")))
    ]


def test_whoever_monitors_us_has_its_parent_asked_too_and_the_admin_is_asked_nothing(make: Callable[..., Rig]) -> None:
    rig = make().up()
    rig.runtime.receive(pack(Envelope(SIGNAL, "peer", None, MonitorSignal(1))), "a.7.2")
    rig.runtime.receive(pack(Envelope(SIGNAL, "root", None, MonitorSignal(1))), "admin.1")
    assert [(to, word) for to, word in rig.wire.told if isinstance(word, WhyEnded)] == [("a.7", WhyEnded(Ref("a.7.2")))]


def test_a_reason_that_comes_before_the_last_messages_were_read_waits_for_them(make: Callable[..., Rig]) -> None:
    rig = make(peer="a.7.2").up()
    target, reason = Ref("a.7.2", "peer"), ExitReason("killed", exit_status=-9)
    monitor = rig.server().monitor("peer")
    rig.runtime.ended(Ended(target, reason))
    rig.runtime.alarm()
    assert Slow.mail == []
    rig.wire.told.clear()
    rig.runtime.peer_lost("a.7.2")
    rig.runtime.alarm()
    assert Slow.mail == [Down(monitor, target, reason)]
    assert not rig.wire.words(WhyEnded)
    rig.runtime.ended(Ended(target, reason))
    rig.runtime.peer_lost("a.7.2")
    rig.runtime.alarm()
    assert len(Slow.mail) == 1


def test_an_open_call_to_the_dead_fails_with_the_reason_that_came_ahead(make: Callable[..., Rig]) -> None:
    rig = make(peer="a.7.2").up()
    rig.server().monitor("peer")
    found: list[str] = []

    async def call() -> None:
        try:
            await rig.server().call("peer", "question", timeout_s=60.0)
        except ActorDown as error:
            found.append(error.message)

    rig.server().spawn(call())
    rig.runtime.ended(Ended(Ref("a.7.2", "peer"), ExitReason("killed", exit_status=-9)))
    rig.runtime.peer_lost("a.7.2")
    assert ["killed" in message for message in found] == [True]


def test_last_words_make_the_question_why_needless(make: Callable[..., Rig]) -> None:
    rig = make(peer="a.7.2").up()
    monitor = rig.server().monitor("peer")
    reason = ExitReason("error", "KeyError: 'x'")
    rig.wire.told.clear()
    rig.runtime.receive(pack(Envelope(SIGNAL, "peer", None, DownSignal(monitor.id, reason))), "a.7.2")
    rig.runtime.peer_lost("a.7.2")
    rig.runtime.alarm()
    assert [down.reason for down in Slow.mail] == [reason]
    assert not rig.wire.words(WhyEnded)


def test_when_nobody_can_say_why_the_watcher_is_told_all_the_same(make: Callable[..., Rig]) -> None:
    rig = make(peer="x9").up()
    rig.server().monitor("peer")
    rig.runtime.peer_lost("x9")
    [timer] = rig.runtime._whys.values()
    assert timer.callback is not None
    timer.callback()
    rig.runtime.alarm()
    assert [down.reason.kind for down in Slow.mail] == ["killed"]


def test_whoever_watches_us_hears_why_we_end_before_the_supervisor_does(make: Callable[..., Rig]) -> None:
    rig = make().up()
    rig.runtime.receive(pack(Envelope(SIGNAL, "peer", None, MonitorSignal(4))), "a.9")
    rig.runtime.leave(SHUTDOWN)
    assert [(to, envelope.body) for to, envelope in rig.wire.posted if envelope.kind == SIGNAL] == [
        ("a.9", DownSignal(4, SHUTDOWN))
    ]
    assert rig.wire.told[-1] == ("owner", LastWords(SHUTDOWN))
    assert rig.wire.left


def test_a_held_server_is_called_back_by_nothing_until_it_goes_on(make: Callable[..., Rig]) -> None:
    rig = make().up()
    called: list[str] = []
    rig.runtime.after(0.0, lambda: called.append("timer"))
    rig.runtime.hold(60.0, lambda: called.append("released"))
    rig.runtime.alarm()
    assert called == []
    rig.runtime.go_on()
    rig.runtime.alarm()
    assert called == ["timer"]


def test_an_answer_reaches_its_call_even_while_the_start_goes_on(make: Callable[..., Rig]) -> None:
    rig = make(peer="p1").begin()
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
        assert called == [] and rig.runtime.end is not None and "first" in rig.runtime.end.message


def test_stopping_twice_stops_once_and_an_unfinished_start_is_left_at_once(make: Callable[..., Rig]) -> None:
    rig = make().begin()
    rig.runtime.leave(SHUTDOWN)
    rig.runtime.leave(SHUTDOWN)
    assert rig.wire.words(LastWords) == [LastWords(SHUTDOWN)]
