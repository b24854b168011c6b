"""The ledger's record of a device, as its host registered it (``record_types`` has it, too)."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class DeviceRecord(TypedDict):
    """A device as its host registered it."""

    uuid: str
    """Its UUID, as its vendor gives it."""
    index: int
    """Its number on its host."""
    memory_mib: int
    """All of its memory, in MiB."""
    vendor: str
    """nvidia, amd, intel, or simulated."""
    model: str
    """Its model, as the vendor calls it."""
    source: str
    """What it is known from."""
    compute_capability: str | None
    """The compute capability of CUDA, as major.minor."""
    pcie_bus_id: str | None
    """Its place on the bus, as domain:bus:device.function."""
    numa_node: int | None
    """The NUMA node that it is nearest to."""
    unfit: NotRequired[str]
    """Why it gets nothing new."""
    parent: NotRequired[str]
    """Of a MIG instance: the UUID of the whole device. Never are both given out."""
    share_milli: NotRequired[int]
    """Of a MIG instance: how much it is of a whole device, in thousandths; missing: all of one."""
    cut: NotRequired[bool]
    """Whether it is cut into instances, or put together, or about to be: nothing of it is given out."""
    profiles: NotRequired[list[str]]
    """The instances that its host cuts it into when work asks for one; of an instance: its GPU, once that is free."""
    whole_mib: NotRequired[int]
    """Of an instance that is there for work alone: the MiB of its GPU, which is whole again when nobody has it."""
    mps: NotRequired[bool]
    """Whether MPS holds the shares of it, all that there are and those to come: its host says it."""
    dmem: NotRequired[bool]
    """Whether its host has the kernel hold work to its ``gpu_memory`` of it; missing: nobody says so."""
    watched: NotRequired[bool]
    """Whether its host ends work that has more of its memory than it was granted; missing: nobody says so."""
    near: NotRequired[str]
    """How close it is to the host's others: at place i a digit for the one with index i, 1 to 5 as ``device_words`` has
    the words, 0 for none of them; missing: to none."""
