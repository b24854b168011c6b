"""Which entries the log holds and where each lies: what writing its records, or reading them again, makes of them.

Memory: 16 bytes for each record kept on disk and each change of term in it, and the newest records whole, up to
``tail_bytes_max`` of data and ``ENTRY_COST_BYTES`` for each of their entries (but one record at least).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from actorgrid.actors.raft.messages import Entry

TAIL_BYTES_MAX = 4 * 2**20
ENTRY_COST_BYTES = 120
"""What an entry costs in memory besides its data, about: small ones would else fill many times the bound."""


class OutOfPlace(Exception):
    """A record cannot follow what the log holds; nothing was changed."""


class EntryTable:
    """The table of entries and records; positions are opaque numbers to it. ``base_*``: the entry before the first one.

    ``base_term`` is ``None`` when nobody knows it any more (the first segment kept is of format 1).
    """

    def __init__(self, tail_bytes_max: int = TAIL_BYTES_MAX) -> None:
        self.tail_bytes_max = tail_bytes_max
        self.base_index = 0
        self.base_term: int | None = 0
        self.last_index = 0
        # Records: the index each begins with, growing, and where it lies. What the next one begins with ends it.
        self._firsts = array("Q")
        self._positions = array("Q")
        # Runs of one term: the index each begins with, growing, and the term.
        self._run_firsts = array("Q")
        self._run_terms = array("Q")
        self._tail: OrderedDict[int, tuple[Sequence[Entry], int]] = OrderedDict()
        self._tail_bytes = 0

    @property
    def last_term(self) -> int:
        """The term of the newest entry, or of the base; 0 when nobody knows it."""
        return self._run_terms[-1] if self._run_terms else self.base_term or 0

    # -- changes

    def reset(self, index: int, term: int | None) -> None:
        """Hold no entry; the next is the one after *index*."""
        self.base_index, self.base_term = index, term
        self.last_index = index
        del self._firsts[:], self._positions[:], self._run_firsts[:], self._run_terms[:]
        self._tail.clear()
        self._tail_bytes = 0

    def add(self, entries: Sequence[Entry], position: int, data_bytes: int) -> None:
        """Add entries that follow the last one, all in the record at *position*; *data_bytes*: the size of their data.

        Raises OutOfPlace. Between them indexes grow by one and terms do not fall: who made the record saw to that.
        """
        first, last = entries[0], entries[-1]
        if first.index != self.last_index + 1 or first.term < self.last_term:
            raise OutOfPlace(f"entry {first.index} of term {first.term} stands where another belongs")
        self._firsts.append(first.index)
        self._positions.append(position)
        if last.term == self.last_term and self._run_terms:
            pass
        elif first.term == last.term:
            self._begin_run(first)
        else:
            for entry in entries:
                if entry.term != self.last_term or not self._run_terms:
                    self._begin_run(entry)
        self.last_index = last.index
        self._keep(entries, position, data_bytes + len(entries) * ENTRY_COST_BYTES)

    def _begin_run(self, entry: Entry) -> None:
        self._run_firsts.append(entry.index)
        self._run_terms.append(entry.term)

    def _keep(self, entries: Sequence[Entry], position: int, size: int) -> None:
        self._tail[position] = (entries, size)
        self._tail_bytes += size
        while self._tail_bytes > self.tail_bytes_max and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popitem(last=False)[1][1]

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
        self._forget(bisect_right(self._firsts, index), len(self._firsts))
        kept = bisect_right(self._run_firsts, index)
        del self._run_firsts[kept:], self._run_terms[kept:]
        self.last_index = index

    def drop(self, index: int) -> None:
        """Forget the entries up to *index*, which is kept as the base."""
        if not self.base_index < index <= self.last_index:
            return
        term = self.term(index)
        # The record that goes on after index stays, though it begins before it; so does the run.
        records = len(self._firsts) if index == self.last_index else bisect_right(self._firsts, index + 1) - 1
        runs = len(self._run_firsts) if index == self.last_index else bisect_right(self._run_firsts, index + 1) - 1
        self._forget(0, records)
        del self._run_firsts[:runs], self._run_terms[:runs]
        self.base_index, self.base_term = index, term

    def _forget(self, start: int, end: int) -> None:
        for position in self._positions[start:end]:
            found = self._tail.pop(position, None)
            if found is not None:
                self._tail_bytes -= found[1]
        del self._firsts[start:end], self._positions[start:end]

    # -- questions

    def term(self, index: int) -> int | None:
        """The term of entry *index*, which is there or the base; ``None`` for a base of unknown term."""
        assert self.base_index <= index <= self.last_index, f"entry {index} is not in the log"
        if index == self.base_index:
            return self.base_term
        return self._run_terms[bisect_right(self._run_firsts, index) - 1]

    def place(self, index: int) -> tuple[int, int]:
        """The position of the record with entry *index*, which is there, and the index after its last valid one."""
        assert self.base_index < index <= self.last_index, f"entry {index} is not in the log"
        number = bisect_right(self._firsts, index) - 1
        end = self._firsts[number + 1] if number + 1 < len(self._firsts) else self.last_index + 1
        return self._positions[number], end

    def in_memory(self, position: int) -> Sequence[Entry] | None:
        """The entries of the record at *position*, those that were cut too; ``None`` when memory has them no more."""
        found = self._tail.get(position)
        return None if found is None else found[0]
