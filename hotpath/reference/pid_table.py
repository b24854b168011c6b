"""Who has which number, in plain Python.

Numbers are small, dense and used again; what tells their holders apart is the generation, which counts how often a
number was given out. It has 64 bits, so that nobody who kept an old number and generation ever finds someone else under
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from actorgrid.errors import BadRequest, TooManyActors

LIMIT_MAX = 1 << 28


class PidTable:
    """Items by number and generation, at most *limit* (1 to 2**28) at once; 20 bytes each."""

    def __init__(self, limit: int) -> None:
        if not 1 <= limit <= LIMIT_MAX:
            raise BadRequest("a limit out of range", asked=str(limit), hint=f"1 to {LIMIT_MAX}")
        self._limit = limit
        self._items: list[Any] = []
        self._generations: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._items) - len(self._free)

    def add(self, item: Any) -> tuple[int, int]:
        """Give *item* (not ``None``) a number; gives (number, generation). Raises TooManyActors at the limit."""
        if self._free:
            place = self._free.pop()
            self._items[place] = item
        else:
            if len(self._items) == self._limit:
                raise TooManyActors(
                    f"{len(self)} processes live here, as many as may", hint="end some, or start another shard"
                )
            place = len(self._items)
            self._items.append(item)
            self._generations.append(0)
        self._generations[place] += 1
        return place, self._generations[place]

    def get(self, place: int, generation: int) -> Any:
        """The item that has that number in that generation, or ``None``."""
        if 0 <= place < len(self._items) and self._generations[place] == generation:
            return self._items[place]
        return None

    def remove(self, place: int, generation: int) -> bool:
        """Free the number; ``False`` when it was not in use in that generation."""
        if self.get(place, generation) is None:
            return False
        self._items[place] = None
        self._free.append(place)
        return True

    def __iter__(self) -> Iterator[Any]:
        """All items by their numbers, as of now."""
        return iter([item for item in self._items if item is not None])
