"""Which blocks to move so that one hole of a size comes about: the cheapest window, and a place for all in it.

What ``memory_pool.py`` plans its moves with; which says by what rule.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import NamedTuple

from .memory_segments import CLEARING, FREE, PINNED, SLIDING, USED, SegmentNode, Segments

CHARGE_SHIFT = 16  # a move costs as much as the pool's size >> this
WIDE = 8  # largest holes that planning knows one by one
WORK = 16  # segments looked at by planning, for each there is
WORK_LEAST = 4096
WORK_SHARE = 8  # part of it for each size when the largest hole is wanted

Planned = tuple[SegmentNode, SegmentNode, int]
"""A block, its target, and the target's serial."""


class WindowPlan(NamedTuple):
    """The moves within the bound; what the whole hole costs, and how large it is, in units."""

    moves: list[Planned]
    total: int
    hole: int


NOTHING = WindowPlan([], 0, 0)


def plan_moves(segments: Segments, want: int, most: int, overlap: bool, best: bool) -> WindowPlan:
    """Plan one window of *want* units, or of as much as can be had up to that; *best*: do not insist on it."""
    order = list(segments)
    work = max(WORK_LEAST, WORK * len(order))
    if not best:
        found = _plan_window(segments, want, most, order, work)
        if found:
            return found
    if overlap:
        return _plan_slide(segments, want, order)
    # A larger hole than there is will take blocks that now fit nowhere: a step on the way.
    while want > segments.largest():
        found = _plan_window(segments, want, most, order, work // WORK_SHARE)
        if found:
            return found
        want -= max(1, want >> 3)
    return NOTHING


def _plan_window(segments: Segments, want: int, most: int, order: list[SegmentNode], work: int) -> WindowPlan | None:
    """Try the runs of segments that span *want* units, cheapest first."""
    windows = []
    wide: list[tuple[int, int]] = []  # the largest holes: size (negative: largest first) and position
    for at, node in enumerate(order):
        if node.state == FREE:
            insort(wide, (-node.size, at))
            del wide[WIDE:]
    largest: deque[int] = deque()  # positions of blocks that no later block of the window outgrows
    last = span = moved = blocks = 0
    charge = segments.units >> CHARGE_SHIFT
    for first, beginning in enumerate(order):
        while last < len(order) and span < want:
            node = order[last]
            span += node.size
            if node.state == USED:
                moved += node.size
                blocks += 1
                while largest and order[largest[-1]].size <= node.size:
                    largest.pop()
                largest.append(last)
            last += 1
        if span < want:
            break
        # Its largest block needs a hole outside.
        outside = [size for size, at in wide if not first <= at < last]
        if not largest or len(wide) == WIDE > 0 == len(outside) or (outside and order[largest[0]].size <= -outside[0]):
            windows.append((moved > most, moved + blocks * charge, first, last, moved))
        span -= beginning.size
        if beginning.state == USED:
            moved -= beginning.size
            blocks -= 1
            if largest[0] == first:
                largest.popleft()
    windows.sort()
    for _, _, first, last, moved in windows:
        work -= last - first
        if work < 0:
            break
        planned = _clear(segments, order[first:last])
        if planned is not None:
            return WindowPlan(_within(segments, planned, most), moved, want)
    return None


def _clear(segments: Segments, window: list[SegmentNode]) -> list[Planned] | None:
    """Reserve a place outside of the window for every block in it, largest first; or leave all as it was."""
    holes = [node for node in window if node.state == FREE]
    for hole in holes:
        segments.remove(hole)
        hole.state = PINNED
        segments.pinned += hole.size
    planned: list[Planned] = []
    for node in sorted((node for node in window if node.state == USED), key=lambda node: (-node.size, node.offset)):
        target = segments.carve(node.size)
        if target is None:
            for _, target, _ in reversed(planned):
                segments.drop_reservation(target)
            for hole in holes:
                segments.pinned -= hole.size
                segments.insert(hole)
            return None
        segments.reserve(node, target)
        planned.append((node, target, target.serial))
    segments.plan_mode = CLEARING
    segments.plan_open = True
    segments.plan_from = window[0].offset
    segments.plan_to = window[-1].offset + window[-1].size
    return planned


def _within(segments: Segments, planned: list[Planned], most: int) -> list[Planned]:
    """As many of the moves as *most* units allow, largest first; the others are cancelled."""
    kept, total = [], 0
    for move in planned:
        if total + move[0].size <= most:
            total += move[0].size
            kept.append(move)
        else:
            segments.drop_reservation(move[1])
    segments.settle()
    return kept


def _plan_slide(segments: Segments, want: int, order: list[SegmentNode]) -> WindowPlan:
    """Choose the cheapest stretch with *want* units of holes in it, to be closed up towards its beginning."""
    last = opened = moved = blocks = 0
    charge = segments.units >> CHARGE_SHIFT
    best = None
    for first, beginning in enumerate(order):
        while last < len(order) and opened < want:
            node = order[last]
            if node.state == USED:
                moved += node.size
                blocks += 1
            else:
                opened += node.size
            last += 1
        if opened < want:
            break
        if beginning.state == USED:
            moved -= beginning.size
            blocks -= 1
            continue
        if best is None or moved + blocks * charge < best[0]:
            best = (moved + blocks * charge, first, last, moved)
        opened -= beginning.size
    assert best is not None, "as much as is wanted is free in all"
    window = order[best[1] : best[2]]
    for node in window:
        if node.state == FREE:
            segments.remove(node)
            node.state = PINNED
            segments.pinned += node.size
    segments.plan_mode = SLIDING
    segments.plan_open = True
    segments.plan_from = window[0].offset
    segments.plan_to = window[-1].offset + window[-1].size
    return WindowPlan([], best[3], want)
