"""Where the Raft core reads its durable state, and the storage in memory that tests and the simulator use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actorgrid.actors.raft.messages import ConfState, Entry, HardState, RaftSnapshot


class Compacted(Exception):
    """The index is behind the snapshot: its entry is gone."""


class Unavailable(Exception):
    """The index is past the end of the log, or the snapshot cannot be had now: ask again later."""


class Storage(Protocol):
    """The durable state as the core reads it.

    Whoever carries out Readys writes; the core sees a write from ``advance`` on.
    """

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The stored hard state, and the members as of the applied index that the core is configured with."""
        ...

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries *lo* to *hi* - 1, as many as *max_bytes* of data hold, but one at least.

        Raises Compacted when *lo* is gone, Unavailable when *hi* - 1 is past the end.
        """
        ...

    def term(self, index: int) -> int:
        """The term of the entry, also of the last one behind the snapshot. Raises Compacted or Unavailable."""
        ...

    def first_index(self) -> int:
        """The index of the first entry kept: one more than the snapshot's where none is kept."""
        ...

    def last_index(self) -> int:
        """The index of the last entry, or the snapshot's."""
        ...

    def snapshot(self) -> RaftSnapshot:
        """The newest snapshot. Raises Unavailable when it cannot be had now."""
        ...


class MemoryStorage:
    """A Storage in memory. Without bounds of its own: what is appended is kept until ``compact``.

    *conf_state* is who the members are before the first entry.
    """

    def __init__(self, conf_state: ConfState | None = None) -> None:
        self.hard_state = HardState()
        self._snapshot = RaftSnapshot(0, 0, conf_state or ConfState(), b"")
        self._conf_state = self._snapshot.conf_state
        self._offset = 1  # the index of _entries[0]
        self._before = 0  # the term of the entry before it
        self._entries: list[Entry] = []

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The hard state and the members last set."""
        return self.hard_state, self._conf_state

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """See Storage."""
        if lo < self._offset:
            raise Compacted(lo)
        if hi > self._offset + len(self._entries):
            raise Unavailable(hi - 1)
        found = self._entries[lo - self._offset : hi - self._offset]
        total = 0
        for count, entry in enumerate(found):
            total += len(entry.data)
            if total > max_bytes and count:
                return found[:count]
        return found

    def term(self, index: int) -> int:
        """See Storage."""
        position = index - self._offset
        if position >= 0:
            if position < len(self._entries):
                return self._entries[position].term
            raise Unavailable(index)
        if position == -1:
            return self._before
        raise Compacted(index)

    def first_index(self) -> int:
        """See Storage."""
        return self._offset

    def last_index(self) -> int:
        """See Storage."""
        return self._offset + len(self._entries) - 1

    def snapshot(self) -> RaftSnapshot:
        """See Storage; never raises."""
        return self._snapshot

    def append(self, entries: Sequence[Entry]) -> None:
        """Store *entries* (consecutive) in place of whatever is there from the first one's index on."""
        if not entries:
            return
        position = entries[0].index - self._offset
        assert 0 <= position <= len(self._entries), f"entry {entries[0].index} leaves a hole after {self.last_index()}"
        if position == len(self._entries):
            self._entries.extend(entries)
        else:
            self._entries[position:] = entries

    def set_hard_state(self, hard_state: HardState) -> None:
        """Store term, vote and commit."""
        self.hard_state = hard_state

    def set_conf_state(self, conf_state: ConfState) -> None:
        """Store the members as of the index that the state machine has applied, in one step with that index."""
        self._conf_state = conf_state

    def apply_snapshot(self, snapshot: RaftSnapshot) -> None:
        """Put *snapshot*, newer than the present one, in place of the whole log."""
        assert snapshot.index > self._snapshot.index, f"snapshot {snapshot.index} is not news"
        self._snapshot = snapshot
        self._conf_state = snapshot.conf_state
        self._offset, self._before = snapshot.index + 1, snapshot.term
        self._entries = []

    def create_snapshot(self, index: int, conf_state: ConfState, data: bytes) -> RaftSnapshot:
        """Keep the state machine's *data* as of *index*; the log stays until ``compact``."""
        assert index > self._snapshot.index, f"a snapshot of {self._snapshot.index} or later exists"
        self._snapshot = RaftSnapshot(index, self.term(index), conf_state, data)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Drop the entries up to *index*, all of which the snapshot covers. Raises Compacted when they are gone."""
        if index < self._offset:
            raise Compacted(index)
        assert index <= self._snapshot.index, f"entry {index} is not in the snapshot of {self._snapshot.index}"
        self._before = self.term(index)
        del self._entries[: index - self._offset + 1]
        self._offset = index + 1
