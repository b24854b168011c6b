"""One test for each safety bug that Raft implementations had; test_mutants puts each bug back and runs its test."""

from __future__ import annotations

import random
from zlib import crc32

from actorgrid.actors.raft.codec import encode_conf_change
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import (
    ConfChange,
    ConfState,
    Dropped,
    Entry,
    Message,
    ProposalAccepted,
    RaftConfig,
    SnapshotChunk,
)
from actorgrid.actors.raft.storage.memory import MemoryStorage
from tests.raft.cluster import Cluster


def commands(number: int, cluster: Cluster) -> list[str]:
    return [entry.data.decode() for entry in cluster.nodes[number].log() if entry.kind == "command" and entry.data]


def vote(cluster: Cluster, to: int, sender: int, term: int, *, index: int = 0, log_term: int = 0) -> Message:
    """What *to* answers to a request for its vote, once it may leave."""
    cluster.deliver(Message("vote", to, sender, term, index=index, log_term=log_term))
    while cluster.process(to):
        pass
    answer = next(message for message in cluster.wire if message.kind == "vote_reply" and message.to == sender)
    cluster.wire.remove(answer)
    return answer


def append(
    cluster: Cluster, to: int, sender: int, term: int, index: int, log_term: int, *entries: Entry, commit: int = 0
) -> None:
    cluster.deliver(Message("append", to, sender, term, index, log_term, commit, entries, sequence=1))


def test_a_vote_is_remembered_over_a_restart() -> None:
    cluster = Cluster()
    assert not vote(cluster, 1, 2, 5).reject
    cluster.restart(1)
    assert vote(cluster, 1, 3, 5).reject
    assert not vote(cluster, 1, 2, 5).reject, "the same vote may be told again"


def test_a_term_is_remembered_over_a_restart() -> None:
    cluster = Cluster()
    vote(cluster, 1, 2, 5)
    cluster.restart(1)
    assert cluster[1].status().term == 5


def test_a_term_that_only_its_entries_kept_is_not_campaigned_for_again() -> None:
    """A torn write: the entries of a new term are there, the term written after them is not."""
    cluster = Cluster()
    cluster.nodes[1].storage.append([Entry(1, 5, "command", b"x")])
    cluster.restart(1)
    assert cluster[1].status().term == 5
    cluster.process(1)
    assert cluster.nodes[1].storage.hard_state.term == 5


def test_one_vote_is_given_in_a_term() -> None:
    cluster = Cluster()
    assert not vote(cluster, 1, 2, 5).reject
    assert vote(cluster, 1, 3, 5).reject


def test_no_vote_goes_to_a_log_that_lacks_entries_held_here() -> None:
    cluster = Cluster()
    cluster.isolate(3)
    cluster.elect(1)
    cluster.propose(1, "committed without 3")
    cluster.stabilize()
    cluster.heal()
    cluster.restart(1)
    cluster.restart(2)
    for _ in range(2):  # the first answers tell it the term
        cluster[3].campaign()
        cluster.stabilize()
    assert cluster[3].status().term == 1
    assert cluster[3].status().role != "leader"


def test_votes_and_acknowledgements_wait_until_they_are_durable() -> None:
    cluster = Cluster()
    cluster.deliver(Message("vote", 1, 2, 5))
    append(cluster, 3, 2, 5, 0, 0, Entry(1, 5, "command", b"x"))
    for number in (1, 3):
        cluster.begin(number)
    assert not any(message.kind in ("vote_reply", "append_reply") for message in cluster.wire)
    for number in (1, 3):
        cluster.finish(number)
    assert {message.kind for message in cluster.wire} == {"vote_reply", "append_reply"}


def test_votes_are_not_asked_for_before_the_new_term_is_durable() -> None:
    cluster = Cluster()
    cluster[1].campaign()
    cluster.process(1)
    for message in [message for message in cluster.wire if message.to == 2]:
        cluster.deliver(message)
    cluster.process(2)
    for message in [message for message in cluster.wire if message.kind == "pre_vote_reply"]:
        cluster.deliver(message)
    cluster.wire.clear()
    cluster.begin(1)
    assert cluster[1].status().role == "candidate"
    assert not any(message.kind == "vote" for message in cluster.wire)
    cluster.finish(1)
    assert any(message.kind == "vote" for message in cluster.wire)


def test_a_lone_voter_commits_only_what_its_disk_has() -> None:
    cluster = Cluster([1])
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.begin(1)
    assert cluster[1].status().commit == 1
    cluster.crash(1)
    cluster.restart(1)
    cluster.elect(1)
    assert cluster.data(1) == []


def test_a_leader_counts_itself_only_when_its_entry_is_durable() -> None:
    cluster = Cluster([1, 2])
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.begin(1)
    cluster.stabilize(2)
    for message in [message for message in cluster.wire if message.to == 1]:
        cluster.deliver(message)
    assert cluster[1].status().commit == 1
    cluster.finish(1)
    assert cluster[1].status().commit == 2


def test_an_entry_of_an_old_term_is_not_committed_by_counting() -> None:
    """The paper's figure 8: an entry of term 1 is on three of five nodes, and a leader of term 2 may replace it."""
    cluster = Cluster([1, 2, 3, 4, 5])
    cluster.elect(1)
    cluster.cut = {(1, 3), (1, 4), (1, 5)}
    cluster.propose(1, "old")  # on 1 and 2 only
    cluster.stabilize()
    cluster.heal()
    cluster.restart(1)
    for number in (2, 3, 4, 5):
        cluster.tick(number, 9)
        cluster.restart(number)
    cluster.drop = lambda message: message.kind in ("append", "heartbeat")
    cluster.elect(1)
    term = cluster[1].status().term
    for follower in (2, 3):  # they have taken the old entry, and not yet the one of the new term
        cluster.step(Message("append_reply", 1, follower, term, index=2, last_index=2, sequence=1))
    assert cluster[1].status().commit == 1
    cluster.heal()
    cluster.tick_all(2)
    assert cluster[1].status().commit == 3, "an entry of its own term commits both"


def test_a_late_append_takes_nothing_away() -> None:
    cluster = Cluster()
    one, two = Entry(1, 1, "command", b"one"), Entry(2, 1, "command", b"two")
    append(cluster, 2, 1, 1, 0, 0, one, two)
    append(cluster, 2, 1, 1, 0, 0, one)
    assert commands(2, cluster) == ["one", "two"]


def test_a_conflict_cuts_the_log() -> None:
    cluster = Cluster()
    append(cluster, 2, 1, 1, 0, 0, Entry(1, 1, "command", b"one"), Entry(2, 1, "command", b"two"))
    append(cluster, 2, 3, 2, 1, 1, Entry(2, 2, "command", b"other"))
    assert commands(2, cluster) == ["one", "other"]


def test_a_leader_left_behind_serves_no_read() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(2, 9)
    cluster.tick(3, 10)
    cluster[2].campaign()
    cluster.stabilize()
    assert cluster.leader() == 2
    cluster.propose(2, "news")
    cluster.stabilize()
    assert cluster[1].status().role == "leader", "it does not know yet"
    cluster.read(1, b"stale")
    cluster.stabilize()
    assert cluster.nodes[1].read_states == []


def test_a_new_leader_serves_no_read_before_it_has_committed_in_its_term() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.drop = lambda message: message.to == 2 and message.kind in ("append", "heartbeat") and message.commit > 1
    cluster.stabilize()  # 2 has the entry, but not the word that it is committed
    cluster.propose(1, "y")
    cluster.heal()
    assert cluster.laws.last_applied > cluster[2].status().commit
    cluster.crash(1)
    cluster.tick(2, 10)
    cluster.tick(3, 10)
    cluster.drop = lambda message: message.kind == "append"
    cluster[2].campaign()
    cluster.stabilize()
    assert cluster[2].status().role == "leader"
    cluster.read(2, b"early")
    cluster.tick_all(2)
    assert cluster.nodes[2].read_states == []
    cluster.heal()
    cluster.tick_all(3)
    assert [state.context for state in cluster.nodes[2].read_states] == [b"early"]


def test_a_node_that_comes_back_does_not_depose_a_leader_that_is_heard() -> None:
    cluster = Cluster()
    cluster.elect(1)
    term = cluster[1].status().term
    cluster.isolate(3)
    cluster.tick(3, 100)
    cluster.stabilize()
    assert cluster[3].status().term == term, "without answers to its pre-votes it does not raise its term"
    cluster.heal()
    cluster.stabilize()
    assert (cluster[1].status().role, cluster[1].status().term) == ("leader", term)


def test_a_vote_against_a_leader_that_is_heard_is_not_even_considered() -> None:
    cluster = Cluster()
    cluster.elect(1)
    status = cluster[2].status()
    cluster.deliver(Message("vote", 2, 3, 9, index=99, log_term=8))
    cluster.deliver(Message("pre_vote", 2, 3, 9, index=99, log_term=8))
    cluster.process(2)
    assert cluster[2].status() == status
    assert not cluster.wire


def test_a_leader_without_a_quorum_steps_down() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(1, 20)
    assert cluster[1].status().role == "follower"


def test_members_are_not_changed_before_the_leader_commits_in_its_term() -> None:
    cluster = Cluster()
    cluster.drop = lambda message: message.kind == "append"
    cluster[1].campaign()
    cluster.stabilize()
    assert cluster[1].status().role == "leader"
    cluster.tick(1, 1)
    assert cluster.change(1, ("add_voter", 4)) == Dropped("nothing_committed_in_term")


def test_members_change_one_step_at_a_time() -> None:
    cluster = Cluster()
    cluster.elect(1)
    assert isinstance(cluster.change(1, ("add_voter", 4)), ProposalAccepted)
    assert cluster.change(1, ("add_voter", 5)) == Dropped("conf_change_pending")


def test_a_change_of_members_that_is_never_committed_has_no_effect() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.cut = {(1, 3), (3, 1)}
    cluster.drop = lambda message: message.kind == "append_reply"
    cluster.change(1, ("remove", 3))
    cluster.stabilize()  # on 1 and 2, committed by nobody
    assert cluster[2].status().last_index == 2
    assert cluster[2].status().config.voters == (1, 2, 3)
    assert cluster[1].status().config.voters == (1, 2, 3)


def test_a_removed_leader_steps_down_and_its_log_does_not_count() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.change(1, ("remove", 1))
    cluster.stabilize()
    assert cluster[1].status().role == "follower"
    cluster.tick(1, 50)
    cluster.stabilize()
    assert cluster[1].status().role == "follower", "it is no voter and does not campaign"
    cluster.tick_all(25)
    assert cluster.leader() in (2, 3)


def removed_unknown_to_two() -> Cluster:
    """The voters are 1 and 2; 1 removed itself, which is committed, and 2 has the entry but not that word."""
    cluster = Cluster([1, 2])
    cluster.elect(1)
    cluster.change(1, ("remove", 1))
    cluster.process(1)
    cluster.stabilize(2)
    cluster.propose(1, "more than 2 has")
    cluster.cut = {(1, 2)}
    cluster.stabilize()
    assert cluster[1].status().config.voters == (2,)
    assert cluster[2].status().config.voters == (1, 2)
    return cluster


def test_a_removed_leader_stays_until_the_others_know() -> None:
    cluster = removed_unknown_to_two()
    term = cluster[1].status().term
    cluster.step(Message("heartbeat_reply", 1, 2, term, last_index=2, commit=1, sequence=1))
    assert cluster[1].status().role == "leader"
    assert cluster.propose(1, "late") == Dropped("not_a_voter")
    cluster.heal()
    cluster.tick_all(1)
    assert cluster[1].status().role == "follower"
    assert cluster[2].status().config.voters == (2,)


def test_a_voter_learns_from_a_refusal_that_it_alone_is_left() -> None:
    """The removed leader went down before it told; its log is longer, so its vote cannot be had."""
    cluster = removed_unknown_to_two()
    cluster.heal()
    cluster.wire.clear()
    cluster.restart(1)
    cluster.stabilize()
    assert cluster[1].status().last_index > cluster[2].status().last_index
    cluster.tick(2, 20)
    cluster.stabilize()
    cluster.tick(2, 20)
    cluster.stabilize()
    assert cluster[2].status().role == "leader"


def test_who_is_no_voter_is_not_counted() -> None:
    cluster = Cluster([1, 2, 3], learners=[4, 5])
    cluster.elect(1)
    for number in (2, 3):
        cluster.isolate(number)
    cluster.propose(1, "x")
    cluster.read(1, b"r")
    cluster.tick(1, 3)
    cluster.stabilize()
    assert (cluster[1].status().commit, cluster.nodes[1].read_states) == (1, [])


def test_a_learner_promoted_in_a_log_it_has_not_seen_votes() -> None:
    cluster = Cluster([1, 2], learners=[3])
    cluster.elect(1)
    cluster.cut = {(1, 3)}
    cluster.change(1, ("add_voter", 3))
    cluster.stabilize()
    assert cluster[3].status().config.learners == (3,)
    cluster.crash(1)
    cluster.tick(2, 10)
    cluster.tick(3, 10)
    cluster[2].campaign()
    cluster.stabilize()
    assert cluster[2].status().role == "leader"


def test_nobody_campaigns_with_a_committed_change_of_members_unapplied() -> None:
    cluster = Cluster(apply_bytes_max=1)
    cluster.elect(1)
    cluster.propose(1, "a long entry before it")
    cluster.change(1, ("add_voter", 4))
    cluster.stabilize(1)
    for message in [message for message in cluster.wire if message.to == 2]:
        cluster.deliver(message)
    cluster.process(2)
    append(cluster, 2, 1, 1, 3, 1, commit=3)  # all is committed; nothing of it is applied on 2
    status = cluster[2].status()
    assert status.applied < status.commit == 3
    cluster.tick(2, 20)
    assert cluster[2].status().role == "follower"


def test_two_changes_of_members_in_a_log_prove_that_the_first_is_committed() -> None:
    """A torn write: both changes are there, the commit index written after them is not."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(3)
    cluster.change(1, ("add_voter", 4))
    cluster.stabilize()
    cluster.change(1, ("add_voter", 5))
    torn = cluster.nodes[1].log()
    cluster.nodes[3].storage.append(torn[1:])
    cluster.restart(3)
    assert (torn[-1].index, cluster[3].status().commit) == (3, 2)
    cluster[3].campaign()
    assert cluster[3].status().role == "follower", "it must apply that first"
    cluster.stabilize(3)
    assert cluster[3].status().config.voters == (1, 2, 3, 4)


def snapshot_behind(**cluster: int) -> Cluster:
    """3 is cut off while the others commit and compact."""
    made = Cluster(**cluster)
    made.elect(1)
    made.isolate(3)
    for n in range(5):
        made.propose(1, f"{n}")
    made.change(1, ("add_learner", 4))
    made.stabilize()
    made.compact(1)
    made.compact(2)
    return made


def test_a_snapshot_brings_the_members_of_its_index() -> None:
    cluster = snapshot_behind()
    cluster.heal()
    cluster.tick_all(2)
    assert cluster[3].status().first_index > 5
    assert cluster[3].status().config.learners == (4,)


def test_a_lost_chunk_of_a_snapshot_leaves_nobody_behind() -> None:
    cluster = snapshot_behind()
    lost: list[Message] = []

    def lose_some(message: Message) -> bool:
        if message.kind == "snapshot" and len(lost) < 3:
            lost.append(message)
            return True
        return False

    cluster.cut.clear()
    cluster.drop = lose_some
    cluster.tick_all(40)
    assert len(lost) == 3
    assert cluster[3].status().applied == cluster[1].status().commit


def test_a_receiver_that_restarts_within_a_snapshot_is_sent_the_rest() -> None:
    cluster = snapshot_behind()
    cluster.heal()
    cluster.drop = lambda message: message.kind == "snapshot" and bool(message.chunk and message.chunk.offset >= 60)
    cluster.tick_all(2)
    cluster.restart(3)
    cluster.drop = lambda message: False
    cluster.tick_all(40)
    assert cluster[3].status().applied == cluster[1].status().commit


def test_a_log_compacted_behind_a_snapshot_on_its_way_leaves_nobody_behind() -> None:
    cluster = snapshot_behind()
    cluster.heal()
    cluster.drop = lambda message: message.kind == "snapshot" and bool(message.chunk and message.chunk.offset >= 60)
    cluster.tick_all(2)
    for n in range(5):
        cluster.propose(1, f"more {n}")
    cluster.stabilize()
    cluster.compact(1)
    cluster.drop = lambda message: False
    cluster.tick_all(40)
    assert cluster[3].status().applied == cluster[1].status().commit


def test_a_snapshot_behind_the_commit_index_is_not_restored() -> None:
    cluster = Cluster(snapshot_chunk_bytes=1000)
    cluster.elect(1)
    cluster.propose(1, "a")
    cluster.stabilize()
    cluster.compact(1)
    snapshot = cluster.nodes[1].storage.snapshot()
    cluster.propose(1, "b")
    cluster.stabilize()
    before = cluster[3].status()
    chunk = SnapshotChunk(
        snapshot.index, 9, snapshot.conf_state, 0, len(snapshot.data), crc32(snapshot.data), snapshot.data
    )
    cluster.deliver(Message("snapshot", 3, 1, before.term, chunk=chunk, sequence=99))
    assert cluster[3].status() == before
    cluster.process(3)
    assert [(message.kind, message.index) for message in cluster.wire] == [("append_reply", before.commit)]


def test_an_append_behind_the_compaction_is_acknowledged_and_changes_nothing() -> None:
    cluster = Cluster()
    cluster.elect(1)
    for n in range(3):
        cluster.propose(1, f"{n}")
        cluster.stabilize()
    cluster.compact(3)
    late = cluster.nodes[1].log()[1:3]
    before = cluster[3].status()
    append(cluster, 3, 1, before.term, 1, 1, *late)
    cluster.process(3)
    assert cluster[3].status() == before
    assert [(message.reject, message.index) for message in cluster.wire] == [(False, before.commit)]


def test_members_are_remembered_over_a_restart() -> None:
    cluster = Cluster(durable_machine=True)
    cluster.elect(1)
    cluster.change(1, ("remove", 3))
    cluster.stabilize()
    cluster.restart(1)
    cluster.restart(2)
    assert cluster[1].status().config.voters == (1, 2)


def test_what_was_applied_is_not_given_out_again() -> None:
    cluster = Cluster(durable_machine=True)
    cluster.elect(1)
    cluster.propose(1, "once")
    cluster.stabilize()
    cluster.restart(2)
    cluster.tick_all(3)
    assert cluster.nodes[2].index == cluster[1].status().commit


def test_nothing_is_applied_before_it_is_durable_here() -> None:
    cluster = Cluster()
    append(cluster, 2, 1, 1, 0, 0, Entry(1, 1, "command", b"x"), commit=1)
    cluster.begin(2)
    under_way = cluster.nodes[2].under_way
    assert under_way is not None
    assert cluster[2].status().commit == 1
    assert under_way.entries and not under_way.committed


def test_a_late_word_from_the_disk_does_not_vouch_for_entries_replaced_since() -> None:
    """The ABA of asynchronous storage: an index is written, replaced, and only then reported as written."""
    cluster = Cluster()
    append(cluster, 2, 1, 1, 0, 0, Entry(1, 1, "command", b"a"), Entry(2, 1, "command", b"old"))
    cluster.begin(2)
    append(cluster, 2, 3, 2, 1, 1, Entry(2, 2, "command", b"new"))
    cluster.finish(2)
    cluster.stabilize(2)
    assert [entry.data for entry in cluster.nodes[2].storage.entries(1, 3, 1000)] == [b"a", b"new"]


def test_a_follower_that_lost_what_it_acknowledged_is_refused() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "x")
    cluster.drop = lambda message: message.to == 3 and message.commit > 1
    cluster.stabilize()
    cluster.lose_tail(3)
    cluster.heal()
    cluster.tick_all(5)
    assert cluster[1].status().progress[3].damaged
    assert cluster[3].status().damaged
    assert cluster[3].status().last_index == 1, "it is not silently refilled"
    cluster.propose(1, "y")
    cluster.stabilize()
    assert cluster[1].status().commit == 3, "the others are enough"
    assert vote_is_refused_by(cluster, 3)


def vote_is_refused_by(cluster: Cluster, number: int) -> bool:
    cluster.tick(number, 20)
    return cluster[number].status().role == "follower" and vote(cluster, number, 2, 50, index=99, log_term=49).reject


def test_answers_that_arrive_late_are_no_damage() -> None:
    cluster = Cluster()
    cluster.elect(1)
    late: list[Message] = []
    cluster.drop = lambda message: message.kind == "heartbeat_reply" and not late.append(message)
    cluster.tick_all(1)
    cluster.heal()
    cluster.propose(1, "x")
    cluster.stabilize()
    for message in late:
        cluster.deliver(message)
    assert not any(peer.damaged for peer in cluster[1].status().progress.values())


def test_a_snapshot_that_comes_while_a_change_is_being_applied_leaves_that_change_alone() -> None:
    """The change is one of the members before it, not of those that the later snapshot names."""
    storage = MemoryStorage(ConfState(voters=(1, 2, 3)))
    core = RaftCore(RaftConfig(node=3), storage, random.Random(1))
    entries = (
        Entry(1, 1, "command", b""),
        Entry(2, 1, "conf_change", encode_conf_change((ConfChange("add_learner", 4),), "auto")),
    )
    core.step(Message("append", 3, 1, 1, commit=2, entries=entries, sequence=1))
    stored = core.ready()
    storage.append(stored.entries)
    core.advance(stored)
    applying = core.ready()
    assert applying.committed == entries
    later = ConfState(voters=(1, 2, 5))
    chunk = SnapshotChunk(10, 1, later, 0, 1, crc32(b"s"), b"s")
    core.step(Message("snapshot", 3, 1, 1, sequence=2, chunk=chunk))
    assert core.apply_conf_change(entries[1]) == ConfState(voters=(1, 2, 3), learners=(4,))
    core.advance(applying)
    restored = core.ready()
    assert restored.snapshot is not None
    storage.apply_snapshot(restored.snapshot)
    core.advance(restored)
    assert core.status().config == later
