"""A placement that is decided and still has to be committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.actors.ledger.commands import GrantAttempt, GrantGang, GrantLease
from actorgrid.demand import Demand
from actorgrid.hotpath.records import Shares

from .messages import AcquireLease

Record = dict[str, Any]
PORTS = (29_500, 29_999)
"""Where the members of gangs meet when the host's settings do not say."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A decision to be committed; ``id`` is the allocation's, or the attempt's of a gang, whose *shares* are by rank.

    *incarnations* are those of the hosts, by share. *number* is an attempt's, *lease* a lease's request; *user_id* is
    whose quota it counts for.
    """

    id: str
    shares: Shares
    incarnations: tuple[int, ...]
    latency_us: float
    demand: Demand
    job_id: str = ""
    number: int = 0
    lease: AcquireLease | None = None
    user_id: str = ""

    @property
    def host(self) -> str:
        """Where it is, or its first member."""
        return self.shares[0][0]

    def command(self, term: int, ports: tuple[int, int] = PORTS) -> GrantAttempt | GrantGang | GrantLease:
        """The ledger's command for it; *ports* are the first and the last at which the members of a gang may meet."""
        places: list[Record] = [
            {"host": host, "incarnation": incarnation, "gpu_indexes": list(indexes)}
            for (host, indexes), incarnation in zip(self.shares, self.incarnations, strict=True)
        ]
        if self.lease is None:
            if self.demand.gang > 1:
                return GrantGang(self.job_id, self.number, places, list(ports), term, self.latency_us)
            return GrantAttempt(self.job_id, self.number, **places[0], term=term, placement_latency_us=self.latency_us)
        return GrantLease(
            self.id,
            self.lease.session_id,
            **places[0],
            resources=self.lease.resources,
            term=term,
            pool=self.lease.pool,
            env=self.lease.env,
            user_id=self.user_id,
        )
