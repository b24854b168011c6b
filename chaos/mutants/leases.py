"""Mutants of the leases of hosts: what a host or its leader counts wrong, decides too early or says too soon."""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.actors.consensus.last_contact import LastContact
from actorgrid.actors.work.host_lease import HostLease
from actorgrid.chaos.simulator.agent import Agent
from actorgrid.chaos.simulator.leader import LeaderDuties
from actorgrid.chaos.simulator.node import SimulatedHost

# -- hosts


class _FromTheAnswer(HostLease):
    def renewed(self, asked_at: float, index: int, now: float) -> None:
        super().renewed(now, index, now)


class _CountsFromTheAnswer(Agent):
    lease_class = _FromTheAnswer


class LeaseFromTheAnswer(SimulatedHost):
    """A host counts its lease from the answer, not from before it asked."""

    agent_class = _CountsFromTheAnswer


class _Impatient(Agent):
    def _stand(self, id: str, front: str) -> None:
        self._granted[id] = self._node.ledger.allocations[id]
        self._look()


class BeginsBesideTheFront(SimulatedHost):
    """A call that stands behind another is begun at once, on a place that is not free yet."""

    agent_class = _Impatient


# -- leaders


class _HeardLongAgo(LastContact):
    def of(self, nodes: Mapping[str, int], own: int, now: float) -> dict[str, float]:
        for node in nodes.values():
            self._nodes.setdefault(node, now - 60.0)
        return super().of(nodes, own, now)


class _WaitsForNobody(LeaderDuties):
    last_contact_class = _HeardLongAgo


class NoWaitAfterElection(SimulatedHost):
    """A new leader takes a host that it has not heard of yet for one that was never there."""

    leader_duties_class = _WaitsForNobody
