"""A device's memory that can be looked into, and a pool over it that is checked against a plain model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from actorgrid.hotpath import COMPILED, MemoryPool, Move
from actorgrid.hotpath.reference.memory_pool import MemoryPool as ReferencePool

POOLS: dict[str, Any] = {"reference": ReferencePool}
if COMPILED:
    POOLS["compiled"] = MemoryPool


class Device:
    """As many bytes as the pool has. Every block is filled with its own byte, so a wrong copy shows."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.memory = bytearray(pool.size_bytes)
        self.live: dict[Any, int] = {}
        self.filled = 0

    def allocate(self, n_bytes: int) -> Any:
        return self.fill(self.pool.allocate(n_bytes))

    def fill(self, block: Any) -> Any:
        self.filled += 1
        self.live[block] = self.filled % 251
        self.memory[block.offset : block.offset + block.size] = bytes([self.live[block]]) * block.size
        return block

    def free(self, block: Any) -> None:
        self.pool.free(block)
        del self.live[block]

    def copy(self, move: Move) -> None:
        """As a device copies: what overlaps would be undefined, so it is refused."""
        for source, destination, size in move.chunks():
            assert abs(source - destination) >= size > 0
            self.memory[destination : destination + size] = self.memory[source : source + size]

    def move(self, want_bytes: int | None = None, **more: Any) -> int:
        """Defragment to the end; how many moves it took."""
        moves = 0
        for move in self.pool.defragment(want_bytes, **more):
            self.copy(move)
            self.pool.commit(move)
            moves += 1
        return moves

    def check(self) -> None:
        """The pool's account is that of the blocks it gave, to the byte, and every block has its contents."""
        segments = self.pool.segments()
        at = 0
        for segment in segments:
            assert segment.offset == at
            assert segment.size > 0 and segment.size % self.pool.alignment_bytes == 0
            at += segment.size
        assert at == self.pool.size_bytes
        for one, next_one in pairwise(segments):
            assert (one.state, next_one.state) != ("free", "free"), "holes beside each other are one"
        used = [(segment.offset, segment.size) for segment in segments if segment.state == "used"]
        assert sorted((block.offset, block.size) for block in self.live) == used
        holes = [segment.size for segment in segments if segment.state == "free"]
        stats = self.pool.stats()
        assert stats.size == self.pool.size_bytes
        assert stats.used == sum(size for _, size in used) <= stats.peak_used
        assert stats.used + stats.free == stats.size
        assert stats.held + sum(holes) == stats.free
        assert (stats.blocks, stats.holes) == (len(used), len(holes))
        assert stats.largest_free == max(holes, default=0)
        for block, byte in self.live.items():
            assert self.memory[block.offset : block.offset + block.size].count(byte) == block.size
