"""What the ledger knows of the last checkpoint of a job."""

from __future__ import annotations

from typing import TypedDict


class CheckpointRecord(TypedDict):
    """The last checkpoint of a job."""

    attempt: int
    """The number of the attempt that made it."""
    number: int
    """Which of that attempt's it is, from 1."""
    size_bytes: int
    """As it is kept."""
    at: float
    """When it was entered."""
