"""The log's bytes: segments of records, every byte of which is covered by a checksum.

A segment file is a 48-byte header and records, back to back, all multiples of 8 bytes long:

    segment header   magic "AGLOGSEG", format u32, zero u32, number u64, base index u64, base term u64, chain u32,
                     CRC-32 of these 44 bytes
    record header    magic "AGR2", kind u32, length u32, index u64, term u64, CRC-32 of these 28 bytes
    payload          *length* bytes, then zeros up to a multiple of 8
    record trailer   magic "DONE", chain u32

``number`` grows from segment to segment; ``base`` is the entry that stood last when the segment was begun. ``chain`` is
the CRC-32 of everything in the record before it, started from the record before, across segments: a record can be
neither changed, left out, swapped nor taken from another log. A trailer never straddles a disk sector and is never
zero, so a record whose end was not written shows it.

What a record says depends on its kind:

    commands    entries that are commands of one term: count u32, count times length u32, their data back to back;
                ``index`` is that of the first
    entries     any entries: count u32, count times (term u64, length u32, kind u32), their data back to back;
                ``index`` is that of the first, ``term`` that of the last
    hard_state  the vote u64; ``index`` is the commit index
    cut         the entries after ``index`` are void; ``term`` is that of ``index``
    reset       a snapshot as of ``index`` and ``term`` stands for all that was before

The last three change what the log means without changing a byte of what was written. So a log only ever grows, one
chain proves all of it, and a crash can bring nothing back that was cut.

Torn or corrupt? Only what was never acknowledged may be dropped silently. A record is *torn* when the file ends
before it, or when it is zero from a sector boundary (or its own start) to the end of the file: what a crash between
write and fsync leaves. One flipped bit can produce neither. Everything else that is wrong is corruption.

Format 1 had one command in each record, a record magic "AGRECORD" without a kind, and a 32-byte segment header (magic,
format, zero u32, first index u64, chain, CRC) whose number is its first index. It is still read, never written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from actorgrid.actors.raft.messages import Entry, EntryKind, HardState

FORMAT = 2
SECTOR = 512
SEGMENT_MAGIC, TRAILER_MAGIC = b"AGLOGSEG", b"DONE"
RECORD_MAGIC, RECORD_MAGIC_1 = b"AGR2", b"AGRECORD"
MAX_PAYLOAD = 64 * 2**20
"""Bytes in one record: a header that says more is damaged, and nothing is read on its word."""
RECORD_ENTRIES_MAX = 1024
RECORD_DATA_MAX = 2**20
"""Entries and bytes of data in one record, but one entry at least: reading one entry reads its record."""

COMMANDS, ENTRIES, HARD_STATE, CUT, RESET = 1, 2, 3, 4, 5
KIND_NAMES = {COMMANDS: "commands", ENTRIES: "entries", HARD_STATE: "hard_state", CUT: "cut", RESET: "reset"}
_ENTRY_KINDS: dict[int, EntryKind] = {1: "command", 2: "conf_change"}
_ENTRY_CODES = {kind: code for code, kind in _ENTRY_KINDS.items()}

_SEGMENT = struct.Struct("<8sIIQQQI")
_SEGMENT_1 = struct.Struct("<8sIIQI")
_RECORD = struct.Struct("<4sIIQQ")
_RECORD_1 = struct.Struct("<8sIQQ")
_TRAILER = struct.Struct("<4sI")
_CRC = struct.Struct("<I")
_VOTE = struct.Struct("<Q")
_ROW = struct.Struct("<QII")
_PADDING = tuple(bytes(-length % 8) for length in range(8))
_DATA_OF, _KIND_OF = attrgetter("data"), attrgetter("kind")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size
SEGMENT_HEADER_1_BYTES = _SEGMENT_1.size + _CRC.size
RECORD_HEADER_BYTES = _RECORD.size + _CRC.size
TRAILER_BYTES = _TRAILER.size


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as it lies in a segment; ``format`` is the segment's."""

    kind: int
    index: int
    term: int
    payload: bytes
    format: int = FORMAT

    @property
    def has_entries(self) -> bool:
        """Whether it holds entries rather than a remark about the log."""
        return self.kind in (COMMANDS, ENTRIES)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment. ``base_term`` is ``None`` where format 1 did not say it."""

    number: int
    base_index: int
    base_term: int | None
    chain: int
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """Bytes it takes in the file: the first record's offset."""
        return SEGMENT_HEADER_BYTES if self.format == FORMAT else SEGMENT_HEADER_1_BYTES


class Damage(Exception):
    """Bytes at *offset* are no record. ``torn``: they look like the end of an interrupted write."""

    def __init__(self, offset: int, torn: bool, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.torn = torn
        self.reason = reason


# -- segments


def encode_segment_header(number: int, base_index: int, base_term: int, chain: int) -> bytes:
    """The first bytes of segment *number*, begun when entry *base_index* was the last, after a record with *chain*."""
    fields = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT, 0, number, base_index, base_term, chain)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode_segment_header(data: bytes) -> SegmentHeader:
    """The header that *data* begins with, of this format or of format 1. Raises Damage."""
    if len(data) < SEGMENT_HEADER_1_BYTES:
        raise Damage(0, True, "the segment ends in its header")
    if not any(data[:SEGMENT_HEADER_BYTES]) and not any(data):
        raise Damage(0, True, "the segment is all zero")
    if zlib.crc32(data[: _SEGMENT_1.size]) == _CRC.unpack_from(data, _SEGMENT_1.size)[0]:
        magic, version, _, first_index, chain = _SEGMENT_1.unpack_from(data)
        if magic == SEGMENT_MAGIC and version == 1:
            return SegmentHeader(first_index, first_index - 1, 0 if first_index == 1 else None, chain, 1)
    if len(data) < SEGMENT_HEADER_BYTES:
        raise Damage(0, True, "the segment ends in its header")
    if zlib.crc32(data[: _SEGMENT.size]) != _CRC.unpack_from(data, _SEGMENT.size)[0]:
        raise Damage(0, False, "the segment header fails its checksum")
    magic, version, _, number, base_index, base_term, chain = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or version != FORMAT:
        raise Damage(0, False, f"this is no segment of format 1 or {FORMAT}")
    return SegmentHeader(number, base_index, base_term, chain)


# -- records


def encode_record(kind: int, index: int, term: int, payload: bytes, chain: int) -> tuple[bytes, int]:
    """The bytes of a record after one with *chain*, and the chain after it."""
    return _encode(kind, index, term, (payload,), len(payload), chain)


def _encode(kind: int, index: int, term: int, payload: tuple[bytes, ...], length: int, chain: int) -> tuple[bytes, int]:
    assert length <= MAX_PAYLOAD, f"a record of {length} bytes"
    fields = _RECORD.pack(RECORD_MAGIC, kind, length, index, term)
    body = b"".join((fields, _CRC.pack(zlib.crc32(fields)), *payload, _PADDING[length % 8]))
    chain = zlib.crc32(body, chain)
    return body + _TRAILER.pack(TRAILER_MAGIC, chain), chain


def encode_hard_state(state: HardState, chain: int) -> tuple[bytes, int]:
    """Term, vote and commit index as a record."""
    return encode_record(HARD_STATE, state.commit, state.term, _VOTE.pack(state.vote), chain)


def encode_entries(entries: Sequence[Entry], chain: int) -> list[tuple[Sequence[Entry], bytes, int]]:
    """Entries that follow each other as records: the entries of each, its bytes, the chain after it."""
    data = list(map(_DATA_OF, entries))
    lengths = list(map(len, data))
    if len(data) <= RECORD_ENTRIES_MAX and sum(lengths) <= RECORD_DATA_MAX:
        return [(entries, *_encode_batch(entries, data, lengths, chain))]
    found = []
    start = size = 0
    for number, length in enumerate([*lengths, RECORD_DATA_MAX]):
        if number > start and (size + length > RECORD_DATA_MAX or number - start >= RECORD_ENTRIES_MAX):
            part = slice(start, number)
            encoded, chain = _encode_batch(entries[part], data[part], lengths[part], chain)
            found.append((entries[part], encoded, chain))
            start, size = number, 0
        size += length
    if start < len(data):
        part = slice(start, len(data))
        encoded, chain = _encode_batch(entries[part], data[part], lengths[part], chain)
        found.append((entries[part], encoded, chain))
    return found


def _encode_batch(entries: Sequence[Entry], data: list[bytes], lengths: list[int], chain: int) -> tuple[bytes, int]:
    count, term = len(entries), entries[-1].term
    kinds = list(map(_KIND_OF, entries))
    if entries[0].term == term and kinds.count("command") == count:
        head = struct.pack(f"<I{count}I", count, *lengths)
        return _encode(COMMANDS, entries[0].index, term, (head, *data), len(head) + sum(lengths), chain)
    rows = [_ROW.pack(entry.term, len(entry.data), _ENTRY_CODES[entry.kind]) for entry in entries]
    size = _CRC.size + count * _ROW.size + sum(lengths)
    return _encode(ENTRIES, entries[0].index, term, (_CRC.pack(count), *rows, *data), size, chain)


def decode_record(data: bytes, offset: int, chain: int, version: int = FORMAT) -> tuple[LogRecord, int, int]:
    """(record, offset after it, chain after it) of the record at *offset*. Raises Damage."""
    if len(data) - offset < RECORD_HEADER_BYTES:
        raise Damage(offset, True, "the file ends in a record's header")
    body_at = offset + RECORD_HEADER_BYTES
    known, kind, length, index, term = _header(data, offset, version)
    if known is None:
        raise Damage(offset, _zero_tail(data, offset, body_at), "a record's header fails its checksum")
    if not known or length > MAX_PAYLOAD:
        raise Damage(offset, False, "a record's header is not one of this format")
    trailer_at = body_at + length + (-length % 8)
    end = trailer_at + TRAILER_BYTES
    if end > len(data):
        raise Damage(offset, True, "the file ends in a record")
    found = _TRAILER.unpack_from(data, trailer_at)
    chain = zlib.crc32(memoryview(data)[offset:trailer_at], chain)
    if found != (TRAILER_MAGIC, chain):
        raise Damage(offset, _zero_tail(data, offset, end), "a record fails its checksum")
    return LogRecord(kind, index, term, data[body_at : body_at + length], version), end, chain


def record_length(header: bytes, version: int) -> int:
    """Bytes of the whole record that begins with *header*. Raises Damage."""
    if len(header) < RECORD_HEADER_BYTES:
        raise Damage(0, False, "the file ends in a record's header")
    known, _, length, _, _ = _header(header, 0, version)
    if not known or length > MAX_PAYLOAD:
        raise Damage(0, False, "a record's header fails its checksum")
    return RECORD_HEADER_BYTES + length + (-length % 8) + TRAILER_BYTES


def chain_before(data: bytes, after_header: bool) -> int:
    """The chain in the 8 bytes before a record: the end of a segment's header, or another record's trailer."""
    return int(_CRC.unpack_from(data, 0 if after_header else len(TRAILER_MAGIC))[0])


def _header(data: bytes, offset: int, version: int) -> tuple[bool | None, int, int, int, int]:
    """(whether the magic and kind are known, or None for a wrong checksum; kind, length, index, term)."""
    fields = data[offset : offset + _RECORD.size]
    if zlib.crc32(fields) != _CRC.unpack_from(data, offset + _RECORD.size)[0]:
        return None, 0, 0, 0, 0
    if version == FORMAT:
        magic, kind, length, index, term = _RECORD.unpack(fields)
        return magic == RECORD_MAGIC and kind in KIND_NAMES, kind, length, index, term
    magic, length, index, term = _RECORD_1.unpack(fields)
    return magic == RECORD_MAGIC_1, COMMANDS, length, index, term


def entries_of(record: LogRecord) -> list[Entry]:
    """The entries in a record that has some. Raises Damage for one that was written wrongly."""
    if record.format != FORMAT:
        return [Entry(record.index, record.term, "command", record.payload)]
    payload = record.payload
    count = _CRC.unpack_from(payload)[0] if len(payload) >= _CRC.size else 0
    width = _CRC.size if record.kind == COMMANDS else _ROW.size
    at = _CRC.size + count * width
    if not count or at > len(payload):
        raise Damage(0, False, "a record of entries has no table")
    rows: Iterable[tuple[int, int, int]] = _ROW.iter_unpack(payload[_CRC.size : at]) if width == _ROW.size else ()
    if record.kind == COMMANDS:
        rows = [(record.term, length, 1) for length in struct.unpack_from(f"<{count}I", payload, _CRC.size)]
    found: list[Entry] = []
    before = 0
    for number, (term, length, code) in enumerate(rows):
        if code not in _ENTRY_KINDS or at + length > len(payload) or term < before:
            raise Damage(0, False, "a record of entries has a wrong table")
        found.append(Entry(record.index + number, term, _ENTRY_KINDS[code], payload[at : at + length]))
        at, before = at + length, term
    if at != len(payload) or before != record.term:
        raise Damage(0, False, "a record of entries is not what its table says")
    return found


def last_index_after(record: LogRecord, last_index: int) -> int:
    """The log's last index once *record* stands in it, after *last_index*."""
    if record.kind == HARD_STATE:
        return last_index
    if not record.has_entries or record.format != FORMAT or len(record.payload) < _CRC.size:
        return record.index
    return record.index + int(_CRC.unpack_from(record.payload)[0]) - 1


def hard_state_of(record: LogRecord) -> HardState:
    """The hard state in a record of that kind. Raises Damage for one that was written wrongly."""
    if len(record.payload) != _VOTE.size:
        raise Damage(0, False, "a hard state is not one of this format")
    return HardState(record.term, _VOTE.unpack(record.payload)[0], record.index)


def _zero_tail(data: bytes, start: int, end: int) -> bool:
    """Whether the file is zero from the last sector boundary in [start, end), or from *start*, to its end."""
    boundary = max(start, (end - 1) // SECTOR * SECTOR)
    return data.count(0, boundary) == len(data) - boundary
