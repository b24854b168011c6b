"""How close devices of a node are, and sets of which every two are close enough.

The words are nvidia-smi's, the closest first; each includes those before it. A node tells of each of its devices a
text with a digit for each device: at place i the number of the word for device i (1: ``nvlink``), 0 for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from actorgrid.device_words import GPU_TOPOLOGIES
from actorgrid.errors import BadRequest

CLOSENESS = GPU_TOPOLOGIES
DEVICES_MAX = 64
"""Devices of a node that can be close to each other, those with the lowest numbers: one bit each."""
STEPS_MAX = 20_000
"""Devices that one search for a set tries; among 16 devices none needs as many, so that there it is exact."""

NearMasks = tuple[tuple[int, ...], ...]
"""For each word, of each device: the devices that are that close to it, as bits."""


def closeness_number(word: str) -> int:
    """The number of *word*, 1 for the closest; of no word 0. Raises BadRequest."""
    if not word:
        return 0
    if word not in CLOSENESS:
        raise BadRequest(
            f"gpu_topology={str(word)[:40]!r} is no word for how close GPUs are",
            asked=f"gpu_topology={str(word)[:40]!r}",
            hint=f"use one of: {', '.join(CLOSENESS)}",
        )
    return 1 + CLOSENESS.index(word)


def near_masks(name: str, near: tuple[str, ...] | None, count: int) -> NearMasks | None:
    """What node *name* tells of its *count* devices, as bits; ``None``: nothing is close.

    Two are as close as both say. Raises BadRequest for texts that do not fit the devices.
    """
    if near is None:
        return None
    fits = len(near) == count and all(isinstance(text, str) for text in near)
    if not fits or not all(digit in "012345" for text in near for digit in text):
        raise BadRequest(
            f"near of node {name!r} does not fit its {count} GPUs",
            asked=f"near={near!r}"[:200],
            hint="give one text for each GPU, with a digit 0 to 5 for each GPU",
        )
    return _masks(near)


@lru_cache(maxsize=1024)
def _masks(near: tuple[str, ...]) -> NearMasks | None:
    told = [[int(digit) for digit in text[:DEVICES_MAX]] for text in near[:DEVICES_MAX]]
    levels = [[0] * len(told) for _ in CLOSENESS]
    for one, numbers in enumerate(told):
        for other, number in enumerate(numbers[:one]):
            back = told[other][one] if one < len(told[other]) else 0
            if number and back:
                for level in range(max(number, back) - 1, len(CLOSENESS)):
                    levels[level][one] |= 1 << other
                    levels[level][other] |= 1 << one
    return tuple(map(tuple, levels)) if any(levels[-1]) else None


def near_set(masks: NearMasks | None, number: int, usable: int, wanted: int) -> tuple[int, ...] | None:
    """*wanted* (2 or more) devices among the *usable* bits, every two as close as word *number* says, or closer.

    As close as can be; of those, around the device with the fewest others that close, which leaves the larger groups
    whole; then those with the lowest numbers. ``None`` where there are none.
    """
    if masks is None:
        return None
    for near in masks[:number]:
        found = _search(near, usable & ((1 << len(near)) - 1), wanted)
        if found is not None:
            return tuple(sorted(found))
    return None


def _search(near: Sequence[int], usable: int, wanted: int) -> list[int] | None:
    starts = sorted(
        (((near[at] & usable).bit_count(), at) for at in range(len(near)) if usable >> at & 1),
    )
    chosen: list[int] = []
    steps = STEPS_MAX

    def extend(among: int, missing: int) -> bool:
        nonlocal steps
        if missing == 0:
            return True
        while among.bit_count() >= missing:
            if steps == 0:
                return False
            steps -= 1
            at = (among & -among).bit_length() - 1
            among &= among - 1
            chosen.append(at)
            if extend(among & near[at], missing - 1):
                return True
            chosen.pop()
        return False

    for _, start in starts:
        # Whoever was a start is in no set: all that it is in were looked at.
        usable &= ~(1 << start)
        chosen.append(start)
        if extend(near[start] & usable, wanted - 1):
            return chosen
        chosen.pop()
    return None
