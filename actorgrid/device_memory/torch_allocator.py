"""A device pool as PyTorch's allocator (``torch.cuda.memory.CUDAPluggableAllocator``)."""

from __future__ import annotations

import ctypes
from importlib import import_module

from actorgrid.errors import BadRequest, NotSupported

from .cuda import CudaMemory
from .device_pool import DevicePool
from .memory_driver import no_driver

MALLOC, FREE, RECORD_STREAM = "actorgrid_torch_malloc", "actorgrid_torch_free", "actorgrid_torch_record_stream"


def use_in_torch(size_bytes: int, device: int = 0) -> DevicePool:
    """Have PyTorch take all its memory of CUDA device *device* from a pool of *size_bytes*, which is returned.

    Once in a process, before its first tensor on a GPU: PyTorch changes its allocator only as long as that was not
    used. A request that the pool cannot serve is a RuntimeError whose text has the reason. Raises BadRequest,
    NoDeviceDriver, NotSupported (the entry is not compiled, or PyTorch is too old), OutOfDeviceMemory.
    """
    try:
        import torch
    except ImportError as error:
        raise no_driver("NVIDIA", f"{error}", "pip install torch") from error
    try:
        torch_entry = import_module(f"{__package__}.torch_entry")
    except ImportError as error:
        hint = "install actorgrid where there is a C++ compiler, or as a wheel"
        raise NotSupported("PyTorch's way into the pool is not compiled", found=str(error), hint=hint) from error
    if torch_entry.is_open():
        hint = "one pool serves all of a process; make it larger"
        raise BadRequest("PyTorch takes its memory from a pool here already", asked=f"{size_bytes} bytes", hint=hint)
    pool = DevicePool(CudaMemory(device), size_bytes, account=torch_entry.SharedAccount)
    try:
        allocator = torch.cuda.memory.CUDAPluggableAllocator(torch_entry.__file__, MALLOC, FREE)
        library = ctypes.CDLL(torch_entry.__file__)
        address = ctypes.cast(getattr(library, RECORD_STREAM), ctypes.c_void_p).value
        allocator.allocator().set_record_stream_fn(address)
        torch.cuda.memory.change_current_allocator(allocator)
    except AttributeError as error:
        pool.close()
        raise NotSupported("this PyTorch takes no allocator", found=str(error), hint="PyTorch 2.1 does") from error
    except RuntimeError as error:
        pool.close()
        raise BadRequest(
            "PyTorch has an allocator already that is in use", found=str(error), hint="call this first in the process"
        ) from error
    torch_entry.connect(pool, pool._account, pool._base, device)
    return pool
