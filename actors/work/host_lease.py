"""Whether this host may start something, and how long what runs here may go on: decisions only.

The lease is a read that the cluster's leader confirmed with a majority, and it counts from before the read was asked.
docs/leases.md says why no two attempts of a job ever run at once then.
"""

from __future__ import annotations

import math

LEASE_MAX_S = 3.0
"""A host without renewal for so long starts nothing. The leader relies on it (``cluster/host_leases.py``)."""


class HostLease:
    """The lease of this host. Times are of its CLOCK_BOOTTIME. There is no lease before the first ``renewed``.

    A lease that ran out, if only for a moment, is not simply taken up again: what the leader decided meanwhile may
    not have reached this host. Only when the host has said in the ledger that it is there, after the lease came back,
    does it start something (``resumed_index``).
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = min(lease_s, LEASE_MAX_S)
        self.renewed_at: float | None = None
        self.resumed_index = 0
        self.lapses = 0

    def renewed(self, asked_at: float, index: int, now: float) -> None:
        """A read asked at *asked_at* was confirmed; this host's ledger is at *index* or further."""
        if not self.valid(now):
            self.lapses += self.renewed_at is not None
            self.resumed_index = index
        self.renewed_at = asked_at if self.renewed_at is None else max(self.renewed_at, asked_at)

    def valid(self, now: float, max_isolation_s: float = math.inf) -> bool:
        """Whether this host may start something, as far as time goes.

        Of little patience, nothing is started that would have to go before the lease is renewed again.
        """
        return self.renewed_at is not None and now < self.renewed_at + min(self.lease_s, max_isolation_s / 2)

    def confirmed(self, seen_index: int) -> bool:
        """Whether the host has said that it is there since its lease began or came back; *seen_index*: where it did."""
        return seen_index > self.resumed_index

    def deadline(self, max_isolation_s: float) -> float:
        """The time by which work that may go on alone for *isolation_s* has to be gone. There must be a lease."""
        assert self.renewed_at is not None, "nothing is started before there was a lease"
        return self.renewed_at + max_isolation_s
