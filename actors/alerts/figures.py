"""What alerts are decided from: the figures that this host's servers give, devices, hosts. Decisions only.

The figures are those of ``/metrics``, without their prefix: what fires here and what Prometheus is told to watch is
decided from the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

KEPT_S = 1_800.0
"""How far back increases are looked at."""
SAMPLES_MAX = 400
ABSENT_STATES = ("away", "lost")


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """A device of this host: what people call it, and the state of its health."""

    name: str
    health: str
    probed: bool


@dataclass(frozen=True, slots=True)
class HostFigure:
    """A host of the cluster, as the one that leads knows it: a word of HostPresence."""

    name: str
    presence: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What settings say of when an alert is due."""

    disk_free_ratio: float
    certificate_left_s: float
    clock_offset_s: float
    queue_stands_s: float


@dataclass(slots=True)
class AlertFigures:
    """The figures of one host now, and of the last half hour those that count up."""

    thresholds: Thresholds
    leads: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[DeviceFigure, ...] = ()
    hosts: tuple[HostFigure, ...] = ()
    _past: deque[tuple[float, Mapping[str, float]]] = field(default_factory=deque)
    _now: float = 0.0

    def take(self, now: float, values: Mapping[str, float]) -> None:
        """Take the figures of *now*, seconds of a clock that nobody sets."""
        self._now, self.values = now, values
        self._past.append((now, {name: value for name, value in values.items() if name.endswith("_total")}))
        while len(self._past) > SAMPLES_MAX or self._past[0][0] < now - KEPT_S:
            self._past.popleft()

    def increase(self, name: str, over_s: float) -> float | None:
        """By how much a figure that counts up has grown; ``None`` while it is not known for so long.

        One that is smaller than before began anew with its server: what it has now is what it grew by.
        """
        past = [values[name] for at, values in self._past if at >= self._now - over_s and name in values]
        if len(past) < 2:
            return None
        return sum(later - before if later >= before else later for before, later in pairwise(past))

    def known_for_s(self, name: str) -> float:
        """For how long a figure that counts up has been looked at."""
        return next((self._now - at for at, values in self._past if name in values), 0.0)
