"""Which leases' workers are kept apart from the start, as work of their user's own uid, and which cannot be."""

from __future__ import annotations

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.record_types import AllocationRecord
from actorgrid.errors import DiskFull, IsolationNotGiven, WorkerLost
from actorgrid.supervisors.server import Server

from .isolation.host import WorkIsolation

AGAIN_S = 0.5


class LeaseLevels:
    """Of one host. What it holds goes with each lease."""

    def __init__(self, server: Server, ledger: LedgerClient, isolation: WorkIsolation) -> None:
        self._server, self._ledger, self._isolation = server, ledger, isolation
        self._users: dict[int, str] = {}
        self._asked: set[str] = set()
        self.refused: dict[str, IsolationNotGiven | DiskFull] = {}
        """By lease, why its worker cannot be had as it is to be."""

    def is_open(self, allocation: AllocationRecord) -> bool:
        """Whether it has to be asked (``uid_of``) which uid the workers of that lease have; else it is the agent's."""
        return self._isolation.may_be_full(allocation["user_id"])

    def ask(self, lease_id: str) -> bool:
        """Whether nobody has asked for that lease before."""
        is_new = lease_id not in self._asked
        self._asked.add(lease_id)
        return is_new

    async def uid_of(self, allocation: AllocationRecord) -> int | None:
        """The uid of the lease's worker; 0: the agent's. ``None`` where there is none: it was released, or is refused.

        Waits while what tries that out starts anew.
        """
        lease_id, user = allocation["allocation_id"], allocation["user_id"]
        while lease_id in self._ledger.allocations:
            try:
                uid = await self._isolation.uid_of_worker(user)
            except (IsolationNotGiven, DiskFull) as error:
                self._server.log.warning("no worker for lease %s: %s", lease_id, error)
                self.refused[lease_id] = error
                return None
            except WorkerLost:
                await self._server.sleep(AGAIN_S)
                continue
            if uid:
                self._users[uid] = user
            return uid if lease_id in self._ledger.allocations else None
        return None

    def user_of(self, uid: int) -> str:
        """Whose uid that is, which ``uid_of`` gave."""
        return self._users[uid]

    def forget(self, lease_id: str) -> None:
        """The lease is over."""
        self._asked.discard(lease_id)
        self.refused.pop(lease_id, None)
