"""The answers of the ledger that are no records: about locks and quotas."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from .record_types import QuotaRecord


class HoldAnswer(TypedDict):
    """What an owner is told of a lock that it asked for or renewed."""

    held: bool
    """Whether it holds the lock now."""
    token: list[int] | None
    """Its fencing token, once it does."""
    position: int
    """Its place among those who wait, from 1; 0 of one who holds it."""
    slots: int
    """How many may hold it."""
    ttl_s: float
    """How long it is held without a sign of life."""
    renewals: int
    """Signs of life so far."""
    request: NotRequired[list[Any]]
    """As in ``LockEntry``."""


class ReleaseAnswer(TypedDict):
    """What is told to who gives a lock back, or leaves its line."""

    released: bool
    """Whether it held the lock or waited until now."""


class QuotaUseRecord(TypedDict):
    """What the quota of a user is, and how much of it is in use."""

    user: str
    """Whose."""
    limits: QuotaRecord | None
    """``None``: not limited."""
    default: bool
    """They are everyone's."""
    used: dict[str, int]
    """What the user's allocations hold, and the jobs that wait, by limit."""
