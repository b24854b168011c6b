"""Devices no library reports, counted on someone's word: configuration says they are there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from actorgrid.configs.gpus_section import DeclaredGpus

from ..device import Device
from ..readings import Readings


def declared_devices(declared: Sequence[DeclaredGpus], host_id: str, first_index: int) -> list[Device]:
    """The declared devices, with indexes from *first_index* on; the same declaration gives the same UUIDs."""
    origin = hashlib.sha256(host_id.encode()).hexdigest()[:12]
    models = [entry for entry in declared for _ in range(entry.count)]
    return [
        Device(
            uuid=f"GPU-declared-{origin}-{number:04d}",
            index=first_index + number,
            vendor=entry.vendor.value,
            model=entry.model,
            memory_mib=entry.memory // 2**20,
            source="declared",
        )
        for number, entry in enumerate(models)
    ]


def declared_readings() -> Readings:
    """Nothing: a declared device has no telemetry."""
    return Readings.none("declared device: no library reads it")
