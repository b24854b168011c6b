"""What a host does while it leads: a new term for the ledger, grants by the real CoordinatorCore, ends of lock leases.

Grants travel like any client's commands, again and again until they are answered: one that was decided under a
leadership may arrive under the next, as in a live cluster, and it is the ledger's guard that must refuse it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from actorgrid.actors.consensus.commands import expire_lock
from actorgrid.actors.consensus.lock_expiry import LockExpiry
from actorgrid.actors.consensus.outcome import Outcome
from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.gpu.grant import Grant
from actorgrid.models import JobState

from .asking import Asker, Told

if TYPE_CHECKING:
    from .node import Node

GRANTS_AT_ONCE = 8
EXPIRIES_AT_ONCE = 4
QUEUE_MAX = 1_000
POLICY = "best_fit"


class Leading:
    """One leadership, from the first own entry applied: from there on the ledger knows the term.

    What is proposed and not yet answered stays reserved, at most 8 grants.
    """

    def __init__(self, node: Node, term: int) -> None:
        self._node = node
        self.term = term
        ledger = node.ledger
        self._core = CoordinatorCore(node.host_id, node.boots, POLICY, QUEUE_MAX, lambda: 0)
        self._jobs = {id: job for id, job in ledger.jobs.items() if not JobState(job["state"]).final}
        self._allocations = dict(ledger.allocations)
        self._locks = LockExpiry()
        self._locks.lead(ledger.locks, node.monotonic)
        self._core.load(self._jobs, self._allocations, dict(ledger.hosts), node.now, dict(ledger.quotas.records))
        self._asker = Asker(node.world, f"{node.name}/lead{node.boots}.{term}", node.hosts, node.dice)

    def tick(self) -> None:
        """Time passes: end leases of locks, schedule what has come due."""
        for name, owner, renewals in self._locks.due(self._node.monotonic)[:EXPIRIES_AT_ONCE]:
            command = expire_lock(name, owner, renewals, self.term, self._node.now)
            self._asker.write(command, lambda told: None)
        wake = self._core.next_wakeup
        if wake is not None and wake <= self._node.now:
            self._schedule()

    def host_down(self) -> None:
        """Power off."""
        self._asker.stop()

    def outcome(self, outcome: Outcome) -> None:
        """An entry was applied on this host."""
        for kind, id, record in outcome.changes:
            if kind == "lock":
                self._locks.changed(id, record, self._node.monotonic)
            else:
                self._mirror(kind, id, record)
        self._core.changed(outcome.changes, self._node.now)

    def applied(self) -> None:
        """All that was committed together is applied: decide."""
        self._schedule()

    def _mirror(self, kind: str, id: str, record: Any) -> None:
        if kind == "job":
            if record is None or JobState(record["state"]).final:
                self._jobs.pop(id, None)
            else:
                self._jobs[id] = record
        elif kind == "allocation":
            if record is None:
                self._allocations.pop(id, None)
            else:
                self._allocations[id] = record

    def _schedule(self) -> None:
        room = GRANTS_AT_ONCE - len(self._core.in_flight)
        if room <= 0:
            return
        node = self._node
        for grant in self._core.schedule(node.now, room):
            command = {"v": 1, "at": node.now, **grant.command(self.term)}
            self._asker.write(command, partial(self._answered, grant))

    def _answered(self, grant: Grant, told: Told) -> None:
        if told.error is not None:
            self._core.refused(grant, self._node.now)
        elif self._node.ledger.index >= told.index:
            self._core.committed(grant, self._node.now)
        # Else the change is still to come, and takes the grant out of flight.
