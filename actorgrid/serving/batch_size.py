"""How many rows a batch may have: up additively, down multiplicatively, by the p99 of what items took (as Clipper does:
Crankshaw et al. 2017, section 4.3)."""

from __future__ import annotations

from collections import deque

SAMPLES = 256
"""Items that the p99 is of, at most."""
ENOUGH = 32
"""Items since the last change without which nothing is changed."""
SHRINK = 0.75


class BatchSize:
    """The bound of a batch's rows, between 1 and *most*. Without a target it is always *most*."""

    __slots__ = ("_most", "_taken", "_target_s", "limit")

    def __init__(self, most: int, target_p99_s: float | None) -> None:
        self._most = most
        self._target_s = target_p99_s
        self._taken: deque[float] = deque(maxlen=SAMPLES)
        self.limit = most if target_p99_s is None else min(most, 4)

    @property
    def p99_s(self) -> float | None:
        """Of what the last items took, from their arrival to their answer; ``None`` without any."""
        if not self._taken:
            return None
        return sorted(self._taken)[min(len(self._taken) - 1, int(0.99 * len(self._taken)))]

    def ran(self, rows: int, run_s: float, item_s: list[float]) -> None:
        """Take note of a batch that ran for *run_s* and whose items took *item_s* each, with their wait.

        It is only made smaller where the run itself is over half the target (an item waits for one run and is in the
        next): where items are late because of a queue, smaller batches would make the queue longer.
        """
        if self._target_s is None:
            return
        self._taken.extend(item_s)
        if len(self._taken) < ENOUGH:
            return
        p99 = self.p99_s
        assert p99 is not None
        if p99 > self._target_s and 2 * run_s > self._target_s:
            self.limit = max(1, int(min(self.limit, rows) * SHRINK))
            self._taken.clear()
        elif rows >= self.limit and 2 * run_s <= self._target_s:
            self.limit = min(self._most, self.limit + 1)
