"""Records on disk that are either whole or found out: framing, checksums, torn tails.

A record is one batch: it is written in one go and becomes durable with one fdatasync. Its header (magic, length,
number, checksum of the payload, checksum of the header) and a last byte that is never zero let a reader tell three
things apart: the end, a **torn** last record (a crash cut the write short: nobody was told it is durable, so it is
dropped) and **damage** (a bit changed in what was durable: we stop and say so). A write is torn when the file ends
within it, or when some disk sector it spans was never written, so is all zero (the rule of etcd's log); whatever
has a valid record after it was durable once, and is damage. Not told apart: a last record whose sector a failing
disk zeroed, or that holds 512 aligned zero bytes of its own and was damaged elsewhere.

Room is taken before it is needed: ``reserve`` extends the file with zeros, so a full disk is met before anything
was promised, and fdatasync has no file size to write.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from actorgrid.errors import DiskFull, LogCorrupted, LogFailed

log = logging.getLogger("actorgrid.distributed_state")

HEADER = struct.Struct("<4sIQII")
MAGIC = b"AGRJ"
LAST = b"\xa5"
SECTOR = 512
EXTEND_BYTES = 1 << 18
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def frame(number: int, payload: bytes) -> bytes:
    """The bytes of one record."""
    head = HEADER.pack(MAGIC, len(payload), number, zlib.crc32(payload), 0)
    return head[:-4] + struct.pack("<I", zlib.crc32(head[:-4])) + payload + LAST


def framed_size(payload_bytes: int) -> int:
    """The length in bytes of the record of such a payload."""
    return HEADER.size + payload_bytes + len(LAST)


def read_record(data: bytes | memoryview, at: int, number: int | None) -> tuple[int, bytes] | None:
    """(number, payload) of the valid record at *at*, or None. ``number``: the only one acceptable."""
    if at + HEADER.size > len(data):
        return None
    magic, length, found, payload_crc, header_crc = HEADER.unpack_from(data, at)
    if magic != MAGIC or zlib.crc32(data[at : at + HEADER.size - 4]) != header_crc:
        return None
    end = at + framed_size(length)
    if end > len(data) or (number is not None and found != number):
        return None
    payload = bytes(data[at + HEADER.size : end - 1])
    if zlib.crc32(payload) != payload_crc or bytes(data[end - 1 : end]) != LAST:
        return None
    return found, payload


class Journal:
    """An append-only file of records, open for writing. One owner at a time (the host's lock file sees to it)."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises LogCorrupted for a damaged file, DiskFull or LogFailed."""
        self.path = path
        self.next_number = 1
        self.size = 0
        self.torn_bytes = 0
        self._payloads: list[bytes] = []
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error(error, f"cannot open {path.name}") from error
        try:
            self._allocated = os.fstat(self._fd).st_size
            self._recover()
        except OSError as error:
            os.close(self._fd)
            raise storage_error(error, f"cannot read {path.name}") from error
        except LogCorrupted:
            os.close(self._fd)
            raise

    def replay(self) -> Iterator[bytes]:
        """The payloads found at opening, once; they are let go on the way."""
        payloads, self._payloads = self._payloads, []
        payloads.reverse()
        while payloads:
            yield payloads.pop()

    def reserve(self, payload_bytes: int) -> None:
        """Make sure a record of this size can be written. Raises DiskFull; then nothing has changed."""
        needed = self.size + framed_size(payload_bytes)
        if needed <= self._allocated:
            return
        for target in (needed + EXTEND_BYTES, needed):
            try:
                os.posix_fallocate(self._fd, self._allocated, target - self._allocated)
            except OSError as error:
                if target == needed or error.errno not in NO_ROOM:
                    raise storage_error(error, f"no room for {payload_bytes} bytes in {self.path.name}") from error
                continue
            self._allocated = target
            return

    def append(self, payload: bytes) -> None:
        """Write one record and make it durable.

        Raises DiskFull (only where reserved room is no promise): the file is then as it was. Raises LogFailed when
        what is on the disk is unknown: nothing more may be written, and nothing read back be trusted, in this boot.
        """
        data = frame(self.next_number, payload)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.size + written)
            os.fdatasync(self._fd)
        except OSError as error:
            failure = storage_error(error, f"cannot write to {self.path.name}")
            if isinstance(failure, DiskFull):
                self._cut(failure)
            raise failure from error
        self.size += len(data)
        self._allocated = max(self._allocated, self.size)
        self.next_number += 1

    def close(self) -> None:
        """Close the file; what was appended is durable already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _cut(self, failure: DiskFull) -> None:
        """Take back a record that found no room, or it would be there at the next opening. Raises LogFailed."""
        try:
            os.ftruncate(self._fd, self.size)
            os.fsync(self._fd)
        except OSError as error:
            raise LogFailed(f"{failure.message}; then: {error.strerror}", hint=failure.hint) from error
        self._allocated = self.size

    def _recover(self) -> None:
        data = memoryview(read_all(self._fd, self._allocated))
        at = 0
        while at < len(data):
            record = read_record(data, at, self.next_number)
            if record is None:
                break
            self._payloads.append(record[1])
            at += framed_size(len(record[1]))
            self.next_number += 1
        self.size = at
        rest = bytes(data[at:])
        if not rest.strip(b"\0"):
            return
        if find_record(rest, self.next_number) is not None or not _is_torn(data, at, self.next_number):
            raise LogCorrupted(
                f"record {self.next_number} of {self.path.name} fails its checksum, {at} bytes in",
                asked=str(self.path),
                found=f"{self.next_number - 1} good records before it",
                hint="the shared state stays down; restore state/ from a backup, or move it away to start empty",
            )
        self.torn_bytes = len(rest.rstrip(b"\0"))
        log.warning("%s: dropped %d bytes of a write that a crash cut short", self.path.name, self.torn_bytes)
        os.ftruncate(self._fd, at)
        os.fsync(self._fd)
        self._allocated = at


def _is_torn(data: memoryview, at: int, number: int) -> bool:
    """Whether the last, bad record at *at* is one whose writing was cut short."""
    if len(data) - at < HEADER.size:
        return True
    magic, length, found, _, header_crc = HEADER.unpack_from(data, at)
    whole = magic == MAGIC and zlib.crc32(data[at : at + HEADER.size - 4]) == header_crc and found == number
    end = at + framed_size(length) if whole else at + HEADER.size
    if end > len(data):
        return True
    start = at
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if not bytes(data[start:stop]).strip(b"\0"):
            return True
        start = stop
    return False


def find_record(data: bytes, least: int) -> int | None:
    """The offset of a valid record numbered *least* or more, anywhere in *data*."""
    at = data.find(MAGIC)
    while at >= 0:
        record = read_record(data, at, None)
        if record is not None and record[0] >= least:
            return at
        at = data.find(MAGIC, at + 1)
    return None


def read_all(fd: int, size: int) -> bytes:
    """The first *size* bytes of an open file, or as many as there are."""
    parts: list[bytes] = []
    at = 0
    while at < size:
        part = os.pread(fd, min(1 << 24, size - at), at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def storage_error(error: OSError, what: str) -> DiskFull | LogFailed:
    """The named error of a failed file operation."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return DiskFull(f"{what}: {reason}", hint="free space on the data directory's disk; what was accepted is kept")
    return LogFailed(f"{what}: {reason}", hint="check the disk; after a failed write nothing more is accepted")
