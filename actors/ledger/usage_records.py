"""What an attempt has used of its devices, as its end tells it."""

from __future__ import annotations

from typing import TypedDict


class UsageRecord(TypedDict):
    """What an attempt, or a member of a gang, held and used of its host's devices.

    Measured on its host by a clock that only goes forward. What is ``None`` is not known: ``unsupported`` says why.
    """

    held_s: float
    """Seconds from its grant to its end."""
    gpu_s: float
    """GPU-seconds: a second of half a device is half of one."""
    models: dict[str, float]
    """The same by the devices' model."""
    memory_mib_s: float | None
    """Device memory in use, summed over its devices, times seconds: MiB-seconds."""
    memory_high_mib: int | None
    """The most memory that it had of one device at a sample, in MiB."""
    energy_j: float | None
    """Its share of its devices' energy, in joules."""
    energy_estimated_s: float
    """The device-seconds of it that a reading of power was taken for, where there was no reading of a counter."""
    unsampled_s: float
    """Seconds that no sample covers: its agent was away, or nobody could read the devices."""
    simulated: bool
    """Whether a device of it is a simulated one: then nothing was used in truth."""
    unsupported: dict[str, str]
    """Why there is no ``memory`` or ``energy``, by that name."""
