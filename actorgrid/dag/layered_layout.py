"""Where the boxes of a picture are: in columns, from those that wait for nothing to those that wait longest.

Layered drawing as of Sugiyama, Tagawa and Toda (1981): a column for each depth, arrows over several columns led through
points in those between, the order within a column by the mean of neighbours, back and forth. Then each box is put as
near to its neighbours' height as the order allows: the least squares under distances that must be kept, which is
isotonic regression (pool adjacent violators; Barlow and others, 1972).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .step_view import longest_ways

SWEEPS = 12
POINTS_MAX = 20_000
"""With more points in the columns between, arrows go straight."""
COLUMN_GAP, ROW_GAP = 56.0, 12.0
POINT_GAP = 8.0


@dataclass(frozen=True, slots=True)
class LayeredLayout:
    """Left upper corners of boxes, and the points through which arrows go, from their source's to their target's
    edge."""

    corners: tuple[tuple[float, float], ...]
    ways: dict[tuple[int, int], list[tuple[float, float]]]
    width: float
    height: float


def lay_out(sizes: Sequence[tuple[float, float]], arrows: Mapping[tuple[int, int], int]) -> LayeredLayout:
    """Lay out boxes of these (width, height) with these arrows, which make no circle."""
    columns_of = _columns(len(sizes), arrows)
    heights = [height for _, height in sizes]
    links: list[tuple[int, int]] = []
    through: dict[tuple[int, int], list[int]] = {}
    points = sum(columns_of[target] - columns_of[source] - 1 for source, target in arrows)
    for source, target in arrows:
        between = range(columns_of[source] + 1, columns_of[target]) if points <= POINTS_MAX else range(0)
        way = through[source, target] = []
        at = source
        for column in between:
            way.append(len(heights))
            links.append((at, len(heights)))
            at = len(heights)
            heights.append(0.0)
            columns_of.append(column)
        links.append((at, target))
    columns: list[list[int]] = [[] for _ in range(max(columns_of, default=-1) + 1)]
    for number, column in enumerate(columns_of):
        columns[column].append(number)
    before: list[list[int]] = [[] for _ in heights]
    behind: list[list[int]] = [[] for _ in heights]
    for source, target in links:
        before[target].append(source)
        behind[source].append(target)
    _put_in_order(columns, before, behind)
    middles = _middles(columns, heights, before, behind, len(sizes))
    return _placed(sizes, columns, columns_of, middles, through)


def _columns(count: int, arrows: Mapping[tuple[int, int], int]) -> list[int]:
    before: list[list[int]] = [[] for _ in range(count)]
    behind: list[list[int]] = [[] for _ in range(count)]
    for source, target in arrows:
        before[target].append(source)
        behind[source].append(target)
    found = longest_ways(before)
    for number in range(count):
        if not before[number] and behind[number]:
            found[number] = min(found[target] for target in behind[number]) - 1  # beside those that take from it
    return found


def _put_in_order(columns: list[list[int]], before: list[list[int]], behind: list[list[int]]) -> None:
    place: dict[int, float] = {}
    for column in columns:
        place.update((number, index) for index, number in enumerate(column))
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        neighbours = before if forth else behind
        for column in columns if forth else reversed(columns):
            wanted = {
                number: sum(place[other] for other in neighbours[number]) / len(neighbours[number])
                if neighbours[number]
                else place[number]
                for number in column
            }
            column.sort(key=lambda number: wanted[number])
            scale = 1.0 / max(1, len(column) - 1)
            # As parts of the column's height: columns of different lengths are compared.
            place.update((number, index * scale) for index, number in enumerate(column))


def _middles(
    columns: list[list[int]], heights: list[float], before: list[list[int]], behind: list[list[int]], boxes: int
) -> list[float]:
    """The height of each middle."""
    found = [0.0] * len(heights)
    distances: list[list[float]] = []
    for column in columns:
        apart = [
            (heights[upper] + heights[lower]) / 2 + (ROW_GAP if upper < boxes and lower < boxes else POINT_GAP)
            for upper, lower in pairwise(column)
        ]
        distances.append(apart)
        at = -sum(apart) / 2
        for number, step in zip(column, [0.0, *apart], strict=True):
            at += step
            found[number] = at
    for sweep in range(SWEEPS):
        order = range(len(columns)) if sweep % 2 == 0 else range(len(columns) - 1, -1, -1)
        for index in order:
            column = columns[index]
            wanted = []
            for number in column:
                others = [*before[number], *behind[number]]
                wanted.append(sum(found[other] for other in others) / len(others) if others else found[number])
            for number, middle in zip(column, _nearest(wanted, distances[index]), strict=True):
                found[number] = middle
    return found


def _nearest(wanted: Sequence[float], distances: Sequence[float]) -> list[float]:
    """Heights in this order, at least these distances apart, that are nearest to those *wanted*."""
    offsets = [0.0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, int]] = []  # (sum, how many), of neighbours that share a level
    for height, offset in zip(wanted, offsets, strict=False):
        total, count = height - offset, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / count:
            more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((total, count))
    found = []
    for total, count in pools:
        found += [total / count] * count
    return [level + offset for level, offset in zip(found, offsets, strict=False)]


def _placed(
    sizes: Sequence[tuple[float, float]],
    columns: list[list[int]],
    columns_of: list[int],
    middles: list[float],
    through: dict[tuple[int, int], list[int]],
) -> LayeredLayout:
    boxes = len(sizes)
    top = min((middles[n] - (sizes[n][1] / 2 if n < boxes else 0.0) for n in range(len(middles))), default=0.0)
    bottom = max((middles[n] + (sizes[n][1] / 2 if n < boxes else 0.0) for n in range(len(middles))), default=0.0)
    lefts, widths = [], []
    left = 0.0
    for column in columns:
        width = max((sizes[number][0] for number in column if number < boxes), default=0.0)
        # Where many arrows cross a gap, it is wider.
        lefts.append(left)
        widths.append(width)
        left += width + COLUMN_GAP + min(120.0, 1.5 * len(column))
    corners = tuple(
        (
            lefts[columns_of[n]] + (widths[columns_of[n]] - sizes[n][0]) / 2,
            middles[n] - sizes[n][1] / 2 - top,
        )
        for n in range(boxes)
    )
    ways = {}
    for (source, target), points in through.items():
        way = [(corners[source][0] + sizes[source][0], middles[source] - top)]
        for point in points:
            left, height = lefts[columns_of[point]], middles[point] - top
            way += [(left, height), (left + widths[columns_of[point]], height)]
        way.append((corners[target][0], middles[target] - top))
        ways[source, target] = way
    right = max((corner[0] + size[0] for corner, size in zip(corners, sizes, strict=True)), default=0.0)
    return LayeredLayout(corners, ways, right, bottom - top)
