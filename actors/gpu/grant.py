"""A placement that is decided and still has to be committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..scheduling.queue import Shape
from .messages import AcquireLease

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Grant:
    """A decision to be committed; ``id`` is the allocation's. *number* is an attempt's, *lease* a lease's request.

    *user_id* is whose quota it counts for.
    """

    id: str
    host: str
    incarnation: int
    gpu_indexes: tuple[int, ...]
    latency_us: float
    shape: Shape
    job_id: str = ""
    number: int = 0
    lease: AcquireLease | None = None
    user_id: str = ""

    def command(self, term: int) -> Record:
        """The ledger's command for it."""
        common: Record = {
            "host": self.host,
            "incarnation": self.incarnation,
            "gpu_indexes": list(self.gpu_indexes),
            "term": term,
        }
        if self.lease is None:
            return {
                "type": "grant_attempt",
                "job_id": self.job_id,
                "number": self.number,
                "placement_latency_us": self.latency_us,
                **common,
            }
        return {
            "type": "grant_lease",
            "lease_id": self.id,
            "session_id": self.lease.session_id,
            "resources": self.lease.resources,
            "pool": self.lease.pool,
            "env": self.lease.env,
            "user_id": self.user_id,
            **common,
        }
