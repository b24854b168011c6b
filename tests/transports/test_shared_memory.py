"""Shared memory between two real processes: what the other side may do to it, and its death at any point."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from actorgrid.errors import ActorGridError, MalformedMessage, NotSupported, PeerGone, PeerRefused
from actorgrid.transports.shared_memory import segment as segments
from actorgrid.transports.shared_memory.path import SharedMemoryPath
from actorgrid.transports.shared_memory.segment import HEADER_BYTES, MAGIC, OFFER, VERSION, PathSegment, offer, take
from actorgrid.transports.shared_memory.spin import AdaptiveSpin
from tests.descriptors import none_stays_open

pytestmark = pytest.mark.skipif(bool(segments.unavailable()), reason=segments.unavailable())
RING = 64 * 1024
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def pair(ring_bytes: int = RING) -> tuple[PathSegment, socket.socket, PathSegment, socket.socket]:
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as beside:
        taken = beside.submit(take, there)
        return offer(here, ring_bytes), here, taken.result(), there


@contextmanager
def child(body: Callable[[socket.socket], None]) -> Iterator[tuple[socket.socket, int]]:
    """A process that runs *body* with the other end; it is gone at the end."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            here.close()
            body(there)
        finally:
            os._exit(0)
    there.close()
    try:
        yield here, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def numbers(end: socket.socket) -> None:
    path, number = SharedMemoryPath(take(end), end), 0
    while True:
        if path.send(b"%d" % number):
            number += 1
        else:
            path.wait(None)


def test_a_peer_that_is_killed_at_any_point_is_gone_and_what_it_sent_is_whole_and_in_order() -> None:
    for kills_after in (0, 1, 7, 500, 5000):
        with child(numbers) as (end, pid):
            path, came = SharedMemoryPath(offer(end, RING), end), []
            with pytest.raises(PeerGone):
                if not kills_after:
                    os.kill(pid, signal.SIGKILL)
                while True:
                    came.append(path.receive())
                    if len(came) == kills_after:
                        os.kill(pid, signal.SIGKILL)
            assert came == [b"%d" % number for number in range(len(came))]
            assert len(came) >= kills_after
            path.close()


@pytest.mark.system
def test_a_million_messages_come_in_order_and_leave_nothing_behind() -> None:
    with child(numbers) as (end, _pid):
        path = SharedMemoryPath(offer(end, RING), end)
        for number in range(50_000):
            assert path.receive() == b"%d" % number
        before = psutil.Process().memory_info().rss
        for number in range(50_000, 1_050_000):
            assert path.receive() == b"%d" % number
        assert psutil.Process().memory_info().rss - before < 2**20
        path.close()


def test_another_version_is_refused_by_name_and_the_socket_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as beside:
        monkeypatch.setattr(segments, "MAGIC", b"agring2\0")
        with pytest.raises(NotSupported, match="takes no shared memory") as caught:
            taken = beside.submit(take, there)
            monkeypatch.setattr(segments, "OFFER", _Older())
            offer(here)
    with pytest.raises(PeerRefused, match="another version"):
        taken.result()
    assert "another version" in str(caught.value.found)
    here.setblocking(True)
    there.setblocking(True)
    here.sendall(b"on")
    assert there.recv(2) == b"on"
    here.close()
    there.close()


class _Older:
    """Offers as a version before would have."""

    size = OFFER.size

    def pack(self, _magic: bytes, version: int, ring_bytes: int) -> bytes:
        return OFFER.pack(MAGIC, version - 1, ring_bytes)

    unpack = staticmethod(OFFER.unpack)


@pytest.mark.parametrize("what", ["not sealed", "too small", "no eventfd", "no descriptors", "huge rings", "short"])
def test_an_offer_that_could_harm_is_refused(what: str) -> None:
    size = segments.segment_bytes(RING) - (4096 if what == "too small" else 0)
    with ExitStack() as kept:
        here, there = (kept.enter_context(end) for end in socket.socketpair())
        memory = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        bell, pipe = os.eventfd(0, os.EFD_CLOEXEC), os.pipe()
        for fd in (memory, bell, *pipe):
            kept.callback(os.close, fd)
        os.ftruncate(memory, size)
        if what != "not sealed":
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
        data = OFFER.pack(MAGIC, VERSION, 2**31 if what == "huge rings" else RING)
        fds = [] if what == "no descriptors" else [memory, bell, pipe[0] if what == "no eventfd" else bell]
        socket.send_fds(here, [data[:5] if what == "short" else data], fds)
        with none_stays_open(), pytest.raises(PeerRefused):
            take(there)
        assert here.recv(1) == segments.REFUSED


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 2**63), (0, 12), (0, RING + 8), (0, 2**64 - 8), (HEADER_BYTES, 2**32 - 1), (HEADER_BYTES, RING)],
)
def test_a_ring_that_holds_nonsense_is_an_error_and_no_read_beyond_it(at: int, value: int) -> None:
    ours, here, theirs, there = pair()
    path, other = SharedMemoryPath(ours, here), SharedMemoryPath(theirs, there)
    other.send(b"hello")
    second = HEADER_BYTES + RING
    width = 4 if at == HEADER_BYTES else 8
    theirs.memory[second + at : second + at + width] = value.to_bytes(width, "little")
    with pytest.raises(MalformedMessage):
        path.receive(1.0)
    with pytest.raises(ActorGridError):
        path.send(b"more")
    path.close()
    other.close()


def test_a_tail_that_was_never_pushed_is_an_error() -> None:
    ours, here, theirs, there = pair()
    path, other = SharedMemoryPath(ours, here), SharedMemoryPath(theirs, there)
    theirs.memory[64:72] = (4 * RING).to_bytes(8, "little")
    with pytest.raises(MalformedMessage):
        while path.send(bytes(RING // 4)):
            pass
    path.close()
    other.close()


def test_the_memory_cannot_be_cut_short_under_its_reader() -> None:
    ours, here, theirs, there = pair()
    with pytest.raises((OSError, ValueError, SystemError)):
        theirs.memory.resize(mmap.PAGESIZE)
    for each in (SharedMemoryPath(ours, here), SharedMemoryPath(theirs, there)):
        each.close()


def test_bytes_beside_the_memory_end_the_path() -> None:
    ours, here, theirs, there = pair()
    path = SharedMemoryPath(ours, here)
    there.send(b"?")
    with pytest.raises(MalformedMessage, match="beside"):
        path.receive(5.0)
    path.close()
    theirs.close()
    there.close()


def test_a_wait_that_is_given_up_loses_nothing() -> None:
    ours, here, theirs, there = pair()
    path, other = SharedMemoryPath(ours, here), SharedMemoryPath(theirs, there)
    assert path.receive(0.001) is None
    other.send(b"after")
    assert path.receive(10.0) == b"after"
    path.close()
    other.close()


def test_spinning_is_asked_for_needs_cores_and_stops_where_it_brings_nothing() -> None:
    assert AdaptiveSpin(0, cores=64).microseconds == 0
    assert AdaptiveSpin(20, cores=2).microseconds == 0
    spin = AdaptiveSpin(20, cores=8)
    assert spin.microseconds == 20
    for _ in range(6):
        spin.note(found=False)
    assert spin.microseconds == 0
    for _ in range(64 - 6):
        spin.note(found=False)
    assert spin.microseconds == 20, "it is tried again now and then"
    spin.note(found=False)
    spin.note(found=True)
    assert spin.microseconds == 20
