"""Items by (rank, level, order, sequence), the lowest first, whose places may change at any time, in plain Python.

An item keeps its handle while it is moved, so that a change of one place costs O(log n) and nothing of it stays
behind: a heap with what does not hold any more in it costs as many comparisons again when that comes up.
"""

from __future__ import annotations

from typing import Any

from actorgrid.errors import BadRequest

Place = tuple[float, int, int, int]
"""Rank, level, order, sequence; the three after the rank are whole numbers of at most 64 bits with their sign."""
INTEGER_MAX = 2**63


class RankHeap:
    """A binary heap that knows where each item is. Items of one place come in any order."""

    def __init__(self) -> None:
        self._heap: list[int] = []  # handles
        self._places: list[Place | None] = []  # by handle, as all that follow
        self._items: list[Any] = []
        self._at: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def insert(self, rank: float, level: int, order: int, sequence: int, item: Any) -> int:
        """Put *item* (not ``None``) at its place; gives its handle. Raises BadRequest for a rank that is no number, and
        OverflowError for a whole number of more than 64 bits."""
        place = _checked(rank, level, order, sequence)
        if self._free:
            handle = self._free.pop()
            self._places[handle], self._items[handle] = place, item
        else:
            handle = len(self._places)
            self._places.append(place)
            self._items.append(item)
            self._at.append(-1)
        self._heap.append(handle)
        self._up(len(self._heap) - 1)
        return handle

    def move(self, handle: int, rank: float, level: int, order: int, sequence: int) -> None:
        """Put the item of *handle* at another place. Raises as ``insert``."""
        self._check_held(handle)
        self._places[handle] = _checked(rank, level, order, sequence)
        self._down(self._up(self._at[handle]))

    def remove(self, handle: int) -> Any:
        """Take the item of *handle* out and give it; the handle is void from here on."""
        self._check_held(handle)
        at, last = self._at[handle], self._heap.pop()
        if last != handle:
            self._heap[at] = last
            self._at[last] = at
            self._down(self._up(at))
        item, self._items[handle], self._places[handle] = self._items[handle], None, None
        self._free.append(handle)
        return item

    def first(self) -> Any:
        """The item at the lowest place, or ``None``."""
        return self._items[self._heap[0]] if self._heap else None

    def _check_held(self, handle: int) -> None:
        if not (0 <= handle < len(self._places) and self._places[handle] is not None):
            raise AssertionError(f"nothing is held under {handle}")

    def _before(self, one: int, other: int) -> bool:
        left, right = self._places[one], self._places[other]
        assert left is not None and right is not None, "what is in the heap has a place"
        return left < right

    def _up(self, at: int) -> int:
        heap, handle = self._heap, self._heap[at]
        while at:
            above = (at - 1) // 2
            if not self._before(handle, heap[above]):
                break
            heap[at] = heap[above]
            self._at[heap[at]] = at
            at = above
        heap[at] = handle
        self._at[handle] = at
        return at

    def _down(self, at: int) -> None:
        heap, handle = self._heap, self._heap[at]
        while (below := 2 * at + 1) < len(heap):
            if below + 1 < len(heap) and self._before(heap[below + 1], heap[below]):
                below += 1
            if not self._before(heap[below], handle):
                break
            heap[at] = heap[below]
            self._at[heap[at]] = at
            at = below
        heap[at] = handle
        self._at[handle] = at


def _checked(rank: float, level: int, order: int, sequence: int) -> Place:
    rank = float(rank)
    if rank != rank:
        raise BadRequest("a rank that is no number", asked=str(rank), hint="tenants' shares are finite")
    for each in (level, order, sequence):
        if not -INTEGER_MAX <= each < INTEGER_MAX:
            raise OverflowError("a whole number of more than 64 bits")
    return rank, level, order, sequence
