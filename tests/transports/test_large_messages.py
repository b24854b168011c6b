"""Large messages: files where there can be files, streams where not, in order and whole either way."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actorgrid.errors import MailboxFull
from actorgrid.transports.unix import handshake, large, outgoing
from actorgrid.transports.unix.mesh import Mesh
from actorgrid.transports.unix.outgoing import AS_FILE
from tests.descriptors import none_stays_open
from tests.transports.test_unix_mesh import KEY, MakeMesh, make, raw, turn

__all__ = ["make"]

MIB = 2**20
HEADER = struct.Struct(">IB")


@contextmanager
def no_descriptor_left() -> Iterator[list[int]]:
    """Until its end, or until some of the list are closed, this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def pair(make: MakeMesh) -> tuple[Mesh, Mesh]:
    """Two meshes with a proven connection from the first to the second."""
    a, b = make("a"), make("b")
    a.post("b", 0, b"hello")
    turn(a, b, until=lambda: len(b.inbox) == 1)
    b.inbox.clear()
    return a, b


def mixed(count: int) -> list[bytes]:
    sizes = [5, 3 * MIB, 0, 200_000, 2 * MIB, 2 * MIB - 1, 7, 5 * MIB]
    return [bytes([number % 251]) * sizes[number % len(sizes)] for number in range(count)]


def check_all_arrive(a: Mesh, b: Mesh, sent: list[bytes], kinds: type | None = None) -> None:
    """Also that who sent them was told of each, and that nothing counts as queued any more."""
    told: list[bool] = []
    for payload in sent:
        a.post("b", 1, payload, told.append)
    turn(a, b, until=lambda: len(b.inbox) == len(sent) and not a.pending)
    assert [bytes(payload) for _, _, payload in b.inbox] == sent
    assert told == [True] * len(sent) and a.outgoing.links["b"].queue.bytes == 0
    if kinds is not None:
        assert {type(payload) for _, _, payload in b.inbox if len(payload) > 2 * MIB} == {kinds}
    b.inbox.clear()


def test_large_and_small_messages_keep_their_order(pair: tuple[Mesh, Mesh]) -> None:
    with none_stays_open():
        check_all_arrive(*pair, mixed(40), memoryview)


def test_a_large_message_cannot_be_changed_by_who_gets_it(pair: tuple[Mesh, Mesh]) -> None:
    a, b = pair
    a.post("b", 1, b"x" * (3 * MIB))
    turn(a, b, until=lambda: bool(b.inbox))
    with pytest.raises(TypeError):
        b.inbox.popleft()[2][0] = 1


def test_a_limit_on_file_sizes_makes_streams_of_large_messages(pair: tuple[Mesh, Mesh]) -> None:
    with file_size_limit(MIB):
        check_all_arrive(*pair, mixed(20), bytearray)
    check_all_arrive(*pair, mixed(10), memoryview)


def test_a_sender_out_of_descriptors_sends_large_messages_as_streams(pair: tuple[Mesh, Mesh]) -> None:
    with no_descriptor_left():
        check_all_arrive(*pair, mixed(20), bytearray)


def test_a_receiver_out_of_descriptors_asks_for_a_stream_and_loses_nothing(pair: tuple[Mesh, Mesh]) -> None:
    a, b = pair
    sent = [b"first" * MIB, b"small", b"second" * MIB, b"last"]
    for payload in sent:
        a.post("b", 1, payload)  # the first is on its way at once, as a file
    assert a.outgoing.links["b"].offered
    with no_descriptor_left():
        turn(a, b, until=lambda: len(b.inbox) == len(sent) and not a.pending)
    assert [bytes(payload) for _, _, payload in b.inbox] == sent
    assert isinstance(b.inbox[0][2], bytearray)


def test_large_messages_count_against_the_bound_of_the_queue(
    pair: tuple[Mesh, Mesh], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "QUEUED_BYTES_MAX", 10 * MIB)
    a, b = pair
    told: list[str] = []
    a.when_capacity("b", lambda: told.append("at once"))
    with pytest.raises(MailboxFull):
        for _ in range(4):
            a.post("b", 1, bytes(3 * MIB))
    a.when_capacity("b", lambda: told.append("later"))
    assert told == ["at once"]
    turn(a, b, until=lambda: told == ["at once", "later"])
    turn(a, b, until=lambda: len(b.inbox) == 3)


def test_who_waits_for_room_is_told_too_when_the_peer_is_lost(
    pair: tuple[Mesh, Mesh], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "QUEUED_BYTES_MAX", 10 * MIB)
    a, b = pair
    told: list[bool] = []
    for _ in range(3):
        a.post("b", 1, bytes(3 * MIB), told.append)
    a.when_capacity("b", lambda: told.append(True))
    b.close()
    turn(a, until=lambda: len(told) == 4)
    assert told == [False, False, False, True] and a.pending == 0


def connect_as(name: str, b: Mesh, folder: Path) -> socket.socket:
    connection = raw(folder, "b")
    turn(b, until=lambda: bool(b.incoming.unproven))
    nonce = handshake.read_greeting(connection.recv(36))
    assert nonce is not None
    connection.send(handshake.claim(KEY, nonce, os.urandom(32), name, "b"))
    turn(b, until=lambda: not b.incoming.unproven)
    connection.recv(32)
    return connection


def unsealed(size: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    return fd


def half_sealed(size: int) -> int:
    fd = unsealed(size)
    fcntl.fcntl(fd, large._F_ADD_SEALS, large._SEAL_WRITE | large._SEAL_GROW)
    return fd


def another_size(size: int) -> int:
    return large.seal(bytes(size - 1))


def no_file(_size: int) -> int:
    return os.open("/dev/null", os.O_RDONLY)


@pytest.mark.parametrize("make_file", [unsealed, half_sealed, another_size, no_file])
def test_a_file_that_could_change_or_is_not_what_was_said_is_refused(
    make: MakeMesh, tmp_path: Path, make_file: Callable[[int], int]
) -> None:
    b = make("b")
    with connect_as("a", b, tmp_path) as connection:
        with none_stays_open():
            fd = make_file(MIB)
            large.offer(connection, HEADER.pack(MIB, 1 | AS_FILE), fd)
            os.close(fd)
            turn(b, until=lambda: not b.incoming.links)
            assert not b.inbox and connection.recv(10) == b""


def test_more_after_an_offer_or_two_files_at_once_end_the_connection(make: MakeMesh, tmp_path: Path) -> None:
    b = make("b")
    for extra in (b"x", HEADER.pack(MIB, 1 | AS_FILE)):
        with connect_as("a", b, tmp_path) as connection:
            fd = large.seal(bytes(MIB))
            large.offer(connection, HEADER.pack(MIB, 1 | AS_FILE) + extra, fd)
            os.close(fd)
            turn(b, until=lambda: not b.incoming.links)
    with connect_as("a", b, tmp_path) as connection:
        fd = large.seal(bytes(MIB))
        large.offer(connection, b"\0", fd)  # before any header says so
        large.offer(connection, b"\0", fd)
        os.close(fd)
        turn(b, until=lambda: not b.incoming.links)
    assert not b.inbox


def test_a_header_without_its_file_gets_its_stream(make: MakeMesh, tmp_path: Path) -> None:
    b = make("b")
    with connect_as("a", b, tmp_path) as connection:
        connection.send(HEADER.pack(MIB, 1 | AS_FILE))
        turn(b, until=lambda: b.incoming.links != set() and next(iter(b.incoming.links)).large is not None)
        assert connection.recv(10) == outgoing.REFUSED
        connection.setblocking(False)
        left = memoryview(b"y" * MIB)
        while left:
            left = left[connection.send(left) :]
            b.poll(0)
        turn(b, until=lambda: bool(b.inbox))
        assert b.inbox[0] == ("a", 1, b"y" * MIB)


ACTORS_UNDER_STRAIN = """
import resource, sys
from pathlib import Path
from actorgrid.transports.unix.thespian import Parcel
from actorgrid.transports.unix.system import UnixSystem
from tests.transports.mesh_actors import Mirror
if sys.argv[2] == "files":
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
else:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k") == 0, ctypes.get_errno()
    try:
        with open("/dev/shm/full", "wb", buffering=0) as full:
            while full.write(bytes(4096)):
                pass
    except OSError as error:
        print("full:", error.errno)
system = UnixSystem(Path(sys.argv[1]))
try:
    mirror = system.create(Mirror)
    for size in (10, 3_000_000, 20_000_000, 64 * 2**20):
        system.tell(mirror, Parcel(b"z" * size))
        _, answer = system.receive(60)
        assert answer.data == b"z" * size, size
    print("all arrived")
finally:
    system.close()
"""


def under_strain(tmp_path: Path, what: str, *prefix: str) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ACTORS_UNDER_STRAIN, str(tmp_path / "boot-1"), what],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def can_unshare() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.root
def test_actors_work_on_with_a_full_dev_shm(tmp_path: Path) -> None:
    if not can_unshare():
        pytest.skip("needs root and a mount namespace of its own, to fill a /dev/shm that nobody else uses")
    assert under_strain(tmp_path, "shm", "unshare", "--mount").split("\n")[:2] == ["full: 28", "all arrived"]


def test_actors_work_on_where_no_file_may_be_large(tmp_path: Path) -> None:
    assert under_strain(tmp_path, "files") == "all arrived\n"
