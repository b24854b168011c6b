"""A host's disk: what is written is there after a crash only if it was synced, and sometimes not even then.

It stands for the segmented log with its checksums and the store of snapshots, by their contract: a write is one
record; a crash keeps a beginning of what was not synced, and the record it broke off in is cut at the next start; a
record that fails its checksum anywhere else is noticed and keeps the voter down. That the files keep this contract is
tested on real ones (tests/consensus).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from actorgrid.actors.raft.messages import Entry, HardState, RaftSnapshot
from actorgrid.errors import DiskFull, LogCorrupted, LogFailed


@dataclass(frozen=True, slots=True)
class Compaction:
    """A snapshot of the host's own: entries after it stay. One from a leader takes the place of the whole log."""

    snapshot: RaftSnapshot


Record = Entry | HardState | RaftSnapshot | Compaction


@dataclass(slots=True)
class Image:
    """The content that the records written so far give. Entries are those after the snapshot's index, without a gap."""

    hard_state: HardState | None = None
    snapshot: RaftSnapshot | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def last_index(self) -> int:
        """The index of the last entry, or of the snapshot."""
        if self.entries:
            return self.entries[-1].index
        return self.snapshot.index if self.snapshot is not None else 0

    def term(self, index: int) -> int | None:
        """Of the entry at *index*; None where it is not told any more, or not yet."""
        if self.snapshot is not None and index == self.snapshot.index:
            return self.snapshot.term
        if self.entries and self.entries[0].index <= index <= self.entries[-1].index:
            return self.entries[index - self.entries[0].index].term
        return None

    def covers(self, index: int, term: int) -> bool:
        """Whether the entry of that index and term is here, or within the snapshot."""
        if self.snapshot is not None and index <= self.snapshot.index:
            return True
        return self.term(index) == term

    def take(self, record: Record) -> None:
        """Take one more record. An entry replaces what stood at its index and after."""
        if isinstance(record, HardState):
            self.hard_state = record
        elif isinstance(record, Entry):
            if self.entries and record.index <= self.entries[-1].index:
                del self.entries[max(0, record.index - self.entries[0].index) :]
            assert record.index == self.last_index + 1, f"entry {record.index} after {self.last_index}: a gap"
            self.entries.append(record)
        elif isinstance(record, Compaction):
            self.entries = [entry for entry in self.entries if entry.index > record.snapshot.index]
            self.snapshot = record.snapshot
        else:
            self.entries = []
            self.snapshot = record


class Disk:
    """One host's disk. ``durable`` is what a crash at this moment surely leaves."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.durable = Image()
        self._unsynced: list[Record] = []
        self.full = False
        self.sync_fails = False
        self.slow = 1.0
        self.broken = False
        self.syncs = 0

    def write(self, records: Sequence[Record]) -> None:
        """Hand records to the system; they are safe after ``sync``. Raises DiskFull, and then wrote nothing."""
        if self.full and records:
            raise DiskFull("the simulated disk is full", asked=f"{len(records)} records", found="no room")
        self._unsynced.extend(records)

    def sync(self) -> None:
        """Make all that was written safe. Raises LogFailed when the disk fails it: what it kept is then unknown."""
        if self.sync_fails:
            self.sync_fails = False
            self.lose_unsynced()
            raise LogFailed("fsync failed on the simulated disk", hint="the voter stays down for this boot")
        self.syncs += 1
        for record in self._unsynced:
            self.durable.take(record)
        self._unsynced.clear()

    def wrote(self, index: int, term: int) -> bool:
        """Whether that entry is durable or was written since the last sync."""
        unsynced = self._unsynced
        return self.durable.covers(index, term) or any(
            isinstance(record, Entry) and (record.index, record.term) == (index, term) for record in unsynced
        )

    def sync_time_us(self) -> int:
        """The microseconds that the next sync takes: 1 to 5 ms, one in fifty ten times that."""
        took = self._rng.randrange(1_000, 5_000)
        if self._rng.random() < 0.02:
            took *= 10
        return int(took * self.slow)

    def lose_unsynced(self) -> int:
        """Crash: a beginning of what was not synced survives, broken off within a record.

        Gives how many records went.
        """
        kept = self._rng.randrange(len(self._unsynced) + 1) if self._unsynced else 0
        for record in self._unsynced[:kept]:
            self.durable.take(record)
        gone = len(self._unsynced) - kept
        self._unsynced.clear()
        return gone

    def flip_a_bit(self) -> bool:
        """Break a synced record; ``False`` when there is none."""
        self.broken = self.broken or bool(self.durable.entries or self.durable.snapshot)
        return self.broken

    def recover(self) -> Image:
        """Read what a start finds. Raises LogCorrupted for a record that fails its checksum, DiskFull without room."""
        if self.broken:
            raise LogCorrupted(
                "a record of the simulated log fails its checksum",
                hint="remove this voter from the cluster and add it again, empty",
                segment="simulated",
                offset=0,
                index=self.durable.last_index,
            )
        if self.full:
            raise DiskFull("the simulated disk is full", asked="room to start", found="none")
        return self.durable
