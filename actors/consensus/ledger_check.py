"""Looks through a ledger's files without changing them: every byte of the log, the snapshots, and the state they give.

Works beside a running host: what it is writing at the moment looks like a torn end, which is no damage.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actorgrid.actors.ledger.command import VERBS, read_command
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.codec import decode_conf_change
from actorgrid.actors.raft.messages import ConfState, Entry, HardState
from actorgrid.actors.raft.storage.disk import members_from_text
from actorgrid.actors.raft.storage.durable_watermark import DurableWatermark, acknowledged_lost
from actorgrid.actors.raft.storage.entry_table import EntryTable, OutOfPlace
from actorgrid.actors.raft.storage.log_changes import Cut, Reset, apply_change, change_of
from actorgrid.actors.raft.storage.log_record import HARD_STATE, KIND_NAMES, Damage, entries_of, hard_state_of
from actorgrid.actors.raft.storage.segments import (
    RECOVERY_HINT,
    Located,
    SegmentStart,
    TornEnd,
    corrupted,
    failed,
    segment_paths,
    walk,
)
from actorgrid.actors.raft.storage.store import Store, StoredSnapshot
from actorgrid.errors import ActorGridError, BadRequest, DataDirUnusable, LogCorrupted, StorageError

from .apply import apply_entry
from .stored_state import restore_stored

Report = Callable[[str, int, int], None]
"""Told what is done, how far, and of how much."""


@dataclass(slots=True)
class LogContents:
    """What a whole log holds. ``entries`` are those after the index asked for that still count.

    ``marked``: there is a mark of how far it was durable, so that a lost end would have been noticed.
    """

    segments: int = 0
    size_bytes: int = 0
    base_index: int = 0
    last_index: int = 0
    last_term: int = 0
    torn_bytes: int = 0
    marked: bool = True
    hard_state: HardState | None = None
    formats: set[int] = field(default_factory=set)
    records: Counter[str] = field(default_factory=Counter)
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that is no command, or not one that any version knows. It changes nothing, on no voter."""

    index: int
    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A checked ledger: its log, its snapshots, and the state that they give together.

    ``committed_index`` is as far as *state* goes: what comes after may still be replaced by a leader. ``unreadable``:
    the entries after the newest snapshot, committed or not, that are malformed.
    """

    log: LogContents
    snapshots: list[StoredSnapshot]
    state: Ledger
    committed_index: int
    problems: list[str]
    unreadable: list[Unreadable] = field(default_factory=list)


def check(
    folder: Path, report: Report, on_outcome: Callable[[Outcome], None] | None = None, *, whole: bool = False
) -> Checked:
    """Look through the ledger in *folder*; each entry applied on the way is handed to *on_outcome*.

    *whole*: apply what is not known to be committed as well, for a survivor: it may have been, and acknowledged.

    Raises DataDirUnusable when there is none, LogCorrupted when it does not make a whole, LogFailed when it cannot be
    read, and LedgerTooNew for a snapshot of a later format.
    """
    if not (folder / "segments").is_dir():
        raise DataDirUnusable("there is no ledger here", asked=str(folder), hint="name the host's with --data-dir")
    # Before the log: of a host that runs, the log only grows meanwhile.
    snapshots, durable, received = read_store(folder / "state.db")
    newest = next((snapshot for snapshot in snapshots if snapshot.intact), None)
    index = newest.index if newest is not None else 0
    log = read_log(folder / "segments", index, report)
    if not log.base_index <= index <= log.last_index:
        raise LogCorrupted(
            "log and snapshots do not make a whole",
            found=f"state of entry {index}, log from entry {log.base_index + 1} to {log.last_index}",
            hint=RECOVERY_HINT,
        )
    noted = max(durable, log.hard_state.commit if log.hard_state is not None else 0)
    if noted > log.last_index:
        # Without the mark in ``acknowledged`` too: the log itself, or the store, has noted that there was more.
        raise acknowledged_lost(log.last_index, noted, asked=str(folder))
    state = restore_stored(index, newest.data, received) if newest is not None else Ledger()
    committed = log.last_index
    if log.hard_state is not None and not whole and not _one_voter(newest, log.entries):
        committed = max(log.hard_state.commit, index)
    entries = [entry for entry in log.entries if entry.index <= committed]
    for number, entry in enumerate(entries, 1):
        outcome = replay(state, entry)
        if on_outcome is not None:
            on_outcome(outcome)
        if number % 1_000 == 0 or number == len(entries):
            report("applying", number, len(entries))
    problems = [f"snapshot {each.index} fails its digest" for each in snapshots if not each.intact]
    return Checked(log, snapshots, state, committed, problems, unreadable(log.entries))


def _one_voter(newest: StoredSnapshot | None, entries: Sequence[Entry]) -> bool:
    """Whether no host but this one ever had a vote: then everything durable here is committed, noted so or not."""
    members = members_from_text(newest.members) if newest is not None and newest.members else ConfState(voters=(0,))
    for entry in entries:
        if entry.kind == "conf_change":
            change = decode_conf_change(entry.data)
            if not isinstance(change, ConfState):
                return False
            members = change
    return len(members.voters) == 1 and not members.voters_outgoing


def replay(state: Ledger, entry: Entry) -> Outcome:
    """Apply one committed entry, as a voter does. Raises LedgerDiverged and LedgerTooNew."""
    return apply_entry(state, entry).outcome


def unreadable(entries: Sequence[Entry]) -> list[Unreadable]:
    """Those of *entries* that are malformed by themselves, whatever the state is."""
    found = []
    for entry in entries:
        try:
            if entry.kind == "conf_change":
                decode_conf_change(entry.data)
            elif entry.data:
                read_command(decode_entry(entry.data)[2])
        except ActorGridError as error:
            reason = f"{error.message}; {error.found}" if error.found else error.message
            found.append(Unreadable(entry.index, entry.term, reason))
    return found


# -- the log


def read_log(folder: Path, after_index: int, report: Report) -> LogContents:
    """Read the whole log in *folder*, with the entries after *after_index*. Raises as ``check`` does."""
    found = LogContents()
    table = EntryTable(0)
    mark = DurableWatermark(folder / "acknowledged").read()
    found.marked = mark is not None
    ended = (0, 0)
    paths = _paths(folder)
    for part in _walk(paths):
        if isinstance(part, SegmentStart):
            if not found.segments:
                table.reset(part.header.base_index, part.header.base_term)
                found.base_index = part.header.base_index
            found.segments += 1
            found.formats.add(part.header.format)
            found.size_bytes += part.path.stat().st_size
            ended = (part.header.number, part.header.size_bytes)
            report("reading", found.segments, len(paths))
        elif isinstance(part, TornEnd):
            found.torn_bytes = part.dropped_bytes
        else:
            _take(part, table, found, after_index)
            ended = (ended[0], part.end)
    found.base_index, found.last_index, found.last_term = table.base_index, table.last_index, table.last_term
    if mark is not None and ended < (mark.number, mark.offset):
        raise acknowledged_lost(found.last_index, mark.last_index, asked=str(folder))
    return found


def _take(part: Located, table: EntryTable, found: LogContents, after_index: int) -> None:
    record = part.record
    found.records[KIND_NAMES[record.kind]] += 1
    try:
        change = change_of(record)
        apply_change(table, change, 0, part.end - part.offset)
    except (Damage, OutOfPlace) as error:
        raise corrupted(part.path, part.offset, table.last_index + 1, str(error)) from None
    if isinstance(change, HardState):
        found.hard_state = change
    elif isinstance(change, Cut):
        while found.entries and found.entries[-1].index > change.index:
            found.entries.pop()
    elif isinstance(change, Reset):
        found.entries.clear()
    else:
        found.entries += [entry for entry in change if entry.index > after_index]


def _paths(folder: Path) -> list[Path]:
    try:
        return segment_paths(folder)
    except OSError as error:
        raise failed("reading", error) from error


def _walk(paths: Sequence[Path]) -> Iterator[SegmentStart | Located | TornEnd]:
    try:
        yield from walk(paths)
    except OSError as error:
        raise failed("reading", error) from error


def dump(folder: Path, from_index: int, to_index: int) -> Iterator[dict[str, Any]]:
    """Each record of the log between the indexes given, entries one by one with their commands.

    What a later cut makes void is shown too, before the cut. Raises as ``check`` does.
    """
    if not folder.is_dir():
        raise DataDirUnusable("there is no ledger here", asked=str(folder), hint="name the host's with --data-dir")
    for part in _walk(_paths(folder)):
        if isinstance(part, SegmentStart):
            continue
        if isinstance(part, TornEnd):
            yield {"kind": "torn", "segment": part.path.name, "offset": part.offset, "bytes": part.dropped_bytes}
            continue
        record = part.record
        where = {"segment": part.path.name, "offset": part.offset}
        if record.has_entries:
            for entry in entries_of(record):
                if from_index <= entry.index <= to_index:
                    yield {"kind": entry.kind, "index": entry.index, "term": entry.term, **_command(entry), **where}
        elif from_index <= record.index <= to_index:
            more = {"vote": hard_state_of(record).vote} if record.kind == HARD_STATE else {}
            yield {"kind": KIND_NAMES[record.kind], "index": record.index, "term": record.term, **more, **where}


def _command(entry: Entry) -> dict[str, Any]:
    if entry.kind != "command" or not entry.data:
        return {"bytes": len(entry.data)}
    try:
        session, seq, command = decode_entry(entry.data)
    except BadRequest:
        return {"bytes": len(entry.data), "type": "unreadable"}
    kind = command.get("type")
    known = VERBS.get(kind) if isinstance(kind, str) else None
    shown = command if known is None else known.shown(command)
    return {"bytes": len(entry.data), "type": kind, "session": session, "seq": seq, "command": shown}


# -- the store


def read_store(path: Path) -> tuple[list[StoredSnapshot], int, int]:
    """The snapshots, newest first; as far as the log was durable when something was last written beside it; and the
    index of the snapshot that came from a leader, 0 for none.

    From a copy: nothing is changed. Raises LogCorrupted, StorageError.
    """
    if not path.exists():
        return [], 0, 0
    with tempfile.TemporaryDirectory(prefix="actorgrid-") as folder:
        copy = Path(folder) / "state.db"
        copy_store(path, copy)
        store = Store(copy)
        try:
            return store.snapshots(), store.durable_index(), store.received_index()
        finally:
            store.close()


def copy_store(source: Path, target: Path) -> None:
    """A copy of the store as of one moment, whoever writes to it meanwhile. Raises LogCorrupted, StorageError."""
    try:
        original, copy = sqlite3.connect(source), sqlite3.connect(target)
        try:
            original.backup(copy)
        finally:
            copy.close()
            original.close()
    except sqlite3.OperationalError as error:
        raise StorageError(f"the ledger's store cannot be copied: {error}", asked=str(source)) from error
    except sqlite3.DatabaseError as error:
        raise LogCorrupted(f"the ledger's store is damaged: {error}", found=str(source), hint=RECOVERY_HINT) from error
