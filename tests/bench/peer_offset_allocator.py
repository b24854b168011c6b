"""Run by memory_pool.py in the peers' environment: OffsetAllocator on the same draws; JSON on stdout."""

from __future__ import annotations

import json
import sys
import time

from memory_workload import CAPACITY, MEAN_BYTES, UNIT, steps
from TLSFAllocator import OffsetAllocator

NO_SPACE = 0xFFFFFFFF
BLOCK = 1000


def main() -> None:
    runs, timed, count, demand = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    places = int(demand * CAPACITY / MEAN_BYTES)
    found = {"blocks": [], "singles": [], "refused": []}
    clock = time.perf_counter
    for run in range(runs):
        pool = OffsetAllocator(CAPACITY // UNIT, 128 * 1024)
        allocate, free = pool.allocate, pool.free
        held = [None] * places
        todo = steps(run, demand, count)
        for _ in range(places):
            at, n = next(todo)
            got = allocate(n // UNIT)
            held[at] = got if got.offset != NO_SPACE else None
        blocks, singles = [], []
        asked = refused = 0
        for start in range(0, timed, BLOCK):
            part = [next(todo) for _ in range(min(BLOCK, timed - start))]
            asked += sum(n for _, n in part)
            started = clock()
            for at, n in part:
                if held[at] is not None:
                    free(held[at])
                got = allocate(n // UNIT)
                if got.offset != NO_SPACE:
                    held[at] = got
                else:
                    held[at] = None
                    refused += n
            blocks.append((clock() - started) / len(part))
        for step, (at, n) in enumerate(todo):
            started = clock()
            if held[at] is not None:
                free(held[at])
            got = allocate(n // UNIT)
            if step < timed:
                singles.append(clock() - started)
            asked += n
            if got.offset != NO_SPACE:
                held[at] = got
            else:
                held[at] = None
                refused += n
        found["blocks"].append(blocks)
        found["singles"].append(singles)
        found["refused"].append(100 * refused / asked)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
