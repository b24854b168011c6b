"""The log's files: how they are named, written and walked through, and what is raised about them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from actorgrid.actors.files.disk_reserve import free_bytes
from actorgrid.errors import DiskFull, LogCorrupted, LogFailed

from .log_record import Damage, LogRecord, SegmentHeader, decode_record, decode_segment_header, last_index_after

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
RECOVERY_HINT = (
    "the ledger stays down so that nothing false is built on this. With other voters: remove this host from the"
    " cluster, move DATA_DIR/ledger away and add the host again; the leader sends it everything. Alone: actorgrid"
    " ledger restore BACKUP, or, if what it holds may be lost, move DATA_DIR/ledger away and start again"
)


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """A segment whose header is whole."""

    path: Path
    header: SegmentHeader


@dataclass(frozen=True, slots=True)
class Located:
    """A whole record, where it lies in its segment, and the chain after it."""

    path: Path
    offset: int
    end: int
    chain: int
    record: LogRecord


@dataclass(frozen=True, slots=True)
class TornEnd:
    """The newest segment ends in *dropped_bytes* that were being written when the host stopped; all of it at 0."""

    path: Path
    offset: int
    dropped_bytes: int


def segment_paths(folder: Path) -> list[Path]:
    """The segments, oldest first."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".log")


def segment_name(number: int) -> str:
    """The file name of segment *number*."""
    return f"{number:016d}.log"


def walk(paths: Sequence[Path]) -> Iterator[SegmentStart | Located | TornEnd]:
    """Check every byte of *paths*, which are all segments in order, handing out what is there.

    Reads one segment at a time. Changes nothing. Raises LogCorrupted at the first thing that is wrong other than a
    torn end, and OSError.
    """
    chain: int | None = None
    index = 0
    for number, path in enumerate(paths):
        last = number == len(paths) - 1
        data = path.read_bytes()
        try:
            header = decode_segment_header(data)
        except Damage as damage:
            if not (last and damage.torn):
                raise corrupted(path, damage.offset, index + 1, damage.reason) from None
            yield TornEnd(path, 0, len(data))
            return
        if path.name != segment_name(header.number):
            raise corrupted(path, 0, header.base_index + 1, "the segment has another segment's name")
        if chain is not None and header.chain != chain:
            raise corrupted(path, 0, index + 1, "the segment does not follow the one before it")
        yield SegmentStart(path, header)
        index = header.base_index if chain is None else index
        chain, offset = header.chain, header.size_bytes
        while offset < len(data):
            try:
                record, end, chain = decode_record(data, offset, chain, header.format)
            except Damage as damage:
                if not (last and damage.torn):
                    raise corrupted(path, damage.offset, index + 1, damage.reason) from None
                yield TornEnd(path, offset, len(data) - offset)
                return
            yield Located(path, offset, end, chain, record)
            offset, index = end, last_index_after(record, index)


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of *data* at *offset*, however often the kernel stops early. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def corrupted(path: Path, offset: int, index: int, reason: str) -> LogCorrupted:
    """The error of damage in *path*, where entry *index* should be."""
    return LogCorrupted(
        f"the ledger's log is damaged: {reason}",
        found=f"{path.name} at byte {offset}, where entry {index} should be",
        hint=RECOVERY_HINT,
        segment=str(path),
        offset=offset,
        index=index,
    )


def failed(doing: str, error: OSError) -> LogFailed:
    """The error of an operation that the disk refused."""
    return LogFailed(
        f"{doing} the ledger's log failed: {error.strerror or error}",
        hint="look at the disk (dmesg), then start the agent again",
        errno=error.errno,
    )


def disk_full(folder: Path) -> DiskFull:
    """The error of a disk without room."""
    free = free_bytes(folder)
    return DiskFull(
        "no room left to record this",
        found=f"{free} bytes free under {folder}",
        hint="free some space; everything accepted is kept and goes on",
        free_bytes=free,
    )
