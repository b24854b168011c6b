"""The thread that makes Readys durable: what the loop hears of it, and when."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actorgrid.actors.files.disk_reserve import DiskReserve
from actorgrid.actors.raft.messages import HardState, RaftSnapshot, Ready
from actorgrid.actors.raft.storage.disk import RaftStorage
from actorgrid.actors.raft.storage.failure_marker import FailureMarker
from actorgrid.actors.raft.storage.log import SegmentLog
from actorgrid.actors.raft.storage.store import Store
from actorgrid.actors.raft.storage.writer import READYS_MAX, LogWriter
from actorgrid.errors import LogFailed, MailboxFull
from tests.raft.storage.test_disk import ONE, command, ready

PATIENCE_S = 60.0


class Disk:
    """A folder with a log, a store and a writer on it."""

    def __init__(self, folder: Path, reserve_bytes: int = 0) -> None:
        self.folder = folder
        self.store = Store(folder / "state.db")
        self.log = SegmentLog.open(folder / "segments", 4096, tail_bytes_max=500)
        self.storage = RaftStorage(self.log, self.store, ONE)
        self.marker = FailureMarker(folder / "failed")
        self.reserve = DiskReserve(folder / "reserve", reserve_bytes)
        self.reserve.refill(0)
        self.writer = LogWriter(self.storage, self.marker, "boot-1", self.reserve)

    def wait(self) -> list[Ready]:
        """What is durable once the writer has something to say."""
        readable, _, _ = select.select([self.writer], [], [], PATIENCE_S)
        assert readable, "the writer never said a word"
        return self.writer.durable()

    def until(self, count: int) -> list[Ready]:
        found: list[Ready] = []
        while len(found) < count:
            found += self.wait()
        return found

    def close(self) -> None:
        self.writer.close()
        self.log.close()
        self.store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def sync_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[int]]]:
    """fdatasync waits for the event; the list counts."""
    gate, calls = threading.Event(), []
    gate.set()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        assert gate.wait(PATIENCE_S)
        calls.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    yield gate, calls
    gate.set()


def test_a_ready_comes_back_when_it_is_durable_and_not_before(
    disk: Disk, sync_gate: tuple[threading.Event, list[int]]
) -> None:
    gate, _ = sync_gate
    first = ready([command(1)], HardState(1, 1, 0))
    gate.clear()
    assert disk.writer.submit(first) is False
    assert disk.writer.durable() == []
    gate.set()
    assert disk.wait() == [first]
    assert disk.storage.last_index() == 1


def test_what_waits_together_shares_one_sync(disk: Disk, sync_gate: tuple[threading.Event, list[int]]) -> None:
    gate, calls = sync_gate
    disk.writer.submit(ready([command(1)], HardState(1, 1, 0)))
    assert len(disk.until(1)) == 1
    gate.clear()
    del calls[:]
    readys = [ready([command(number)], HardState(1, 1, number - 1)) for number in range(2, 40)]
    for each in readys:
        disk.writer.submit(each)
    gate.set()
    assert disk.until(len(readys)) == readys
    # One is under way when the others come; those share the next.
    assert len(calls) <= 2
    assert disk.storage.initial_state()[0] == HardState(1, 1, 38)


def test_a_ready_that_need_not_be_synced_is_done_at_once(disk: Disk) -> None:
    disk.writer.submit(ready([command(1)], HardState(1, 1, 0)))
    disk.until(1)
    assert disk.writer.submit(ready((), HardState(1, 1, 1), must_sync=False)) is True
    assert disk.writer.submit(ready((), None, must_sync=False)) is True
    disk.writer.close()
    assert disk.log.hard_state == HardState(1, 1, 1)


def test_a_conflict_cuts_also_what_waits_in_the_queue(disk: Disk, sync_gate: tuple[threading.Event, list[int]]) -> None:
    gate, _ = sync_gate
    gate.clear()
    disk.writer.submit(ready([command(number) for number in range(1, 4)]))
    disk.writer.submit(ready([command(4), command(5)]))
    disk.writer.submit(ready([command(3, 2)], HardState(2, 0, 2)))
    gate.set()
    disk.until(3)
    assert [entry.term for entry in disk.storage.entries(1, 4, 1 << 20)] == [1, 1, 2]
    assert disk.storage.last_index() == 3


def test_a_full_queue_refuses(disk: Disk, sync_gate: tuple[threading.Event, list[int]]) -> None:
    gate, _ = sync_gate
    gate.clear()
    for number in range(1, READYS_MAX + 1):
        assert disk.writer.has_capacity
        disk.writer.submit(ready([command(number)]))
    assert not disk.writer.has_capacity
    with pytest.raises(MailboxFull):
        disk.writer.submit(ready([command(READYS_MAX + 1)]))
    gate.set()
    disk.until(READYS_MAX)
    assert disk.writer.has_capacity


def test_a_failed_sync_ends_it_for_this_boot(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.writer.submit(ready([command(1)], HardState(1, 1, 0)))
    disk.until(1)
    tries = []

    def refuse(fd: int) -> None:
        tries.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refuse)
        disk.writer.submit(ready([command(2)], HardState(1, 1, 1)))
        with pytest.raises(LogFailed):
            disk.wait()
        assert len(tries) == 1
    for ask in (disk.writer.durable, lambda: disk.writer.submit(ready([command(2)]))):
        with pytest.raises(LogFailed):
            ask()
    with pytest.raises(LogFailed):
        disk.marker.check("boot-1")
    end = disk.marker.check("boot-2")
    disk.close()
    again = SegmentLog.open(disk.folder / "segments", 4096, end)
    assert (again.last_index, again.hard_state) == (1, HardState(1, 1, 0))
    again.close()


def test_a_full_disk_makes_it_wait_and_go_on_when_there_is_room(disk: Disk, full_disk: Callable[[bool], None]) -> None:
    disk.writer.submit(ready([command(1)]))
    disk.until(1)
    full_disk(True)
    late = ready([command(2), command(3)], HardState(2, 1, 1))
    disk.writer.submit(late)
    assert disk.wait() == []
    assert disk.writer.full is not None
    disk.writer.retry()
    assert disk.wait() == []
    full_disk(False)
    disk.writer.retry()
    assert disk.until(1) == [late]
    assert disk.writer.full is None
    assert disk.storage.last_index() == 3


@pytest.mark.root
def test_the_reserve_takes_what_was_accepted_before(small_disk: Path) -> None:
    disk = Disk(small_disk, reserve_bytes=200_000)
    assert disk.reserve.held
    disk.writer.submit(ready([command(1)]))
    disk.until(1)
    with (small_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    index = 1
    while disk.reserve.held:
        index += 1
        disk.writer.submit(ready([command(index, 1, bytes(3000))]))
        disk.until(1)
    assert disk.storage.last_index() == index
    disk.close()


def test_a_snapshot_is_kept_and_the_log_behind_the_older_one_dropped(disk: Disk) -> None:
    for number in range(1, 101):
        disk.writer.submit(ready([command(number, 1, bytes(200))], HardState(1, 1, number - 1)))
        disk.until(1)
    segments = disk.log.segment_count
    disk.writer.keep_snapshot(RaftSnapshot(50, 1, ONE, b"at fifty"))
    disk.writer.keep_snapshot(RaftSnapshot(90, 1, ONE, b"at ninety"))
    disk.writer.keep_snapshot(RaftSnapshot(70, 1, ONE, b"too late"))
    disk.writer.submit(ready([command(101)]))
    disk.until(1)
    assert disk.storage.snapshot() == RaftSnapshot(90, 1, ONE, b"at ninety")
    assert disk.storage.first_index() == 91
    assert disk.log.segment_count < segments
    assert 1 < disk.log.first_index <= 51


def test_a_received_snapshot_is_durable_before_it_comes_back(disk: Disk) -> None:
    received = RaftSnapshot(40, 3, ONE, b"state")
    whole = ready((), HardState(3, 0, 40), received)
    disk.writer.submit(whole)
    assert disk.until(1) == [whole]
    assert disk.store.snapshots()[0].data == b"state"
    assert disk.storage.first_index() == 41


def test_a_broken_invariant_is_told_to_the_loop(disk: Disk) -> None:
    disk.writer.submit(ready([command(7)]))  # leaves a hole
    with pytest.raises(LogFailed, match="broke"):
        disk.wait()


def test_closing_stores_what_waits(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for number in range(1, 20):
        disk.writer.submit(ready([command(number)]))
    disk.close()
    again = SegmentLog.open(tmp_path / "segments", 4096)
    assert again.last_index == 19
    again.close()
