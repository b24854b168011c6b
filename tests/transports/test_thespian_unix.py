"""Plain Thespian actors over the AF_UNIX base, in real processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorgrid.errors import FrameTooLarge, PeerGone
from actorgrid.transports.unix.system import UnixSystem, sweep
from actorgrid.transports.unix.thespian import Parcel, PeerLost
from tests.processes import is_alive
from tests.transports.mesh_actors import Mirror, Watcher

# Coverage, where it runs, warns so in each forked process, and a warning is an error here.
pytestmark = pytest.mark.filterwarnings("ignore:Module actorgrid was previously imported")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[UnixSystem]:
    made = UnixSystem(tmp_path / "boot-1")
    yield made
    made.close()


def answer(system: UnixSystem, to: str, message: Any) -> Any:
    system.tell(to, message)
    while True:
        received = system.receive(20)
        assert received is not None, "no answer"
        if not isinstance(received[1], PeerLost):
            return received[1]


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < end, what
        select.select([], [], [], 0.005)
    return value


def test_an_actor_answers_from_a_process_of_its_own(system: UnixSystem) -> None:
    pid = answer(system, system.create(Mirror), "pid")
    assert pid != os.getpid() and psutil.Process(pid).ppid() == system.admin_pid


def test_an_actor_makes_actors_and_they_can_write_to_anyone(system: UnixSystem) -> None:
    mirror = system.create(Mirror)
    parent, child = answer(system, mirror, "pid"), answer(system, mirror, "child")
    assert psutil.Process(child).ppid() == parent


@pytest.mark.parametrize("size", [0, 10_000, 1_000_000, 20_000_000])
def test_parcels_and_pickled_messages_of_all_sizes_arrive(system: UnixSystem, size: int) -> None:
    mirror = system.create(Mirror)
    assert answer(system, mirror, Parcel(b"x" * size)).data == b"x" * size
    assert answer(system, mirror, b"x" * size) == size


def test_a_message_over_the_limit_is_refused_where_it_is_sent(system: UnixSystem) -> None:
    mirror = system.create(Mirror)
    with pytest.raises(FrameTooLarge):
        system.tell(mirror, Parcel(bytes(65 * 2**20)))
    assert answer(system, mirror, b"123") == 3


def test_a_parent_hears_of_a_death_once_and_how(system: UnixSystem) -> None:
    mirror = system.create(Mirror)
    children = [answer(system, mirror, "child") for _ in range(3)]
    for child, number in zip(children, (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM), strict=True):
        os.kill(child, number)
    exits = wait_for(lambda: len(found := answer(system, mirror, "exits")) >= 3 and found, "three deaths")
    assert sorted(exits) == sorted(zip(children, (-signal.SIGKILL, -signal.SIGSEGV, 0), strict=True))
    assert answer(system, mirror, "exits") == exits


def test_sending_to_a_dead_actor_fails_at_once(system: UnixSystem) -> None:
    keeper, mirror = system.create(Mirror), system.create(Mirror)
    pid = answer(system, mirror, "pid")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), "its death")
    with pytest.raises(PeerGone):
        for _ in range(2):  # the first may still go to the open connection
            system.tell(mirror, "pid")
            system.receive(0.01)
    assert answer(system, keeper, b"12") == 2


def test_watches_and_wakeups_work(system: UnixSystem) -> None:
    watcher = system.create(Watcher)
    assert answer(system, watcher, "watch") == b"ping"
    assert answer(system, watcher, "watch") == b"ping"
    late = [answer(system, watcher, delay_s) for delay_s in (0.001, 0.01, 0.05)]
    assert all(each >= -0.001 for each in late)


def test_the_admin_leaves_with_its_last_actor(system: UnixSystem) -> None:
    mirror = system.create(Mirror)
    assert answer(system, mirror, b"1") == 1
    system.tell(mirror, "leave")
    assert system.wait_gone(20)


def test_nothing_outlives_the_admin_and_its_loss_is_an_error(system: UnixSystem) -> None:
    mirror = system.create(Mirror)
    pids = [system.admin_pid, answer(system, mirror, "pid"), answer(system, mirror, "child")]
    os.kill(system.admin_pid, signal.SIGKILL)
    assert system.wait_gone(20)
    wait_for(lambda: not [pid for pid in pids if is_alive(pid)], "the end of all")
    with pytest.raises(PeerGone):
        while received := system.receive(20):
            assert isinstance(received[1], PeerLost), "only news of the dead comes before"


def test_sockets_are_in_a_private_directory_and_go_with_the_system(tmp_path: Path) -> None:
    system = UnixSystem(tmp_path / "boot-2")
    mirror = system.create(Mirror)
    assert stat.S_IMODE(system.folder.stat().st_mode) == 0o700
    assert {"admin", mirror, system.name} <= set(os.listdir(system.folder))
    pids = [system.admin_pid, answer(system, mirror, "pid")]
    for pid in (os.getpid(), *pids):
        assert psutil.Process(pid).net_connections("inet") == []
    system.close()
    assert not system.folder.exists()
    wait_for(lambda: not [pid for pid in pids if is_alive(pid)], "the end of all")


def test_every_boot_has_its_own_key(tmp_path: Path) -> None:
    from actorgrid.transports.unix import thespian

    keys = []
    for number in range(2):
        system = UnixSystem(tmp_path / f"boot-{number}")
        keys.append(thespian._current_boot().key)
        system.close()
    assert len(set(keys)) == 2 and all(len(key) == 32 for key in keys)


def test_garbage_on_an_actors_socket_changes_nothing(system: UnixSystem) -> None:
    mirror = system.create(Mirror)
    for name in ("admin", mirror):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            connection.connect(str(system.folder / name))
            connection.sendall(struct.pack(">IB", 10, 0) + bytes(200))
            received = b""
            while chunk := _receive(connection):
                received += chunk
            assert len(received) == 36  # the greeting, then the end
    assert answer(system, mirror, b"12") == 2


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_sweeping_an_old_boot_removes_sockets_but_follows_nothing(tmp_path: Path) -> None:
    boot, precious = tmp_path / "boot-old", tmp_path / "precious"
    boot.mkdir()
    precious.mkdir()
    (precious / "file").touch()
    (boot / "socket").touch()
    (boot / "link").symlink_to(precious)
    sweep(boot)
    assert not boot.exists() and (precious / "file").exists()
    sweep(boot)
