"""A cluster of simulated hosts, and what an operator does to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from actorgrid.actors.ledger.commands import EndAttempt, RegisterHost
from actorgrid.actors.ledger.record_types import AllocationRecord, HostFacts
from actorgrid.actors.raft.messages import ConfChange, ConfState, Dropped, HardState, RaftSnapshot

from .clock import MS
from .hostile_learner import HostileLearner, IdleAgent, IdleModelGateway
from .node import SimulatedHost
from .requests import Requester
from .service_duties import unsettled
from .world import World

Trap = Callable[[SimulatedHost], None]
"""Springs for the host that did what it waits for: began to lead, voted, committed as a leader, asked for its lease, or
was given up by the leader."""

NODES_MAX = 12
OPERATOR_US = 250 * MS
ALONE_US = 2_000 * MS
"""For a host that joined to be led, before the operator tells it anew who votes."""
ENDS_AT_ONCE = 32
SHORT_LEASE_S = 10.0
"""A lock of a shorter lease must be free before a cluster counts as recovered: nobody renews it any more."""


def _voters(config: ConfState) -> frozenset[int]:
    return frozenset((*config.voters, *config.voters_outgoing))


class Cluster:
    """The hosts of a run by id, from 1. Founding members start with one empty snapshot, so that whoever joins later
    is sent one, too. *hostile*: one more learner, in the wrong hands (hostile_learner.py)."""

    def __init__(
        self, world: World, node_class: type[SimulatedHost], voters: int, learners: int = 0, hostile: bool = False
    ) -> None:
        self.world = world
        self.nodes: dict[int, SimulatedHost] = {}
        self.leader_hooks: list[Trap] = []
        self.vote_hooks: list[Trap] = []
        self.commit_hooks: list[Trap] = []
        self.lease_hooks: list[Trap] = []
        self.loss_hooks: list[Trap] = []
        self._node_class = node_class
        founders = tuple(range(1, voters + learners + hostile + 1))
        self.hostile = founders[-1] if hostile else None
        """Its id; the operator makes it no voter, and takes it off in the calm."""
        world.hostile = f"n{self.hostile}" if hostile else ""
        state = node_class.ledger_class()
        state.pass_over(1, 1)
        self._founding = RaftSnapshot(1, 1, ConfState(founders[:voters], founders[voters:]), state.snapshot())
        self._operator = Requester(world, "operator", self.ids, world.rng("operator"))
        self._retired: set[int] = set()
        self._rng = world.rng("statements")
        self._calm_since_us = 0
        world.on_leader = lambda id: self._spring(self.leader_hooks, id)
        world.on_vote = lambda id: self._spring(self.vote_hooks, id)
        world.on_commit = lambda id: self._spring(self.commit_hooks, id)
        world.on_lease = lambda id: self._spring(self.lease_hooks, id)
        world.on_loss = lambda id: self._spring(self.loss_hooks, id)
        for id in founders:
            self._add(id, self._founding)
        if self.hostile is not None:
            own = self.nodes[self.hostile]
            own.agent_class, own.model_gateway_class = IdleAgent, IdleModelGateway  # type: ignore[misc]  # of this one
        for node in self.nodes.values():
            node.disk.write([HardState(1, 0, 1)])
            node.disk.sync()
            node.boot()
        if self.hostile is not None:
            HostileLearner(self, self.nodes[self.hostile])

    def ids(self) -> list[int]:
        """The ids of all hosts that anybody might ask."""
        return [id for id in self.nodes if id not in self._retired and id != self.hostile]

    @property
    def up(self) -> list[SimulatedHost]:
        """The hosts that run."""
        return [node for node in self.nodes.values() if node.up]

    @property
    def leader(self) -> SimulatedHost | None:
        """The host that believes to lead in the highest term; None while none does."""
        leaders = [node for node in self.up if node.leads]
        return max(leaders, key=lambda node: node.term) if leaders else None

    @property
    def config(self) -> ConfState:
        """The members as the host knows them that has applied most; at first, the founders."""
        best = self._furthest
        return self._founding.conf_state if best is None or not best.ledger.index else best.core.status().config

    @property
    def _furthest(self) -> SimulatedHost | None:
        """The host that has applied most; None when all are down."""
        return max(self.up, key=lambda node: node.ledger.index, default=None)

    def add_node(self) -> SimulatedHost | None:
        """A new host with an empty disk, which nobody knows yet; None at the bound of 12."""
        if len(self.nodes) >= NODES_MAX:
            return None
        node = self._add(max(self.nodes) + 1, None)
        # By any voter, which may lag (docs/decisions/0096); while none is up nobody joins, but hosts are made.
        up = [each for each in self.up if each.id in _voters(each.core.status().config)]
        if up:
            says = self._rng.choice(up)
            node.tell(_voters(says.core.status().config), says.ledger.index)
        else:
            node.tell(_voters(self.config), 1)
        node.boot()
        return node

    def change_members(self, changes: list[ConfChange]) -> bool:
        """Propose to whoever leads; ``False`` when that is nobody, or it does not take it."""
        leader = self.leader
        if leader is None or leader.paused:
            return False
        answer = leader.core.propose_conf_change(tuple(changes))
        self.world.trace.add(leader.name, f"asked to change members: {changes}: {answer}")
        leader.pump()
        return not isinstance(answer, Dropped)

    # -- the operator

    def calm(self) -> None:
        """No faults from here on: what stopped starts, and an operator mends what does not by itself."""
        self.world.trace.add("operator", "calm: no more faults")
        for hooks in (self.leader_hooks, self.vote_hooks, self.commit_hooks, self.lease_hooks, self.loss_hooks):
            hooks.clear()
        self.world.faults_strike = False
        self.world.network.calm()
        self._calm_since_us = self.world.now_us
        for node in self.nodes.values():
            node.rate, node.skew_us = 1.0, 0
            node.disk.full, node.disk.sync_fails, node.disk.slow = False, False, 1.0
            if node.paused:
                node.resume()
            if not node.up:
                node.boot()
        self._mend()

    def _mend(self) -> None:
        """Every quarter of a second: replace voters whose log is broken, take hosts that are no members off."""
        config = self.config
        members = {*config.voters, *config.voters_outgoing, *config.learners, *config.learners_next}
        broken = next((id for id in sorted(members) if self._hopeless(self.nodes[id])), None)
        if config.voters_outgoing:
            self.change_members([])
        elif broken is not None:
            changes = [ConfChange("remove", broken)]
            spare = next((id for id in self.nodes if id not in members and self.nodes[id].up and self._empty(id)), None)
            if spare is None and broken != self.hostile and (new := self.add_node()) is not None:
                spare = new.id
            if spare is not None and broken != self.hostile:
                changes.append(ConfChange("add_voter" if broken in config.voters else "add_learner", spare))
            self.change_members(changes)
        # As one that none of those it was told of answers any more joins again, by a token: not before it had time.
        if self.world.now_us - self._calm_since_us > ALONE_US:
            for id in sorted(members):
                if self._empty(id) and self.nodes[id].up and not self.nodes[id].leader:
                    self.nodes[id].tell(_voters(config), 1)
        leader = self.leader
        settled = leader is not None and leader.ledger.index == leader.durable.last_index
        for id, node in self.nodes.items():
            if id in members and id in self._retired:  # a change that came late brought it in again
                self._retired.discard(id)
                node.boot()
            elif settled and id not in members and id not in self._retired and not self._empty(id):
                self._retire(node)
        self.world.clock.after(OPERATOR_US, self._mend)

    def _hopeless(self, node: SimulatedHost) -> bool:
        """Whether the host can never take part again as it is."""
        if node.id == self.hostile:
            return True
        return node.disk.broken and not node.up

    def _empty(self, id: int) -> bool:
        """Whether the host never was a member."""
        image = self.nodes[id].durable
        return image.snapshot is None and not image.entries

    def _retire(self, node: SimulatedHost) -> None:
        """Stop a host for good, and have its attempts, which ended with it, told to the ledger."""
        self._retired.add(node.id)
        node.crash("retired")
        self._bury(node)

    def _bury(self, node: SimulatedHost) -> None:
        """Tell the ledger that the host is down, again when a late word of its own says otherwise; end its attempts."""
        if node.id not in self._retired:
            return
        self.world.clock.after(OPERATOR_US, lambda: self._bury(node))
        best = self._furthest
        known = None if best is None else best.ledger.hosts.get(node.host_id)
        if best is None or known is None or not self._operator.idle:
            return
        if known["state"] == "up":
            host = {key: known[key] for key in ("host_id", "incarnation", "cpu_milli", "memory_mib", "devices")}
            down = cast("HostFacts", {**host, "state": "down"})
            self._operator.write(RegisterHost(down, at=best.now), lambda told: None)
            return
        held = [item for item in best.ledger.allocations.items() if item[1]["host"] == node.host_id]
        for id, record in held[:ENDS_AT_ONCE]:
            self._end(id, record, best.now)

    def _end(self, id: str, record: AllocationRecord, at: float) -> None:
        self._operator.write(EndAttempt(id, list(record["token"]), "lost", at=at, charge=False), lambda told: None)

    # -- has it recovered

    def unrecovered(self) -> str:
        """What is still amiss, or nothing: members agree, nothing waits, every job and short lease ended, services have
        the replicas that they are to have."""
        leader = self.leader
        if leader is None:
            return "nobody leads"
        config = leader.core.status().config
        if config.voters_outgoing:
            return "the members are still changing"
        if self.hostile in (*config.voters, *config.learners):
            return "the hostile learner is a member"
        for id in (*config.voters, *config.learners):
            node = self.nodes[id]
            if not node.up:
                return f"{node.name} is a member and down: {node.why_down}"
            if node.ledger.index != leader.ledger.index or node.durable.last_index != leader.durable.last_index:
                return f"{node.name} has applied {node.ledger.index}, the leader {leader.ledger.index}"
            if not node.agent.idle:
                return f"{node.name}'s agent is busy"
            if not node.gateway.idle:
                return f"{node.name} owes reads their answers"
            if held := node.model_gateway.held:
                return f"the gateway of {node.name} holds requests for {', '.join(held)}"
        if leader.ledger.index != leader.durable.last_index:
            return f"the leader has applied {leader.ledger.index} of {leader.durable.last_index}"
        if not self._operator.idle:
            return "the operator waits"
        for id in (*config.voters, *config.learners):
            state = leader.ledger.hosts[self.nodes[id].host_id]["state"]
            if state == "lost":
                return f"host{id} is {state}"
        left = [name for name, lock in leader.ledger.locks.items() if lock["holders"][0]["ttl_s"] < SHORT_LEASE_S]
        if left:
            return f"the lease of lock {left[0]} does not run out"
        live = ((id, job) for id, job in leader.ledger.jobs.items() if job["state"] in ("queued", "placed", "running"))
        waiting = [id for id, job in live if "service" not in job]
        if waiting:
            return f"job {waiting[0]} is {leader.ledger.jobs[waiting[0]]['state']}"
        return unsettled(leader.ledger.services)

    def members(self) -> list[SimulatedHost]:
        """The voters and learners, as the leader knows them."""
        config = self.config
        return [self.nodes[id] for id in (*config.voters, *config.learners)]

    def _spring(self, hooks: list[Trap], id: int) -> None:
        """Spring the traps that wait for what a host did, or for what was decided about it."""
        for hook in list(hooks):
            hook(self.nodes[id])

    def _add(self, id: int, founding: RaftSnapshot | None) -> SimulatedHost:
        node = self._node_class(self.world, id, self.ids, founding)
        self.nodes[id] = self.world.hosts[id] = node
        return node
