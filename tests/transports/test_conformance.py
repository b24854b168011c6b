"""One set of promises over two system bases, ours and Thespian's own over TCP; each difference is a field of Base."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from thespian.actors import ActorSystem
from thespian.system.transport.IPBase import IPActorAddress

from actorgrid.transports.unix.system import UnixSystem
from tests.processes import is_alive
from tests.transports.conformance_actors import Everyman

# Thespian forks with its sockets and log files open, and leaves some to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Module actorgrid was previously imported"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ASK_S = timedelta(seconds=30)
SILENT = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"none": {"class": "logging.NullHandler"}},
    "root": {"handlers": ["none"], "level": "CRITICAL"},
}


@dataclass(frozen=True)
class Base:
    """What a base promises where the two differ on purpose."""

    name: str
    largest_bytes: int
    refuses_more: bool
    """Over the largest: refused where it is sent, and nothing arrives. TCP knows no limit; larger is just slow."""
    tells_a_death_once: bool
    tells_exit_status: bool
    """Ours tells how a child ended; Thespian has no field for it."""
    due_at_once_in_order: bool
    """Wakeups that became due while a handler ran: ours come earliest first, Thespian's latest first."""
    children_die_with_their_parent: bool
    """Ours leaves no orphans; Thespian's go on without a parent."""
    listens_on_ports: bool
    """Ours opens no port at all."""


OURS = Base(
    "ours",
    largest_bytes=64 * 2**20 - 1024,
    refuses_more=True,
    tells_a_death_once=True,
    tells_exit_status=True,
    due_at_once_in_order=True,
    children_die_with_their_parent=True,
    listens_on_ports=False,
)
TCP = Base(
    "tcp",
    largest_bytes=10_000_000,
    refuses_more=False,
    tells_a_death_once=False,
    tells_exit_status=False,
    due_at_once_in_order=False,
    children_die_with_their_parent=False,
    listens_on_ports=True,
)
BASES = [pytest.param(base, id=base.name) for base in (OURS, TCP)]


@dataclass
class Running:
    """A started system."""

    base: Base
    actors: Any
    folder: Path

    def make(self) -> Any:
        return self.actors.createActor(Everyman)

    def processes(self) -> list[psutil.Process]:
        """The admin, and all that descends from it."""
        first = psutil.Process(self.ask(self.make(), "pid"))
        admin = psutil.Process(first.ppid())
        return [admin, *admin.children(recursive=True)]

    def ask(self, to: Any, verb: str, value: Any = None, timeout: timedelta = ASK_S) -> Any:
        return self.actors.ask(to, (verb, value), timeout)


def only_loopback(self: Any) -> tuple[Any, ...]:
    """Where the TCP base listens in a test. Its own answer is every address, to strangers whose pickles it loads."""
    return (("127.0.0.1", self.bindname[1]),)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < end, what
        select.select([], [], [], 0.01)
    return value


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def started(base: Base, folder: Path) -> Iterator[Running]:
    """A system that is shut down, with all of its processes, at the end."""
    if base is OURS:
        system = UnixSystem(folder / "boot-1")
        try:
            yield Running(base, system._system, system.folder)
        finally:
            system.close()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IPActorAddress, "bindArgs", property(only_loopback))
        patch.setenv("THESPIAN_BASE_IPADDR", "127.0.0.1")
        patch.setenv("THESPLOG_FILE", str(folder / "thespian.log"))
        actors = ActorSystem("multiprocTCPBase", {"Admin Port": free_port()}, logDefs=SILENT, transientUnique=True)
        running = Running(base, actors, folder)
        made: list[psutil.Process] = []
        try:
            admin = running.processes()[0]
            yield running
            made = [admin, *admin.children(recursive=True)]
        finally:
            transport = actors._systemBase.transport
            actors.shutdown()
            transport.close()  # or it would listen until it is collected
            for process in alive(made):
                process.kill()


@pytest.fixture(scope="module", params=BASES)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(request.param, tmp_path_factory.mktemp("system")) as running:
        yield running


def test_an_actor_lives_in_a_process_of_its_own_and_answers(system: Running) -> None:
    actor = system.make()
    assert system.ask(actor, "echo", {"a": [1, None]}) == {"a": [1, None]}
    assert system.ask(actor, "pid") != os.getpid()


def test_a_message_that_is_told_is_answered_to_whoever_listens(system: Running) -> None:
    system.actors.tell(system.make(), ("echo", "later"))
    assert system.actors.listen(ASK_S) == "later"


def test_messages_of_one_sender_arrive_in_their_order(system: Running) -> None:
    source, target = system.make(), system.make()
    assert system.ask(source, "send_numbers", (target, 500)) == list(range(500))


@pytest.mark.parametrize("size", [0, 1, 1_000, 65_536, 1_000_000, 10_000_000])
def test_messages_of_all_sizes_arrive_whole(system: Running, size: int) -> None:
    assert system.ask(system.make(), "size", b"x" * size) == (size, b"x"[:size], b"x"[:size])


def test_the_largest_message_arrives_and_a_larger_one_is_as_documented(system: Running) -> None:
    actor, largest = system.make(), system.base.largest_bytes
    assert system.ask(actor, "size", b"x" * largest) == (largest, b"x", b"x")
    larger = system.ask(actor, "size", b"x" * (largest + 2048))
    assert larger == (None if system.base.refuses_more else (largest + 2048, b"x", b"x"))
    assert system.ask(actor, "echo", "still there") == "still there"


def test_several_messages_in_flight_are_all_answered(system: Running) -> None:
    actors = [system.make() for _ in range(3)]
    for number in range(30):
        system.actors.tell(actors[number % 3], ("echo", number))
    assert sorted(system.actors.listen(ASK_S) for _ in range(30)) == list(range(30))


def test_a_child_can_have_children_and_all_are_reached_from_anywhere(system: Running) -> None:
    actor, pids = system.make(), []
    for _ in range(3):
        pids.append(system.ask(actor, "pid"))
        actor, _pid = system.ask(actor, "child")
    pids.append(system.ask(actor, "pid"))
    assert [psutil.Process(pid).ppid() for pid in pids[1:]] == pids[:-1]


@pytest.mark.parametrize(
    ("how", "status"), [("leave", 0), ("die", -signal.SIGKILL), ("terminate", 0)], ids=["exit", "SIGKILL", "SIGTERM"]
)
def test_a_parent_hears_of_its_childs_end(system: Running, how: str, status: int) -> None:
    parent = system.make()
    child, pid = system.ask(parent, "child")
    if how == "terminate":
        os.kill(pid, signal.SIGTERM)
    else:
        system.actors.tell(child, (how, None))
    exits = wait_for(lambda: system.ask(parent, "exits"), "the news of its end")
    wait_for(lambda: not is_alive(pid), "its end")
    assert exits[0] == (status if system.base.tells_exit_status else "not told")
    again = system.ask(parent, "exits")
    assert len(again) == 1 if system.base.tells_a_death_once else len(again) in (1, 2)


def test_a_message_to_the_dead_is_not_answered_and_harms_nobody(system: Running) -> None:
    dead, living = system.make(), system.make()
    pid = system.ask(dead, "pid")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), "its end")
    assert system.ask(dead, "echo", "anybody?", timedelta(seconds=1)) is None
    assert system.ask(living, "send_numbers", (dead, 3), timedelta(seconds=0.2)) is None
    assert system.ask(living, "echo", "here") == "here"


def test_wakeups_come_in_the_order_of_their_times(system: Running) -> None:
    told = system.ask(system.make(), "wakeups", ((0.09, 0.03, 0.06), 0.0))
    # A machine that pauses for as long has them due at once, which Thespian's own tells the other way round.
    assert told == [0.03, 0.06, 0.09] or (not system.base.due_at_once_in_order and told == [0.09, 0.06, 0.03])


def test_wakeups_that_were_held_up_come_in_the_documented_order(system: Running) -> None:
    expected = [0.01, 0.02, 0.03] if system.base.due_at_once_in_order else [0.03, 0.02, 0.01]
    assert system.ask(system.make(), "wakeups", ((0.03, 0.01, 0.02), 0.06)) == expected


def test_a_watched_descriptor_that_can_be_read_is_told(system: Running) -> None:
    assert system.ask(system.make(), "watch", b"over here") == b"over here"


def test_a_handler_that_raises_runs_twice_and_its_sender_gets_the_poison(system: Running) -> None:
    """Plain Thespian actors, that is: a server of ours dies of it instead, at once."""
    careless, other = system.make(), system.make()
    assert system.ask(other, "make_fail", careless) == ("poison", ("fail", None))
    assert system.ask(careless, "handled") == 2


def test_what_becomes_of_the_children_of_a_killed_parent_is_as_documented(system: Running) -> None:
    parent = system.make()
    child, child_pid = system.ask(parent, "child")
    os.kill(system.ask(parent, "pid"), signal.SIGKILL)
    if system.base.children_die_with_their_parent:
        wait_for(lambda: not is_alive(child_pid), "its end")
    else:
        assert system.ask(child, "echo", "an orphan") == "an orphan"
        os.kill(child_pid, signal.SIGKILL)


@pytest.mark.parametrize("base", BASES)
def test_a_shutdown_leaves_no_process_and_nothing_that_listens(base: Base, tmp_path: Path) -> None:
    inherited = {each.laddr.port for each in listening(psutil.Process())}  # of the other tests' system
    with started(base, tmp_path) as running:
        running.ask(running.make(), "child")
        made = running.processes()
        assert len(made) >= 4
        ports = {each.laddr.port for process in made for each in listening(process)} - inherited
        assert bool(ports) == base.listens_on_ports
    wait_for(lambda: not alive(made), "the end of all processes")
    assert not [path for path in tmp_path.rglob("*") if path.is_socket()]
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def listening(process: psutil.Process) -> list[Any]:
    return [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
