"""The state of an actor that lives with its creator, on its way there: pieces, as items of the actor's task.

The first item of that task says on which host the actor is; each one behind it is a piece of a state that was saved::

    number (4, little-endian)   which of that incarnation's states it is, from 1
    size (4)                    of the whole state, in bytes
    bytes                       ``PIECE_BYTES`` at most; the last piece ends it

For each state that it has taken, the creator grants an item of the stream: so the actor knows that it is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from actorgrid.errors import MalformedBody

PIECE_BYTES = 4 * 2**20
STATE_BYTES_MAX = 60 * 2**20
"""Of one, pickled: it goes to the next incarnation in one frame."""
_HEAD = struct.Struct("<II")


class SavedState(NamedTuple):
    """A state that came whole."""

    number: int
    data: bytes
    """Pickled."""


def state_pieces(number: int, data: bytes) -> Iterator[bytes]:
    """The items that carry a state."""
    head = _HEAD.pack(number, len(data))
    for begin in range(0, max(1, len(data)), PIECE_BYTES):
        yield head + data[begin : begin + PIECE_BYTES]


class StateJoiner:
    """Puts the pieces of one incarnation's states together; holds one state at most."""

    def __init__(self) -> None:
        self._last = 0
        self._came = bytearray()

    def feed(self, item: bytes) -> SavedState | None:
        """Take a piece; the state, if that was its last one. Raises MalformedBody, and then is of no use any more."""
        if len(item) < _HEAD.size:
            raise MalformedBody("a piece of an actor's state has a head", found=f"{len(item)} bytes")
        number, size = _HEAD.unpack_from(item)
        self._came += memoryview(item)[_HEAD.size :]
        if number != self._last + 1 or size > STATE_BYTES_MAX or len(self._came) > size:
            raise MalformedBody(
                "not the next piece of an actor's state",
                asked=f"state {self._last + 1}, of at most {STATE_BYTES_MAX} bytes",
                found=f"state {number} of {size} bytes, of which {len(self._came)} have come",
            )
        if len(self._came) < size:
            return None
        data, self._came = bytes(self._came), bytearray()
        self._last = number
        return SavedState(number, data)
