"""Which steps share a box in a picture: those that do the same at the same depth, and chains of the same.

Of a large graph nobody looks at single arrows: 998 calls between one that gives and one that gathers are one thing.
"""

from __future__ import annotations

from collections.abc import Sequence

from .step_view import StepView, longest_ways

ALIKE_MIN = 4
"""Fewer that do the same stay boxes of their own."""
CHAIN_MIN = 6
BOXES_MAX, COLUMNS_MAX = 400, 40
"""With more boxes, or more of them one after the other, a box has all steps of some depths: of ``BANDS`` in all."""
BANDS = 16


def each_alone(steps: Sequence[StepView]) -> list[list[int]]:
    """A box for each step."""
    return [[number] for number in range(len(steps))]


def grouped(steps: Sequence[StepView]) -> list[list[int]]:
    """The steps of each box, by number; at most ``BOXES_MAX`` boxes."""
    depth = longest_ways([step.producers for step in steps])
    alike: dict[tuple[int, str], list[int]] = {}
    for number, step in enumerate(steps):
        alike.setdefault((depth[number], step.kin), []).append(number)
    boxes = []
    for members in alike.values():
        boxes += [members] if len(members) >= ALIKE_MIN else [[member] for member in members]
    boxes = _chained(steps, boxes)
    if len(boxes) <= BOXES_MAX and columns(steps, boxes) <= COLUMNS_MAX:
        return boxes
    deepest = max(depth) + 1
    by_depth: dict[int, list[int]] = {}
    for number in range(len(steps)):
        by_depth.setdefault(depth[number] * min(BANDS, deepest) // deepest, []).append(number)
    return list(by_depth.values())


def columns(steps: Sequence[StepView], boxes: Sequence[Sequence[int]]) -> int:
    """How many boxes come one after the other, at most."""
    before: list[list[int]] = [[] for _ in boxes]
    for source, target in arrows_between(steps, boxes):
        before[target].append(source)
    return max(longest_ways(before)) + 1


def arrows_between(steps: Sequence[StepView], boxes: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """How many arrows lead from one box to another; those inside a box are left out."""
    box_of = {member: box for box, members in enumerate(boxes) for member in members}
    found: dict[tuple[int, int], int] = {}
    for number, step in enumerate(steps):
        for producer in step.producers:
            arrow = box_of[producer], box_of[number]
            if arrow[0] != arrow[1]:
                found[arrow] = found.get(arrow, 0) + 1
    return found


def _chained(steps: Sequence[StepView], boxes: list[list[int]]) -> list[list[int]]:
    """Boxes of one step each that follow each other and do the same, as one.

    Each waits for nothing but the one before it, so whatever else takes from them comes after the whole chain, and no
    circle is made.
    """
    before: list[list[int]] = [[] for _ in boxes]
    for source, target in arrows_between(steps, boxes):
        before[target].append(source)
    kin = [steps[members[0]].kin if len(members) == 1 else "" for members in boxes]
    following: dict[int, list[int]] = {}
    for box, producers in enumerate(before):
        if len(producers) == 1 and kin[box] and kin[box] == kin[producers[0]]:
            following.setdefault(producers[0], []).append(box)
    next_of = {box: others[0] for box, others in following.items() if len(others) == 1}
    inside = set(next_of.values())
    found = []
    for first in range(len(boxes)):
        if first in inside:
            continue
        chain = [first]
        while chain[-1] in next_of:
            chain.append(next_of[chain[-1]])
        if len(chain) >= CHAIN_MIN:
            found.append([member for box in chain for member in boxes[box]])
        else:
            found += [boxes[box] for box in chain]
    return found
