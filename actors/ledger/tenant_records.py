"""What the ledger keeps of tenants: what each is given, and what it has held of late; and what of an allocation counts.

Amounts are by resource: ``gpu`` (devices of any model, thousandths), ``gpu:MODEL`` (those of one), ``gpu_memory`` (MiB;
a whole device is all of its memory), ``cpu`` (thousandths) and ``memory`` (MiB).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypedDict

from .device_records import DeviceRecord

GPU, GPU_MEMORY, CPU, MEMORY = "gpu", "gpu_memory", "cpu", "memory"
OF_MODEL: Final = "gpu:"
"""With the name of a model behind it; in what is counted, with its memory too."""
JOBS_WAITING, WAITING_BYTES = "jobs_waiting", "waiting_bytes"
"""What limits may name beside resources."""
WHOLE_MILLI: Final = 1000
_WORD = re.compile(r"[a-z0-9]+")


class TenantRecord(TypedDict):
    """A tenant as the ledger keeps it."""

    tenant: str
    """Its name."""
    weight_milli: int
    """Its weight beside others, in thousandths."""
    guarantee: dict[str, int]
    """The amounts that it has whenever it wants them."""
    limits: dict[str, int]
    """The most that it may hold, and have waiting."""
    made_at: float
    """When it was created."""
    removed_at: float | None
    """When it was removed: nothing of it starts any more."""


class TenantUseRecord(TypedDict):
    """What a tenant has held of late: a mean that forgets half in a week."""

    tenant: str
    """Its name."""
    at: float
    """The time at which the means were so."""
    means: dict[str, int]
    """By resource, in parts of 2**-20 of its unit."""


class TenantUsage(TypedDict):
    """A tenant, what it holds and has waiting: a row to show."""

    tenant: str
    """Its name."""
    record: TenantRecord | None
    """What it is given; none: it was never created."""
    used: dict[str, int]
    """The amounts that it holds."""
    of_late: dict[str, int]
    """The means of what it held of late, in whole units."""
    jobs_waiting: int
    """How many of its jobs wait."""
    waiting_bytes: int
    """How many bytes they take."""


def charge_of(
    cpu_milli: int, memory_mib: int, gpu_milli: int, gpu_memory_mib: int, devices: Iterable[DeviceRecord]
) -> dict[str, int]:
    """The amounts that one member takes which has that much of each of *devices*."""
    found = {CPU: cpu_milli, MEMORY: memory_mib}
    for device in devices:
        name = f"{OF_MODEL}{device.get('model', '')} {round(device['memory_mib'] / 1024)}gb"
        found[GPU] = found.get(GPU, 0) + gpu_milli
        found[name] = found.get(name, 0) + gpu_milli
        memory = device["memory_mib"] if gpu_milli >= WHOLE_MILLI else 0
        found[GPU_MEMORY] = found.get(GPU_MEMORY, 0) + max(memory, gpu_memory_mib)
    return {name: amount for name, amount in found.items() if amount}


def amount_under(name: str, amounts: Mapping[str, int]) -> int:
    """The part of *amounts* that a limit called *name* counts: of a model that of all that answer to its name."""
    if not name.startswith(OF_MODEL):
        return amounts.get(name, 0)
    asked = _words(name)
    return sum(amount for each, amount in amounts.items() if each.startswith(OF_MODEL) and asked <= _words(each))


def _words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name[len(OF_MODEL) :].lower()))
