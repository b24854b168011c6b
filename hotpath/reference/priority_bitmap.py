"""Lines by priority level, the first one found by counting trailing zeros, in plain Python.

A bit per level says whether anyone waits there, so that finding the first level costs the same for 2 levels and
for 4096. Within a level items stand by their ``order``. An insert starts looking at the place of the last one, so
that items that come in order, at whichever place of the line, cost O(1) each; one far from the last costs a walk.
Taking out and moving between levels need no search for the item: its handle is its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from actorgrid.errors import BadRequest

LEVELS_MAX = 4096


class _Node:
    __slots__ = ("item", "level", "next", "order", "previous")

    def __init__(self) -> None:
        self.item: Any = None
        self.level = -1
        self.order = 0
        self.next: int = -1
        self.previous: int = -1


class PriorityBitmap:
    """Items by (level, order), level 0 first; equals stay in the order in which they came.

    *levels* is 1 to 4096. Memory is about 12 bytes a level, and 32 an item at the most there were at once.
    """

    def __init__(self, levels: int) -> None:
        if not 1 <= levels <= LEVELS_MAX:
            raise BadRequest("a number of levels out of range", asked=str(levels), hint=f"1 to {LEVELS_MAX}")
        self._levels = levels
        self._bits = 0
        self._heads = [-1] * levels
        self._tails = [-1] * levels
        self._fingers = [-1] * levels
        self._nodes: list[_Node] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._nodes) - len(self._free)

    def insert(self, level: int, order: int, item: Any) -> int:
        """Put *item* (not ``None``) into a level by its *order*; gives its handle. Raises BadRequest."""
        self._check(level)
        if self._free:
            handle = self._free.pop()
        else:
            handle = len(self._nodes)
            self._nodes.append(_Node())
        node = self._nodes[handle]
        node.item = item
        node.order = order
        self._link(handle, level)
        return handle

    def remove(self, handle: int) -> Any:
        """Take the item of *handle* out and give it; the handle is void from here on."""
        node = self._held(handle)
        self._unlink(handle)
        item = node.item
        node.item = None
        node.level = -1
        self._free.append(handle)
        return item

    def move(self, handle: int, level: int) -> None:
        """Put the item of *handle* into another level, by the order it has. Raises BadRequest for a bad level."""
        self._held(handle)
        self._check(level)
        self._unlink(handle)
        self._link(handle, level)

    def first(self) -> Any:
        """The item that stands first, or ``None``."""
        bits = self._bits
        return self._nodes[self._heads[(bits & -bits).bit_length() - 1]].item if bits else None

    def after(self, handle: int) -> Any:
        """The item that stands next behind that of *handle*, or ``None``."""
        node = self._held(handle)
        if node.next >= 0:
            return self._nodes[node.next].item
        bits = self._bits >> (node.level + 1)
        if not bits:
            return None
        return self._nodes[self._heads[node.level + (bits & -bits).bit_length()]].item

    def __iter__(self) -> Iterator[Any]:
        """All items, first to last; nothing may be put in or taken out meanwhile."""
        for level in range(self._levels):
            at = self._heads[level]
            while at >= 0:
                yield self._nodes[at].item
                at = self._nodes[at].next

    def _check(self, level: int) -> None:
        if not 0 <= level < self._levels:
            raise BadRequest("there is no such level", asked=str(level), found=f"levels 0 to {self._levels - 1}")

    def _held(self, handle: int) -> _Node:
        assert 0 <= handle < len(self._nodes) and self._nodes[handle].level >= 0, f"nothing is held under {handle}"
        return self._nodes[handle]

    def _link(self, handle: int, level: int) -> None:
        nodes, order = self._nodes, self._nodes[handle].order
        before = self._tails[level]
        if before >= 0 and nodes[before].order > order:
            before = self._fingers[level]
            while before >= 0 and nodes[before].order > order:
                before = nodes[before].previous
            while True:
                behind = nodes[before].next if before >= 0 else self._heads[level]
                if behind < 0 or nodes[behind].order > order:
                    break
                before = behind
        node = nodes[handle]
        behind = nodes[before].next if before >= 0 else self._heads[level]
        node.level, node.previous, node.next = level, before, behind
        if before >= 0:
            nodes[before].next = handle
        else:
            self._heads[level] = handle
        if behind >= 0:
            nodes[behind].previous = handle
        else:
            self._tails[level] = handle
        self._fingers[level] = handle
        self._bits |= 1 << level

    def _unlink(self, handle: int) -> None:
        node = self._nodes[handle]
        level, before, behind = node.level, node.previous, node.next
        if before >= 0:
            self._nodes[before].next = behind
        else:
            self._heads[level] = behind
        if behind >= 0:
            self._nodes[behind].previous = before
        else:
            self._tails[level] = before
        if self._fingers[level] == handle:
            self._fingers[level] = before if before >= 0 else behind
        if self._heads[level] < 0:
            self._bits &= ~(1 << level)
