"""Voters over sites: spread so that what a lost site leaves decides, or kept in those that are named."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.consensus.electorate_policy import heir, voters_wanted
from actorgrid.actors.ledger.command import refuse_if_too_new
from actorgrid.actors.ledger.commands import ChangeMember
from actorgrid.actors.raft.messages import ConfState
from actorgrid.actors.raft.progress import PeerStatus
from actorgrid.errors import BadRequest, HostsTooOld
from tests.consensus.rig import AT
from tests.ledger.test_members import Cluster, cluster


def over_sites(counts: dict[str, int]) -> Cluster:
    """A cluster that is founded at the first site, whose hosts come first; then those of the others."""
    found, node = Cluster(0), 0
    for site, count in counts.items():
        for _ in range(count):
            node += 1
            found.add(node, site=site)
    return found


def votes(found: Cluster) -> Counter[str]:
    sites = {record["node"]: record["site"] for record in found.members.values()}
    return Counter(sites[node] for node in found.settle())


@pytest.mark.parametrize(
    ("hosts", "voters"),
    [
        ({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}),
        ({"a": 3, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}),
        ({"a": 3, "b": 2, "c": 2}, {"a": 2, "b": 2, "c": 1}),
        ({"a": 9, "b": 1, "c": 1, "d": 1}, {"a": 2, "b": 1, "c": 1, "d": 1}),
        ({"a": 4, "b": 4}, {"a": 3, "b": 2}),
        ({"a": 5}, {"a": 5}),
    ],
)
def test_votes_are_spread_evenly_over_sites(hosts: dict[str, int], voters: dict[str, int]) -> None:
    assert votes(over_sites(hosts)) == voters


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=3, max_size=5), st.integers(0, 4))
def test_the_loss_of_any_one_site_of_three_leaves_a_majority(hosts: list[int], leads: int) -> None:
    found = over_sites({f"s{number}": count for number, count in enumerate(hosts)})
    found.settle()
    found.leader = sorted(found.config.voters)[leads % len(found.config.voters)]
    counts = votes(found)
    assert max(counts.values()) * 2 < sum(counts.values()), counts


def test_hosts_of_a_site_that_comes_later_take_votes_of_the_crowded_one() -> None:
    found = over_sites({"a": 5})
    assert votes(found) == {"a": 5}
    for node, site in enumerate(["b", "b", "c", "c"], 6):
        found.add(node, site=site)
    assert votes(found) == {"a": 2, "b": 2, "c": 1}


def test_a_lost_sites_votes_go_to_the_others_and_come_back_with_it() -> None:
    found = over_sites({"a": 3, "b": 3, "c": 3})
    before = votes(found)
    at_b = {record["node"] for record in found.members.values() if record["site"] == "b"}
    found.silent = frozenset(at_b)
    assert votes(found)["b"] == 0
    found.silent = frozenset()
    assert sorted(votes(found).values()) == sorted(before.values())


def test_named_sites_alone_vote_and_the_leader_elsewhere_hands_over() -> None:
    found = over_sites({"a": 3, "b": 3, "c": 1})
    found.settle()
    found.voter_sites = frozenset({"b"})
    found.settle()
    near = {node: PeerStatus(5_000, 0, "replicate", True, False, 0, 0) for node in range(1, 8)}
    leader = heir(found.members, found.config.state(), near, 5_000, 1, frozenset(), found.voter_sites)  # type: ignore[arg-type]
    assert leader in (4, 5, 6)
    found.leader = leader
    assert votes(found) == {"b": 3}
    assert heir(found.members, ConfState(voters=(4, 5, 6)), near, 5_000, 4, frozenset(), found.voter_sites) is None  # type: ignore[arg-type]


def test_a_site_without_hosts_that_is_named_changes_nothing() -> None:
    found = over_sites({"a": 2, "b": 2, "c": 1})
    before = votes(found)
    found.voter_sites = frozenset({"typo"})
    assert votes(found) == before


def test_the_number_of_voters_is_that_of_the_hosts_where_sites_cannot_help() -> None:
    assert [voters_wanted(7, sites) for sites in ((), (7,), (5, 2), (5, 1, 1), (3, 2, 2))] == [5, 5, 5, 3, 5]


def test_a_site_is_said_by_the_host_itself_once_all_hosts_know_what_that_is() -> None:
    book = cluster("a", "b")
    with pytest.raises(HostsTooOld, match="do not know change_member"):
        refuse_if_too_new(ChangeMember("a", at=AT, site="east"), book.ledger.members)
    refuse_if_too_new(ChangeMember("a", at=AT, version="2"), book.ledger.members)
    for name in ("a", "b"):
        book.do(ChangeMember(name, at=AT, ledger_version=4))
    assert "site" not in book.ledger.members["a"]
    book.do(ChangeMember("a", at=AT, site="east"))
    assert book.ledger.members["a"]["site"] == "east"
    book.do(ChangeMember("a", at=AT, site=""))
    assert book.ledger.members["a"]["site"] == ""
    with pytest.raises(BadRequest, match="site"):
        book.do(ChangeMember("a", at=AT, site="x" * 65))
