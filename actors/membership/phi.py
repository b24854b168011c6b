"""Phi-accrual estimator: how surprising a silence is, and for how long an answer may be awaited, by a link's own times.

Hayashibara, Défago, Yared, Katayama: "The φ Accrual Failure Detector" (2004): times are taken as normally distributed,
with mean and variance of the last 1,000; phi is -log10 of the probability that one takes longer than it has. Here
the times are those from a ping to its answer, and SWIM decides: phi only says when to ask others for help. All times
come from a clock that only goes forward; one that does not enters as nothing worse than a sample of 0.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from math import erfc, inf, log10, sqrt
from statistics import NormalDist

WINDOW = 1_000
DEVIATION_MIN_S = 0.005
"""A link whose answers took all the same time would call the first that is a hair slower a failure."""
THRESHOLD = 8.0
LINK_SAMPLES_MIN = 8
HOST_SAMPLES_MIN = 32
"""Samples before a link's own times, and before those of all links together, say anything."""
LINKS_MAX = 256
PHI_MAX = 100.0
"""Of figures: there is no number for what is impossible by all that is known."""


@lru_cache(maxsize=8)
def _deviations(threshold: float) -> float:
    """How many standard deviations above the mean phi reaches *threshold*."""
    return -NormalDist().inv_cdf(10.0**-threshold)


class PhiEstimator:
    """The last 1,000 times of one thing that repeats; see the module."""

    __slots__ = ("_next", "_samples", "_squares", "_sum")

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._next = 0
        self._sum = 0.0
        self._squares = 0.0

    def __len__(self) -> int:
        return len(self._samples)

    def record(self, sample_s: float) -> None:
        """It took *sample_s* this time; less than nothing counts as nothing."""
        sample_s = max(0.0, sample_s)
        if len(self._samples) < WINDOW:
            self._samples.append(sample_s)
        else:
            old = self._samples[self._next]
            self._samples[self._next] = sample_s
            self._sum -= old
            self._squares -= old * old
            self._next = (self._next + 1) % WINDOW
            if self._next == 0:
                # Differences of sums lose a little with each sample: once around, they are counted anew.
                self._sum = sum(self._samples)
                self._squares = sum(each * each for each in self._samples)
                return
        self._sum += sample_s
        self._squares += sample_s * sample_s

    def phi(self, elapsed_s: float) -> float:
        """How surprising it is that it takes *elapsed_s* and more: 1 is one in ten, 8 one in a hundred million."""
        if not self._samples:
            return 0.0
        mean, deviation = self._distribution()
        longer = 0.5 * erfc((elapsed_s - mean) / (deviation * sqrt(2.0)))
        return -log10(longer) if longer > 0.0 else inf

    def timeout_s(self, threshold: float = THRESHOLD) -> float:
        """When phi reaches *threshold*."""
        mean, deviation = self._distribution()
        return mean + deviation * _deviations(threshold)

    @property
    def mean_s(self) -> float:
        """How long it took on the mean; 0 where nothing is known."""
        return self._sum / max(1, len(self._samples))

    def _distribution(self) -> tuple[float, float]:
        count = max(1, len(self._samples))
        mean = self._sum / count
        variance = max(0.0, self._squares / count - mean * mean)
        return mean, max(DEVIATION_MIN_S, sqrt(variance))


class LinkTimes:
    """Times of answers, for each of the last 256 links that answered, and for all of them together.

    A host probes each of many others rarely, so a link's own samples come slowly: until there are 8, all links' are
    used, and before there are 32 of those, nothing.
    """

    __slots__ = ("_all", "_links")

    def __init__(self) -> None:
        self._all = PhiEstimator()
        self._links: OrderedDict[str, PhiEstimator] = OrderedDict()

    def record(self, name: str, sample_s: float) -> None:
        """That member answered after *sample_s*."""
        self._all.record(sample_s)
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = PhiEstimator()
            if len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)
        else:
            self._links.move_to_end(name)
        link.record(sample_s)

    def timeout_s(self, name: str) -> float | None:
        """By when that member should have answered; None: there is too little to tell from."""
        link = self._links.get(name)
        if link is not None and len(link) >= LINK_SAMPLES_MIN:
            return link.timeout_s()
        return self._all.timeout_s() if len(self._all) >= HOST_SAMPLES_MIN else None

    def mean_s(self, name: str | None = None) -> float | None:
        """How long that member's answers took on the mean, or all members'; None: none came yet."""
        times = self._all if name is None else self._links.get(name)
        return times.mean_s if times else None

    def phi(self, name: str, elapsed_s: float) -> float:
        """How surprising it is that an answer of that member takes so long, by its own times or by all."""
        link = self._links.get(name)
        return min(PHI_MAX, (link if link is not None and len(link) >= LINK_SAMPLES_MIN else self._all).phi(elapsed_s))

    def forget(self, name: str) -> None:
        """That member is another one from now on, or gone."""
        self._links.pop(name, None)
