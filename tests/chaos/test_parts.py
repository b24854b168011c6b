"""The simulator's parts by themselves: time, network, disk, and checkers that must notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from actorgrid.actors.raft.codec import encode_conf_change
from actorgrid.actors.raft.messages import ConfChange, ConfState, Entry, HardState, RaftSnapshot
from actorgrid.chaos.checkers.checker import AttemptProcess
from actorgrid.chaos.checkers.grants import RunningTogether
from actorgrid.chaos.checkers.locks import apply_slots
from actorgrid.chaos.checkers.raft import ElectionSafety, LogMatching, MembershipChanges
from actorgrid.chaos.simulator.clock import Clock
from actorgrid.chaos.simulator.disk import Compaction, Disk, Image
from actorgrid.chaos.simulator.network import Network
from actorgrid.errors import DiskFull, LogCorrupted, LogFailed, SafetyViolated


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(index, term, "command", data)


def run(clock: Clock) -> None:
    while clock.step():
        pass


def test_what_is_due_at_one_moment_happens_in_the_order_it_was_asked_for() -> None:
    clock, seen = Clock(), []
    for name in "abc":
        clock.after(5, lambda name=name: seen.append(name))
    clock.after(1, lambda: seen.append("first"))
    clock.after(3, lambda: seen.append("never")).cancel()
    run(clock)
    assert seen == ["first", "a", "b", "c"]
    assert clock.now_us == 5


class Post:
    """A network of three ends that note what arrives."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, Random(1))
        self.got: dict[str, list[Any]] = {"n1": [], "n2": [], "n2/agent": []}
        for name, box in self.got.items():
            self.network.attach(name, lambda _sender, message, box=box: box.append(message))

    def send(self, sender: str, receiver: str, count: int = 200) -> None:
        for number in range(count):
            self.network.send(sender, receiver, number)
        run(self.clock)


def test_a_calm_network_delivers_everything_once_but_not_in_order() -> None:
    post = Post()
    post.send("n1", "n2")
    assert sorted(post.got["n2"]) == list(range(200))
    assert post.got["n2"] != list(range(200))


def test_loss_loses_and_doubling_doubles() -> None:
    post = Post()
    post.network.loss = 0.5
    post.send("n1", "n2")
    assert 50 < len(post.got["n2"]) < 150
    post.network.calm()
    post.network.doubling = 0.5
    post.send("n2", "n1")
    assert 250 < len(post.got["n1"]) < 350


def test_a_one_way_cut_cuts_one_way_and_cuts_add_up() -> None:
    post = Post()
    post.network.cut("n1", "n2")
    post.network.cut("n1", "n2")
    post.send("n1", "n2", 3)
    post.send("n2", "n1", 3)
    assert (post.got["n2"], sorted(post.got["n1"])) == ([], [0, 1, 2])
    post.network.mend("n1", "n2")
    post.send("n1", "n2", 3)
    assert post.got["n2"] == []
    post.network.mend("n1", "n2")
    post.send("n1", "n2", 3)
    assert sorted(post.got["n2"]) == [0, 1, 2]


def test_a_cut_stops_what_is_under_way_and_all_ends_of_a_host() -> None:
    post = Post()
    post.network.send("n1", "n2/agent", "late")
    post.network.cut("n1", "n2")
    run(post.clock)
    assert post.got["n2/agent"] == []


def test_nothing_happens_to_what_stays_within_a_host() -> None:
    post = Post()
    post.network.loss = 1.0
    post.network.cut("n2", "n2")
    post.send("n2", "n2/agent", 5)
    assert sorted(post.got["n2/agent"]) == [0, 1, 2, 3, 4]


def test_a_crash_keeps_a_beginning_of_what_was_not_synced_and_all_that_was() -> None:
    left = set()
    for seed in range(40):
        disk = Disk(Random(seed))
        disk.write([entry(1), entry(2), HardState(1, 2, 0)])
        disk.sync()
        disk.write([entry(3), entry(4)])
        disk.lose_unsynced()
        image = disk.recover()
        left.add(image.last_index)
        assert image.hard_state == HardState(1, 2, 0)
        assert [each.index for each in image.entries] == list(range(1, image.last_index + 1))
    assert left == {2, 3, 4}


def test_an_entry_replaces_what_stood_at_its_index_and_after() -> None:
    image = Image()
    for each in (entry(1), entry(2), entry(3), entry(2, term=2)):
        image.take(each)
    assert [(each.index, each.term) for each in image.entries] == [(1, 1), (2, 2)]


def test_an_own_snapshot_keeps_later_entries_and_a_leaders_takes_the_place_of_all() -> None:
    image = Image()
    for each in (entry(1), entry(2), entry(3)):
        image.take(each)
    snapshot = RaftSnapshot(2, 1, ConfState((1,)), b"")
    image.take(Compaction(snapshot))
    assert (image.last_index, image.term(2), image.covers(1, 1)) == (3, 1, True)
    image.take(RaftSnapshot(9, 4, ConfState((1,)), b""))
    assert (image.last_index, image.entries, image.term(9), image.term(3)) == (9, [], 4, None)


def test_a_failed_sync_a_full_disk_and_a_flipped_bit_are_named() -> None:
    disk = Disk(Random(1))
    disk.sync_fails = True
    disk.write([entry(1)])
    with pytest.raises(LogFailed):
        disk.sync()
    disk.full = True
    with pytest.raises(DiskFull):
        disk.write([entry(2)])
    disk.full = False
    disk.durable = Image(entries=[entry(1)])
    assert disk.flip_a_bit()
    with pytest.raises(LogCorrupted, match="add it again"):
        disk.recover()


@dataclass
class StandIn:
    """A host as checkers see it."""

    id: int
    durable: Image = field(default_factory=Image)
    trusted: bool = True

    def holds(self, index: int, term: int) -> bool:
        return self.durable.covers(index, term)


def test_two_leaders_in_a_term_and_two_votes_in_one_are_noticed() -> None:
    checker = ElectionSafety()
    checker.leads(StandIn(1), 2)
    checker.leads(StandIn(2), 3)
    checker.leads(StandIn(1), 2)
    with pytest.raises(SafetyViolated, match="two hosts lead"):
        checker.leads(StandIn(2), 2)
    checker.votes(StandIn(1), 2, 3)
    with pytest.raises(SafetyViolated, match="votes for two"):
        checker.votes(StandIn(1), 2, 2)


def test_logs_that_differ_before_an_entry_they_share_are_noticed() -> None:
    checker = LogMatching()
    checker.written(StandIn(1), (entry(1), entry(2, term=3)))
    checker.written(StandIn(2), (entry(1), entry(2, term=3)))
    with pytest.raises(SafetyViolated, match="two logs differ"):
        checker.written(StandIn(3), (entry(1, term=2), entry(2, term=3)))


def test_a_change_of_the_members_beside_another_is_noticed() -> None:
    checker, before = MembershipChanges(), ConfState(voters=(1, 2, 3))
    joint = ConfState(voters=(1, 2, 3), voters_outgoing=(1, 2, 4), auto_leave=True)
    change = Entry(5, 1, "conf_change", encode_conf_change((ConfChange("add_voter", 5),), "auto"))
    leave = Entry(5, 1, "conf_change", encode_conf_change((), "auto"))
    checker.changes_members(StandIn(1), before, change)
    checker.changes_members(StandIn(1), joint, leave)
    for members, entry_ in ((joint, change), (before, leave), (before, Entry(5, 1, "conf_change", b"x"))):
        with pytest.raises(SafetyViolated, match="does not fit"):
            checker.changes_members(StandIn(1), members, entry_)


def process(attempt: str, milli: int, host: str = "h1", gpus: tuple[int, ...] = (0,)) -> AttemptProcess:
    return AttemptProcess(host, attempt, attempt.partition(".")[0], (1, 1), gpus, milli)


def test_a_share_given_to_two_and_two_attempts_of_a_job_are_noticed() -> None:
    checker = RunningTogether()
    checker.started(process("a.1", 600), 1)
    checker.started(process("b.1", 600, gpus=(1,)), 1)
    checker.started(process("c.1", 400), 1)
    with pytest.raises(SafetyViolated, match="two owners"):
        checker.started(process("d.1", 100), 2)
    with pytest.raises(SafetyViolated, match="two attempts"):
        checker.started(process("b.2", 100, host="h2"), 3)
    checker.ended(process("a.1", 600), 4)
    checker.started(process("e.1", 600), 5)


@pytest.mark.parametrize(
    ("state", "call", "answer", "expected"),
    [
        ("", ("acquire_lock", "a", 1), True, (True, "a")),
        ("a", ("acquire_lock", "a", 1), True, (True, "a")),
        ("b", ("acquire_lock", "a", 1), True, (False, "b")),
        ("b", ("acquire_lock", "a", 1), False, (True, "b")),
        ("b", ("acquire_lock", "a", 2), True, (True, "ab")),
        ("bc", ("acquire_lock", "a", 2), False, (True, "bc")),
        ("a", ("release_lock", "a", 1), True, (True, "")),
        ("b", ("release_lock", "a", 1), False, (True, "b")),
        ("ab", ("release_lock", "a", 1), True, (True, "b")),
    ],
)
def test_a_lock_has_as_many_holders_as_slots(state: str, call: Any, answer: Any, expected: tuple[bool, str]) -> None:
    assert apply_slots(frozenset(state), call, answer) == (expected[0], frozenset(expected[1]))


def test_members_of_a_gang_may_run_together_but_not_with_those_of_another_attempt() -> None:
    checker = RunningTogether()
    checker.started(process("a.1-0", 1000), 1)
    checker.started(process("a.1-1", 1000, host="h2"), 1)
    with pytest.raises(SafetyViolated, match="two attempts"):
        checker.started(process("a.1-1", 100, host="h3"), 2)
    checker.ended(process("a.1-0", 1000), 3)
    with pytest.raises(SafetyViolated, match="two attempts"):
        checker.started(process("a.2-0", 1000), 4)
