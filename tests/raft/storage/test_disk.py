"""One contract for what the core reads, in memory and on disk; and what a disk adds: crashes, damage, old formats."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from actorgrid.actors.raft.messages import ConfState, Entry, HardState, RaftSnapshot, Ready
from actorgrid.actors.raft.storage.disk import RaftStorage, members_from_text, members_to_text
from actorgrid.actors.raft.storage.log import SegmentLog
from actorgrid.actors.raft.storage.memory import Compacted, MemoryStorage, Storage, Unavailable
from actorgrid.actors.raft.storage.store import Store
from actorgrid.errors import DiskFull, LogCorrupted

FORMATS = Path(__file__).parents[2] / "consensus" / "formats"
THREE = ConfState(voters=(1, 2, 3))
ONE = ConfState(voters=(1,))


def command(index: int, term: int = 1, data: bytes = b"") -> Entry:
    return Entry(index, term, "command", data or b"data of %d" % index)


def ready(
    entries: Sequence[Entry] = (),
    hard_state: HardState | None = None,
    snapshot: RaftSnapshot | None = None,
    must_sync: bool = True,
) -> Ready:
    return Ready(hard_state, None, tuple(entries), snapshot, (), (), (), (), must_sync)


class Written(Protocol):
    """A storage, and how a Ready gets into it."""

    storage: Storage

    def store(self, ready: Ready) -> None: ...

    def create_snapshot(self, index: int, conf_state: ConfState, data: bytes) -> RaftSnapshot: ...

    def compact(self, index: int) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.memory = MemoryStorage(THREE)
        self.storage: Storage = self.memory
        self.create_snapshot = self.memory.create_snapshot
        self.compact = self.memory.compact

    def store(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.memory.apply_snapshot(ready.snapshot)
        self.memory.append(ready.entries)
        if ready.hard_state is not None:
            self.memory.set_hard_state(ready.hard_state)

    def close(self) -> None: ...


class OnDisk:
    def __init__(self, folder: Path, members: ConfState = THREE, tail_bytes_max: int = 400) -> None:
        folder.mkdir(exist_ok=True)
        self._store = Store(folder / "state.db")
        self.log = SegmentLog.open(folder / "segments", 4096, tail_bytes_max=tail_bytes_max)
        try:
            self.disk = RaftStorage(self.log, self._store, members)
        except LogCorrupted:
            self.close()
            raise
        self.storage: Storage = self.disk
        self.create_snapshot = self.disk.create_snapshot

    def store(self, ready: Ready) -> None:
        self.disk.store([ready])

    def compact(self, index: int) -> None:
        self.disk.compact(index)

    def close(self) -> None:
        self.log.close()
        self._store.close()


@pytest.fixture(params=["memory", "disk"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    made = InMemory() if request.param == "memory" else OnDisk(tmp_path / "ledger")
    yield made
    made.close()


def test_an_empty_storage_begins_before_the_first_entry(written: Written) -> None:
    storage = written.storage
    assert storage.initial_state() == (HardState(), THREE)
    assert (storage.first_index(), storage.last_index(), storage.term(0)) == (1, 0, 0)
    assert storage.snapshot() == RaftSnapshot(0, 0, THREE, b"")
    with pytest.raises(Unavailable):
        storage.term(1)
    with pytest.raises(Unavailable):
        storage.entries(1, 2, 100)


def test_stored_entries_are_read_back(written: Written) -> None:
    entries = [command(n, 1 + n // 20) for n in range(1, 50)]
    written.store(ready(entries[:30]))
    written.store(ready(entries[30:], HardState(3, 2, 12)))
    storage = written.storage
    assert list(storage.entries(1, 50, 1 << 30)) == entries
    assert list(storage.entries(7, 9, 1 << 30)) == entries[6:8]
    assert [storage.term(n) for n in (19, 20, 49)] == [1, 2, 3]
    assert storage.last_index() == 49
    assert storage.initial_state()[0] == HardState(3, 2, 12)
    with pytest.raises(Unavailable):
        storage.entries(40, 51, 100)


def test_reading_stops_at_the_bytes_asked_for_but_gives_one_entry(written: Written) -> None:
    written.store(ready([command(n, 1, bytes(100)) for n in range(1, 41)]))
    for lo in (1, 39):
        assert len(written.storage.entries(lo, 41, 0)) == 1
        assert len(written.storage.entries(lo, 41, 199)) == 1
        assert len(written.storage.entries(lo, 41, 200)) == 2


def test_entries_replace_what_is_there_from_the_first_one_on(written: Written) -> None:
    written.store(ready([command(n) for n in range(1, 11)]))
    written.store(ready([command(6, 2), command(7, 2)], HardState(2, 0, 5)))
    assert written.storage.last_index() == 7
    assert [entry.term for entry in written.storage.entries(1, 8, 1 << 30)] == [1, 1, 1, 1, 1, 2, 2]
    with pytest.raises(Unavailable):
        written.storage.term(8)


def test_compaction_leaves_the_term_of_the_last_entry_gone(written: Written) -> None:
    written.store(ready([command(n, 1 + n // 10) for n in range(1, 31)]))
    made = written.create_snapshot(25, ONE, b"state")
    assert written.storage.snapshot() == made == RaftSnapshot(25, 3, ONE, b"state")
    assert written.storage.first_index() == 1
    written.compact(20)
    storage = written.storage
    assert (storage.first_index(), storage.last_index(), storage.term(20)) == (21, 30, 3)
    for index in (20, 5):
        with pytest.raises(Compacted):
            storage.entries(index, 25, 100)
    with pytest.raises(Compacted):
        storage.term(19)
    with pytest.raises(Compacted):
        written.compact(20)
    written.compact(25)
    assert [entry.index for entry in storage.entries(26, 31, 1 << 30)] == [26, 27, 28, 29, 30]


def test_a_received_snapshot_stands_for_the_whole_log(written: Written) -> None:
    written.store(ready([command(n) for n in range(1, 31)], HardState(1, 0, 3)))
    received = RaftSnapshot(100, 4, ONE, b"state at a hundred")
    written.store(ready((), HardState(4, 0, 100), received))
    storage = written.storage
    assert (storage.first_index(), storage.last_index(), storage.term(100)) == (101, 100, 4)
    assert storage.snapshot() == received
    assert storage.initial_state() == (HardState(4, 0, 100), ONE)
    with pytest.raises(Compacted):
        storage.term(99)
    written.store(ready([command(101, 5)]))
    assert list(storage.entries(101, 102, 100)) == [command(101, 5)]


# -- on disk


def test_all_of_it_is_there_after_a_restart(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    entries = [command(n, 1 + n // 50, bytes(90)) for n in range(1, 201)]
    for start in range(0, 200, 10):
        disk.store(ready(entries[start : start + 10], HardState(9, 2, start)))
        if start == 60:
            disk.create_snapshot(50, THREE, b"at fifty")
            disk.compact(50)
        if start == 150:
            disk.create_snapshot(150, ONE, b"at a hundred and fifty")
            disk.compact(150)
    disk.close()
    disk = OnDisk(tmp_path)
    storage = disk.storage
    assert storage.initial_state() == (HardState(9, 2, 190), ONE)
    assert storage.snapshot() == RaftSnapshot(150, 4, ONE, b"at a hundred and fifty")
    # Behind the older snapshot segments go whole; between the two everything stays.
    assert 1 < storage.first_index() <= 51
    first = storage.first_index()
    assert list(storage.entries(first, 201, 1 << 30)) == entries[first - 1 :]
    assert storage.term(first - 1) == 1
    disk.close()


def test_a_snapshot_received_just_before_the_host_stopped_counts(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    disk.store(ready([command(n) for n in range(1, 31)], HardState(1, 0, 30)))
    disk._store.save_snapshot(100, 4, b"received", members_to_text(ONE), received=True)
    disk.close()
    disk = OnDisk(tmp_path)
    assert disk.storage.last_index() == 100
    assert disk.storage.initial_state() == (HardState(4, 0, 100), ONE)
    disk.close()


def test_a_log_that_ends_before_its_own_snapshot_is_refused(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    disk.store(ready([command(n) for n in range(1, 31)], HardState(1, 0, 30)))
    disk.create_snapshot(30, ONE, b"state")
    disk.close()
    shutil.rmtree(tmp_path / "segments")
    with pytest.raises(LogCorrupted, match="ends before") as caught:
        OnDisk(tmp_path)
    assert "remove this host from the cluster" in caught.value.hint


def test_a_log_that_does_not_reach_back_to_a_snapshot_is_refused(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    for start in range(1, 200, 10):
        disk.store(ready([command(n, 1, bytes(90)) for n in range(start, start + 10)]))
    for index in (100, 190):
        disk.create_snapshot(index, ONE, b"state")
        disk.compact(index)
    disk.close()
    (tmp_path / "state.db").unlink()
    with pytest.raises(LogCorrupted, match="reaches back"):
        OnDisk(tmp_path)


def test_entries_whose_term_was_not_stored_yet_raise_it_without_a_vote(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    disk.store(ready([command(1)], HardState(1, 3, 0)))
    disk.log.append([command(2, 5)])  # of a torn batch, whose hard state did not reach the disk
    disk.close()
    disk = OnDisk(tmp_path)
    assert disk.storage.initial_state()[0] == HardState(5, 0, 0)
    disk.close()


def test_a_ledger_of_format_1_is_one_voter_with_everything_committed(tmp_path: Path) -> None:
    shutil.copytree(FORMATS / "log_1", tmp_path / "ledger")
    disk = OnDisk(tmp_path / "ledger", ONE)
    storage = disk.storage
    assert storage.initial_state() == (HardState(1, 0, 85), ONE)
    assert storage.snapshot().index == 60
    # The term before the first entry is not known there: one entry serves for it.
    assert (storage.first_index(), storage.last_index()) == (19, 85)
    assert [storage.term(n) for n in (18, 19, 85)] == [1, 1, 1]
    disk.store(ready([command(86, 2)], HardState(2, 1, 85)))
    disk.create_snapshot(86, ONE, b"new")
    disk.compact(86)
    disk.close()
    disk = OnDisk(tmp_path / "ledger", THREE)
    assert disk.storage.initial_state() == (HardState(2, 1, 86), ONE)
    assert disk.storage.snapshot().data == b"new"
    disk.close()


def test_members_keep_their_text() -> None:
    for members in (THREE, ConfState((1, 2), (3,), (2, 4), (4,), True), ConfState()):
        assert members_from_text(members_to_text(members)) == members


def test_a_ready_that_a_full_disk_refused_changes_nothing(tmp_path: Path, full_disk: Callable[[bool], None]) -> None:
    disk = OnDisk(tmp_path)
    disk.store(ready([command(1)], HardState(1, 1, 0)))
    full_disk(True)
    with pytest.raises(DiskFull):
        disk.store(ready([command(1, 2), command(2, 2)], HardState(2, 0, 0)))
    assert disk.storage.last_index() == 1
    assert disk.storage.initial_state()[0] == HardState(1, 1, 0)
    full_disk(False)
    disk.store(ready([command(1, 2), command(2, 2)], HardState(2, 0, 0)))
    disk.close()
    disk = OnDisk(tmp_path)
    assert [entry.term for entry in disk.storage.entries(1, 3, 100)] == [2, 2]
    disk.close()
