"""First come, first served: nobody passes anybody."""

from __future__ import annotations

from .base import SchedulingPolicy


class Fifo(SchedulingPolicy):
    """First come, first served. A job that does not fit holds up all behind it, so its turn comes for certain."""

    name = "fifo"
    overtaking = False
