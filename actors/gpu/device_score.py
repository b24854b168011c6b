"""How good a device is right now, from its readings: a number to rank devices by. Decisions only.

The score is a weighted sum: the share of its memory that is free weighs 0.6, the share of its compute that is idle
0.4, and heat takes up to 0.3 off again, growing in a straight line from the warm to the hot threshold. At the hot
threshold and over it a device is excluded, whatever else it reads. All sums are whole millionths, so that the same
readings give the same order on every machine.

A reading the hardware does not have is ``None``. It is not zero (which would praise a device for what it cannot
say) and not the worst (which would shut out every device without that sensor): it counts as the middle of what
it could be. So a device known to be free goes before it, and one known to be full comes after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from actorgrid.errors import BadRequest

ONE = 1_000_000
"""A whole, in the millionths that scores are counted in."""
MEMORY_WEIGHT = 600_000
COMPUTE_WEIGHT = 400_000
HEAT_PENALTY_MAX = 300_000
"""What a device just under the hot threshold loses: as much as half of its memory being in use."""
WARM_CELSIUS = 75.0
"""A GPU under full load with working fans stays below; from here on, cooling is short."""
HOT_CELSIUS = 90.0
"""About where data-centre GPUs begin to slow themselves down; new work there would only get slower."""


@dataclass(frozen=True, slots=True)
class HeatLimits:
    """Where heat begins to count, and where a device takes nothing new. Raises BadRequest unless warm < hot."""

    warm_celsius: float = WARM_CELSIUS
    hot_celsius: float = HOT_CELSIUS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.warm_celsius) and math.isfinite(self.hot_celsius)):
            raise BadRequest("a heat limit is not a number", asked=f"{self.warm_celsius} to {self.hot_celsius} °C")
        if self.warm_celsius >= self.hot_celsius:
            raise BadRequest(
                "the warm threshold is not below the hot one",
                asked=f"warm {self.warm_celsius:g} °C, hot {self.hot_celsius:g} °C",
                hint=f"for example {WARM_CELSIUS:g} and {HOT_CELSIUS:g}",
            )


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """``total`` = ``memory`` + ``compute`` - ``heat``, in millionths: -300,000 (worst) to 1,000,000 (best).

    ``unknown`` names the readings that counted as their middle; ``excluded`` says why the device may not be
    chosen at all, or is empty.
    """

    memory: int
    compute: int
    heat: int
    unknown: tuple[str, ...] = ()
    excluded: str = ""

    @property
    def total(self) -> int:
        """What devices are ranked by; higher is better."""
        return self.memory + self.compute - self.heat

    @property
    def permille(self) -> int:
        """The total in whole thousandths, 0 to 1000, as the engine's ``device_score`` policy takes it."""
        return max(0, self.total // 1000)


def score_device(
    memory_free_bytes: int | None,
    memory_total_bytes: int,
    utilization_percent: float | None,
    temperature_celsius: float | None,
    limits: HeatLimits | None = None,
) -> DeviceScore:
    """The score for these readings; ``None`` is a reading the device does not have.

    A device of 0 bytes of memory counts its memory as unknown. Readings are expected to be checked already
    (see :class:`~actorgrid.actors.gpu.telemetry_history.GpuMetrics`).
    """
    limits = limits or HeatLimits()
    unknown = []
    if memory_free_bytes is None or memory_total_bytes <= 0:
        unknown.append("memory")
        memory = MEMORY_WEIGHT // 2
    else:
        memory = MEMORY_WEIGHT * memory_free_bytes // memory_total_bytes
    if utilization_percent is None:
        unknown.append("utilization")
        compute = COMPUTE_WEIGHT // 2
    else:
        compute = COMPUTE_WEIGHT - round(COMPUTE_WEIGHT * utilization_percent / 100)
    excluded = ""
    if temperature_celsius is None:
        unknown.append("temperature")
        heat = HEAT_PENALTY_MAX // 2
    elif temperature_celsius >= limits.hot_celsius:
        heat = HEAT_PENALTY_MAX
        excluded = f"it is at {temperature_celsius:g} °C; from {limits.hot_celsius:g} °C on it takes nothing new"
    else:
        over = max(0.0, temperature_celsius - limits.warm_celsius)
        heat = round(HEAT_PENALTY_MAX * over / (limits.hot_celsius - limits.warm_celsius))
    return DeviceScore(memory, compute, heat, tuple(unknown), excluded)
