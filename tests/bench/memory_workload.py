"""The churn that allocators are compared on; plain Python, for environments that have nothing else.

80 GiB in units of 256 B. Sizes from 256 B to 1 GiB, log-uniform but skewed to the small end so that 9/10 of the
device is 10,021 blocks: ``256 * 2 ** (22 * u ** 9.75)`` bytes for a uniform u. Each step frees one of them at
random and asks for a new size in its stead; a refused one leaves its place empty, until its turn comes again.
So what is refused lowers the load, and what counts is the share of the bytes that was refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

CAPACITY = 80 << 30
UNIT = 256
SKEW = 9.75
MEAN_BYTES = 7_714_000


def size(dice: random.Random) -> int:
    """One size in bytes."""
    return UNIT * max(1, round(2 ** (22 * dice.random() ** SKEW)))


def steps(seed: int, demand: float, count: int) -> Iterator[tuple[int, int]]:
    """(which place, what size): first each place once, then *count* steps of churn."""
    dice = random.Random(seed)
    places = int(demand * CAPACITY / MEAN_BYTES)
    for place in range(places):
        yield place, size(dice)
    for _ in range(count):
        yield dice.randrange(places), size(dice)
