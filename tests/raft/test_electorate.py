"""Who is obeyed: voters of a configuration that a node has seen, and whom those vouch for; by no message others."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from actorgrid.actors.raft import codec
from actorgrid.actors.raft.messages import ConfChange, ConfState, Entry, Message, SnapshotChunk
from actorgrid.errors import MalformedMessage
from tests.hostile.mutations import ROUNDS
from tests.raft.cluster import Cluster

CHUNK = SnapshotChunk(50, 9, ConfState(voters=(4,)), 0, 1, 0, b"x")


def with_learner() -> Cluster:
    cluster = Cluster([1, 2, 3], [4])
    cluster.elect(1)
    cluster.propose(1, "a")
    cluster.stabilize()
    cluster.tick_all(3)
    return cluster


LIES: dict[str, dict[str, Any]] = {
    "heartbeat": {"commit": 2},
    "append": {"index": 3, "log_term": 1, "entries": (Entry(4, 9, "command", b"theirs"),), "commit": 4},
    "snapshot": {"chunk": CHUNK},
    "timeout_now": {},
    "damaged": {},
    "vote": {"index": 99, "log_term": 9, "force": True},
    "vote_reply": {"commit": 99},
    "pre_vote_reply": {"reject": True},
    "append_reply": {"reject": True},
    "heartbeat_reply": {"last_index": 1},
    "read_index": {"context": b"c"},
    "read_index_reply": {"context": b"c", "index": 1},
    "propose_reply": {"context": b"c"},
}


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("to", [1, 2])
def test_a_learner_moves_nobody_into_a_later_term_and_leads_nobody(kind: str, to: int) -> None:
    cluster = with_learner()
    before = cluster[to].status()
    cluster.step(Message(kind, to, 4, 9, **LIES[kind]))  # type: ignore[arg-type]
    after = cluster[to].status()
    assert (after.term, after.vote, after.leader, after.role) == (before.term, before.vote, before.leader, before.role)
    assert (after.last_index, after.commit, after.damaged) == (before.last_index, before.commit, False)
    assert sum(cluster[to].refused.values()) == 1
    cluster.propose(1, "goes on")
    cluster.stabilize()
    assert cluster[to].status().commit == before.last_index + 1


def test_what_a_learner_calls_committed_is_not() -> None:
    cluster = with_learner()
    cluster.isolate(1)
    cluster.propose(1, "held by one")
    while cluster.process(1):
        pass
    alone = cluster[1].status()
    assert alone.last_index > alone.commit
    # Of the leader's own voters, in an election, that would be taken: the log holds that entry.
    follower = Cluster([1, 2, 3], [4])
    follower.elect(1)
    follower.step(Message("append", 2, 1, 1, 1, 1, 1, (Entry(2, 1, "command", b"x"),), sequence=99))
    commit = follower[2].status().commit
    follower.step(Message("vote_reply", 2, 4, 1, commit=2, hint=1))
    assert follower[2].status().commit == commit
    follower.step(Message("vote_reply", 2, 3, 1, commit=2, hint=1))
    assert follower[2].status().commit == 2


def test_an_answer_to_what_was_never_sent_is_refused() -> None:
    cluster = with_learner()
    last = cluster[1].status().last_index
    for answer in (
        Message("append_reply", 1, 2, 1, index=last + 5, last_index=last + 5, sequence=1),
        Message("heartbeat_reply", 1, 2, 1, last_index=last, sequence=10**6),
        Message("snapshot_reply", 1, 2, 1, index=7, hint=10**9, last_index=last, sequence=10**6),
    ):
        cluster.step(answer)
    assert cluster[1].refused == {"answers what was never sent": 3}


def test_a_host_that_was_away_obeys_a_leader_that_the_voters_it_knows_vouch_for() -> None:
    cluster = with_learner()
    cluster.isolate(3)
    cluster.change(1, ("add_voter", 4), ("add_learner", 3))
    cluster.stabilize()
    cluster[1].transfer_leader(4)
    cluster.stabilize()
    assert cluster[4].status().role == "leader"
    cluster.heal()
    for _ in range(60):
        cluster.tick_all(1)
    assert cluster[3].status().leader == 4
    assert cluster[3].status().commit == cluster[4].status().commit


def test_a_vote_goes_to_a_voter_that_was_none_when_this_host_looked_last() -> None:
    """Node 1 dies when 4 has just become a voter: 3 knows nothing of it, and its vote is needed."""
    cluster = with_learner()
    cluster.isolate(3)
    cluster.change(1, ("add_voter", 4), ("add_learner", 2))
    cluster.stabilize()
    cluster.heal()
    cluster.crash(1)
    for _ in range(200):
        cluster.tick_all(1)
    leader = next(number for number in (3, 4) if cluster[number].status().role == "leader")
    assert leader == 4  # it alone has the whole log
    cluster.propose(4, "goes on")
    cluster.stabilize()
    assert cluster[3].status().commit == cluster[4].status().last_index


def test_a_change_of_the_members_that_fits_nothing_changes_nothing() -> None:
    cluster = with_learner()
    core = cluster[1]
    assert core._leadership is not None
    before = core.status().config
    for data in (b"junk", codec.encode_conf_change([ConfChange("remove", n) for n in (1, 2, 3)], "auto")):
        core._leadership.append("conf_change", data)
        cluster.stabilize()
    assert [cluster[number].status().config for number in (1, 2, 3, 4)] == [before] * 4
    cluster.propose(1, "goes on")
    cluster.stabilize()
    assert cluster[2].status().commit == core.status().last_index


@pytest.mark.parametrize("seed", range(8 * ROUNDS))
def test_no_message_of_a_learner_stops_a_node_or_changes_what_it_holds(seed: int) -> None:
    """A fuzz: any kind with any numbers, through its bytes, between real traffic."""
    dice = Random(seed)
    cluster = with_learner()
    numbers = (0, 1, 2, 3, 4, 5, 9, 100, 2**31, 2**53, codec.NUMBER_MAX)
    for round_ in range(400):
        to = dice.choice((1, 2, 3))
        status = cluster[to].status()
        near = (status.term, status.commit, status.last_index, status.last_index + 1)

        def number() -> int:
            return dice.choice((*numbers, *near))  # noqa: B023 - called in this round

        kind = dice.choice(codec.MESSAGE_KINDS)
        message = Message(kind, to, 4, number(), number(), number(), number())
        entries: tuple[Entry, ...] = ()
        if kind == "append":
            count = dice.randrange(3)
            entries = tuple(Entry(message.index + n + 1, message.term, "command", b"x") for n in range(count))
        message = replace(
            message,
            entries=entries,
            reject=dice.random() < 0.5,
            hint=number(),
            last_index=number(),
            sequence=number(),
            force=dice.random() < 0.5,
            context=dice.randbytes(dice.choice((0, 8, 2_000))),
            chunk=replace(CHUNK, index=number(), term=number()) if kind == "snapshot" else None,
        )
        data = bytearray(codec.encode_message(message))
        if dice.random() < 0.2:
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            heard = codec.decode_message(bytes(data))
        except MalformedMessage:
            continue
        if heard.to == to and heard.sender == 4:  # its link proves who speaks
            cluster.step(heard)
        if round_ % 40 == 0:
            cluster.tick_all(1)
            cluster.propose(1, f"p{round_}")
            cluster.stabilize()
    cluster.stabilize()
    assert cluster[1].status().role == "leader" and cluster[1].status().term == 1
    logs = [[entry.data for entry in cluster.nodes[number].log()] for number in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]


# -- a node that has just joined

TOLD = frozenset({1, 2, 3})


def newcomer(cluster: Cluster, number: int = 5, told: frozenset[int] = TOLD) -> None:
    """A node with an empty log, which was told who votes."""
    cluster.settings["electorate"] = told
    cluster.add(number)
    del cluster.settings["electorate"]


@pytest.mark.parametrize("kind", LIES)
def test_a_newcomer_that_was_told_who_votes_obeys_nobody_else(kind: str) -> None:
    cluster = with_learner()
    newcomer(cluster)
    before = cluster[5].status()
    cluster.step(Message(kind, 5, 4, 9, **LIES[kind]))  # type: ignore[arg-type]
    after = cluster[5].status()
    assert (after.term, after.vote, after.leader) == (before.term, before.vote, before.leader) == (0, 0, 0)
    assert (after.last_index, after.commit, after.damaged) == (0, 0, False)
    cluster.change(1, ("add_learner", 5))
    cluster.stabilize()
    cluster.tick_all(3)
    assert cluster[5].status().leader == 1
    assert cluster[5].status().commit == cluster[1].status().commit


def test_one_that_was_told_nothing_believes_every_member() -> None:
    cluster = with_learner()
    newcomer(cluster, told=frozenset())
    cluster.step(Message("heartbeat", 5, 4, 9))
    assert (cluster[5].status().leader, cluster[5].status().term) == (4, 9)


def test_a_newcomer_obeys_a_voter_of_since_for_which_one_that_it_was_told_of_vouches() -> None:
    cluster = with_learner()
    newcomer(cluster)
    cluster.change(1, ("add_voter", 4), ("add_learner", 3))
    cluster.stabilize()
    cluster[1].transfer_leader(4)
    cluster.stabilize()
    assert cluster[4].status().role == "leader"
    cluster.change(4, ("add_learner", 5))
    for _ in range(30):
        cluster.tick_all(1)
    assert cluster[5].status().leader == 4
    assert cluster[5].status().commit == cluster[4].status().commit


def test_a_newcomer_that_is_told_anew_obeys_those_and_no_more_those_of_before() -> None:
    cluster = with_learner()
    newcomer(cluster)
    cluster[5].told_electorate(frozenset({4}))
    cluster.step(Message("heartbeat", 5, 1, 9))
    assert cluster[5].status().term == 0
    cluster.step(Message("heartbeat", 5, 4, 9))
    assert (cluster[5].status().leader, cluster[5].status().term) == (4, 9)
