"""Where objects lie: blocks of each space's memory and of its part of the disk, within what the host gives in all.

Blocks that were freed keep their memory while there is enough: a page that was written to before is written to again
several times as fast as a new one. Decisions only: who does the work is told what is to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from actorgrid.errors import OutOfDeviceMemory
from actorgrid.hotpath import Block, MemoryPool
from actorgrid.transports.object_frames import DISK, MEMORY

from .intervals import ByteRanges

PAGE_BYTES = 4096
IDLE_S = 5.0
"""Memory that nothing was made in for so long goes back to the system."""


class StoreLimits(NamedTuple):
    """What a store may take of its host."""

    memory_bytes: int
    disk_bytes: int
    objects_max: int = 1_000_000
    spaces_max: int = 4096
    waiting_max: int = 1024
    """Requests for room that wait at a time."""


class FileOf(NamedTuple):
    """A space's memory, or its part of the disk."""

    space: int
    kind: str


class Punch(NamedTuple):
    """Give a range of a file back to the system."""

    file: FileOf
    offset: int
    size: int


class SpaceBlocks:
    """The blocks of one space."""

    def __init__(self, number: int, limits: StoreLimits) -> None:
        self.number = number
        self.pools: dict[str, MemoryPool] = {}
        self.warm = ByteRanges()
        self.used = {MEMORY: 0, DISK: 0}
        self.made_at = 0.0
        self._limits = limits

    def pool(self, kind: str) -> MemoryPool:
        """The blocks of a kind; the file behind it is sparse, so it may be as large as all that the host gives."""
        found = self.pools.get(kind)
        if found is None:
            size = self._limits.memory_bytes if kind == MEMORY else self._limits.disk_bytes
            found = self.pools[kind] = MemoryPool(size, PAGE_BYTES)
        return found


class BlockAllocator:
    """The blocks of all spaces. *order* is called with what is to be done, before anybody else is given the range."""

    def __init__(self, limits: StoreLimits, order: Callable[[Punch], None]) -> None:
        self.limits = limits
        self.used = {MEMORY: 0, DISK: 0}
        self.warm_bytes = 0
        self._order = order
        self._spaces: dict[int, SpaceBlocks] = {}

    def open(self, number: int) -> SpaceBlocks:
        """The blocks of a new space: none yet."""
        made = self._spaces[number] = SpaceBlocks(number, self.limits)
        return made

    def close(self, space: SpaceBlocks) -> None:
        """Forget a space; its files go, and with them all that lay there."""
        del self._spaces[space.number]
        for kind in (MEMORY, DISK):
            self.used[kind] -= space.used[kind]
        self.warm_bytes -= space.warm.total

    def lacks(self, kind: str, size: int) -> int:
        """How many bytes are to be freed before so many more are there; 0: none."""
        most = self.limits.memory_bytes if kind == MEMORY else self.limits.disk_bytes
        return max(0, self.used[kind] + pages(size) - most)

    def allocate(self, space: SpaceBlocks, kind: str, size: int, now: float) -> Block | None:
        """A block, or ``None`` where there is none of that size."""
        if self.lacks(kind, size):
            return None
        try:
            block = space.pool(kind).allocate(size)
        except OutOfDeviceMemory:
            return None  # so much is free, but not in one piece
        space.used[kind] += block.size
        self.used[kind] += block.size
        if kind == MEMORY:
            space.made_at = now
            again = space.warm.remove(block.offset, block.offset + block.size)
            self.warm_bytes -= again
            self._cool(self.used[MEMORY] + self.warm_bytes - self.limits.memory_bytes)
        return block

    def free(self, space: SpaceBlocks, kind: str, block: Block) -> None:
        """Free a block."""
        offset, size = block.offset, block.size
        space.pool(kind).free(block)
        space.used[kind] -= size
        self.used[kind] -= size
        if kind == MEMORY:
            space.warm.add(offset, offset + size)
            self.warm_bytes += size
        else:
            self._order(Punch(FileOf(space.number, DISK), offset, size))

    def tick(self, now: float) -> None:
        """Give memory back in which nothing was made for a while."""
        for space in self._spaces.values():
            if space.warm.total and now - space.made_at >= IDLE_S:
                self._cool_space(space, space.warm.total)

    def _cool(self, most: int) -> None:
        for space in self._by_age() if most > 0 else ():
            most -= self._cool_space(space, most)
            if most <= 0:
                return

    def _by_age(self) -> Iterator[SpaceBlocks]:
        return iter(sorted(self._spaces.values(), key=lambda space: space.made_at))

    def _cool_space(self, space: SpaceBlocks, most: int) -> int:
        before = space.warm.total
        for begin, end in space.warm.take(most):
            self._order(Punch(FileOf(space.number, MEMORY), begin, end - begin))
        cooled = before - space.warm.total
        self.warm_bytes -= cooled
        return cooled


def pages(size: int) -> int:
    """*size* in whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
