"""The durable log: segment files in one folder, appended to in batches, one fdatasync each.

Contract: when ``append`` returns, its records survive power loss; when it raises, none of them was acknowledged and
the file ends where it ended before. ``open`` gives back every acknowledged record or raises LogCorrupted: it never
drops one silently. Segments are named after their first index; one that reaches ``segment_bytes`` is followed by a
new one, so a file holds at most that plus one batch. Files grow by appending and are not preallocated: a file
system that extends a file after writing its blocks then leaves no hole before the end.

One writer; whoever opens holds the host's lock.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from actorgrid.errors import DiskFull, LogCorrupted, LogFailed

from .record import (
    SEGMENT_HEADER_BYTES,
    Damage,
    Record,
    decode_record,
    decode_segment_header,
    encode_records,
    encode_segment_header,
)

log = logging.getLogger("actorgrid.consensus")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
RECOVERY_HINT = (
    "the ledger stays down so that nothing false is built on this; restore DATA_DIR/ledger from a backup, or, "
    "if what it holds may be lost, move it away and start again"
)


@dataclass(slots=True)
class _Segment:
    path: Path
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class EndMark:
    """The end of the log as it was last known to be durable: what follows was not acknowledged."""

    segment: str
    offset: int


class SegmentLog:
    """Append records, read them back, drop those behind a snapshot."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.last_index = 0
        self.last_term = 0
        self._segments: list[_Segment] = []
        self._fd = -1
        self._offset = 0
        self._chain = 0

    @classmethod
    def open(
        cls,
        folder: Path,
        segment_bytes: int,
        on_record: Callable[[Record], None],
        end: EndMark | None = None,
    ) -> SegmentLog:
        """Verify all of the log, handing each record to *on_record* in order, and get ready to append.

        *end* cuts off what a failed fsync may have left behind it. Raises LogCorrupted, or LogFailed when the
        files cannot be read.
        """
        opened = cls(folder, segment_bytes)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened._recover(on_record, end)
        except OSError as error:
            opened.close()
            raise _failed("reading", error) from error
        except LogCorrupted:
            opened.close()
            raise
        return opened

    @property
    def first_index(self) -> int:
        """Index of the oldest record kept, or of the next one when there is none."""
        return self._segments[0].first_index if self._segments else self.last_index + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments together."""
        return sum(segment.path.stat().st_size for segment in self._segments[:-1]) + self._offset

    @property
    def segment_count(self) -> int:
        """Files in the folder."""
        return len(self._segments)

    @property
    def end(self) -> EndMark:
        """Where the durable part ends."""
        return EndMark(self._segments[-1].path.name if self._segments else "", self._offset)

    def append(self, records: list[Record]) -> None:
        """Make *records*, which follow ``last_index``, durable.

        Raises DiskFull (nothing was written, appending may be tried again) or LogFailed (the log must not be
        used any more in this boot: after a failed fsync nobody knows what the disk holds).
        """
        if not records:
            return
        assert records[0].index == self.last_index + 1, f"record {records[0].index} after {self.last_index}"
        if self._fd < 0 or self._offset >= self.segment_bytes:
            self._roll()
        data, chain = encode_records(records, self._chain)
        try:
            _write_all(self._fd, data, self._offset)
            os.fdatasync(self._fd)
        except OSError as error:
            self._undo(error)
        self._offset += len(data)
        self._chain = chain
        self.last_index, self.last_term = records[-1].index, records[-1].term
        self._segments[-1].last_index = self.last_index

    def read(self, from_index: int) -> Iterator[Record]:
        """The records from *from_index* on, read from the files and verified again. Raises LogCorrupted."""
        for segment in list(self._segments):
            if segment.last_index < from_index:
                continue
            data = segment.path.read_bytes()
            if segment is self._segments[-1]:
                data = data[: self._offset]
            try:
                for record, _, _ in _records(data):
                    if record.index >= from_index:
                        yield record
            except Damage as damage:
                raise _corrupted(segment.path, damage.offset, from_index, damage.reason) from None

    def drop_behind(self, index: int) -> int:
        """Delete the segments that hold nothing after *index*; the newest always stays. How many were deleted."""
        dropped = 0
        while len(self._segments) > 1 and self._segments[0].last_index <= index:
            self._segments.pop(0).path.unlink()
            dropped += 1
        if dropped:
            sync_folder(self.folder)
        return dropped

    def close(self) -> None:
        """Let go of the files; everything appended is durable already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- recovery

    def _recover(self, on_record: Callable[[Record], None], end: EndMark | None) -> None:
        paths = sorted(path for path in self.folder.iterdir() if path.suffix == ".log")
        if end is not None and paths:
            paths = self._cut(paths, end)
        chain: int | None = None
        for number, path in enumerate(paths):
            last = number == len(paths) - 1
            data = path.read_bytes()
            try:
                first_index, stored_chain = decode_segment_header(data)
            except Damage as damage:
                if not (last and damage.torn):
                    raise _corrupted(path, damage.offset, self.last_index + 1, damage.reason) from None
                log.warning("segment %s was being made when the host stopped: removed", path.name)
                path.unlink()
                sync_folder(self.folder)
                break
            if path.name != _name(first_index):
                raise _corrupted(path, 0, first_index, "the segment has another segment's name")
            if chain is None:
                self.last_index = first_index - 1
            elif first_index != self.last_index + 1 or stored_chain != chain:
                raise _corrupted(path, 0, self.last_index + 1, "the segment does not follow the one before it")
            segment = _Segment(path, first_index, self.last_index)
            self._segments.append(segment)
            offset, chain = SEGMENT_HEADER_BYTES, stored_chain
            try:
                for record, after, after_chain in _records(data):
                    if record.index != self.last_index + 1 or record.term < self.last_term:
                        raise _corrupted(
                            path, offset, self.last_index + 1, f"record {record.index} stands where another belongs"
                        )
                    self.last_index, self.last_term = record.index, record.term
                    segment.last_index = record.index
                    offset, chain = after, after_chain
                    on_record(record)
            except Damage as damage:
                if not (last and damage.torn):
                    raise _corrupted(path, damage.offset, self.last_index + 1, damage.reason) from None
                log.warning(
                    "segment %s: %d bytes after record %d were being written when the host stopped: cut off",
                    path.name,
                    len(data) - offset,
                    self.last_index,
                )
            self._offset, self._chain = offset, chain
        if self._segments:
            self._fd = os.open(self._segments[-1].path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._fd, self._offset)
            # What is only in the page cache so far is taken as committed from here on: make it so.
            os.fdatasync(self._fd)

    def _cut(self, paths: list[Path], end: EndMark) -> list[Path]:
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

    def _roll(self) -> None:
        path = self.folder / _name(self.last_index + 1)
        header = encode_segment_header(self.last_index + 1, self._chain)
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _write_all(fd, header, 0)
            os.fdatasync(fd)
            sync_folder(self.folder)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                path.unlink(missing_ok=True)
            if error.errno in NO_ROOM:
                raise _disk_full(self.folder) from error
            raise _failed("starting a segment of", error) from error
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._offset = fd, len(header)
        self._segments.append(_Segment(path, self.last_index + 1, self.last_index))

    def _undo(self, cause: OSError) -> None:
        """End the file where it ended before, then raise what *cause* means."""
        try:
            os.ftruncate(self._fd, self._offset)
            if cause.errno in NO_ROOM:
                os.fdatasync(self._fd)
        except OSError as error:
            raise _failed("cutting back", error) from error
        if cause.errno in NO_ROOM:
            raise _disk_full(self.folder) from cause
        raise _failed("appending to", cause) from cause


def _records(data: bytes) -> Iterator[tuple[Record, int, int]]:
    """Each record of a segment, with the offset and the chain after it. Raises Damage."""
    _, chain = decode_segment_header(data)
    offset = SEGMENT_HEADER_BYTES
    while offset < len(data):
        record, offset, chain = decode_record(data, offset, chain)
        yield record, offset, chain


def _name(first_index: int) -> str:
    return f"{first_index:016d}.log"


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def sync_folder(folder: Path) -> None:
    """Make the making and removing of files in *folder* durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _corrupted(path: Path, offset: int, index: int, reason: str) -> LogCorrupted:
    return LogCorrupted(
        f"the ledger's log is damaged: {reason}",
        found=f"{path.name} at byte {offset}, where entry {index} should be",
        hint=RECOVERY_HINT,
        segment=str(path),
        offset=offset,
        index=index,
    )


def _failed(doing: str, error: OSError) -> LogFailed:
    return LogFailed(
        f"{doing} the ledger's log failed: {error.strerror or error}",
        hint="look at the disk (dmesg), then start the agent again",
        errno=error.errno,
    )


def _disk_full(folder: Path) -> DiskFull:
    free = os.statvfs(folder)
    return DiskFull(
        "no room left to record this",
        found=f"{free.f_bavail * free.f_frsize} bytes free under {folder}",
        hint="free some space; everything accepted is kept and goes on",
        free_bytes=free.f_bavail * free.f_frsize,
    )
