"""The log's bytes: segments of records, every byte of which is covered by a checksum.

A segment file is a 32-byte header and records, back to back, all multiples of 8 bytes long:

    segment header   magic "AGLOGSEG", format u32, zero u32, first index u64, chain u32, CRC-32 of these 28 bytes
    record header    magic "AGRECORD", length u32, index u64, term u64, CRC-32 of these 28 bytes
    payload          *length* bytes, then zeros up to a multiple of 8
    record trailer   magic "DONE", chain u32

``chain`` is the CRC-32 of everything in the record before it, started from the record before, across segments: a
record can be neither changed, left out, swapped nor taken from another log. A trailer never straddles a disk
sector and is never zero, so a record whose end was not written shows it.

Torn or corrupt? Only what was never acknowledged may be dropped silently. A record is *torn* when the file ends
before it, or when it is zero from a sector boundary (or its own start) to the end of the file: what a crash between
write and fsync leaves. One flipped bit can produce neither. Everything else that is wrong is corruption.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

FORMAT = 1
SECTOR = 512
SEGMENT_MAGIC, RECORD_MAGIC, TRAILER_MAGIC = b"AGLOGSEG", b"AGRECORD", b"DONE"
MAX_PAYLOAD = 64 * 2**20

_SEGMENT = struct.Struct("<8sIIQI")
_RECORD = struct.Struct("<8sIQQ")
_TRAILER = struct.Struct("<4sI")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size
RECORD_HEADER_BYTES = _RECORD.size + _CRC.size
TRAILER_BYTES = _TRAILER.size


@dataclass(frozen=True, slots=True)
class Record:
    """One log entry."""

    index: int
    term: int
    payload: bytes


class Damage(Exception):
    """Bytes at *offset* are no record. ``torn``: they look like the end of an interrupted write."""

    def __init__(self, offset: int, torn: bool, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.torn = torn
        self.reason = reason


def encode_segment_header(first_index: int, chain: int) -> bytes:
    """The first bytes of a segment whose first record will be *first_index*, after a record with *chain*."""
    fields = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT, 0, first_index, chain)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode_segment_header(data: bytes) -> tuple[int, int]:
    """(first index, chain). Raises Damage."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise Damage(0, True, "the segment ends in its header")
    if not any(data[:SEGMENT_HEADER_BYTES]) and not any(data):
        raise Damage(0, True, "the segment is all zero")
    fields = data[: _SEGMENT.size]
    if zlib.crc32(fields) != _CRC.unpack_from(data, _SEGMENT.size)[0]:
        raise Damage(0, False, "the segment header fails its checksum")
    magic, version, _, first_index, chain = _SEGMENT.unpack(fields)
    if magic != SEGMENT_MAGIC or version != FORMAT:
        raise Damage(0, False, f"this is no segment of format {FORMAT}")
    return first_index, chain


def encode_records(records: Iterable[Record], chain: int) -> tuple[bytes, int]:
    """The bytes of *records* after a record with *chain*, and the chain after them."""
    parts: list[bytes] = []
    for record in records:
        length = len(record.payload)
        fields = _RECORD.pack(RECORD_MAGIC, length, record.index, record.term)
        body = fields + _CRC.pack(zlib.crc32(fields)) + record.payload + bytes(-length % 8)
        chain = zlib.crc32(body, chain)
        parts.append(body)
        parts.append(_TRAILER.pack(TRAILER_MAGIC, chain))
    return b"".join(parts), chain


def decode_record(data: bytes, offset: int, chain: int) -> tuple[Record, int, int]:
    """(record, offset after it, chain after it) of the record at *offset*. Raises Damage."""
    if len(data) - offset < RECORD_HEADER_BYTES:
        raise Damage(offset, True, "the file ends in a record's header")
    fields = data[offset : offset + _RECORD.size]
    body_at = offset + RECORD_HEADER_BYTES
    if zlib.crc32(fields) != _CRC.unpack_from(data, offset + _RECORD.size)[0]:
        raise Damage(offset, _zero_tail(data, offset, body_at), "a record's header fails its checksum")
    magic, length, index, term = _RECORD.unpack(fields)
    if magic != RECORD_MAGIC or length > MAX_PAYLOAD:
        raise Damage(offset, False, "a record's header is not one of this format")
    trailer_at = body_at + length + (-length % 8)
    end = trailer_at + TRAILER_BYTES
    if end > len(data):
        raise Damage(offset, True, "the file ends in a record")
    found = _TRAILER.unpack_from(data, trailer_at)
    chain = zlib.crc32(memoryview(data)[offset:trailer_at], chain)
    if found != (TRAILER_MAGIC, chain):
        raise Damage(offset, _zero_tail(data, offset, end), "a record fails its checksum")
    return Record(index, term, data[body_at : body_at + length]), end, chain


def _zero_tail(data: bytes, start: int, end: int) -> bool:
    """Whether the file is zero from the last sector boundary in [start, end), or from *start*, to its end."""
    boundary = max(start, (end - 1) // SECTOR * SECTOR)
    return data.count(0, boundary) == len(data) - boundary
