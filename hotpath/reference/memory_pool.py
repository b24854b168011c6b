"""Blocks of a device's memory: the memory pool, in plain Python.

The pool hands out offsets of a range that it never reads or writes (a device's memory, a file, shared memory):
all it knows is kept beside it. It takes and frees in constant time and keeps exact account.

*Search.* Two-level segregated fit (Masmano, Ripoll, Crespo and Real: TLSF, a new dynamic memory allocator for
real-time systems, ECRTS 2004, section 4): holes are listed by size, sixteen bins to each power of two, and two
levels of bitmaps find the first bin that holds a hole. Unlike there, the bin that the size itself falls into
is looked at first (its first four holes), and all of it before a request is refused: so a request is refused
only when no hole is large enough, and a size just freed can be had again. A refusal may therefore look at all
the holes of one bin; nothing else depends on how many there are.

*Placement.* Of the holes looked at, the one nearest to the low end is taken, at its low end; a block of more
than eight times the mean live block goes to the high end. Small and large blocks so keep apart, and what large
ones leave stays large.

*Moves.* ``defragment`` makes one hole of the wanted size. It looks at every run of neighbours that spans that
size and orders them by what clearing them costs: the bytes in use, and for each move a charge of 1/65,536 of
the pool, because a copy costs something to start. The cheapest whose blocks all find a place elsewhere (largest
first) is chosen; planning looks at no more than sixteen segments for each there is (at least 4,096). All the
places are reserved at once, so the moves touch neither each other nor any block: they may be copied in any
order, all at the same time, and none overlaps itself. Where no run of that length can be cleared, the longest
that can (in steps of an eighth) is cleared as a step on the way; or, with ``allow_overlap``, the cheapest stretch
with enough holes in it is closed up towards its beginning, block after block.

The pool knows no clock and no dice: the same calls give the same offsets. It is for one thread at a time; the
compiled one may be shared by threads under the interpreter's lock, where each call is atomic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, overload

from actorgrid.errors import BadRequest

from ..memory_records import (
    PoolStats,
    Segment,
    freed_already,
    geometry,
    not_a_block,
    out_of_memory,
    stale_move,
    whole_number,
)
from .memory_segments import CLEARING, PINNED, RESERVED, SLIDING, SegmentNode, Segments
from .memory_window import NOTHING, WindowPlan, plan_moves

STATES = ("free", "used", "held", "held")


class Block:
    """A block of a pool, from ``allocate``; equal to another handle of the same block, and hashable.

    Moves change its offset, so ask for it each time.
    """

    __slots__ = ("_node", "_pool", "_serial")
    _node: SegmentNode
    _pool: MemoryPool
    _serial: int

    def __init__(self) -> None:
        raise TypeError("a block comes from MemoryPool.allocate")

    def _at(self) -> SegmentNode:
        if self._node.serial != self._serial:
            raise freed_already()
        return self._node

    @property
    def offset(self) -> int:
        """Where it begins now, in bytes. Raises InvalidBlock once it is freed."""
        return self._at().offset << self._pool._shift

    @property
    def size(self) -> int:
        """How many bytes are its own: what was asked, rounded up to the alignment. Raises InvalidBlock once freed."""
        return self._at().size << self._pool._shift

    @property
    def live(self) -> bool:
        """Whether it was not freed yet."""
        return self._node.serial == self._serial

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other._pool is self._pool and other._serial == self._serial

    def __hash__(self) -> int:
        return hash((id(self._pool), self._serial))

    def __repr__(self) -> str:
        if not self.live:
            return "Block(freed)"
        return f"Block(offset={self.offset}, size={self.size})"


def _block(pool: MemoryPool, node: SegmentNode, serial: int) -> Block:
    block = Block.__new__(Block)
    block._pool = pool
    block._node = node
    block._serial = serial
    return block


class Blocks:
    """The blocks of one ``allocate_many``, in the order asked; a sequence that makes its blocks when looked at."""

    __slots__ = ("_first_serial", "_nodes", "_pool")
    _pool: MemoryPool
    _nodes: list[SegmentNode]
    _first_serial: int

    def __init__(self) -> None:
        raise TypeError("blocks come from MemoryPool.allocate_many")

    def __len__(self) -> int:
        return len(self._nodes)

    @overload
    def __getitem__(self, key: int) -> Block: ...
    @overload
    def __getitem__(self, key: slice) -> list[Block]: ...
    def __getitem__(self, key: int | slice) -> Block | list[Block]:
        if isinstance(key, slice):
            return [self[at] for at in range(*key.indices(len(self)))]
        at = key + len(self) if key < 0 else key
        if not 0 <= at < len(self):
            raise IndexError(f"block {key} of a batch of {len(self)}")
        return _block(self._pool, self._nodes[at], self._first_serial + at)

    def __iter__(self) -> Iterator[Block]:
        for at in range(len(self)):
            yield self[at]

    def offsets(self) -> list[int]:
        """Where each begins now, in bytes. Raises InvalidBlock when one of them was freed."""
        for at, node in enumerate(self._nodes):
            if node.serial != self._first_serial + at:
                raise freed_already(at)
        return [node.offset << self._pool._shift for node in self._nodes]


class Move:
    """One block to copy, from ``source`` to ``destination``, ``size`` bytes; then commit it.

    Until it is committed the block stays where it is. A move that is dropped, or whose block is freed, is
    cancelled. Unless it overlaps, the source stays intact until the commit.
    """

    __slots__ = (
        "_committed",
        "_node",
        "_pool",
        "_serial",
        "_target",
        "_target_serial",
        "destination",
        "size",
        "source",
    )

    def __init__(self, pool: MemoryPool, node: SegmentNode, target: SegmentNode) -> None:
        self._pool = pool
        self._node = node
        self._serial = node.serial
        self._target = target
        self._target_serial = target.serial
        self._committed = False
        self.source = node.offset << pool._shift
        self.destination = target.offset << pool._shift
        self.size = node.size << pool._shift

    @property
    def block(self) -> Block:
        """The block that moves."""
        return _block(self._pool, self._node, self._serial)

    @property
    def overlaps(self) -> bool:
        """Whether source and destination share bytes: then copy chunk by chunk, and once begun finish and commit."""
        return abs(self.source - self.destination) < self.size

    def chunks(self) -> Iterator[tuple[int, int, int]]:
        """(source, destination, size) of copies that do not overlap, in the order that is safe, each after the last.

        One, unless the move overlaps.
        """
        step = self.source - self.destination if self.overlaps else self.size
        for done in range(0, self.size, step):
            yield self.source + done, self.destination + done, min(step, self.size - done)

    def __repr__(self) -> str:
        return f"Move(source={self.source}, destination={self.destination}, size={self.size})"

    def __del__(self) -> None:
        if self._pool._pending(self):
            self._pool._range.drop_reservation(self._target)
            self._pool._range.settle()


class Defragmentation:
    """The moves that make one hole; iterate over it once. The pool keeps the window for it until it ends.

    It ends when its moves are committed or cancelled, with ``close()``, when it is dropped before it gave all of
    its moves, and when another begins.
    """

    __slots__ = ("_allowance", "_given", "_hole", "_moves_before", "_plan", "_planned", "_pool", "_total", "want_bytes")

    def __init__(self, pool: MemoryPool, plan: WindowPlan, want: int, allowance: int) -> None:
        self._pool = pool
        self._plan = pool._range.plan
        self._planned = plan.moves
        self._given = 0
        self._total = plan.total
        self._hole = plan.hole
        self._allowance = allowance
        self._moves_before = -1
        self.want_bytes = want << pool._shift

    @property
    def planned_bytes(self) -> int:
        """What the whole hole costs, in bytes moved, within the bound or not; 0: nothing needs to or can be done."""
        return self._total << self._pool._shift

    @property
    def hole_bytes(self) -> int:
        """How large a hole all the moves make: ``want_bytes``, or less for a step on the way; 0: no moves."""
        return self._hole << self._pool._shift

    def __iter__(self) -> Defragmentation:
        return self

    def __next__(self) -> Move:
        pool, segments = self._pool, self._pool._range
        node: SegmentNode | None = None
        target: SegmentNode | None = None
        if segments.plan != self._plan:
            raise StopIteration
        if segments.plan_mode == CLEARING:
            while target is None and self._given < len(self._planned):
                planned = self._planned[self._given]
                self._given += 1
                if planned[1].serial == planned[2]:
                    node, target = planned[0], planned[1]
            if self._given == len(self._planned):
                segments.plan_open = False
        elif segments.plan_mode == SLIDING and segments.plan_open and segments.moves != self._moves_before:
            # The first hole of the window is where the next block goes.
            hole: SegmentNode | None = segments.head
            while hole is not None and not (hole.state == PINNED and hole.offset >= segments.plan_from):
                hole = hole.after
            if hole is not None:
                node = hole.after
                if node is not None and node.offset < segments.plan_to and node.size <= self._allowance:
                    target = hole
                    self._allowance -= node.size
                    self._moves_before = segments.moves
                    segments.pinned -= hole.size
                    segments.reserve(node, hole)
        if node is None or target is None:
            self.close()
            raise StopIteration
        return Move(pool, node, target)

    def close(self) -> None:
        """Cancel the moves not given yet; those given stay, until each is committed, cancelled or dropped."""
        if self._pool._range.plan != self._plan:
            return
        while self._given < len(self._planned):
            _, target, serial = self._planned[self._given]
            self._given += 1
            if target.serial == serial:
                self._pool._range.drop_reservation(target)
        self._pool._range.plan_open = False
        self._pool._range.settle()

    def __del__(self) -> None:
        self.close()


class MemoryPool:
    """Blocks of a range of *size_bytes*, each at a multiple of *alignment_bytes* and as long as one.

    What a power of two does not divide at the end of the range is left out. At most 2^31 - 1 segments (blocks and
    holes); 48 to 96 bytes of host memory each, compiled. Raises BadRequest for a size or an alignment that is none.
    """

    def __init__(self, size_bytes: int, alignment_bytes: int = 256) -> None:
        self._shift, units = geometry(size_bytes, alignment_bytes)
        self._range = Segments(units)

    @property
    def size_bytes(self) -> int:
        """The range, in bytes, without what the alignment leaves over."""
        return self._range.units << self._shift

    @property
    def alignment_bytes(self) -> int:
        """What every offset and size is a multiple of."""
        return 1 << self._shift

    def allocate(self, n_bytes: int) -> Block:
        """A block of at least *n_bytes*.

        Raises OutOfDeviceMemory when no hole is large enough, BadRequest for what is no size; nothing changes then.
        """
        n = self._units_of(n_bytes)
        node = self._range.take(n)
        if node is None:
            raise self._refusal(n)
        return _block(self, node, node.serial)

    def free(self, block: Block) -> None:
        """Take *block* back; an uncommitted move of it is cancelled.

        Raises InvalidBlock for a block freed before or of another pool; nothing changes then.
        """
        if type(block) is not Block or block._pool is not self:
            raise not_a_block(block)
        if not block.live:
            raise freed_already()
        self._range.give_back(block._node)
        self._range.settle()

    def allocate_many(self, sizes: Iterable[int]) -> Blocks:
        """A block for each of *sizes*, in that order; all or none.

        Raises OutOfDeviceMemory and BadRequest as ``allocate`` does; every block stands where it did then.
        """
        try:
            asked = tuple(sizes)
        except TypeError as error:
            raise BadRequest("sizes come as a sequence of whole numbers", asked=f"a {type(sizes).__name__}") from error
        units = [self._units_of(size) for size in asked]
        blocks = Blocks.__new__(Blocks)
        blocks._pool = self
        blocks._first_serial = self._range.serial + 1
        blocks._nodes = []
        peak = self._range.peak
        for n in units:
            node = self._range.take(n)
            if node is None:
                for taken in reversed(blocks._nodes):
                    self._range.give_back(taken)
                self._range.peak = peak
                raise self._refusal(n)
            blocks._nodes.append(node)
        return blocks

    def free_many(self, blocks: Blocks | Iterable[Block]) -> None:
        """Take all of *blocks* back, or none.

        Raises InvalidBlock as ``free`` does, and when a block is there twice; nothing changes then.
        """
        if type(blocks) is Blocks:
            if blocks._pool is not self:
                raise not_a_block(blocks)
            listed = tuple(blocks)
        else:
            try:
                listed = tuple(blocks)
            except TypeError as error:
                raise not_a_block(blocks) from error
        seen = set()
        for at, block in enumerate(listed):
            if type(block) is not Block or block._pool is not self:
                raise not_a_block(block)
            if not block.live or block._serial in seen:
                raise freed_already(at)
            seen.add(block._serial)
        for block in listed:
            self._range.give_back(block._node)
        self._range.settle()

    def defragment(
        self, want_bytes: int | None = None, max_moved_bytes: int | None = None, allow_overlap: bool = False
    ) -> Defragmentation:
        """The moves that make a hole of *want_bytes*, or of as much as can be had.

        None when there is one already. When no run of blocks that long can be cleared, the largest hole that can be
        had is made instead (``hole_bytes`` says): with it the next call may find room for what fitted nowhere.
        At most *max_moved_bytes* are moved, and the next call goes on where this one ended. Blocks come and go
        meanwhile as they like, but outside of the hole. It ends a defragmentation that is under way.
        Raises OutOfDeviceMemory when less than *want_bytes* is free in all, BadRequest for what is no size.
        """
        want = self._range.units - self._range.used
        most = self._range.units
        if want_bytes is not None:
            want = self._units_of(want_bytes)
        if max_moved_bytes is not None:
            most = min(most, whole_number(max_moved_bytes, "a bound in bytes", 0) >> self._shift)
        if want > self._range.units - self._range.used:
            raise self._refusal(want)
        self._range.end_plan()
        self._range.plan += 1
        plan = NOTHING
        if want > self._range.largest():
            plan = plan_moves(self._range, want, most, bool(allow_overlap), want_bytes is None)
        return Defragmentation(self, plan, want, most)

    def commit(self, move: Move) -> None:
        """The copy is done: let the block be at the destination, and its old place be a hole.

        Raises InvalidBlock when the move was committed or cancelled, or its block freed; nothing changes then.
        """
        if type(move) is not Move:
            raise stale_move(f"a {type(move).__name__} is none")
        if not self._pending(move):
            raise stale_move(
                "it was committed already"
                if move._committed
                else "it is of another pool, was cancelled, or its block was freed"
            )
        move._committed = True
        self._range.moves += 1
        self._range.moved += move._node.size
        self._range.reserved -= move._target.size
        move._node.link = move._target.link = None
        self._range.swap_places(move._node, move._target)
        self._range.release(move._target)
        self._range.settle()

    def cancel(self, move: Move) -> None:
        """Let the block stay, and give the destination back. Raises InvalidBlock as ``commit`` does."""
        if type(move) is not Move:
            raise stale_move(f"a {type(move).__name__} is none")
        if not self._pending(move):
            raise stale_move("it was committed or cancelled, or its block was freed")
        self._range.drop_reservation(move._target)
        self._range.settle()

    def stats(self) -> PoolStats:
        """The pool's figures now; looks at the holes of one bin."""
        unused, largest = self._range.units - self._range.used, self._range.largest()
        return PoolStats(
            size=self._range.units << self._shift,
            used=self._range.used << self._shift,
            free=unused << self._shift,
            held=(self._range.reserved + self._range.pinned) << self._shift,
            largest_free=largest << self._shift,
            peak_used=self._range.peak << self._shift,
            fragmentation=(unused - largest) / unused if unused else 0.0,
            blocks=self._range.live,
            holes=self._range.holes,
            moves=self._range.moves,
            moved_bytes=self._range.moved << self._shift,
        )

    def segments(self) -> list[Segment]:
        """Every block and hole in the order of addresses; together they are the range."""
        return [
            Segment(node.offset << self._shift, node.size << self._shift, STATES[node.state]) for node in self._range
        ]

    def _units_of(self, n_bytes: Any) -> int:
        number = whole_number(n_bytes, "a size in bytes", 1)
        if number > self._range.units << self._shift:
            raise out_of_memory(
                number,
                self.size_bytes,
                (self._range.units - self._range.used) << self._shift,
                self._range.largest() << self._shift,
                (self._range.reserved + self._range.pinned) << self._shift,
            )
        return (number + (1 << self._shift) - 1) >> self._shift

    def _refusal(self, n: int) -> Exception:
        return out_of_memory(
            n << self._shift,
            self.size_bytes,
            (self._range.units - self._range.used) << self._shift,
            self._range.largest() << self._shift,
            (self._range.reserved + self._range.pinned) << self._shift,
        )

    def _pending(self, move: Move) -> bool:
        target = move._target
        return move._pool is self and target.serial == move._target_serial and target.state == RESERVED
