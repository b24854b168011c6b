"""How a value lies in the store: its pickle, and behind it the buffers that pickle's protocol 5 leaves out of it.

::

    b"AGO1"  buffers: u32  pickle bytes: u64          then for each buffer: offset u64, bytes u64, flags u32
    the pickle
    the buffers, each from a multiple of 64 on

Offsets count from the beginning. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from actorgrid.errors import MalformedBody

Buffer = bytes | bytearray | memoryview

MAGIC = b"AGO1"
ALIGN_BYTES = 64
"""As wide as the widest loads of vector units."""
MAX_BUFFERS = 1_000_000
OWN_COPY = 1
"""A flag: its reader may write to the buffer, into pages of its own."""
_HEAD = struct.Struct("<4sIQ")
_ENTRY = struct.Struct("<QQI")


class LaidOut(NamedTuple):
    """What is to be written, one part behind another."""

    size: int
    parts: list[Buffer]


class BufferAt(NamedTuple):
    """Where a buffer lies."""

    offset: int
    size: int
    flags: int


def lay_out(pickled: Sequence[Buffer], buffers: Sequence[tuple[memoryview, int]]) -> LaidOut:
    """The parts of a value. *pickled*: its pickle, in pieces; *buffers*: each flat, in bytes, with its flags."""
    pickle_size = sum(map(len, pickled))
    at = _HEAD.size + _ENTRY.size * len(buffers) + pickle_size
    entries: list[bytes] = []
    behind: list[Buffer] = []
    for buffer, flags in buffers:
        gap = -at % ALIGN_BYTES
        if gap:
            behind.append(bytes(gap))
        at += gap
        entries.append(_ENTRY.pack(at, buffer.nbytes, flags))
        behind.append(buffer)
        at += buffer.nbytes
    head = _HEAD.pack(MAGIC, len(buffers), pickle_size) + b"".join(entries)
    return LaidOut(at, [head, *pickled, *behind])


def find_parts(view: memoryview) -> tuple[memoryview, list[BufferAt]]:
    """The pickle of a value that lies in *view*, and where its buffers are. Raises MalformedBody."""
    if view.nbytes < _HEAD.size:
        raise MalformedBody("an object is too short to be one", found=f"{view.nbytes} bytes")
    magic, count, pickle_size = _HEAD.unpack_from(view)
    begin = _HEAD.size + _ENTRY.size * count
    if magic != MAGIC or count > MAX_BUFFERS or begin + pickle_size > view.nbytes:
        raise MalformedBody("an object does not begin as one", found=f"{magic!r}, {count} buffers")
    buffers = [BufferAt(*_ENTRY.unpack_from(view, _HEAD.size + _ENTRY.size * each)) for each in range(count)]
    if any(each.offset + each.size > view.nbytes for each in buffers):
        raise MalformedBody("a buffer of an object ends behind it", found=f"{view.nbytes} bytes")
    return view[begin : begin + pickle_size], buffers
