"""The typical mix that placement weighs by: what has arrived of late, and when it has changed enough to tell."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from actorgrid.demand import KNOWN_MAX, Demand
from actorgrid.hotpath.typical_mix import most_popular

DEMANDS_MAX = 512
"""Demands counted at a time; the rarer half is forgotten when there are more."""
HALVED_AT = 10_000
"""Arrivals after which all counts are halved, so that the mix follows what changes."""
ENOUGH = 200
"""Arrivals before there is anything to say."""
INTERVAL_S = 60.0
"""At most once in this time: to weigh anew costs the engine a look at every node."""
DRIFT = 0.1
"""Part of the arrivals that must be other than those told last (total variation distance)."""


class Arrivals:
    """Counts the demands that arrive, without device memory, host memory and affinity, which the mix does not have."""

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._told: dict[Demand, float] = {}
        self._told_at: float | None = None

    def saw(self, demand: Demand) -> None:
        """Count one more arrival of *demand*."""
        self._counts[_told_of(demand)] += 1
        if len(self._counts) > DEMANDS_MAX:
            self._counts = Counter(dict(self._counts.most_common(DEMANDS_MAX // 2)))
        if self._counts.total() >= HALVED_AT:
            self._counts = Counter({each: count // 2 for each, count in self._counts.items() if count > 1})

    def news(self, now: float) -> dict[Demand, float] | None:
        """The mix, as parts that add up to 1, when it differs enough from the one told last; else ``None``."""
        if self._told_at is not None and now < self._told_at + INTERVAL_S:
            return None
        if self._counts.total() < ENOUGH:
            return None
        self._told_at = now
        mix = self._mix()
        demands = mix.keys() | self._told.keys()
        if sum(abs(mix.get(each, 0.0) - self._told.get(each, 0.0)) for each in demands) <= 2 * DRIFT:
            return None
        self._told = mix
        return mix

    @property
    def told(self) -> dict[Demand, float]:
        """The mix told last; empty before there was one."""
        return self._told

    def _mix(self) -> dict[Demand, float]:
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], repr(item[0])))
        popular = most_popular(ranked, always=lambda each: each.gpu_count > 1)
        covered = sum(popular.values())
        return {each: count / covered for each, count in popular.items()}


@lru_cache(maxsize=KNOWN_MAX)
def _told_of(demand: Demand) -> Demand:
    return Demand(
        demand.cpu_milli, gpu_count=demand.gpu_count, gpu_milli=demand.gpu_milli, gpu_models=demand.gpu_models
    )
