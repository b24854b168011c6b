"""What has arrived of late, and when that is news: the typical mix that placement weighs by."""

from __future__ import annotations

from collections import Counter

from actorgrid.hotpath.typical_mix import most_popular

from .queue import Shape

SHAPES_MAX = 512
"""Shapes counted at a time; the rarer half is forgotten when there are more."""
HALVED_AT = 10_000
"""Arrivals after which all counts are halved, so that the mix follows what changes."""
ENOUGH = 200
"""Arrivals before there is anything to say."""
INTERVAL_S = 60.0
"""At most once in this time: to weigh anew costs the engine a look at every node."""
DRIFT = 0.1
"""Part of the arrivals that must be of other shapes than told last (total variation distance)."""


class Arrivals:
    """Counts of shapes; device memory, host memory and affinity are left out, which the mix does not have either."""

    def __init__(self) -> None:
        self._counts: Counter[Shape] = Counter()
        self._told: dict[Shape, float] = {}
        self._told_at: float | None = None

    def saw(self, shape: Shape) -> None:
        """One more of it has come."""
        kept = Shape(shape.gpu_count, shape.gpu_milli, 0, shape.gpu_models, (), shape.cpu_milli, 0)
        self._counts[kept] += 1
        if len(self._counts) > SHAPES_MAX:
            self._counts = Counter(dict(self._counts.most_common(SHAPES_MAX // 2)))
        if self._counts.total() >= HALVED_AT:
            self._counts = Counter({shape: count // 2 for shape, count in self._counts.items() if count > 1})

    def news(self, now: float) -> dict[Shape, float] | None:
        """The mix, as parts that add up to 1, when it differs enough from the one told last; else ``None``."""
        if self._told_at is not None and now < self._told_at + INTERVAL_S:
            return None
        if self._counts.total() < ENOUGH:
            return None
        self._told_at = now
        mix = self._mix()
        shapes = mix.keys() | self._told.keys()
        if sum(abs(mix.get(shape, 0.0) - self._told.get(shape, 0.0)) for shape in shapes) <= 2 * DRIFT:
            return None
        self._told = mix
        return mix

    @property
    def told(self) -> dict[Shape, float]:
        """The mix told last; empty before there was one."""
        return self._told

    def _mix(self) -> dict[Shape, float]:
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], repr(item[0])))
        popular = most_popular(ranked, always=lambda shape: shape.gpu_count > 1)
        covered = sum(popular.values())
        return {shape: count / covered for shape, count in popular.items()}
