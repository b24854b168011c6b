"""How long a batch of n rows takes: a + b·n seconds, fitted to those that ran; and whether waiting for a row pays."""

from __future__ import annotations

KEPT = 0.97
"""What the sums keep at each new batch: about the last 33 count."""
LEAST_WEIGHT = 3.0
LEAST_SPREAD = 0.05
"""Variance of n over its mean below which a and b cannot be told apart."""


class BatchCost:
    """Least squares over (rows, seconds) with weights that fade."""

    __slots__ = ("_rows", "_rows_seconds", "_rows_squared", "_seconds", "_weight")

    def __init__(self) -> None:
        self._weight = self._rows = self._rows_squared = self._seconds = self._rows_seconds = 0.0

    def ran(self, rows: int, seconds: float) -> None:
        """Take note of a batch of *rows* that took *seconds*."""
        self._weight = self._weight * KEPT + 1
        self._rows = self._rows * KEPT + rows
        self._rows_squared = self._rows_squared * KEPT + rows * rows
        self._seconds = self._seconds * KEPT + seconds
        self._rows_seconds = self._rows_seconds * KEPT + rows * seconds

    @property
    def fitted(self) -> tuple[float, float] | None:
        """(a, b), neither below 0; ``None`` while batches were too few or too much alike."""
        if self._weight < LEAST_WEIGHT:
            return None
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._rows_squared / self._weight - rows * rows
        if variance < LEAST_SPREAD * rows:
            return None
        slope = max(0.0, (self._rows_seconds / self._weight - rows * seconds) / variance)
        return max(0.0, seconds - slope * rows), slope

    def waiting_pays(self, rows: int, gap_s: float) -> bool:
        """Whether *rows* rows, which could run now, should wait *gap_s* for one more.

        Waiting costs each of them gap + b. The one that comes would else wait for the end of a batch that it just
        missed, and then pay for one of its own: with the batch shared it is done a - gap earlier. So it pays where
        a - gap > rows · (gap + b); without a fit nobody waits.
        """
        found = self.fitted
        if found is None:
            return False
        base, slope = found
        return base - gap_s > rows * (gap_s + slope)
