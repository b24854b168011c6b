"""Hosts of one process that run the real membership server: each its node, its UDP socket and its own clock.

The ledger is the real state machine, one for all of them; what Consensus and Links do between hosts is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from actorgrid.actors.host.context import HostContext
from actorgrid.actors.host.enrolment import Enrolment, listens
from actorgrid.actors.ledger.command import VERSION, Command, read_command
from actorgrid.actors.ledger.commands import AddMember, ChangeMember, FoundCluster, NewTerm, RegisterHost, RemoveMember
from actorgrid.actors.ledger.messages import Applied, Propose, Proposed, Query, Subscribe
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.links.messages import AskHost, AskHosts, CastPackets
from actorgrid.actors.membership import actor as membership_actor
from actorgrid.actors.membership.actor import Membership
from actorgrid.actors.membership.messages import StateCame
from actorgrid.actors.membership.profiles import PROFILES
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import HostUnreachable
from actorgrid.supervisors.envelope import Envelope
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles
from tests.consensus.rig import AT, host_record
from tests.system.cluster_host import free_base_port

# In a hurry. Whoever is late on a busy machine is forgiven, and suspected members refute.
QUICK = replace(
    PROFILES["lan"], probe_interval_s=0.1, probe_timeout_s=0.05, probe_timeout_min_s=0.02, gossip_interval_s=0.02,
    stall_s=0.1, reconnect_s=0.2, suspicion_multiplier=2.0,
)  # fmt: skip
PATIENCE_S = 120.0
"""Only a hang comes to its end."""


class Consensus(Server):
    """One host's door to the ledger that all hosts here share."""

    name = "consensus"

    def start(self) -> None:
        self.town: Town = self.host.town
        self.subscribers: list[str] = []
        self.told = 0
        self.town.doors[self.host.host_id] = self

    def leads(self) -> bool:
        return self.town.leader == self.host.host_id

    @handles(Subscribe)
    def subscribe(self, request: Subscribe, sender: str) -> Any:
        self.subscribers = [*(name for name in self.subscribers if name != sender), sender]
        self.told = self.town.ledger.index
        live = self.town.ledger.live(request.jobs)
        return replace(live, leader=self.town.leader, leads=self.leads(), absent=self.town.absent_to(self.host.host_id))

    def tell(self, changes: tuple[Any, ...], kind: str) -> None:
        index = self.town.ledger.index
        for name in self.subscribers:
            self.cast(name, Applied(index, self.told, AT, kind, changes))
        self.told = index

    @handles(Propose)
    def propose(self, request: Propose) -> Proposed:
        result = self.town.do(request.command, request.session, request.seq)
        return Proposed(self.town.ledger.index, result)

    @handles(Query)
    def query(self, query: Query) -> Any:
        if query.kind == "status":
            return {"nodes": sorted(self.town.nodes_sent_to)}
        assert query.kind == "gossip_key"
        return self.town.ledger.gossip_key


class Links(Server):
    """What the real one does for membership, between nodes of one process."""

    name = "links"

    @handles(CastPackets)
    def packets(self, request: CastPackets) -> None:
        assert request.target == "membership"
        town: Town = self.host.town
        for host_id, packet in request.packets:
            if town.reaches(self.host.host_id, host_id):
                with suppress(HostUnreachable):
                    town.hosts[host_id].node.send(
                        "membership", Envelope("cast", "links", None, StateCame(self.host.host_id, packet))
                    )

    @handles(AskHost)
    def ask(self, request: AskHost) -> bool:
        assert request.service == membership_actor.PRESENT
        if not self.host.town.reaches(self.host.host_id, request.host_id):
            raise HostUnreachable(f"{request.host_id} is away")
        return True

    @handles(AskHosts)
    def ask_several(self, request: AskHosts) -> dict[str, Any]:
        assert request.service == membership_actor.REACHES
        town: Town = self.host.town
        there = [host_id for host_id in request.host_ids if town.reaches(self.host.host_id, host_id)]
        return {host_id: town.reaches(host_id, request.fields["host_id"]) for host_id in there}


class Context(HostContext):
    """With what stands for the network."""

    town: Any = None


class MemberHost:
    """One host: its node, with the server that is looked at, and what that asks."""

    def __init__(self, town: Town, name: str, base_port: int, life: int) -> None:
        self.town, self.name, self.base_port, self.life = town, name, base_port, life
        self.node = InlineNode(real_time=True)
        self.context = Context(HostPaths(town.folder / name), Settings(), name, name, life, "boot")
        self.context.enrolment = Enrolment("c1", 1, name == "a", town.address, base_port)
        self.context.settings.cluster.membership = "lan"
        self.context.town = town
        self.up = False

    def start(self) -> None:
        self.node.add(Consensus, self.context)
        self.node.add(Links, self.context)
        self.up = True
        self.node.add(Membership, self.context)

    @property
    def server(self) -> Membership:
        found = self.node.servers["membership"]
        assert isinstance(found, Membership)
        return found

    def restart_server(self) -> None:
        """The server dies, as of SIGKILL, and its supervisor makes a new one."""
        self.lose_server()
        self.node.add(Membership, self.context)

    def lose_server(self) -> None:
        server = self.server
        if server._core is not None:
            server.runtime.unwatch(server._socket.fileno())
            server._socket.close()
            server._core = None
        if server._timer is not None:
            server._timer.cancel()
        self.node.remove("membership")

    def die(self) -> None:
        self.lose_server()
        self.up = False

    def close(self) -> None:
        if "membership" in self.node.servers:
            self.lose_server()
        self.node._selector.close()

    @property
    def figures(self) -> dict[str, float]:
        return self.server.metrics()

    def sees(self, state: str) -> set[str]:
        """The members that it holds for that."""
        members = self.server.status().get("members", {})
        return {name for name, each in members.items() if each["state"] == state}


class Town:
    """Hosts ``a``, ``b``, ... of one cluster. ``a`` leads until another is named."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", ledger_version: int = VERSION) -> None:
        self.folder, self.address = folder, address
        self.ledger = Ledger()
        self.leader = "a"
        self.hosts: dict[str, MemberHost] = {}
        self.doors: dict[str, Consensus] = {}
        self.cut: set[tuple[str, str]] = set()
        self.absent: set[str] = set()
        self.nodes_sent_to: set[int] = set()
        self.ledger_version = ledger_version
        self.do(NewTerm(1, at=AT))

    def do(self, command: Command, session: str = "", seq: int = 0) -> Any:
        """Commit it, and let all hosts that are members hear of it."""
        checked = read_command(command.to_plain())
        outcome = self.ledger.apply(self.ledger.index + 1, checked, session, seq)
        if outcome.error is not None:
            raise outcome.error
        for host_id, door in self.doors.items():
            if host_id in self.ledger.members and self.hosts[host_id].up:
                door.tell(outcome.changes, command.verb)
        return dict(outcome.result or {})

    def add(self, name: str) -> MemberHost:
        port = free_base_port()
        addresses = listens(self.address, port)
        if not self.ledger.members:
            self.do(FoundCluster("c1", name, addresses, "", at=AT))
        else:
            self.do(AddMember(name, addresses, "", at=AT))
        self.do(ChangeMember(name, at=AT, ledger_version=self.ledger_version))
        self.nodes_sent_to.add(self.ledger.members[name]["node"])
        host = self.hosts[name] = MemberHost(self, name, port, 1)
        self.do(RegisterHost({**host_record(name), "state": "up"}, at=AT))  # type: ignore[arg-type, typeddict-item]
        host.start()
        return host

    def start_again(self, name: str) -> MemberHost:
        """The host's agent starts anew, in its next life."""
        old = self.hosts[name]
        host = self.hosts[name] = MemberHost(self, name, old.base_port, old.life + 1)
        old.node._selector.close()
        record = {**host_record(name), "state": "up", "incarnation": host.life}
        self.do(RegisterHost(record, at=AT))  # type: ignore[arg-type]
        host.start()
        return host

    def remove(self, name: str) -> None:
        """As a leader does: out of the ledger, then out of Raft's configuration."""
        node = self.ledger.members[name]["node"]
        self.do(RemoveMember(name, "test", at=AT, force=True))
        self.nodes_sent_to.discard(node)

    def lose_contact(self, *names: str) -> None:
        """The leader does not hear of them."""
        self.absent = set(names)
        self.doors[self.leader].tell((("absent", "", self.absent_to(self.leader)),), "leadership")

    def absent_to(self, host_id: str) -> dict[str, float]:
        return dict.fromkeys(self.absent, 0.0) if host_id == self.leader else {}

    def reaches(self, source: str, target: str) -> bool:
        """Whether links lead from one host to the other."""
        up = all(name in self.hosts and self.hosts[name].up for name in (source, target))
        return up and (source, target) not in self.cut and (target, source) not in self.cut

    @property
    def living(self) -> list[MemberHost]:
        return [host for host in self.hosts.values() if host.up]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = monotonic() + PATIENCE_S
        while not condition():
            for host in self.living:
                host.node.step(0.002)
            assert monotonic() < deadline, (what, {host.name: host.server.status() for host in self.living})

    def agreed(self) -> bool:
        """All who live hold all who live for alive."""
        names = {host.name for host in self.living}
        return all(host.sees("alive") == names for host in self.living)

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
