"""Members of the cluster in the ledger, and the steps by which its voters follow them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.consensus.electorate_policy import next_step, voters_wanted
from actorgrid.actors.ledger.commands import AddMember, ChangeMember, FoundCluster, RemoveMember
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.configuration import Configuration
from actorgrid.actors.raft.messages import ConfState
from actorgrid.actors.raft.progress import PeerStatus
from actorgrid.errors import NotFound, WrongState
from tests.consensus.rig import AT
from tests.ledger.test_state import Book

ADDRESSES = {"raft": "10.0.0.1:7402", "calls": "10.0.0.1:7401", "http": "10.0.0.1:7400"}


def cluster(*hosts: str) -> Book:
    book = Book()
    book.do(FoundCluster("c1", hosts[0], ADDRESSES, "aa", at=AT))
    for host in hosts[1:]:
        book.do(AddMember(host, ADDRESSES, "bb", at=AT))
    return book


def test_a_host_gets_a_node_number_that_nobody_had_before() -> None:
    book = cluster("a", "b")
    assert [record["node"] for record in book.ledger.members.values()] == [1, 2]
    book.do(RemoveMember("b", "me", at=AT))
    assert book.do(AddMember("b", ADDRESSES, "cc", at=AT)) == {"host_id": "b", "node": 3, "cluster_id": "c1"}
    assert Ledger.restore(book.ledger.snapshot()).members == book.ledger.members
    restored = Book()
    restored.ledger = Ledger.restore(book.ledger.snapshot())
    assert restored.do(AddMember("c", ADDRESSES, "dd", at=AT))["node"] == 4


def test_a_ledger_is_founded_once_and_a_member_added_once() -> None:
    book = cluster("a")
    with pytest.raises(WrongState, match="cluster's already"):
        book.do(FoundCluster("c2", "a", ADDRESSES, "aa", at=AT))
    with pytest.raises(WrongState, match="member already"):
        book.do(AddMember("a", ADDRESSES, "aa", at=AT))


def test_a_member_may_change_and_keeps_its_latest_certificates() -> None:
    book = cluster("a")
    for number in range(10):
        book.do(ChangeMember("a", at=AT, fingerprint=f"f{number}", version="2"))
    record = book.ledger.members["a"]
    assert record["fingerprints"] == [f"f{number}" for number in range(2, 10)]
    book.do(ChangeMember("a", at=AT, version="2"))
    assert book.outcome.changes == ()
    with pytest.raises(NotFound) as refused:
        book.do(ChangeMember("A", at=AT))
    assert refused.value.hint


def test_the_last_that_may_vote_is_not_removed() -> None:
    book = cluster("a", "b")
    book.do(ChangeMember("b", at=AT, votes=False))
    with pytest.raises(WrongState, match="last that may vote"):
        book.do(RemoveMember("a", "me", at=AT))
    book.do(RemoveMember("b", "me", at=AT))


class Cluster:
    """Applies the policy's steps to a configuration, with every member's log as long as the leader's."""

    def __init__(self, hosts: int, racks: int = 0) -> None:
        self.config = Configuration.of(ConfState(voters=(1,)))
        self.members: dict[str, dict[str, Any]] = {}
        self.silent: frozenset[int] = frozenset()
        self.match: dict[int, int] = {}
        self.leader = 1
        self.voter_sites: frozenset[str] = frozenset()
        for node in range(1, hosts + 1):
            self.add(node, rack=f"r{node % racks}" if racks else None)

    def add(self, node: int, rack: str | None = None, votes: bool = True, site: str = "") -> None:
        self.members[f"h{node}"] = {"node": node, "rack": rack, "votes": votes, "site": site}

    def step(self) -> bool:
        progress = {
            node: PeerStatus(self.match.get(node, 5_000), 0, "replicate", node not in self.silent, False, 0, 0)
            for node in {*self.config.voters, *self.config.learners}
        }
        state = self.config.state()
        changes = next_step(self.members, state, progress, 5_000, self.leader, self.silent, self.voter_sites)
        if not changes:
            return False
        self.config = self.config.changed(changes, "auto")
        if self.config.joint:
            self.config = self.config.changed((), "auto")
        return True

    def settle(self) -> set[int]:
        for _ in range(100):
            if not self.step():
                return set(self.config.voters)
        raise AssertionError("the policy never rests")


@pytest.mark.parametrize(("hosts", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (40, 5)])
def test_one_three_or_five_of_the_members_vote(hosts: int, voters: int) -> None:
    cluster = Cluster(hosts)
    assert len(cluster.settle()) == voters == voters_wanted(hosts)
    assert set(cluster.config.voters) | set(cluster.config.learners) == set(range(1, hosts + 1))


def test_a_learner_that_lacks_much_does_not_vote_yet() -> None:
    cluster = Cluster(3)
    cluster.match = {2: 100, 3: 100}
    assert cluster.settle() == {1}
    cluster.match = {}
    assert cluster.settle() == {1, 2, 3}


def test_a_voter_that_is_silent_gives_its_vote_to_one_that_is_there() -> None:
    cluster = Cluster(4)
    assert cluster.settle() == {1, 2, 3}
    cluster.silent = frozenset({2})
    assert cluster.settle() == {1, 3, 4}
    assert 2 in cluster.config.learners


def test_a_removed_host_leaves_the_configuration_whoever_it_is() -> None:
    cluster = Cluster(4)
    cluster.settle()
    del cluster.members["h2"]
    assert cluster.settle() == {1, 3, 4}
    del cluster.members["h1"]
    cluster.leader = 3
    assert cluster.settle() == {3}
    assert cluster.config.learners == {4}


def test_voters_are_spread_over_racks() -> None:
    cluster = Cluster(0)
    for node, rack in enumerate(["a", "a", "a", "b", "c"], 1):
        cluster.add(node, rack)
    cluster.members["h5"]["votes"] = False
    voters = cluster.settle()
    assert {cluster.members[f"h{node}"]["rack"] for node in voters} >= {"a", "b"}
    assert 5 not in voters


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove", "silent", "back"]), st.integers(1, 9)), max_size=25),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_the_policy_always_rests_and_always_leaves_a_voter(
    steps: list[tuple[str, int]], racks: int, sites: int
) -> None:
    cluster = Cluster(1)
    added = 1
    for what, number in steps:
        if what == "add":
            added += 1
            cluster.add(added, rack=f"r{added % racks}", site=f"s{added // 2 % sites}")
        elif what == "remove" and len(cluster.members) > 1:
            node = sorted(cluster.members)[number % len(cluster.members)]
            del cluster.members[node]
        elif what == "silent":
            cluster.silent = frozenset({*cluster.silent, number} - {cluster.leader})
        else:
            cluster.silent = cluster.silent - {number}
        nodes = {record["node"] for record in cluster.members.values()}
        voters = cluster.settle()
        assert voters
        if cluster.leader not in voters:
            cluster.leader = min(voters)
            cluster.silent -= {cluster.leader}
            voters = cluster.settle()
        if nodes - cluster.silent:
            assert voters <= nodes or len(voters) == 1
