"""Which pieces of a large thing have come, which are under way, and which to ask for next. Decides, does no I/O.

Whoever carries a connection asks ``next`` and says ``came`` or ``lost``. A connection that breaks costs its pieces that
were under way, and these alone are asked for again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

PIECE_BYTES = 2**20


class BulkPiece(NamedTuple):
    """A part of a large thing."""

    offset: int
    size: int


class PiecePlan:
    """The pieces of *size* bytes. Its owner has a lock where several threads ask."""

    def __init__(self, size: int, piece_bytes: int = PIECE_BYTES) -> None:
        self.asked_again = 0
        self._size = size
        self._piece_bytes = piece_bytes
        self._next = 0
        self._lost: deque[BulkPiece] = deque()
        self._under_way: set[BulkPiece] = set()

    @property
    def is_done(self) -> bool:
        """Whether all have come."""
        return self._next >= self._size and not self._lost and not self._under_way

    @property
    def missing(self) -> list[BulkPiece]:
        """What has not come, as few parts as possible, in order."""
        parts = [*sorted([*self._lost, *self._under_way]), BulkPiece(self._next, self._size - self._next)]
        found: list[BulkPiece] = []
        for part in parts:
            if not part.size:
                continue
            if found and sum(found[-1]) == part.offset:
                found[-1] = BulkPiece(found[-1].offset, found[-1].size + part.size)
            else:
                found.append(part)
        return found

    def next(self) -> BulkPiece | None:
        """The piece to ask for now; ``None`` where all others have come or are under way."""
        if self._lost:
            piece = self._lost.popleft()
            self.asked_again += 1
        elif self._next < self._size:
            piece = BulkPiece(self._next, min(self._piece_bytes, self._size - self._next))
            self._next += piece.size
        else:
            return None
        self._under_way.add(piece)
        return piece

    def came(self, piece: BulkPiece) -> None:
        """Take note that a piece is there, with its checksum."""
        self._under_way.discard(piece)

    def lost(self, piece: BulkPiece) -> None:
        """Take note that a piece has to be asked for again."""
        if piece in self._under_way:
            self._under_way.remove(piece)
            self._lost.append(piece)
