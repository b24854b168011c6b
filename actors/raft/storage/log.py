"""The durable log: segment files in one folder, appended to in batches, one fdatasync each.

Contract: when ``append`` (or ``write`` with *sync*) returns, its records survive power loss; when it raises, none of
them was acknowledged and the file ends where it ended before. ``open`` gives back everything acknowledged or raises
LogCorrupted: it never drops a record silently. After a failed fsync every write raises. Segments are numbered upwards;
one that reaches ``segment_bytes`` is followed by a new one, so a file holds at most that plus one batch. Files grow by
appending and are not preallocated: a file system that extends a file after writing its blocks then leaves no hole
before the end.

Nothing written is ever changed: to void the end of the log (``Cut``), or all of it behind a snapshot
(``Reset``), a record that says so is appended, so that a crash brings back nothing that was cut. Each segment begins
with the hard state, so that those before it can go.

Memory: see ``entry_table``; reading older entries reads their record from disk. One thread writes; any may read at the
same time. Whoever opens holds the host's lock.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from actorgrid.actors.raft.messages import Entry, HardState
from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import LogCorrupted, LogFailed

from .durable_watermark import DurableWatermark, Mark, acknowledged_lost
from .entry_table import TAIL_BYTES_MAX, EntryTable, OutOfPlace
from .log_changes import Cut, LogChange, Reset, apply_change, change_of
from .log_record import (
    CUT,
    FORMAT,
    RECORD_HEADER_BYTES,
    RESET,
    TRAILER_BYTES,
    Damage,
    SegmentHeader,
    chain_before,
    decode_record,
    encode_entries,
    encode_hard_state,
    encode_record,
    encode_segment_header,
    entries_of,
    record_length,
)
from .segments import (
    NO_ROOM,
    RECOVERY_HINT,
    Located,
    SegmentStart,
    TornEnd,
    corrupted,
    disk_full,
    failed,
    segment_name,
    segment_paths,
    walk,
    write_all,
)

log = logging.getLogger("actorgrid.consensus")

__all__ = ["RECOVERY_HINT", "Cut", "EndMark", "LogChange", "Reset", "SegmentLog"]

# Where a record lies is one number of 64 bits in the table: the slot of its segment, and its offset in that file. The
# slot counts the segments of one opening: the number in a segment's name is an index of the log, without such a bound.
_OFFSET_BITS = 40
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


_Step = tuple[int, LogChange, int]


@dataclass(slots=True)
class _Segment:
    """A segment file.

    ``last_index``: no entry after it is here and still counts. ``slot``: the segment's part of positions.
    """

    path: Path
    header: SegmentHeader
    slot: int
    last_index: int
    has_state: bool = False


@dataclass(frozen=True, slots=True)
class EndMark:
    """The end of the log as it was last known to be durable: what follows was not acknowledged."""

    segment: str
    offset: int


class SegmentLog:
    """The log on disk: append, cut, read back, drop what is behind a snapshot."""

    def __init__(self, folder: Path, segment_bytes: int, tail_bytes_max: int = TAIL_BYTES_MAX) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.hard_state: HardState | None = None
        self._table = EntryTable(tail_bytes_max)
        self._segments: list[_Segment] = []
        self._by_slot: dict[int, _Segment] = {}
        self._slots = itertools.count()
        # For the table and the segments: the core reads while the writer's thread writes. Never held over an fsync.
        self._lock = threading.Lock()
        self._watermark = DurableWatermark(folder / "acknowledged")
        self._fd = -1
        self._offset = 0
        self._synced = 0
        self._chain = 0
        self._broken: LogFailed | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        segment_bytes: int,
        end: EndMark | None = None,
        tail_bytes_max: int = TAIL_BYTES_MAX,
    ) -> SegmentLog:
        """Verify all of the log and get ready to append.

        *end* cuts off what a failed fsync may have left behind it. Raises LogCorrupted, or LogFailed when the files
        cannot be read.
        """
        opened = cls(folder, segment_bytes, tail_bytes_max)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened._recover(end)
        except OSError as error:
            opened.close()
            raise failed("reading", error) from error
        except LogCorrupted:
            opened.close()
            raise
        return opened

    # -- what there is

    @property
    def base_index(self) -> int:
        """Index of the entry before the first one kept."""
        return self._table.base_index

    @property
    def first_index(self) -> int:
        """Index of the oldest entry kept, or of the next one when there is none."""
        return self._table.base_index + 1

    @property
    def last_index(self) -> int:
        """Index of the newest entry; the base's when there is none."""
        return self._table.last_index

    @property
    def last_term(self) -> int:
        """The term of the newest entry."""
        return self._table.last_term

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments together."""
        return sum(segment.path.stat().st_size for segment in self._segments[:-1]) + self._offset

    @property
    def segment_count(self) -> int:
        """The number of segment files."""
        return len(self._segments)

    @property
    def end(self) -> EndMark:
        """The end of the durable part."""
        return EndMark(self._segments[-1].path.name if self._segments else "", self._synced)

    def term(self, index: int) -> int | None:
        """The term of entry *index*, or of the base; ``None`` for a base of unknown term and outside of the log."""
        with self._lock:
            inside = self._table.base_index <= index <= self._table.last_index
            return self._table.term(index) if inside else None

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries *lo* to *hi* - 1, all of which are there: as many as *max_bytes* of data hold, but one at least.

        Those that memory has no more are read from disk and verified again. Raises LogCorrupted or LogFailed.
        """
        found: list[Entry] = []
        size = 0
        with self._lock:
            while lo < hi:
                position, end = self._table.place(lo)
                stored = self._table.in_memory(position) or self._stored(position, lo)
                first = stored[0].index
                end = min(end, hi)
                for entry in stored[lo - first : end - first]:
                    size += len(entry.data)
                    if found and size > max_bytes:
                        return found
                    found.append(entry)
                lo = end
        return found

    def _stored(self, position: int, index: int) -> list[Entry]:
        """The entries of the record at *position*, which has entry *index*, read from its file."""
        segment = self._by_slot[position >> _OFFSET_BITS]
        offset = position & _OFFSET_MASK
        version, first = segment.header.format, segment.header.size_bytes
        try:
            with segment.path.open("rb", buffering=0) as file:
                head = os.pread(file.fileno(), TRAILER_BYTES + RECORD_HEADER_BYTES, offset - TRAILER_BYTES)
                length = record_length(head[TRAILER_BYTES:], version)
                data = os.pread(file.fileno(), length, offset)
            chain = chain_before(head[:TRAILER_BYTES], offset == first)
            record, _, _ = decode_record(data, 0, chain, version)
            entries = entries_of(record)
        except Damage as damage:
            raise corrupted(segment.path, offset, index, damage.reason) from None
        except OSError as error:
            raise failed("reading", error) from error
        if not entries[0].index <= index <= entries[-1].index:
            raise corrupted(segment.path, offset, index, "a record is not the one that was written")
        return entries

    # -- changes

    def append(self, entries: Sequence[Entry]) -> None:
        """Make *entries*, which follow ``last_index``, durable.

        Raises DiskFull (nothing was written, appending may be tried again) or LogFailed (the log must not be
        used any more in this boot: after a failed fsync nobody knows what the disk holds).
        """
        self.write([entries])

    def reset(self, index: int, term: int) -> None:
        """Make it durable that the log begins after a snapshot as of *index*. Raises as ``append`` does."""
        self.write([Reset(index, term)])

    def write(self, changes: Iterable[LogChange], sync: bool = True) -> None:
        """Make *changes* durable in their order by one fdatasync; without *sync*, with the next one.

        Raises as ``append`` does; then none of *changes* was made.
        """
        if self._broken is not None:
            raise self._broken
        old = bool(self._segments) and self._segments[-1].header.format != FORMAT
        if self._fd < 0 or self._offset >= self.segment_bytes or old:
            self._roll()
        data, chain, steps = self._encode(changes)
        if not data and self._synced == self._offset:
            return
        # The disk first, then the table, then the mark: what a read gives back is written, and the mark is never ahead
        # of the log, where it would tell of a loss that was none.
        try:
            write_all(self._fd, data, self._offset)
        except OSError as error:
            self._undo(error)
        if sync:
            self._sync()
        slot = self._segments[-1].slot
        with self._lock:
            for offset, step, size in steps:
                self._take(step, (slot << _OFFSET_BITS) | offset, size)
        self._offset += len(data)
        self._chain = chain
        if sync:
            self._synced = self._offset
            self._acknowledge()

    def _encode(self, changes: Iterable[LogChange]) -> tuple[bytes, int, list[_Step]]:
        """The bytes of *changes*, the chain after them, and each record with its offset in the segment."""
        parts: list[bytes] = []
        steps: list[_Step] = []
        offset, chain, last = self._offset, self._chain, self._table.last_index
        for change in changes:
            if isinstance(change, HardState):
                data, chain = encode_hard_state(change, chain)
                records: list[tuple[LogChange, bytes, int]] = [(change, data, chain)]
            elif isinstance(change, Cut):
                data, chain = encode_record(CUT, change.index, self._term_after(change.index, steps), b"", chain)
                records, last = [(change, data, chain)], change.index
            elif isinstance(change, Reset):
                data, chain = encode_record(RESET, change.index, change.term, b"", chain)
                records, last = [(change, data, chain)], change.index
            elif not change:
                continue
            else:
                assert change[0].index == last + 1, f"entry {change[0].index} after {last}"
                assert change[-1].index == last + len(change), f"entries {last + 1} to {change[-1].index} have a gap"
                records, last = list(encode_entries(change, chain)), change[-1].index
                chain = records[-1][2]
            for record, data, _ in records:
                parts.append(data)
                steps.append((offset, record, len(data)))
                offset += len(data)
        return b"".join(parts), chain, steps

    def _term_after(self, index: int, steps: list[_Step]) -> int:
        """The term of entry *index* once *steps* are taken."""
        for _, step, _ in reversed(steps):
            if isinstance(step, Reset) and step.index == index:
                return step.term
            if isinstance(step, Sequence) and step[0].index <= index <= step[-1].index:
                return step[index - step[0].index].term
        return self.term(index) or 0

    def _take(self, change: LogChange, position: int, size: int) -> None:
        """Hold what now lies at *position*, in *size* bytes. Raises OutOfPlace."""
        apply_change(self._table, change, position, size)
        segment = self._segments[-1]
        if isinstance(change, HardState):
            self.hard_state = change
            segment.has_state = True
        elif isinstance(change, Cut):
            self._void_after(change.index)
        elif isinstance(change, Reset):
            self._void_after(0)
        else:
            segment.last_index = change[-1].index

    def _void_after(self, index: int) -> None:
        for segment in self._segments:
            segment.last_index = min(segment.last_index, index)

    def drop_behind(self, index: int) -> int:
        """Delete the segments that hold nothing after *index*; the newest always stays. How many were deleted."""
        dropped = 0
        while self._can_drop_first(index):
            # Out of the table before the file goes: who reads meanwhile must not be sent to a file that is gone.
            with self._lock:
                first = self._segments.pop(0)
                del self._by_slot[first.slot]
                # What is dropped by segments only ends where a segment does.
                self._table.drop(first.last_index)
            first.path.unlink()
            # Each for itself: were a later one gone and this one not, the log would have a gap.
            sync_folder(self.folder)
            dropped += 1
        return dropped

    def _can_drop_first(self, index: int) -> bool:
        if len(self._segments) < 2 or self._segments[0].last_index > index:
            return False
        # A crash while a segment is begun may leave one without a hard state at its head.
        return self.hard_state is None or any(segment.has_state for segment in self._segments[1:])

    def close(self) -> None:
        """Close the files; everything appended is durable already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):  # the mark may lag behind
                self._watermark.sync()
        self._watermark.close()

    # -- recovery

    def _recover(self, end: EndMark | None) -> None:
        paths = segment_paths(self.folder)
        if end is not None and paths:
            paths = self._cut_off(paths, end)
        mark = self._watermark.read()
        reached = mark is None
        for found in walk(paths):
            if isinstance(found, SegmentStart):
                self._begin_segment(found)
                here = Mark(found.header.number, self._offset, 0, self._chain)
            elif isinstance(found, Located):
                self._replay(found)
                self._offset, self._chain = found.end, found.chain
                here = Mark(self._segments[-1].header.number, found.end, 0, found.chain)
            else:
                self._remove_torn(found)
                break
            reached = reached or (mark is not None and _passed(here, mark, len(self._segments) == 1))
        if not reached and mark is not None:
            raise self._lost(mark)
        if mark is None and self._table.last_index > self._table.base_index:
            log.warning(
                "there is no mark of how far the log was durable: entries lost after %d would not be noticed here",
                self._table.last_index,
            )
        if self._segments:
            self._fd = os.open(self._segments[-1].path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._fd, self._offset)
            # What is only in the page cache so far is taken as committed from here on: make it so.
            os.fdatasync(self._fd)
            self._synced = self._offset
            self._open_mark()
            self._acknowledge()

    def _begin_segment(self, found: SegmentStart) -> None:
        header = found.header
        if not self._segments:
            self._table.reset(header.base_index, header.base_term)
        elif header.base_index != self._table.last_index or header.number <= self._segments[-1].header.number:
            raise corrupted(found.path, 0, self._table.last_index + 1, "the segment does not follow the one before it")
        self._offset, self._chain = header.size_bytes, header.chain
        self._add_segment(_Segment(found.path, header, next(self._slots), header.base_index))

    def _replay(self, found: Located) -> None:
        segment = self._segments[-1]
        position, size = (segment.slot << _OFFSET_BITS) | found.offset, found.end - found.offset
        try:
            self._take(change_of(found.record), position, size)
        except (Damage, OutOfPlace) as error:
            raise corrupted(found.path, found.offset, self._table.last_index + 1, str(error)) from None

    def _remove_torn(self, torn: TornEnd) -> None:
        if torn.offset == 0:
            log.warning("segment %s was being made when the host stopped: removed", torn.path.name)
            torn.path.unlink()
            sync_folder(self.folder)
            return
        log.warning(
            "segment %s: %d bytes after entry %d were being written when the host stopped: cut off",
            torn.path.name,
            torn.dropped_bytes,
            self._table.last_index,
        )

    def _lost(self, mark: Mark) -> LogCorrupted:
        end = self.end
        where = {"segment": str(self.folder / end.segment), "offset": self._offset}
        return acknowledged_lost(self._table.last_index, mark.last_index, **where)

    def _cut_off(self, paths: list[Path], end: EndMark) -> list[Path]:
        kept = []
        for path in paths:
            if path.name > end.segment:
                path.unlink()
                continue
            if path.name == end.segment and path.stat().st_size > end.offset:
                os.truncate(path, end.offset)
            kept.append(path)
        sync_folder(self.folder)
        return kept

    # -- writing

    def _add_segment(self, segment: _Segment) -> None:
        self._segments.append(segment)
        self._by_slot[segment.slot] = segment

    def _roll(self) -> None:
        last_index, last_term = self._table.last_index, self._table.last_term
        number = max(last_index, self._segments[-1].header.number if self._segments else 0) + 1
        header = SegmentHeader(number, last_index, last_term, self._chain)
        data, chain = encode_segment_header(number, last_index, last_term, self._chain), self._chain
        if self.hard_state is not None:
            state, chain = encode_hard_state(self.hard_state, chain)
            data += state
        path = self.folder / segment_name(number)
        fd = -1
        # The end of a segment may be torn only where no other follows: this one must be whole before there is a next.
        if self._synced != self._offset:
            self._sync()
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            write_all(fd, data, 0)
            os.fdatasync(fd)
            sync_folder(self.folder)
            self._watermark.sync()
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                path.unlink(missing_ok=True)
            if error.errno in NO_ROOM:
                raise disk_full(self.folder) from error
            raise failed("starting a segment of", error) from error
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._offset, self._synced, self._chain = fd, len(data), len(data), chain
        with self._lock:
            self._add_segment(_Segment(path, header, next(self._slots), last_index, self.hard_state is not None))
        self._open_mark()

    def _sync(self) -> None:
        """Sync the file once.

        A failed fdatasync is never tried again: the kernel may have dropped what it could not write.
        """
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._broken = failed("syncing", error)
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            raise self._broken from error

    def _undo(self, cause: OSError) -> None:
        """End the file where it ended before, then raise what *cause* of a failed write means."""
        try:
            os.ftruncate(self._fd, self._offset)
        except OSError as error:
            self._broken = failed("cutting back", error)
            raise self._broken from error
        if cause.errno in NO_ROOM:
            self._sync()
            self._synced = self._offset
            raise disk_full(self.folder) from cause
        self._broken = failed("appending to", cause)
        raise self._broken from cause

    def _open_mark(self) -> None:
        try:
            self._watermark.open()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise failed("marking the end of", error) from error
            log.warning("no room for the mark of what is acknowledged: a lost tail would not be noticed here")

    def _acknowledge(self) -> None:
        number = self._segments[-1].header.number
        try:
            self._watermark.write(Mark(number, self._synced, self._table.last_index, self._chain))
        except OSError as error:
            self._broken = failed("marking the end of", error)
            raise self._broken from error


def _passed(here: Mark, mark: Mark, in_first: bool) -> bool:
    """Whether a log that comes to *here* holds what *mark* says: the very record, or a later start."""
    if here.number == mark.number:
        return (here.offset, here.chain) == (mark.offset, mark.chain)
    return in_first and here.number > mark.number
