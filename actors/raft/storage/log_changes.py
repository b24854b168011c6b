"""What can be done to the log, and which record says so: one reading of records for a start, a check and a backup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actorgrid.actors.raft.messages import Entry, HardState

from .entry_table import EntryTable
from .log_record import CUT, HARD_STATE, RESET, LogRecord, entries_of, hard_state_of


@dataclass(frozen=True, slots=True)
class Cut:
    """Voids the entries after *index*. ``term`` is that of *index*, where a record says it."""

    index: int
    term: int | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """A snapshot as of *index* and *term* stands for everything; the next entry is the one after it."""

    index: int
    term: int


LogChange = Sequence[Entry] | HardState | Cut | Reset


def change_of(record: LogRecord) -> LogChange:
    """The change that *record* stands for. Raises Damage for one that was written wrongly."""
    if record.has_entries:
        return entries_of(record)
    if record.kind == HARD_STATE:
        return hard_state_of(record)
    if record.kind == RESET:
        return Reset(record.index, record.term)
    assert record.kind == CUT, f"a record of kind {record.kind}"
    return Cut(record.index, record.term)


def apply_change(table: EntryTable, change: LogChange, position: int, size: int) -> None:
    """Apply *change*, whose record lies at *position*, to *table*. Raises OutOfPlace."""
    if isinstance(change, Cut):
        table.cut(change.index, (table.term(change.index) or 0) if change.term is None else change.term)
    elif isinstance(change, Reset):
        table.reset(change.index, change.term)
    elif not isinstance(change, HardState):
        table.add(change, position, size)
