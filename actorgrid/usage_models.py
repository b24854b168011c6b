"""What an attempt used, as answers have it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AttemptUsage(BaseModel):
    """What an attempt, or a member of a gang, used of its devices, as its host measured it; null is not known."""

    model_config = ConfigDict(extra="allow")

    held_s: float
    gpu_s: float = Field(description="GPU-seconds: a second of half a device is half of one")
    models: dict[str, float] = Field(default={}, description="the same by the devices' model")
    memory_mib_s: float | None = None
    memory_high_mib: int | None = Field(default=None, description="the most memory of one device")
    energy_j: float | None = None
    energy_estimated_s: float = Field(default=0.0, description="device-seconds of it known by power, not by a counter")
    unsampled_s: float = Field(default=0.0, description="seconds that no sample covers")
    simulated: bool = False
    unsupported: dict[str, str] = Field(default={}, description="why there is no memory or energy")
