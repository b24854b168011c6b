"""The segments of a device's memory: blocks, holes and the targets of moves, found by address and by size.

What ``memory_pool.py`` keeps its range in; which says how it searches and places.
"""

from __future__ import annotations

from collections.abc import Iterator

FREE, USED, RESERVED, PINNED = range(4)  # a target of an uncommitted move; a hole that a plan is enlarging
NO_PLAN, CLEARING, SLIDING = range(3)
PICKED = 4  # holes looked at in a bin
LARGE = 8  # times the mean block


def bin_of(size: int) -> int:
    """Sixteen bins to each power of two; exact below 16."""
    if size < 16:
        return size
    high = size.bit_length() - 1
    return ((high - 3) << 4) | ((size >> (high - 4)) & 15)


def lowest(bits: int) -> int:
    """The place of the lowest set bit."""
    return (bits & -bits).bit_length() - 1


class SegmentNode:
    """A segment; sizes in units of the alignment."""

    __slots__ = ("after", "before", "bin_after", "bin_before", "link", "offset", "serial", "size", "state")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.serial = 0  # of the block or reservation that is here
        self.state = FREE
        self.before: SegmentNode | None = None
        self.after: SegmentNode | None = None
        self.bin_before: SegmentNode | None = None
        self.bin_after: SegmentNode | None = None
        self.link: SegmentNode | None = None  # the other end of an uncommitted move

    @property
    def is_hole(self) -> bool:
        """Whether nothing is here; a hole has no hole beside it."""
        return self.state in (FREE, PINNED)


class Segments:
    """All of the range, in order. Every change keeps the account of units exact."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.top_bits = 0
        self.sub_bits = [0] * 64
        self.bins: list[SegmentNode | None] = [None] * 1024
        self.used = self.peak = self.live = self.holes = 0
        self.serial = self.moves = self.moved = 0
        self.plan = 0  # number of the last defragmentation
        self.plan_mode = NO_PLAN
        self.plan_open = False  # it may give more moves
        self.plan_from = self.plan_to = 0
        self.reserved = self.pinned = 0
        self.head = SegmentNode(0, units)
        self.insert(self.head)

    def __iter__(self) -> Iterator[SegmentNode]:
        node: SegmentNode | None = self.head
        while node is not None:
            yield node
            node = node.after

    # Holes, by size.

    def insert(self, node: SegmentNode) -> None:
        """List *node* as a hole."""
        at = bin_of(node.size)
        node.state = FREE
        node.bin_before = None
        node.bin_after = self.bins[at]
        if node.bin_after is not None:
            node.bin_after.bin_before = node
        self.top_bits |= 1 << (at >> 4)
        self.sub_bits[at >> 4] |= 1 << (at & 15)
        self.bins[at] = node
        self.holes += 1

    def remove(self, node: SegmentNode) -> None:
        """Take a hole off its list."""
        if node.bin_after is not None:
            node.bin_after.bin_before = node.bin_before
        if node.bin_before is not None:
            node.bin_before.bin_after = node.bin_after
        else:
            at = bin_of(node.size)
            self.bins[at] = node.bin_after
            if node.bin_after is None:
                self.sub_bits[at >> 4] &= ~(1 << (at & 15))
                if not self.sub_bits[at >> 4]:
                    self.top_bits &= ~(1 << (at >> 4))
        self.holes -= 1

    def pick(self, at: int, n: int, high: bool, most: int) -> SegmentNode | None:
        """Of the first *most* holes of a bin (-1: of all) that are large enough, the one nearest to that end."""
        node, best = self.bins[at], None
        while node is not None and most:
            most -= 1
            if node.size >= n and (best is None or (node.offset > best.offset) == high):
                best = node
            node = node.bin_after
        return best

    def find(self, n: int, high: bool) -> SegmentNode | None:
        """A hole of at least *n* units; None only when there is none."""
        at = bin_of(n)
        top = at >> 4
        found = self.pick(at, n, high, PICKED)
        if found is not None:
            return found
        subs = self.sub_bits[top] & (0xFFFE << (at & 15))
        if not subs:
            tops = self.top_bits & (-1 << (top + 1))
            if not tops:
                return self.pick(at, n, high, -1)
            top = lowest(tops)
            subs = self.sub_bits[top]
        return self.pick((top << 4) | lowest(subs), n, high, PICKED)

    def largest(self) -> int:
        """The units of the largest hole."""
        if not self.top_bits:
            return 0
        top = self.top_bits.bit_length() - 1
        node = self.bins[(top << 4) | (self.sub_bits[top].bit_length() - 1)]
        most = 0
        while node is not None:
            most = max(most, node.size)
            node = node.bin_after
        return most

    # Blocks.

    def carve(self, n: int) -> SegmentNode | None:
        """A segment of *n* units out of a hole, for the caller to say what it is; None: no hole is large enough."""
        high = self.live > 0 and n > LARGE * self.used // self.live
        hole = self.find(n, high)
        if hole is None:
            return None
        self.remove(hole)
        if hole.size == n:
            return hole
        hole.size -= n
        block = SegmentNode(hole.offset, n)
        if high:
            block.offset = hole.offset + hole.size
            self.between(hole, block, hole.after)
        else:
            hole.offset += n
            self.between(hole.before, block, hole)
        self.insert(hole)
        return block

    def between(self, before: SegmentNode | None, node: SegmentNode, after: SegmentNode | None) -> None:
        """Link *node* in between two neighbours."""
        node.before, node.after = before, after
        if before is not None:
            before.after = node
        else:
            self.head = node
        if after is not None:
            after.before = node

    def take(self, n: int) -> SegmentNode | None:
        """A new block of *n* units; None: no hole is large enough."""
        node = self.carve(n)
        if node is None:
            return None
        self.serial += 1
        node.state = USED
        node.serial = self.serial
        self.live += 1
        self.used += n
        self.peak = max(self.peak, self.used)
        return node

    def give_back(self, node: SegmentNode) -> None:
        """Make a hole of a block; a move of it is cancelled."""
        if node.link is not None:
            self.drop_reservation(node.link)
        self.live -= 1
        self.used -= node.size
        self.release(node)

    def release(self, node: SegmentNode) -> None:
        """Make a hole of a segment, and one of it and the holes beside it."""
        pin = self.plan_mode != NO_PLAN and self.plan_from <= node.offset < self.plan_to
        for hole in (node.before, node.after):
            if hole is None or not hole.is_hole:
                continue
            if hole.state == FREE:
                self.remove(hole)
            else:
                pin = True
                self.pinned -= hole.size
            hole.offset = min(hole.offset, node.offset)
            hole.size += node.size
            node.serial = 0
            if hole is node.before:
                hole.after = node.after
                if node.after is not None:
                    node.after.before = hole
            else:
                self.between(node.before, hole, hole.after)
            node = hole
        node.serial = 0
        if pin:
            node.state = PINNED
            self.pinned += node.size
        else:
            self.insert(node)

    # Moves.

    def reserve(self, node: SegmentNode, target: SegmentNode) -> None:
        """Let *target* be the place that the block *node* is to move to."""
        self.serial += 1
        self.reserved += target.size
        target.state = RESERVED
        target.serial = self.serial
        target.link = node
        node.link = target

    def drop_reservation(self, target: SegmentNode) -> None:
        """Make a hole of the target of a move that will not be."""
        assert target.link is not None, "a reserved segment is the target of a move"
        target.link.link = None
        target.link = None
        self.reserved -= target.size
        self.release(target)

    def swap_places(self, block: SegmentNode, target: SegmentNode) -> None:
        """Let a block and its target change places in the order of addresses."""
        if target.after is block or block.after is target:
            # Neighbours: the two keep the stretch between them; sizes may differ when sliding.
            first, second = (target, block) if target.after is block else (block, target)
            before, after = first.before, second.after
            second.offset = first.offset
            first.offset = second.offset + second.size
            self.between(second, first, after)
            self.between(before, second, first)
            return
        block.offset, target.offset = target.offset, block.offset
        mine, other = (block.before, block.after), (target.before, target.after)
        self.between(other[0], block, other[1])
        self.between(mine[0], target, mine[1])

    def settle(self) -> None:
        """End the plan when nothing of it is left to do."""
        if self.plan_mode != NO_PLAN and not self.reserved and (self.plan_mode == CLEARING or not self.plan_open):
            self.end_plan()

    def end_plan(self) -> None:
        """Cancel what is uncommitted and give the window's holes back to ``carve``."""
        node: SegmentNode | None = self.head
        while node is not None and self.reserved:
            after = node.after
            if node.state == RESERVED:
                if after is not None and after.is_hole:
                    after = after.after  # the hole beside it will be one with it
                self.drop_reservation(node)
            node = after
        self.plan_mode = NO_PLAN
        self.plan_open = False
        for node in self:
            if node.state == PINNED:
                self.pinned -= node.size
                self.insert(node)
