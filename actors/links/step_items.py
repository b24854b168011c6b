"""The items of a step that runs on this host, read for those who take them (actors/work/item_spool.py)."""

from __future__ import annotations

from typing import NamedTuple

from actorgrid.errors import BadRequest

from ..work.attempt_dir import AttemptDir, is_id
from ..work.item_spool import note_taken, open_items
from .pieces import Piece, piece_of

ITEMS_LOOK_S = 0.03


class ItemTaker(NamedTuple):
    """Who takes items: an attempt, and how many it has taken."""

    by: str
    taken: int

    def check(self) -> None:
        """Raises BadRequest for what names no attempt: it becomes a part of a file's name."""
        if not is_id(self.by):
            raise BadRequest("that is no attempt", asked=self.by[:80])


class ItemRequest:
    """One request of *taker* for what an attempt writes, from *position* on. How far *taker* is, is noted once."""

    def __init__(self, folder: AttemptDir, position: int, size: int, taker: ItemTaker) -> None:
        """Raises BadRequest."""
        taker.check()
        self._folder = folder.path
        self._position = position
        self._size = size
        self._taker = taker
        self._is_noted = False

    def read(self) -> Piece:
        """A piece of what there is by now. Raises Overloaded, NotARegularFile, OSError."""
        if not self._folder.is_dir():
            return Piece(b"", 0)
        if not self._is_noted:
            note_taken(self._folder, self._taker.by, self._taker.taken)
            self._is_noted = True
        try:
            with open_items(self._folder) as held:
                return piece_of(held, self._position, self._size)
        except FileNotFoundError:
            return Piece(b"", 0)
