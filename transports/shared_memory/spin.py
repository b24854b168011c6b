"""Whether to look for the next message for a while before one sleeps: worth it only where both sides have a processor.

Where each side owns a core an answer that is looked for comes in a twentieth of the time, and where the scheduler has
both on one core it takes five times as long. So it is off unless asked for, and goes on where it brings something.
"""

from __future__ import annotations

import os

CORES_MIN = 4
SPIN_US_MAX = 50
_TRY_AGAIN = 64


class AdaptiveSpin:
    """How long to look before sleeping: as asked for, half after each time in vain, and now and then tried again."""

    def __init__(self, asked_us: int, cores: int | None = None) -> None:
        enough = (cores if cores is not None else len(os.sched_getaffinity(0))) >= CORES_MIN
        self._asked_us = min(asked_us, SPIN_US_MAX) if enough else 0
        self._now_us = self._asked_us
        self._slept = 0

    @property
    def microseconds(self) -> int:
        """For how long to look now; 0: not at all."""
        return self._now_us

    def note(self, found: bool) -> None:
        """Take note of what it brought."""
        if found:
            self._now_us = self._asked_us
            self._slept = 0
            return
        self._slept += 1
        self._now_us //= 2
        if self._slept % _TRY_AGAIN == 0:
            self._now_us = self._asked_us
