"""Whether a job is over, and which attempt decided it: the last, but for a success heard of late (docs/leases.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "lost"})
"""The states of a job that never change again."""


def decided_by(job: Mapping[str, Any]) -> int:
    """The number of the attempt whose outcome is that of *job*, or will be: ``taken``, or the latest; 0 before any."""
    attempts, taken = job.get("attempts") or (), job.get("taken")
    return int(taken if taken is not None else attempts[-1]["number"] if attempts else 0)


def deciding_attempt(job: Mapping[str, Any]) -> dict[str, Any]:
    """The attempt of ``decided_by``, whose output and result are the job's; an empty record when there is none."""
    number = decided_by(job)
    return next((each for each in reversed(job.get("attempts") or ()) if each["number"] == number), {})
