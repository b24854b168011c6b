"""What stands in the queue: what a job or lease asks for, as the ledger says it, and the priorities that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_PRIORITY = 50
LEASE_PRIORITY = 101
"""A client waits for a lease with its eyes open, so leases go before jobs of any priority."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attempt or lease needs, each member of a *gang* so much; jobs of one shape fit or do not fit together."""

    gpu_count: int
    gpu_milli: int
    gpu_memory_mib: int
    gpu_models: tuple[str, ...]
    gpu_affinity: tuple[str, ...]
    cpu_milli: int
    memory_mib: int
    gang: int = 1
    spread: bool = False

    @classmethod
    def of(cls, resources: Mapping[str, Any]) -> Shape:
        """The shape of a job record's ``resources``; without GPUs, what else is said of them is dropped."""
        count = int(resources.get("gpu_count", 0))
        return cls(
            gpu_count=count,
            gpu_milli=int(resources.get("gpu_milli", 0)) if count else 0,
            gpu_memory_mib=int(resources.get("gpu_memory_mib", 0)) if count else 0,
            gpu_models=tuple(sorted(resources.get("gpu_models", ()))) if count else (),
            gpu_affinity=tuple(sorted(resources.get("gpu_affinity", ()))) if count else (),
            cpu_milli=int(resources.get("cpu_milli", 0)),
            memory_mib=int(resources.get("memory_mib", 0)),
            gang=int(resources.get("gang", 1)),
            spread=bool(resources.get("spread", False)),
        )
