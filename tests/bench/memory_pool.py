"""The memory pool: what a call costs, and what share of the bytes asked it has to refuse at nine tenths of demand."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actorgrid.errors import OutOfDeviceMemory
from actorgrid.hotpath import COMPILED, MemoryPool
from actorgrid.hotpath.reference.memory_pool import MemoryPool as ReferencePool

from .figures import Figure, registry
from .memory_workload import CAPACITY, MEAN_BYTES, UNIT, size, steps
from .peers import answer_of, python_with

DEMAND = 0.9
STEPS = 2_000_000
TIMED_STEPS = 200_000
REFERENCE_STEPS = 20_000
BLOCK = 1000  # pairs between two looks at the clock
BATCH = 256
BATCH_DEMAND = 0.5  # a batch is given whole or not at all: at 0.9 few are
ROUNDS = 4
MOVED_SHARE = 0.2
PEER_TIMEOUT_S = 600.0


class Churn:
    """A pool under the workload, and what became of the bytes asked in the churn proper."""

    def __init__(self, pool: Any, seed: int, count: int, demand: float = DEMAND) -> None:
        self.pool = pool
        self.todo = steps(seed, demand, count)
        self.places = int(demand * CAPACITY / MEAN_BYTES)
        self.held: list[Any] = [None] * self.places
        self.asked_ever = self.asked = self.refused = self.never_fit = 0
        for _ in range(self.places):
            self.step(False)

    def step(self, moving: bool, counted: bool = False) -> None:
        at, n = next(self.todo)
        if self.held[at] is not None:
            self.pool.free(self.held[at])
            self.held[at] = None
        self.asked_ever += n
        self.asked += n * counted
        try:
            self.held[at] = self.pool.allocate(n)
        except OutOfDeviceMemory as error:
            free = error.details["free_bytes"]
            if moving and n <= free and self.make_room(n):
                self.held[at] = self.pool.allocate(n)
            else:
                self.refused += n * counted
                self.never_fit += n * (counted and n > free)

    def make_room(self, n: int) -> bool:
        """Move within the bound on all that was asked so far, and for at most four times the size asked."""
        for _ in range(ROUNDS):
            left = min(4 * n, int(MOVED_SHARE * self.asked_ever) - self.pool.stats().moved_bytes)
            moves = self.pool.defragment(n)
            if not 0 < moves.planned_bytes <= left:
                return False
            for move in moves:
                self.pool.commit(move)
            if self.pool.stats().largest_free >= n:
                return True
        return False


def _pairs(make: Any, seed: int, count: int) -> tuple[list[float], list[float]]:
    """Seconds a pair, by blocks (which see the loop too) and singly (which see the clock too)."""
    churn = Churn(make(CAPACITY), seed, 2 * count)
    pool, held = churn.pool, churn.held
    todo = list(churn.todo)
    allocate, free, clock = pool.allocate, pool.free, time.perf_counter
    blocks, singles = [], []
    for start in range(0, count, BLOCK):
        part = todo[start : start + BLOCK]
        started = clock()
        for at, n in part:
            if held[at] is not None:
                free(held[at])
            try:
                held[at] = allocate(n)
            except OutOfDeviceMemory:
                held[at] = None
        blocks.append((clock() - started) / len(part))
    for at, n in todo[count:]:
        if held[at] is None:
            continue
        try:
            started = clock()
            free(held[at])
            held[at] = allocate(n)
            singles.append(clock() - started)
        except OutOfDeviceMemory:
            held[at] = None
    return blocks, singles


def _batches(seed: int) -> list[float]:
    """Seconds a pair when batches of 256 come and go, one of about twenty at random."""
    dice = random.Random(seed)
    pool = MemoryPool(CAPACITY)
    batches = [pool.allocate_many([]) for _ in range(int(BATCH_DEMAND * CAPACITY / MEAN_BYTES / BATCH))]
    taken = []
    for _ in range(TIMED_STEPS // BATCH):
        at = dice.randrange(len(batches))
        sizes = [size(dice) for _ in range(BATCH)]
        count = len(batches[at])
        started = time.perf_counter()
        pool.free_many(batches[at])
        try:
            batches[at] = pool.allocate_many(sizes)
        except OutOfDeviceMemory:
            batches[at] = pool.allocate_many([])
            continue
        if count:
            taken.append((time.perf_counter() - started) / BATCH)
    return taken


def _figure(name: str, runs: list[list[float]], p99: list[float], **more: Any) -> Figure:
    medians = [statistics.median(run) * 1e9 for run in runs]
    ordered = sorted(p99)
    tail = ordered[int(0.99 * len(ordered))] * 1e9
    note = f"p99.9 {ordered[int(0.999 * len(ordered))] * 1e9:,.0f} ns"
    return Figure(name, "ns", medians, higher_is_better=False, p99=tail, **{"note": note, **more})


@registry.add("memory_pool")
def memory_pool(runs: int) -> Iterator[Figure]:
    """80 GiB at 90 % demand, about 10,000 live blocks; the percentiles are of single pairs with the clock in them."""
    timed = [_pairs(MemoryPool, run, TIMED_STEPS) for run in range(runs)]
    bars: dict[str, Any] = {"must": 500, "stretch": 300} if COMPILED else {"note": "plain Python"}
    yield _figure(
        "memory pool: allocate + free", [one for one, _ in timed], [s for _, one in timed for s in one], **bars
    )
    batches = [_batches(run) for run in range(runs)]
    yield _figure(
        f"memory pool: the same, batches of {BATCH}",
        batches,
        [s for run in batches for s in run],
        must=80,
        note="p99 of batches",
    )
    twin = [_pairs(ReferencePool, run, REFERENCE_STEPS) for run in range(runs)]
    yield _figure("memory pool: plain Python twin", [one for one, _ in twin], [s for _, one in twin for s in one])
    refused, moved, still, planning = [], [], [], []
    never_fit = 0.0
    for run in range(runs):
        churn = Churn(MemoryPool(CAPACITY), run, STEPS)
        for _ in range(STEPS):
            churn.step(True, counted=True)
        refused.append(100 * churn.refused / churn.asked)
        never_fit += 100 * churn.never_fit / churn.asked / runs
        moved.append(churn.pool.stats().moved_bytes / churn.asked_ever)
        planning.append(churn.pool.stats().moves / (STEPS + churn.places))
        churn = Churn(MemoryPool(CAPACITY), run, STEPS)
        for _ in range(STEPS):
            churn.step(False, counted=True)
        still.append(100 * churn.refused / churn.asked)
    note = f"of it {never_fit:.2f} more than was free in all"
    yield Figure("memory pool: bytes refused, with moves", "%", refused, False, must=4, stretch=2, note=note)
    yield Figure("memory pool: bytes moved per byte asked", "B/B", moved, False, must=MOVED_SHARE)
    yield Figure("memory pool: moves per allocation", "moves", planning, False)
    yield Figure("memory pool: bytes refused, without moves", "%", still, False)


@registry.add("offset_allocator")
def offset_allocator(runs: int) -> Iterator[Figure]:
    """sebbbi's OffsetAllocator through its Python binding, on the same draws."""
    python = python_with("TLSFAllocator")
    script = Path(__file__).with_name("peer_offset_allocator.py")
    command = [python, script, runs, TIMED_STEPS, STEPS, DEMAND]
    found = answer_of("OffsetAllocator", command, PEER_TIMEOUT_S, {"PYTHONWARNINGS": "ignore"})
    singles = [sample for run in found["singles"] for sample in run]
    yield _figure("OffsetAllocator (TLSFAllocator 0.0.1)", found["blocks"], singles)
    note = f"it has no moves; {UNIT} B units"
    yield Figure("OffsetAllocator: bytes refused", "%", found["refused"], False, note=note)
