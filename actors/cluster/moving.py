"""Moves a drained host's work: asks the attempts that may be stopped to end, so that they start again elsewhere.

One that keeps checkpoints takes a last one before it goes, and its next begins with that.
"""

from __future__ import annotations

import logging
from time import time
from typing import NamedTuple

from actorgrid.actors.ledger.commands import DrainHost, PreemptAttempt
from actorgrid.actors.ledger.tables.preemption import may_ask
from actorgrid.errors import ActorGridError, NotFound
from actorgrid.supervisors.server import Server, handles

from ..ledger.client import LedgerClient
from .messages import MoveWork

PROPOSE_S = 10.0
MOVED_MAX = 256
"""Attempts of one host that are asked to move at once; the others end where they are."""


class MovedWork(NamedTuple):
    """How many attempts of a host were asked to end, and how many allocations stay until they end by themselves."""

    moved: int
    stay: int


async def move_work(ledger: LedgerClient, host_id: str, for_whom: str, log: logging.Logger) -> MovedWork:
    """Ask the preemptible attempts of a host to end, ``MOVED_MAX`` at most; for the host that leads.

    *for_whom* is what they are told they end for. One that was asked before is not counted again.
    """
    moved, stay = 0, 0
    for allocation in [each for each in ledger.allocations.values() if each["host"] == host_id]:
        job = ledger.jobs.get(allocation["owner"].get("job_id", ""))
        if job is None or not may_ask(job) or moved >= MOVED_MAX:
            stay += 1
            continue
        grace_s = float(job["grace_s"])
        ask = PreemptAttempt(allocation["allocation_id"], allocation["token"], grace_s, for_whom, ledger.term)
        try:
            await ledger.propose(ask, PROPOSE_S)
            moved += 1
        except ActorGridError as error:
            log.info("%s stays: %s", allocation["allocation_id"], error)
            stay += 1
    return MovedWork(moved, stay)


class WorkMover(Server):
    """The part of ClusterManager that moves a host's work."""

    _ledger: LedgerClient

    @handles(MoveWork)
    async def _move_work(self, request: MoveWork) -> dict[str, int]:
        host = self._ledger.hosts.get(request.host_id)
        if host is None:
            raise NotFound("no host of that id", asked=request.host_id, hint="actorgrid hosts --json has the ids")
        if not host.get("draining"):  # or our copy does not know of it yet
            await self._ledger.propose(DrainHost(request.host_id, True, request.by, at=time()), PROPOSE_S)
        for_whom = f"the drain of host {host['hostname']}, by {request.by}"
        moved, stay = await move_work(self._ledger, request.host_id, for_whom[:200], self.log)
        return {"moved": moved, "stay": stay}
