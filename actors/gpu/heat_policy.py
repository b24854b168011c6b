"""What a device's heat asks for: nothing new, less power, or the end of what runs on it. Decisions only.

Three thresholds below and above the temperature at which the driver slows the device down by itself. A stage begins
with the first sample at its threshold, and ends when the device has been 5 °C under it for half a minute: a device
that swings around a threshold would else take work, lose it and take it again with every sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

STEP_S = 10.0
"""Between two changes of a limit: a heat sink follows a change of power within some seconds, not at once."""
CALM_S = 30.0
CALM_CELSIUS = 5.0
LOWER_BY = 0.1
"""Of the limit, at each step down."""
RAISE_BY = 0.05
"""Of the most, at each step up: slower than down, so that the second try does not end where the first did."""
CAP_BELOW, DRAIN_BELOW, STOP_ABOVE, SHUTDOWN_MARGIN = 7.0, 2.0, 4.0, 1.0
"""Degrees below, and above, the slowdown temperature, and below the one at which the device switches itself off."""
SLOWDOWN_CELSIUS = {"nvidia": 92.0, "amd": 100.0, "intel": 95.0}
"""Where a driver does not tell it: what these vendors' data-centre devices have. AMD's is of the hottest point."""
ANY_SLOWDOWN_CELSIUS = 90.0


class HeatStage(IntEnum):
    """How far the heat of a device has come; each stage has what those before it have."""

    NORMAL = 0
    CAPPED = 1
    """It draws less power, where that may be set."""
    DRAINED = 2
    """It takes no new work."""
    EMERGENCY = 3
    """What runs on it is ended: at the shutdown temperature it would be lost, and the host with it on some machines."""


@dataclass(frozen=True, slots=True)
class HeatThresholds:
    """From which temperatures on a stage begins, in °C."""

    cap: float
    drain: float
    stop: float

    @classmethod
    def of(cls, vendor: str, slowdown: float | None, shutdown: float | None, limit: float = 0.0) -> HeatThresholds:
        """Those of a device whose driver slows it down and switches it off at these temperatures; ``None``: not told.

        *limit*: what its owner wants in place of the slowdown temperature, where that is lower; 0: nothing.
        """
        at = _likely(slowdown) or SLOWDOWN_CELSIUS.get(vendor, ANY_SLOWDOWN_CELSIUS)
        if limit > 0:
            at = min(at, limit)
        stop = at + STOP_ABOVE
        told = _likely(shutdown)
        if told is not None:
            stop = min(stop, told - SHUTDOWN_MARGIN)
        # A driver that tells a shutdown temperature below the slowdown one is taken at its word.
        drain = min(at - DRAIN_BELOW, stop - 1.0)
        return cls(min(at - CAP_BELOW, drain - 1.0), drain, stop)

    def stage(self, celsius: float) -> HeatStage:
        """The stage that a device of that temperature is in at least."""
        if celsius >= self.stop:
            return HeatStage.EMERGENCY
        if celsius >= self.drain:
            return HeatStage.DRAINED
        return HeatStage.CAPPED if celsius >= self.cap else HeatStage.NORMAL

    def of_stage(self, stage: HeatStage) -> float:
        """From where on *stage* begins; of ``NORMAL`` minus infinity."""
        return {HeatStage.CAPPED: self.cap, HeatStage.DRAINED: self.drain, HeatStage.EMERGENCY: self.stop}.get(
            stage, -math.inf
        )


@dataclass(frozen=True, slots=True)
class PowerRange:
    """What a device may be told to draw, in watts; ``most`` is what it might before we changed it."""

    least: float
    most: float


class DeviceHeat:
    """The heat of one device: tell it each sample, and read ``stage`` and ``limit_watts``.

    A sample without a temperature changes nothing: what is not known is not cool, and not hot.
    """

    def __init__(self, thresholds: HeatThresholds) -> None:
        self.thresholds = thresholds
        self.stage = HeatStage.NORMAL
        self.celsius: float | None = None
        self.limit_watts: float | None = None
        """What heat lets it draw; ``None``: whatever it did before."""
        self._calm_since: float | None = None
        self._stepped_at = -math.inf

    def take(self, celsius: float | None, power: PowerRange | None, now_s: float) -> None:
        """Take the next sample; *power*: what the device may be told to draw, ``None`` where that cannot be set."""
        if celsius is None:
            return
        self.celsius = celsius
        reached = self.thresholds.stage(celsius)
        if reached >= self.stage:
            self.stage, self._calm_since = reached, None
        elif celsius > self.thresholds.of_stage(self.stage) - CALM_CELSIUS:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now_s
        elif now_s - self._calm_since >= CALM_S:
            # One stage at a time: each has to be calm in its own measure.
            self._leave_stage(now_s)
        self._limit(celsius, power, now_s)

    def _leave_stage(self, now_s: float) -> None:
        if self.stage is HeatStage.CAPPED and self.limit_watts is not None:
            return  # it still has less than before: it gets it back first
        self.stage = HeatStage(self.stage - 1)
        self._calm_since = now_s if self.stage is not HeatStage.NORMAL else None

    def _limit(self, celsius: float, power: PowerRange | None, now_s: float) -> None:
        if power is None or power.least >= power.most:
            self.limit_watts = None
            return
        if self.stage is HeatStage.EMERGENCY:
            self.limit_watts, self._stepped_at = power.least, now_s
            return
        if self.stage is HeatStage.NORMAL or now_s - self._stepped_at < STEP_S:
            return
        limit = power.most if self.limit_watts is None else min(self.limit_watts, power.most)
        if celsius >= self.thresholds.cap:
            self.limit_watts, self._stepped_at = max(power.least, limit * (1 - LOWER_BY)), now_s
        elif self.limit_watts is not None and self._calm_since is not None and now_s - self._calm_since >= CALM_S:
            raised = limit + RAISE_BY * power.most
            self.limit_watts, self._stepped_at = (None if raised >= power.most else raised), now_s


def _likely(celsius: float | None) -> float | None:
    """The threshold, if a device can have it: some drivers tell 0, or 2³² - 1."""
    return celsius if celsius is not None and 50.0 <= celsius <= 150.0 else None
