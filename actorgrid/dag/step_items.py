"""The items of a step that streams, one behind the other: as its process writes them, and as its result keeps them.

``MAGIC``, and for each item its length (4 bytes, big endian) and its bytes, a pickle that only workers and clients
read. Positions are bytes from the beginning, so that what was read up to one goes on there, whether the step still runs
or is over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from actorgrid.errors import MalformedBody

MAGIC = b"AGitems1"
_LENGTH = struct.Struct("!I")


def is_items(data: bytes) -> bool:
    """Whether what a step gave are items."""
    return data.startswith(MAGIC)


def item(content: bytes) -> bytes:
    """An item as it is written."""
    return _LENGTH.pack(len(content)) + content


class ItemReader:
    """Takes bytes as they come, from the beginning on, and gives whole items."""

    def __init__(self) -> None:
        self.position = 0
        """Up to where bytes have come."""
        self._rest = b""
        self._has_begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The items that are whole with *data*. Raises MalformedBody for what begins as something else."""
        self.position += len(data)
        rest = self._rest + data
        at = 0
        if not self._has_begun:
            if rest[: len(MAGIC)] != MAGIC[: len(rest)]:
                raise MalformedBody("what the step gave are no items")
            if len(rest) < len(MAGIC):
                self._rest = rest
                return []
            self._has_begun, at = True, len(MAGIC)
        found = []
        while at + _LENGTH.size <= len(rest):
            (length,) = _LENGTH.unpack_from(rest, at)
            end = at + _LENGTH.size + length
            if end > len(rest):
                break
            found.append(rest[at + _LENGTH.size : end])
            at = end
        self._rest = rest[at:]
        return found

    @property
    def is_whole(self) -> bool:
        """Whether what has come ends with an item."""
        return self._has_begun and not self._rest


def items_of(data: bytes) -> Iterator[bytes]:
    """The items of a whole result. Raises MalformedBody."""
    reader = ItemReader()
    yield from reader.feed(data)
    if not reader.is_whole:
        raise MalformedBody("the items of a step are cut off", found=f"{len(data)} bytes")
