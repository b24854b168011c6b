"""Local health multiplier: signs that this host is the slow one make it judge others more slowly.

Lifeguard's LHA-Probe: a probe that fails without helpers, a helper that did not even say that it could not reach the
target, and having to refute a suspicion of ourselves count against us; probes that are answered count for us.
"""

from __future__ import annotations


class LocalHealth:
    """A score from 0, healthy, to *score_max*; probes and their timeouts are that many times longer, and one."""

    __slots__ = ("_max", "score")

    def __init__(self, score_max: int) -> None:
        self._max = score_max
        self.score = 0

    @property
    def multiplier(self) -> int:
        """How many times longer than the profile says a probe is to take."""
        return self.score + 1

    def worse(self, by: int = 1) -> None:
        """Something that a healthy host would have done or heard was not."""
        self.score = min(self._max, self.score + by)

    def better(self) -> None:
        """A probe was answered."""
        self.score -= self.score > 0
