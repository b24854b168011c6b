"""Memory of real devices, of each vendor's: what a process asks its driver for once, and hands out by itself."""

from .cuda import CudaMemory
from .device_pool import DeviceBlock, DevicePool, DevicePoolStats
from .hip import HipMemory
from .level_zero import LevelZeroMemory
from .memory_driver import DeviceMemory
from .transfers import DeviceTransfer, transfer

__all__ = [
    "CudaMemory",
    "DeviceBlock",
    "DeviceMemory",
    "DevicePool",
    "DevicePoolStats",
    "DeviceTransfer",
    "HipMemory",
    "LevelZeroMemory",
    "transfer",
]
