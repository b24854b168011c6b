"""Three to five replicas with real stores under loss, duplicates, reordering, partitions, and restarts with, without
and with half a disk: all come to hold the same, with all that was acknowledged by hosts whose disks live.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from actorgrid.actors.replication import replica as replica_module
from actorgrid.actors.replication.anti_entropy import AntiEntropy
from actorgrid.actors.replication.exchange import GossipLimits, TakeVector
from actorgrid.actors.replication.replica import StateReplica
from actorgrid.actors.replication.walk import Walk
from actorgrid.errors import DiskFull
from tests.replication.gossip_net import KEPT, LOST, OPERATIONS, TRUNCATED, Town, play
from tests.replication.gossip_rounds import spread

SHORT_LOG = GossipLimits(log_bytes=800)  # and few enough hosts that nobody passes anything on
"""Three or four deltas: what is older comes by walks."""


pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


class Gossip(RuleBasedStateMachine):
    @initialize(count=st.integers(3, 5), seed=st.integers(0, 2**16), short=st.booleans())
    def begin(self, count: int, seed: int, short: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gossip-"))
        self.town = Town(self.directory, count, seed, SHORT_LOG if short else None)
        self.town.doubles, self.town.reorders = 0.1, seed % 2 == 0

    def name(self, who: int) -> str:
        return self.town.names[who % len(self.town.names)]

    @rule(who=st.integers(0, 4), operation=st.sampled_from(OPERATIONS), value=st.integers(1, 5), commit=st.booleans())
    def mutate(self, who: int, operation: tuple[str, str, str], value: int, commit: bool) -> None:
        self.town.mutate(self.name(who), *operation, value)
        if commit:
            self.town.commit(self.name(who))

    @rule(who=st.integers(0, 4), everybody=st.booleans())
    def push(self, who: int, everybody: bool) -> None:
        self.town.push(self.name(who), everybody)

    @rule(who=st.integers(0, 4))
    def round(self, who: int) -> None:
        self.town.round(self.name(who))

    @rule(count=st.integers(1, 8), commit=st.booleans(), loss=st.sampled_from([0.0, 0.0, 0.3, 1.0]))
    def deliver(self, count: int, commit: bool, loss: float) -> None:
        self.town.loss = loss
        for _ in range(count):
            self.town.deliver(commit)

    @rule(sides=st.lists(st.integers(0, 1), min_size=5, max_size=5))
    def partition(self, sides: list[int]) -> None:
        self.town.sides = dict(zip(self.town.names, sides, strict=False))

    @rule(who=st.integers(0, 4), disk=st.sampled_from([KEPT, KEPT, LOST, TRUNCATED]))
    def restart(self, who: int, disk: str) -> None:
        self.town.restart(self.name(who), disk)

    @invariant()
    def nobody_is_believed_to_hold_what_it_has_not(self) -> None:
        if hasattr(self, "town"):
            self.town.check_acknowledgements()
            self.town.check_vectors()

    def teardown(self) -> None:
        if not hasattr(self, "town"):
            return
        try:
            self.town.settle()
            self.town.check_vectors()
            self.town.check_end()
        finally:
            self.town.close()
            shutil.rmtree(self.directory)


def test_replicas_converge_and_keep_what_was_acknowledged_whatever_happens() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Gossip,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def plays(directory: Path, seeds: range, steps: int = 150) -> None:
    for seed in seeds:
        town = Town(directory / str(seed), 3 + seed % 3, seed, SHORT_LOG if seed % 2 else None)
        try:
            play(town, steps)
        finally:
            town.close()


def test_random_plays_with_their_seeds(tmp_path: Path) -> None:
    plays(tmp_path, range(40))


def sent_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    real = AntiEntropy._serve

    def serve(self: AntiEntropy, name: str, origins: Any, repair: bool) -> Any:
        found = real(self, name, origins, repair)
        peer = self._peer(name)
        peer.known.update({origin: max(upto, peer.known.get(origin, 0)) for origin, upto in peer.in_flight.items()})
        return found

    patch.setattr(AntiEntropy, "_serve", serve)


def one_epoch_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_module, "new_epoch", lambda incarnation, chance: incarnation)


def acknowledged_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    real = StateReplica.receive

    def receive(self: StateReplica, *arguments: Any) -> Any:
        return real(self, *arguments) + self._do(self.gossip.committed())

    patch.setattr(StateReplica, "receive", receive)


def vector_taken_as_a_walk_begins(patch: pytest.MonkeyPatch) -> None:
    real = AntiEntropy._begin_walk

    def begin(self: AntiEntropy, name: str, opening: Any, vector: Any, retired: Any) -> Any:
        found = real(self, name, opening, vector, retired)
        taken = {origin: count for origin, count in vector.items() if count > self._held(origin)}
        self._staged.update(taken)
        return [*found, TakeVector(taken)]

    patch.setattr(AntiEntropy, "_begin_walk", begin)


def walk_goes_on_with_a_peer_that_began_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Walk, "belongs", lambda self, peer, answer: (peer, answer.walk) == (self.peer, self.number))


@pytest.mark.parametrize(
    "bug",
    [
        sent_is_acknowledged,
        one_epoch_for_ever,
        acknowledged_before_it_is_durable,
        vector_taken_as_a_walk_begins,
        walk_goes_on_with_a_peer_that_began_anew,
    ],
    ids=lambda bug: bug.__name__.replace("_", " "),
)
def test_planted_bugs_are_caught(
    bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        plays(tmp_path, range(200))


def test_two_hundred_hosts_hold_a_write_after_a_few_rounds_though_packets_are_lost() -> None:
    found = [spread(200, seed, loss=0.05).rounds for seed in range(3)]
    assert max(found) <= 7, found


# -- what a host may have become


def test_increments_on_every_host_are_one_counter(town: Town) -> None:
    for amount, name in enumerate(town.names, start=1):
        town.mutate(name, "hits", "g_counter", "increment", amount)
        town.commit(name)
        town.push(name)
    while town.deliver():
        pass
    assert [host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()] == [6, 6, 6]


def test_a_host_with_an_empty_disk_gets_back_what_others_have_and_counts_on(town: Town) -> None:
    first = town.names[0]
    for _ in range(5):
        town.mutate(first, "hits", "g_counter", "increment")
        town.commit(first)
    town.settle()
    town.restart(first, LOST)
    assert "hits" not in town.hosts[first].replica.states
    town.mutate(first, "hits", "g_counter", "increment")
    town.settle()
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {6}


def test_a_host_set_back_to_an_old_copy_of_its_directory_loses_nothing_new(town: Town) -> None:
    """A backup of the whole data directory: incarnation and counters are those of then."""
    first = town.hosts[town.names[0]]
    town.mutate(first.name, "hits", "g_counter", "increment")
    town.commit(first.name)
    backup = town.directory / "backup"
    shutil.copytree(first.directory, backup)
    for _ in range(3):
        town.mutate(first.name, "hits", "g_counter", "increment")
    town.settle()
    first.replica.close()
    shutil.rmtree(first.directory)
    shutil.copytree(backup, first.directory)
    first.replica = town._open(first.name)
    for _ in range(10):
        town.mutate(first.name, "hits", "g_counter", "increment")
    town.settle()
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {14}


def test_states_of_a_store_without_dots_reach_the_others(tmp_path: Path) -> None:
    """As the version before wrote them: lists of (key, delta), no vector."""
    from actorgrid.actors.replication.journal import Journal
    from actorgrid.actors.replication.plain import pack
    from actorgrid.actors.replication.types import GCounter, ORSet

    counter, members = GCounter(), ORSet()
    old = [("hits", counter.increment(("host-0", 1), 7).to_bytes()), ("s", members.add(("host-0", 1), "x").to_bytes())]
    (tmp_path / "host-0").mkdir()
    journal = Journal(tmp_path / "host-0" / "journal-000000000000")
    journal.append(pack(old))
    journal.close()
    town = Town(tmp_path, 3, seed=2)
    town.mutate("host-1", "hits", "g_counter", "increment", 1)
    town.settle()
    for host in town.hosts.values():
        assert host.replica.states["hits"]["g_counter"].value == 8
        assert host.replica.states["s"]["or_set"].plain == ["x"]
    town.restart("host-0", KEPT)
    town.settle()
    assert len(town.hosts["host-0"].replica.gossip.vector) == 2, "its old states are one delta, once"
    town.close()


def test_a_value_of_a_megabyte_goes_in_fragments(town: Town) -> None:
    big = "x" * (2**20 - 100)
    town.mutate("host-0", "big", "lww_register", "put", big)
    town.commit("host-0")
    town.push("host-0", everybody=True)
    while town.deliver():
        pass
    assert all(host.replica.states["big"]["lww_register"].value == big for host in town.hosts.values())
    town.restart("host-1", LOST)
    town.settle()
    assert town.hosts["host-1"].replica.states["big"]["lww_register"].value == big


def test_an_empty_host_gets_thousands_of_keys_in_a_round_or_two(tmp_path: Path) -> None:
    town = Town(tmp_path, 2, 1, GossipLimits(log_bytes=0))
    for number in range(3000):
        town.mutate("host-0", f"key/{number}", "lww_register", "put", number)
    town.commit("host-0")
    rounds = 0
    while not town.converged() and rounds < 5:
        rounds += 1
        for name in town.names:
            town.round(name)
        while town.deliver():
            pass
    assert rounds <= 2
    assert town.hosts["host-1"].replica.gossip.counts["states_taken"] == 3000, "each of them once"
    town.close()


def test_deltas_of_a_host_that_left_still_reach_who_has_not_heard_of_them(town: Town) -> None:
    town.sides = {"host-2": 1}
    town.mutate("host-0", "hits", "g_counter", "increment", 3)
    town.commit("host-0")
    town.push("host-0", everybody=True)
    while town.deliver():
        pass
    gone = town.hosts.pop("host-0")
    gone.replica.close()
    town.names.remove("host-0")
    for host in town.hosts.values():
        host.replica.set_members(town.names)
    town.settle()
    assert town.hosts["host-2"].replica.states["hits"]["g_counter"].value == 3
    assert town.hosts["host-2"].replica.gossip.refused["forged"] == 0


def test_a_disk_that_is_full_at_a_commit_takes_back_what_others_sent_and_it_comes_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.mutate("host-1", "tags", "or_set", "add", "there")
    town.commit("host-1")
    town.push("host-1")
    target = town.hosts["host-0"].replica
    town.mutate("host-0", "tags", "or_set", "add", "refused")
    for source, name, packet in list(town.wire):
        if name == "host-0":
            assert target.receive(source, packet, town.now_us) == []
    town.wire.clear()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(DiskFull):
            target.commit()
    town.updates = [update for update in town.updates if update.host != "host-0"]
    town.hosts["host-0"].pending.clear()
    assert target.states == {} and target.gossip.vector == {} and target.gossip.next_sequence() == 1
    assert target.commit() == [], "nothing is acknowledged"
    town.mutate("host-0", "tags", "or_set", "add", "here")
    town.settle()
    town.check_end()
    assert {tuple(host.replica.states["tags"]["or_set"].plain) for host in town.hosts.values()} == {("here", "there")}


def test_with_a_full_disk_packets_are_passed_over_until_there_is_room(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    town.mutate("host-1", "hits", "g_counter", "increment")
    town.commit("host-1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        town.push("host-1")
        for source, name, packet in list(town.wire):
            if name == "host-0":
                assert town.hosts[name].replica.receive(source, packet, town.now_us) == []
        town.wire.clear()
    assert town.hosts["host-0"].replica.passed_over == 1
    town.settle()
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {1}
