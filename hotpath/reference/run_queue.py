"""Whose turn it is, by priority, in plain Python.

The rules are BEAM's: whoever is ready at MAX goes before HIGH, and HIGH before the others, always; LOW has one turn for
every eight of NORMAL, so that it is slow but not starved. Within a priority they come in the order in which they became
ready.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from actorgrid.errors import BadRequest

MAX, HIGH, NORMAL, LOW = 0, 1, 2, 3
PRIORITIES = 4
NORMAL_TURNS_PER_LOW = 8


class RunQueue:
    """Items that are ready, in four priorities. It holds any number; each costs eight bytes."""

    def __init__(self) -> None:
        self._lines: tuple[deque[Any], ...] = tuple(deque() for _ in range(PRIORITIES))
        self._normal_turns = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def push(self, item: Any, priority: int = NORMAL) -> None:
        """Put *item* behind those of its *priority*. Raises BadRequest."""
        if not 0 <= priority < PRIORITIES:
            raise BadRequest("there is no such priority", asked=str(priority), hint="MAX, HIGH, NORMAL or LOW")
        self._lines[priority].append(item)

    def pop(self) -> Any:
        """Take out the item whose turn it is. Raises IndexError when there is none."""
        for priority in (MAX, HIGH):
            if self._lines[priority]:
                return self._lines[priority].popleft()
        normal, low = self._lines[NORMAL], self._lines[LOW]
        if normal and (self._normal_turns < NORMAL_TURNS_PER_LOW or not low):
            if low:
                self._normal_turns += 1
            return normal.popleft()
        if not low:
            raise IndexError("nobody is ready")
        self._normal_turns = 0
        return low.popleft()

    def clear(self) -> None:
        """Drop all items."""
        for line in self._lines:
            line.clear()
        self._normal_turns = 0
