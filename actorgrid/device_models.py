"""What requests say of the devices that they want, beside how many."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .device_words import MIG_PROFILE_PATTERN

GpuProfile = Annotated[
    str,
    Field(pattern=MIG_PROFILE_PATTERN, description="one MIG instance of this profile, as 3g.40gb, in place of gpus"),
]
GpuTopology = Annotated[
    Literal["", "nvlink", "pix", "pxb", "phb", "node"],
    Field(description="how close every two of its GPUs are to be, in nvidia-smi's words; empty: however they lie"),
]


def check_topology(topology: str, gpus: float, profile: str) -> None:
    """Raise ValueError for closeness of what is no whole GPU: a share and an instance are alone."""
    if topology and (profile or 0 < gpus < 1):
        what = f"gpu_profile={profile}" if profile else f"gpus={gpus:g}"
        raise ValueError(f"gpu_topology={topology} with {what}: it is about whole GPUs, two or more of them")
