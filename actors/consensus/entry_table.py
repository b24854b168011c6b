"""Which entries the log holds and where each lies: what writing its records, or reading them again, makes of them.

Memory: 16 bytes for each entry kept on disk, and the newest entries whole, up to ``tail_bytes_max`` of data (but one
entry at least).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from .raft.messages import Entry

TAIL_BYTES_MAX = 8 * 2**20
ENTRY_COST_BYTES = 100
"""Counted for each entry in the tail besides its data: the object itself."""


class OutOfPlace(Exception):
    """A record cannot follow what the log holds; nothing was changed."""


class EntryTable:
    """Positions are opaque numbers to it. ``base_index`` and ``base_term`` are of the entry before the first one.

    ``base_term`` is ``None`` when nobody knows it any more (the first segment kept is of format 1).
    """

    def __init__(self, tail_bytes_max: int = TAIL_BYTES_MAX) -> None:
        self.tail_bytes_max = tail_bytes_max
        self.base_index = 0
        self.base_term: int | None = 0
        self._terms: array[int] = array("Q")
        self._positions: array[int] = array("Q")
        self._tail: deque[Entry] = deque()
        self._tail_bytes = 0

    @property
    def last_index(self) -> int:
        """Index of the newest entry, or of the base when there is none."""
        return self.base_index + len(self._terms)

    @property
    def last_term(self) -> int:
        """Its term; 0 when nobody knows it."""
        return self._terms[-1] if self._terms else self.base_term or 0

    def __len__(self) -> int:
        return len(self._terms)

    # -- changes

    def reset(self, index: int, term: int | None) -> None:
        """Hold no entry; the next is the one after *index*."""
        self.base_index, self.base_term = index, term
        del self._terms[:], self._positions[:]
        self._tail.clear()
        self._tail_bytes = 0

    def add(self, entries: Sequence[Entry], position: int) -> None:
        """Entries that follow the last one, all in the record at *position*. Raises OutOfPlace."""
        term, index = self.last_term, self.last_index
        for entry in entries:
            index += 1
            if entry.index != index or entry.term < term:
                raise OutOfPlace(f"entry {entry.index} of term {entry.term} stands where another belongs")
            term = entry.term
            self._tail_bytes += len(entry.data) + ENTRY_COST_BYTES
        self._terms.extend([entry.term for entry in entries])
        self._positions.extend([position] * len(entries))
        self._tail.extend(entries)
        while self._tail_bytes > self.tail_bytes_max and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft().data) + ENTRY_COST_BYTES

    def cut(self, index: int, term: int) -> None:
        """Forget the entries after *index*, which is of *term*. Raises OutOfPlace."""
        if index > self.last_index:
            raise OutOfPlace(f"a cut after entry {index}, which is past the end")
        if index < self.base_index:
            self.reset(index, term)
            return
        known = self.term(index)
        if known is not None and known != term:
            raise OutOfPlace(f"a cut after entry {index} of term {term}, which is of term {known}")
        count = index - self.base_index
        del self._terms[count:], self._positions[count:]
        while self._tail and self._tail[-1].index > index:
            self._tail_bytes -= len(self._tail.pop().data) + ENTRY_COST_BYTES

    def drop(self, index: int) -> None:
        """Forget the entries up to *index*, which is kept as the base."""
        count = index - self.base_index
        if not 0 < count <= len(self._terms):
            return
        self.base_index, self.base_term = index, self._terms[count - 1]
        del self._terms[:count], self._positions[:count]
        while self._tail and self._tail[0].index <= index:
            self._tail_bytes -= len(self._tail.popleft().data) + ENTRY_COST_BYTES

    # -- questions

    def holds(self, index: int) -> bool:
        """Whether that entry is there."""
        return self.base_index < index <= self.last_index

    def term(self, index: int) -> int | None:
        """The term of entry *index*, which is there or the base; ``None`` for a base of unknown term."""
        assert self.base_index <= index <= self.last_index, f"entry {index} is not in the log"
        return self.base_term if index == self.base_index else self._terms[index - self.base_index - 1]

    def position(self, index: int) -> int:
        """Where the record with entry *index*, which is there, lies."""
        assert self.holds(index), f"entry {index} is not in the log"
        return self._positions[index - self.base_index - 1]

    def tail(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries *lo* to *hi* - 1, or the first that hold *max_bytes*; none when memory has no more of entry *lo*."""
        if not self._tail or lo < self._tail[0].index:
            return []
        # A deque is indexed from its nearer end: the newest entries, which are asked for most, are near.
        first = self._tail[0].index
        found: list[Entry] = []
        size = 0
        for index in range(lo, hi):
            found.append(self._tail[index - first])
            size += len(found[-1].data)
            if size >= max_bytes:
                break
        return found
