"""Sets of byte ranges: which parts of a file hold memory that nobody uses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class ByteRanges:
    """Disjoint ranges, those that touch joined. ``total`` is their length in all."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.total = 0

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Add a range, none of which is in the set."""
        left = bisect_left(self._ends, begin)
        right = bisect_right(self._begins, end)
        self.total += end - begin
        if left < right:
            begin, end = min(begin, self._begins[left]), max(end, self._ends[right - 1])
        self._begins[left:right] = [begin]
        self._ends[left:right] = [end]

    def remove(self, begin: int, end: int) -> int:
        """Take out what of a range is in the set; gives how much that was."""
        left = bisect_right(self._ends, begin)
        right = bisect_left(self._begins, end)
        if left >= right:
            return 0
        first, last = self._begins[left], self._ends[right - 1]
        inside = sum(min(end, self._ends[at]) - max(begin, self._begins[at]) for at in range(left, right))
        begins, ends = [], []
        if first < begin:
            begins.append(first)
            ends.append(begin)
        if last > end:
            begins.append(end)
            ends.append(last)
        self._begins[left:right] = begins
        self._ends[left:right] = ends
        self.total -= inside
        return inside

    def take(self, most: int) -> list[tuple[int, int]]:
        """Take ranges out, the last first, until they are *most* bytes or more, or all."""
        taken: list[tuple[int, int]] = []
        found = 0
        while self._begins and found < most:
            begin, end = self._begins.pop(), self._ends.pop()
            found += end - begin
            taken.append((begin, end))
        self.total -= found
        return taken
