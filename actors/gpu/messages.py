"""What GPUCoordinator takes. Resources are the ``resources`` dict of a job record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckFeasible:
    """Could an empty cluster serve this? Answer: None. Raises UnknownGpuModel, TooManyGpus, RequestTooLarge."""

    resources: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Explain:
    """Why does this not fit now? Answer: the engine's ``explain()`` dict, with ``position`` for a queued job."""

    resources: dict[str, Any]
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All devices with their latest readings. Answer: list of dicts (models.GPUDevice fields)."""


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """Place and commit an allocation for a session, waiting at most ``wait_s`` for room.

    Answer: the allocation record. Raises Overloaded when no room came free in time, or as CheckFeasible.
    """

    lease_id: str
    session_id: str
    resources: dict[str, Any]
    pool: str
    env: dict[str, str] = field(default_factory=dict)
    wait_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """Placement latencies lately. Answer: {"p50_us", "p99_us", "count", "policy", "compiled"}."""
