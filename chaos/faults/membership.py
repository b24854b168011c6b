"""Changes of the members and of the leader, in the middle of everything else: no faults, but when bugs show."""

from __future__ import annotations

from random import Random

from actorgrid.actors.raft.messages import ConfChange
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.cluster import Cluster
from actorgrid.chaos.simulator.node import SimulatedHost

from .fault import Fault, set_trap

VOTERS_MIN, VOTERS_MAX = 3, 7


def some_change(cluster: Cluster, rng: Random) -> list[ConfChange]:
    """A change an operator might make: one voter more or less, a learner in or promoted, or two voters swapped."""
    config = cluster.config
    voters, learners = list(config.voters), [id for id in config.learners if id != cluster.hostile]
    strangers = [id for id in cluster.nodes if id not in (*voters, *config.learners) and cluster.nodes[id].up]
    # Hosts whose log is broken go first: voters that can never vote must not become a majority.
    leaving = [id for id in voters if cluster.nodes[id].disk.broken] or voters
    kind = rng.choice(("learn", "promote", "remove", "demote", "swap", "join"))
    which = rng.random()

    def one(ids: list[int]) -> int:
        return ids[int(which * len(ids))]

    if kind in ("learn", "join", "swap") and not strangers:
        new = cluster.add_node()
        strangers = [new.id] if new is not None else []
    if kind == "learn" and strangers:
        return [ConfChange("add_learner", one(strangers))]
    if kind == "join" and strangers and len(voters) < VOTERS_MAX:
        return [ConfChange("add_voter", one(strangers))]
    if kind == "promote" and learners and len(voters) < VOTERS_MAX:
        return [ConfChange("add_voter", one(learners))]
    if kind == "remove" and len(voters) > VOTERS_MIN:
        return [ConfChange("remove", one(leaving))]
    if kind == "demote" and len(voters) > VOTERS_MIN:
        return [ConfChange("add_learner", one(leaving))]
    if kind == "swap" and (incoming := learners or strangers):
        return [ConfChange("add_voter", one(incoming)), ConfChange("remove", one(leaving))]
    return []


class MembershipChange(Fault):
    """Whoever leads is asked for a change of the members."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Ask once."""
        changes = some_change(cluster, rng)
        return f"{changes}: {'taken' if cluster.change_members(changes) else 'not taken'}" if changes else ""


class HastyOperator(Fault):
    """For a while, every new leader is asked for a change of the members at once, and again a moment later."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Wait for leaders."""

        def change() -> None:
            cluster.change_members(some_change(cluster, rng))

        def ask(node: SimulatedHost) -> None:
            for delay_ms in (0, rng.randrange(1, 30), rng.randrange(1, 120)):
                cluster.world.clock.after(delay_ms * MS, change)

        set_trap(cluster, cluster.leader_hooks, ask, self.duration_us(rng))
        return "waits for leaders"


class Transfer(Fault):
    """The leader is asked to hand over to another member."""

    def strike(self, cluster: Cluster, rng: Random) -> str:
        """Ask once."""
        leader, which = cluster.leader, rng.random()
        if leader is None or leader.paused:
            return ""
        voters = leader.core.status().config.voters
        to = voters[int(which * len(voters))]
        leader.core.transfer_leader(to)
        leader.pump()
        return f"{leader.name} to n{to}"
