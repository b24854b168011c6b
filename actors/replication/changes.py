"""The order in which keys changed on this host, so that a watch goes on behind where it was cut off.

Kept is the last change of each key, not each step. A position counts within one life of the server; a watcher that
comes with one of another life, or from before what is kept, is told so and gets everything anew.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

MAX_KEPT = 200_000
"""Keys whose last change is kept; at the bound the older half is forgotten."""
_ID = re.compile(r"([0-9a-f]{16})\.(\d{1,19})")


def change_id(epoch: str, position: int) -> str:
    """The id of a change, as watchers are told it."""
    return f"{epoch}.{position}"


def read_change_id(text: str) -> tuple[str, int] | None:
    """(epoch, position), or ``None`` for a text that is no such id."""
    found = _ID.fullmatch(text)
    return None if found is None else (found[1], int(found[2]))


class ChangeLog:
    """*epoch*: 16 hexadecimal digits that no other life of any host has."""

    def __init__(self, epoch: str, kept_max: int = MAX_KEPT) -> None:
        self.epoch = epoch
        self.position = 0
        self._kept_max = kept_max
        self._floor = 0
        self._last: dict[str, int] = {}
        self._positions: list[int] = []
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._last)

    def add(self, key: str) -> int:
        """The key changed now; gives the position."""
        self.position += 1
        self._last[key] = self.position
        self._positions.append(self.position)
        self._keys.append(key)
        if len(self._last) > self._kept_max:
            self._forget_older_half()
        elif len(self._positions) > 2 * len(self._last) + 1024:
            self._drop_repeated(0)
        return self.position

    def knows(self, epoch: str, position: int) -> bool:
        """Whether all that changed after that position is still known."""
        return epoch == self.epoch and self._floor <= position <= self.position

    def after(self, position: int) -> Iterator[tuple[int, str]]:
        """(position, key) of keys whose last change came after, in order. Nothing may be added meanwhile."""
        for place in range(bisect_right(self._positions, position), len(self._positions)):
            key = self._keys[place]
            if self._last.get(key) == self._positions[place]:
                yield self._positions[place], key

    def _forget_older_half(self) -> None:
        self._floor = self._positions[len(self._positions) // 2]
        self._drop_repeated(self._floor)
        self._last = {key: at for key, at in self._last.items() if at > self._floor}

    def _drop_repeated(self, floor: int) -> None:
        kept = [
            (at, key)
            for at, key in zip(self._positions, self._keys, strict=True)
            if at > floor and self._last.get(key) == at
        ]
        self._positions = [at for at, _ in kept]
        self._keys = [key for _, key in kept]
