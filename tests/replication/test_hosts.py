"""DistributedState of several hosts: each with its own inline node, and a Links that carries packets between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.actors.host.context import HostContext
from actorgrid.actors.links.messages import CastPackets, TellMembers
from actorgrid.actors.replication.actor import DistributedState
from actorgrid.actors.replication.messages import (
    MembersNow,
    Mutate,
    MutateBatch,
    PacketCame,
    Read,
    RetiredOpenings,
    RetirementFound,
    StateChanged,
    WatchPrefix,
)
from actorgrid.actors.replication.replica import HASH_AT_ONCE
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import BadRequest, NotReplicated
from actorgrid.supervisors.envelope import CALL, Envelope
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles


class Links(Server):
    """What the real one does for the shared state, between nodes of one process."""

    name = "links"

    @handles(CastPackets)
    def packets(self, request: CastPackets) -> None:
        town: Hosts = self.host.town
        for host_id, packet in request.packets:
            if town.sides.get(self.host.host_id, 0) == town.sides.get(host_id, 0):
                town.wire.append((self.host.host_id, host_id, packet))

    @handles(TellMembers)
    def members_asked(self, _message: TellMembers) -> None:
        town: Hosts = self.host.town
        self.cast("distributed_state", MembersNow(town.names, retired=town.retired))

    @handles(RetirementFound)
    def found(self, message: RetirementFound) -> None:
        town: Hosts = self.host.town
        if message.openings not in town.retired:
            town.retired = (*town.retired, message.openings)
            for node in town.nodes.values():
                told = MembersNow(town.names, retired=town.retired)
                node.send("distributed_state", Envelope("cast", "links", None, told))


class Watcher(Server):
    name = "gateway"

    def start(self) -> None:
        self.seen: list[StateChanged] = []

    @handles(StateChanged)
    def state_changed(self, change: StateChanged) -> None:
        self.seen.append(change)

    @handles(str)
    async def watch(self, prefix: str) -> None:
        await self.call("distributed_state", WatchPrefix(prefix))


class Hosts:
    def __init__(self, directory: Path, count: int) -> None:
        self.names = tuple(f"host-{number}" for number in range(count))
        self.sides: dict[str, int] = {}
        self.retired: tuple[RetiredOpenings, ...] = ()
        self.directory = directory
        self.wire: list[tuple[str, str, bytes]] = []
        self.nodes = {name: InlineNode() for name in self.names}
        for name in self.names:
            self.start(name)
        self.run(1.5)

    def start(self, name: str, incarnation: int = 1) -> None:
        paths = HostPaths(self.directory / name)
        paths.make()
        settings = Settings()
        settings.performance.min_free_bytes = 0
        settings.state.retire_after_s = 12.0
        enrolment: Any = object()
        host = HostContext(paths, settings, name, name, incarnation, "boot", enrolment=enrolment)
        self.nodes[name] = InlineNode()
        self.nodes[name].add(DistributedState, host)
        self.nodes[name].add(Links, SimpleNamespace(host_id=name, town=self, settings=settings))

    def run(self, for_s: float) -> None:
        for _ in range(int(for_s / 0.01)):
            for node in self.nodes.values():
                node.advance(0.01)
            while self.wire:
                arriving, self.wire = self.wire, []
                for source, target, packet in arriving:
                    node = self.nodes[target]
                    node.send("distributed_state", Envelope("cast", "links", None, PacketCame(source, packet)))
                    node.settle()

    def mutate(self, name: str, amount: int = 1, **options: Any) -> Any:
        request = Mutate("hits", "g_counter", "increment", amount, **options)
        return self.nodes[name].request("distributed_state", request)["value"]

    def begin(self, name: str, **options: Any) -> tuple[int, int]:
        """Ask, and do not wait."""
        ref = (7, len(self.wire) + id(options) % 10**6)
        request = Mutate("hits", "g_counter", "increment", 1, **options)
        self.nodes[name].send("distributed_state", Envelope(CALL, "test", ref, request))
        return ref

    def values(self) -> list[Any]:
        return [node.request("distributed_state", Read("hits"))["value"] for node in self.nodes.values()]

    def server(self, name: str) -> DistributedState:
        server = self.nodes[name].servers["distributed_state"]
        assert isinstance(server, DistributedState)
        return server


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, 3)
    yield made
    for name in made.names:
        made.server(name).stop("test over")


def test_increments_on_all_hosts_are_one_counter_after_a_partition(hosts: Hosts) -> None:
    hosts.sides = {"host-2": 1}
    for amount, name in enumerate(hosts.names, start=1):
        hosts.mutate(name, amount)
    hosts.run(2.0)
    assert hosts.values() == [3, 3, 3], "1 + 2 on one side, 3 on the other"
    hosts.mutate("host-2", 10)
    assert hosts.values() == [3, 3, 13]
    hosts.sides = {}
    hosts.run(3.0)
    assert hosts.values() == [16, 16, 16]


def test_a_put_is_on_the_others_within_milliseconds_and_watchers_hear_of_it(hosts: Hosts) -> None:
    node = hosts.nodes["host-1"]
    watcher = node.add(Watcher, hosts.server("host-1").host)
    assert isinstance(watcher, Watcher)
    node.request("gateway", "hi")
    hosts.mutate("host-0")
    hosts.run(0.03)
    assert [(seen.key, seen.type, seen.value) for seen in watcher.seen] == [("hits", "g_counter", 1)]


def test_in_a_large_cluster_a_write_is_everywhere_at_once_and_a_stream_of_them_goes_together(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, 16)
    assert not hosts.server("host-3")._live().gossip.choice.few
    hosts.mutate("host-3")
    hosts.run(0.1)
    assert hosts.values() == [1] * 16
    told = [hosts.server(name)._live().gossip.counts for name in hosts.names]
    packets = sum(counts["sent_packets"] for counts in told)
    for turn in range(120):  # ten milliseconds apart: four times as often as pushes go
        hosts.mutate(hosts.names[turn % 16])
        hosts.run(0.01)
    hosts.run(1.0)
    assert hosts.values() == [121] * 16
    sent = sum(counts["sent_packets"] for counts in told) - packets
    assert sum(counts["deltas_taken"] for counts in told) == 15 * 121, "each host took each once"
    assert sum(counts["deltas_repeated"] for counts in told) < 15 * 12, "digests bring some that were on their way"
    assert sent < 1.4 * 15 * 120, "a write alone would be 30 packets, acknowledgements with them"
    for name in hosts.names:
        hosts.server(name).stop("test over")


def test_a_majority_is_waited_for_and_who_lacks_it_is_told_that_the_write_stays(hosts: Hosts) -> None:
    ref = hosts.begin("host-0", durability="majority", within_s=2.0)
    node = hosts.nodes["host-0"]
    node.settle()
    assert ref not in node._replies, "it is not at a majority yet"
    hosts.run(0.1)
    assert node._replies.pop(ref).body["value"] == 1
    hosts.sides = {"host-0": 1}
    ref = hosts.begin("host-0", durability="majority", within_s=2.0)
    hosts.run(1.5)
    assert ref not in node._replies
    hosts.run(1.0)
    error = node._replies.pop(ref).body
    assert isinstance(error, NotReplicated)
    assert "1 have it" in error.found and "stays" in error.hint
    assert hosts.server("host-0").metrics()["state_not_replicated_total"] == 1
    hosts.sides = {}
    hosts.run(3.0)
    assert hosts.values() == [2, 2, 2]


def test_one_of_two_that_holds_it_is_no_majority(tmp_path: Path) -> None:
    two = Hosts(tmp_path, 2)
    two.sides = {"host-1": 1}
    ref = two.begin("host-0", durability="majority", within_s=1.0)
    two.run(1.2)
    assert isinstance(two.nodes["host-0"]._replies[ref].body, NotReplicated)


def test_before_the_members_are_known_nothing_is_a_majority(hosts: Hosts) -> None:
    server = hosts.server("host-0")
    server.peer_restarted("links")
    ref = hosts.begin("host-0", durability="majority", within_s=5.0)
    hosts.nodes["host-0"].settle()
    assert ref not in hosts.nodes["host-0"]._replies
    hosts.run(2.0)
    assert hosts.nodes["host-0"]._replies[ref].body["value"] == 1


@pytest.mark.parametrize(("durability", "within_s"), [("quorum", 1.0), ("majority", 0.0), ("majority", 61.0)])
def test_another_durability_is_refused_and_nothing_is_written(hosts: Hosts, durability: str, within_s: float) -> None:
    with pytest.raises(BadRequest, match="durability"):
        hosts.mutate("host-0", durability=durability, within_s=within_s)
    assert hosts.server("host-0").metrics()["state_keys"] == 0


def test_inspect_shows_who_is_behind_and_what_was_refused(hosts: Hosts) -> None:
    hosts.run(3.0)
    hosts.sides = {"host-2": 1}
    hosts.mutate("host-0")
    hosts.run(0.5)
    hosts.nodes["host-0"].send("distributed_state", Envelope("cast", "links", None, PacketCame("host-1", b"junk")))
    hosts.nodes["host-0"].settle()
    status = hosts.server("host-0").status()
    assert status["peers"] == {"host-1": "equal", "host-2": "1 deltas behind us"}
    assert (status["origins"], status["refused"]) == (1, {"malformed": 1})
    metrics = hosts.server("host-0").metrics()
    assert (metrics["state_gossip_lag_max"], metrics["state_gossip_refused_malformed_total"]) == (1.0, 1.0)


def test_a_tree_that_is_to_be_made_anew_is_made_in_slices_and_then_nothing_more_is_done(hosts: Hosts) -> None:
    replica = hosts.server("host-0")._replica
    assert replica is not None
    batch = tuple(Mutate(f"key/{number}", "g_counter", "increment", 1) for number in range(500))
    hosts.nodes["host-0"].request("distributed_state", MutateBatch(batch))
    tree, slices = replica._tree, []
    work = tree.work
    tree.forget_all()
    tree.touch(replica.states)
    tree.work = lambda most: slices.append(most) or work(most)  # type: ignore[func-returns-value, method-assign]
    replica.gossip.limits = replace(replica.gossip.limits, tree_digests_a_round=10)
    hosts.run(1.2)
    assert tree.waiting == 0 and len(slices) > 2 and max(slices) <= HASH_AT_ONCE
    hosts.run(1.0)
    slices.clear()
    hosts.run(3.0)
    assert len(slices) <= 3 * 2, "a look in each round, and no timer between"
    assert len({hosts.server(name)._replica.digest() for name in hosts.names}) == 1  # type: ignore[union-attr]


def test_openings_that_all_members_hold_are_found_told_and_lose_their_names(hosts: Hosts) -> None:
    for incarnation in range(2, 5):
        hosts.mutate("host-0")
        hosts.run(1.5)
        hosts.server("host-0").stop("starts again")
        hosts.start("host-0", incarnation)
    hosts.run(2.0)
    hosts.sides = {"host-2": 1}
    hosts.mutate("host-0")
    hosts.run(8.0)
    status = hosts.server("host-0").status()
    assert (status["origins"], status["retired"]["due"]) == (4, {}), "not so soon after a start"
    hosts.run(10.0)
    assert hosts.server("host-0").status()["retired"]["due"] == {"host-0": "blocked by host-2"}
    assert hosts.server("host-0").metrics()["state_gossip_retirements_blocked"] == 1.0 and not hosts.retired
    hosts.sides = {}
    hosts.run(10.0)
    [openings] = hosts.retired
    assert (openings.host_id, openings.floor, len(openings.finals)) == ("host-0", 4, 3)
    for name in hosts.names:
        status = hosts.server(name).status()
        assert (status["origins"], status["retired"]["level"], status["retired"]["hosts"]) == (1, 1, 1)
        assert hosts.server(name).metrics()["state_gossip_level"] == 1.0
    assert hosts.values() == [4, 4, 4]
    assert len({hosts.server(name)._replica.digest() for name in hosts.names}) == 1  # type: ignore[union-attr]
