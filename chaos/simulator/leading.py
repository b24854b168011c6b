"""What a host does while it leads: a new term for the ledger, then grants, decided by the real CoordinatorCore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorgrid.actors.consensus.commands import encode_entry, new_term
from actorgrid.actors.consensus.ledger import Outcome
from actorgrid.actors.consensus.raft.messages import Dropped, Entry
from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.gpu.grant import Grant
from actorgrid.models import JobState

if TYPE_CHECKING:
    from .node import Node

GRANTS_AT_ONCE = 8
QUEUE_MAX = 1_000
POLICY = "best_fit"


class Leading:
    """One leadership, from the first own entry applied. Nothing is granted before the ledger knows the term.

    What is proposed and not yet applied stays reserved, as in a live cluster; at the end of the leadership all of it
    is forgotten, and whatever of it commits later is for the ledger's guard to judge.
    """

    def __init__(self, node: Node, term: int) -> None:
        self._node = node
        self.term = term
        self._core: CoordinatorCore | None = None
        self._jobs: dict[str, dict[str, Any]] = {}
        self._allocations: dict[str, dict[str, Any]] = {}
        self._grants: dict[str, Grant] = {}
        self._number = 0
        self._asked_for_term = False
        self._name = f"{node.name}-lead-{node.boots}-{term}"

    def tick(self) -> None:
        """Time passes: ask for the term until it is there, schedule what has come due."""
        if self._core is None:
            if not self._asked_for_term:
                self._asked_for_term = self._propose(new_term(self.term, self._node.now)) is not None
            return
        wake = self._core.next_wakeup
        if wake is not None and wake <= self._node.now:
            self._schedule()

    def outcome(self, entry: Entry, session: str, outcome: Outcome) -> None:
        """An entry was applied on this host."""
        now = self._node.now
        if self._core is None:
            if self._node.ledger.term == self.term:
                self._begin()
            return
        for kind, id, record in outcome.changes:
            self._mirror(kind, id, record)
        self._core.changed(outcome.changes, now)
        grant = self._grants.pop(session, None) if session else None
        if grant is not None:
            if outcome.error is not None:
                self._core.refused(grant, now)
            else:
                self._core.committed(grant, now)

    def applied(self) -> None:
        """All that was committed together is applied: decide."""
        if self._core is not None:
            self._schedule()

    def _begin(self) -> None:
        node = self._node
        ledger = node.ledger
        self._core = CoordinatorCore(node.host_id, node.boots, POLICY, QUEUE_MAX, lambda: 0)
        self._jobs = {id: job for id, job in ledger.jobs.items() if not JobState(job["state"]).final}
        self._allocations = dict(ledger.allocations)
        self._core.load(self._jobs, self._allocations, dict(ledger.hosts), node.now)

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
        assert self._core is not None, "scheduling before the term began"
        room = GRANTS_AT_ONCE - len(self._core.in_flight)
        if room <= 0:
            return
        node = self._node
        for grant in self._core.schedule(node.now, room):
            command = {"v": 1, "at": node.now, **grant.command(self.term)}
            session = self._propose(command)
            if session is None:
                self._core.refused(grant, node.now)
            else:
                self._grants[session] = grant

    def _propose(self, command: dict[str, Any]) -> str | None:
        """The session the proposal goes by, or None when the core does not take it now."""
        self._number += 1
        session = f"{self._name}-{self._number}"
        answer = self._node.core.propose(encode_entry(command, session, 1))
        return None if isinstance(answer, Dropped) else session
