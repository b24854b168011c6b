"""The log as the core sees it: what storage holds, then what it has been given to store but not confirmed yet.

``stable_index`` is the last entry known to be durable here, ``commit`` the last that a quorum holds, ``applied`` the
last that the state machine has. Always applied <= commit <= last_index; both only grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from actorgrid.errors import LogCorrupted

from .messages import Entry, RaftSnapshot
from .storage.memory import Compacted, Storage, Unavailable

SCAN_BYTES = 2**20
"""Bytes of entries read at a time where the log is searched: it may be much longer than what memory should hold."""


class RaftLog:
    """The log's entries by index. The part not yet durable is bounded by what peers and the leader's limits let in.

    Raises LogCorrupted when storage ends before what was committed.
    """

    __slots__ = ("_offset", "_storage", "_unstable", "applied", "commit", "last_index", "last_term", "restoring")

    def __init__(self, storage: Storage, commit: int, applied: int) -> None:
        self._storage = storage
        self._unstable: list[Entry] = []
        self.restoring: RaftSnapshot | None = None  # a snapshot not yet durable; it stands for all of storage
        self.last_index = storage.last_index()
        self.last_term = storage.term(self.last_index)
        self._offset = self.last_index + 1  # the index of _unstable[0]
        self.applied = applied
        self.commit = max(commit, applied)  # the stored commit lags behind; what is applied was committed
        assert storage.first_index() - 1 <= applied, f"entry {applied + 1}, to be applied next, is compacted"
        if self.commit > self.last_index:
            raise LogCorrupted(
                "the log is shorter than what was committed: its tail is lost",
                asked=f"entries up to {self.commit}",
                found=f"entries up to {self.last_index}",
                hint="this voter must not vote again; remove it from the cluster and add it anew, with no data",
            )
        self.commit = max(self.commit, self.proven_commit())

    def proven_commit(self) -> int:
        """The last index that the log itself shows to be committed, or 0.

        A leader changes the members only when the change before is applied. So of two changes in the log, the first
        was committed, even where a crash kept the entries and lost the commit index written after them: to campaign
        with the members from before it would give majorities that do not meet.
        """
        proven = last = 0
        at = self.commit + 1
        while at <= self.last_index:
            page = self.entries(at, self.last_index + 1, SCAN_BYTES)
            for entry in page:
                if entry.kind == "conf_change":
                    proven, last = last, entry.index
            at += len(page)
        return proven

    @property
    def stable_index(self) -> int:
        """The last index known to be durable here; 0 while a snapshot is being stored."""
        return 0 if self.restoring else self._offset - 1

    @property
    def first_index(self) -> int:
        """The first index whose entry is here."""
        return self.restoring.index + 1 if self.restoring else self._storage.first_index()

    def term(self, index: int) -> int:
        """The term of the entry at *index*. Raises Compacted or Unavailable."""
        if index == self.last_index:
            return self.last_term
        if index >= self._offset:
            if index > self.last_index:
                raise Unavailable(index)
            return self._unstable[index - self._offset].term
        if self.restoring:
            if index == self.restoring.index:
                return self.restoring.term
            raise Compacted(index)
        return self._storage.term(index)

    def matches(self, index: int, term: int) -> bool:
        """Whether the entry at *index* is here and is of *term*."""
        if index > self.last_index:
            return False
        try:
            return self.term(index) == term
        except Compacted:
            return False

    def up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so holds at least as much as this one (Raft paper, section 5.4.1)."""
        return last_term > self.last_term or (last_term == self.last_term and last_index >= self.last_index)

    def entries(self, lo: int, hi: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries *lo* to *hi* - 1, as many as *max_bytes* hold, one at least. Raises Compacted or Unavailable."""
        if lo >= hi:
            return ()
        if lo < self.first_index:
            raise Compacted(lo)
        found: list[Entry] = []
        if lo < self._offset:
            found.extend(self._storage.entries(lo, min(hi, self._offset), max_bytes))
            if len(found) < min(hi, self._offset) - lo:
                return tuple(found)
        if hi > self._offset:
            found.extend(self._unstable[max(lo - self._offset, 0) : hi - self._offset])
        total = 0
        for count, entry in enumerate(found):
            total += len(entry.data)
            if total > max_bytes and count:
                return tuple(found[:count])
        return tuple(found)

    def append(self, entries: Sequence[Entry]) -> None:
        """Put *entries* after the last one: what a leader does."""
        assert entries[0].index == self.last_index + 1, f"entry {entries[0].index} after {self.last_index}"
        self._unstable.extend(entries)
        self.last_index, self.last_term = entries[-1].index, entries[-1].term

    def append_after(self, index: int, term: int, entries: Sequence[Entry]) -> int | None:
        """Take a leader's *entries*, which follow the one at *index* of *term*; None when that one is not here.

        Gives the last index up to which this log agrees with the leader's. Only a conflict cuts the log: an old
        append that arrives late must not take away what later ones brought (Raft paper, figure 2, AppendEntries 3).
        """
        if not self.matches(index, term):
            return None
        position = 0 if index == self.last_index else self.first_news(entries)
        if position < len(entries):
            self._replace(entries[position:])
        return index + len(entries)

    def first_news(self, entries: Sequence[Entry]) -> int:
        """The position of the first of *entries* that is not here, or their number."""
        for position, entry in enumerate(entries):
            if not self.matches(entry.index, entry.term):
                return position
        return len(entries)

    def _replace(self, entries: Sequence[Entry]) -> None:
        # A quorum holds what is committed: a leader that would replace it was not elected by the rules.
        first = entries[0].index
        assert first > self.commit, f"entry {first} is committed (up to {self.commit}) and must not be replaced"
        # Those of storage do not count from *first* on (``stable_index`` falls): what replaces them is not durable yet.
        if first < self._offset:
            self._offset = first
            self._unstable.clear()
        else:
            del self._unstable[first - self._offset :]
        self._unstable.extend(entries)
        self.last_index, self.last_term = entries[-1].index, entries[-1].term

    def commit_to(self, index: int) -> bool:
        """Raise the commit index; false when it is there already."""
        if index <= self.commit:
            return False
        assert index <= self.last_index, f"commit {index} is past the end of the log, {self.last_index}"
        self.commit = index
        return True

    def last_with_term_up_to(self, index: int, term: int) -> tuple[int, int]:
        """(i, its term): the last i <= *index* whose term is at most *term*; the first known one if none is.

        An *index* before that comes back as it is, with term 0: nothing is known of it here.

        Terms only grow along a log, so two logs cannot agree on an entry after this one when the other has *term*
        at *index*: a whole term is skipped for each message (Raft paper, end of section 5.3).
        """
        low, high = self.first_index - 1, min(index, self.last_index)
        if high < low:
            return high, 0
        while low < high:
            middle = (low + high + 1) // 2
            if self.term(middle) <= term:
                low = middle
            else:
                high = middle - 1
        return low, self.term(low)

    def unstable(self) -> tuple[Entry, ...]:
        """The entries that storage must be given."""
        return tuple(self._unstable)

    @property
    def has_unstable(self) -> bool:
        """Whether there are entries that storage must be given."""
        return bool(self._unstable)

    def stored(self, index: int, term: int) -> None:
        """Take storage's word that the entries up to *index*, the last of them of *term*, are durable.

        Entries replaced since they were given to storage are not confirmed by this: what is durable is the old ones.
        """
        if not self.is_unstable(index, term):
            return
        del self._unstable[: index + 1 - self._offset]
        self._offset = index + 1

    def is_unstable(self, index: int, term: int) -> bool:
        """Whether the entry at *index* waits for storage and is the one of *term*."""
        position = index - self._offset
        return 0 <= position < len(self._unstable) and self._unstable[position].term == term

    def restore(self, snapshot: RaftSnapshot) -> None:
        """Put *snapshot* in place of everything."""
        assert snapshot.index > self.commit, f"snapshot {snapshot.index} is behind the commit index {self.commit}"
        self.restoring = snapshot
        # Entries beyond it go too: this log does not hold its last entry (Follower.snapshot), so they follow on
        # another.
        self._unstable.clear()
        self._offset = snapshot.index + 1
        self.last_index, self.last_term = snapshot.index, snapshot.term
        self.commit = snapshot.index

    def restored(self, snapshot: RaftSnapshot) -> None:
        """Take note that storage and state machine hold *snapshot*."""
        self.applied = snapshot.index
        if self.restoring is snapshot:
            self.restoring = None

    @property
    def has_committed(self) -> bool:
        """Whether there is something to apply."""
        # Committed, but not durable here: applied, it could be lost in a crash and the state be ahead of its log.
        return self.restoring is None and self.applied < min(self.commit, self._offset - 1)

    def committed(self, max_bytes: int) -> tuple[Entry, ...]:
        """The next entries to apply: committed, and durable here."""
        if not self.has_committed:
            return ()
        return self.entries(self.applied + 1, min(self.commit, self._offset - 1) + 1, max_bytes)

    def applied_to(self, index: int) -> None:
        """Take note that the state machine has applied everything up to *index*."""
        assert self.applied <= index <= self.commit, f"applied {index}: not in {self.applied} to {self.commit}"
        self.applied = index

    def snapshot(self) -> RaftSnapshot:
        """The newest snapshot in storage. Raises Unavailable."""
        return self._storage.snapshot()

    def conf_change_unapplied(self) -> bool:
        """Whether a change of the members is committed and not yet applied."""
        at = max(self.applied + 1, self.first_index)
        while at <= self.commit:
            page = self.entries(at, self.commit + 1, SCAN_BYTES)
            if any(entry.kind == "conf_change" for entry in page):
                return True
            at += len(page)
        return False
