"""SupervisorRuntime without a process around it: who is told of a child's end, and when."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorGridError, MailboxFull, PeerGone
from actorgrid.supervisors.actor_runtime import ActorRuntime
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.child_runtime import SupervisorRuntime
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.heartbeat import Heartbeat, OwnHeartbeat
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.supervisor import Supervisor
from actorgrid.supervisors.wire import Ended, HostServer, Inherited, ServerStarted, WhyEnded

SIGKILLED = -9


class Boss(Supervisor):
    def init(self, *_arguments: Any) -> tuple[SupervisorFlags, Sequence[ChildSpec]]:
        return SupervisorFlags(), [ChildSpec("worker", "nowhere:Worker")]


class Office:
    """Takes the place of the supervisor's actor: makes no process, and writes down what it was asked, in order."""

    def __init__(self, folder: Path) -> None:
        self.boot_folder = folder
        self.address = "a.1"
        self.did: list[Any] = []
        self.orders: list[HostServer] = []
        self.forked = 0
        self.out_of_reach: dict[str, ActorGridError] = {}

    def fork_child(self, _is_supervisor: bool) -> tuple[int, str]:
        self.forked += 1
        self.did.append("fork")
        address = f"a.1.{self.forked}"
        (self.boot_folder / address).touch()
        return os.getpid(), address

    def tell(self, to: str, message: Any) -> None:
        if isinstance(message, HostServer):
            self.orders.append(message)
        else:
            self.did.append((to, message))

    def watch_peer(self, address: str) -> None:
        if address in self.out_of_reach:
            raise self.out_of_reach[address]
        self.did.append(f"connect {address}")

    def post(self, _to: str, _data: bytes) -> None:
        """Nobody hears."""

    def when_capacity(self, _address: str, callback: Callable[[], None]) -> None:
        callback()

    def wakeupAfter(self, _delay: timedelta) -> None:
        """Alarms never come here."""

    def watch_descriptors(self, _fds: list[int]) -> None:
        """Nothing is watched here."""

    def leave_in_order(self) -> None:
        raise AssertionError("it should live")

    def end_now(self, last_words: Any, status: int) -> None:
        raise AssertionError(f"{last_words}, {status}")


@pytest.fixture
def office(tmp_path: Path) -> Iterator[tuple[Office, SupervisorRuntime]]:
    """A supervisor with one child, which is up."""
    actor, shared = Office(tmp_path), Heartbeat()
    heartbeat = OwnHeartbeat(os.dup(shared._fd))
    host = SimpleNamespace(settings=Settings())
    order = HostServer("boss", "tests.supervisors.test_child_runtime:Boss", host, heartbeat=shared.number)
    runtime = SupervisorRuntime(actor, order, "owner", heartbeat)
    runtime.begin()
    runtime.child_said(ServerStarted(os.getpid()), "a.1.1")
    actor.did.clear()
    yield actor, runtime
    runtime._epoll.close()
    for child in runtime._children.values():
        child.heartbeat.close()
    heartbeat.close()
    shared.close()


def test_whoever_asked_ahead_is_told_of_a_death_before_the_successor_is_forked(
    office: tuple[Office, SupervisorRuntime],
) -> None:
    actor, runtime = office
    child = Ref("a.1.1", "worker")
    runtime.why_ended(WhyEnded(child), "b.7")
    runtime.why_ended(WhyEnded(child), "b.7")
    assert actor.did == ["connect b.7", "connect b.7"]
    actor.did.clear()
    runtime.child_exited("a.1.1", SIGKILLED)
    assert actor.did == [("b.7", Ended(child, ExitReason("killed", exit_status=SIGKILLED))), "fork"]


def test_whoever_asks_after_the_burial_is_told_the_same(office: tuple[Office, SupervisorRuntime]) -> None:
    actor, runtime = office
    runtime.child_exited("a.1.1", SIGKILLED)
    actor.did.clear()
    runtime.why_ended(WhyEnded(Ref("a.1.1")), "b.7")
    assert actor.did == [("b.7", Ended(Ref("a.1.1"), ExitReason("killed", exit_status=SIGKILLED)))]


def test_whoever_asked_and_died_is_forgotten(office: tuple[Office, SupervisorRuntime]) -> None:
    actor, runtime = office
    runtime.why_ended(WhyEnded(Ref("a.1.1")), "b.7")
    runtime.peer_lost("b.7")
    actor.did.clear()
    runtime.child_exited("a.1.1", SIGKILLED)
    assert actor.did == ["fork"]


def test_a_watcher_that_no_connection_can_be_made_to_is_told_unless_it_is_gone(
    office: tuple[Office, SupervisorRuntime],
) -> None:
    actor, runtime = office
    actor.out_of_reach = {"b.7": PeerGone("it closed its socket"), "b.8": MailboxFull("no descriptor is left")}
    for asker in ("b.7", "b.8"):
        runtime.why_ended(WhyEnded(Ref("a.1.1")), asker)
    runtime.child_exited("a.1.1", SIGKILLED)
    assert [each[0] for each in actor.did if isinstance(each, tuple)] == ["b.8"]


def test_a_supervisor_asks_nobody_about_its_own_children(office: tuple[Office, SupervisorRuntime]) -> None:
    actor, runtime = office
    assert runtime.server is not None
    runtime.server.monitor("worker")
    runtime.server.monitor(Ref("a.2.1", "another's"))
    assert [each for each in actor.did if isinstance(each, tuple)] == [("a.2", WhyEnded(Ref("a.2.1", "another's")))]


def test_children_inherit_the_host_instead_of_getting_it_by_message(
    office: tuple[Office, SupervisorRuntime],
) -> None:
    actor, runtime = office
    [order] = actor.orders
    assert order.host == Inherited()
    shared = Heartbeat()
    heartbeat = OwnHeartbeat(os.dup(shared._fd))
    child = ActorRuntime(actor, order, "a.1", heartbeat)
    assert child.host is runtime.host
    child._epoll.close()
    heartbeat.close()
    shared.close()
