"""What becomes of requests: every read that was accepted ends, transfers end in time, and who asked hears of it."""

from __future__ import annotations

from actorgrid.actors.raft.messages import Dropped, DroppedLater, Message, ProposalAccepted
from tests.raft.cluster import Cluster

ELECTION_TICKS = 10


def answered(cluster: Cluster, number: int) -> list[bytes]:
    return [state.context for state in cluster.nodes[number].read_states]


def test_a_lone_voter_answers_what_was_asked_before_its_first_commit() -> None:
    cluster = Cluster([1])
    cluster[1].campaign()
    while cluster[1].status().role != "leader":
        cluster.process(1)
    assert cluster[1].status().commit == 0
    assert cluster.read(1, b"early") == ProposalAccepted()
    cluster.stabilize()
    assert answered(cluster, 1) == [b"early"]


def test_a_read_is_answered_when_the_quorum_that_is_left_needs_nobody() -> None:
    for joint in (False, True):
        cluster = Cluster([1, 2])
        cluster.elect(1)
        cluster.change(1, ("remove", 2), transition="explicit" if joint else "auto")
        if joint:
            cluster.stabilize()
            cluster.change(1)
        cluster.process(1)
        cluster.deliver(cluster.wire.pop(0))
        cluster.process(2)
        cluster.deliver(cluster.wire.pop())
        assert cluster[1].status().commit > cluster[1].status().applied, "the change is committed, and not applied yet"
        cluster.isolate(2)
        cluster.read(1, b"left alone")
        cluster.stabilize()
        assert (cluster[1].status().config.voters, cluster[1].status().config.voters_outgoing) == ((1,), ())
        assert answered(cluster, 1) == [b"left alone"]


def test_a_read_waits_for_a_voter_that_came_after_it_was_asked_and_it_is_asked_at_once() -> None:
    cluster = Cluster([1], learners=[2])
    cluster.elect(1)
    cluster.change(1, ("add_voter", 2))
    cluster.begin(1)
    cluster.isolate(2)
    cluster.finish(1)
    cluster.begin(1)
    cluster.finish(1)
    assert cluster[1].status().config.voters == (1, 2)
    cluster.read(1, b"both")
    cluster.stabilize()
    assert answered(cluster, 1) == []
    cluster.heal()
    cluster.tick(1)
    cluster.stabilize()
    assert answered(cluster, 1) == [b"both"]


def test_a_transfer_that_is_asked_for_all_the_time_is_given_up_in_time() -> None:
    """Then proposals are taken again, until the next one is asked for."""
    for targets in ((3, 3), (3, 2)):
        cluster = Cluster()
        cluster.elect(1)
        cluster.drop = lambda message: message.kind == "timeout_now"
        for tick in range(ELECTION_TICKS):
            if tick % 3 == 0:
                assert cluster[1].transfer_leader(targets[tick // 3 % 2]) == ProposalAccepted()
            assert cluster.propose(1, "refused") == Dropped("transferring")
            cluster.tick_all()
        assert cluster.propose(1, "taken") == ProposalAccepted(2, 1)


def test_a_leader_that_is_cut_off_steps_down_whatever_transfers_are_asked() -> None:
    for targets in ((2, 2), (2, 3)):
        cluster = Cluster()
        cluster.elect(1)
        cluster.isolate(1)
        for tick in range(2 * ELECTION_TICKS):
            if tick % 3 == 0:
                cluster[1].transfer_leader(targets[tick // 3 % 2])
            cluster.tick(1)
            cluster.stabilize(1)
        assert cluster[1].status().role == "follower"


def test_a_transfer_that_was_lost_is_sent_again() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster[1].transfer_leader(2)
    cluster.process(1)
    cluster.wire.clear()
    cluster.tick(1)
    cluster[1].transfer_leader(2)
    cluster.stabilize()
    assert cluster[2].status().role == "leader"


def test_a_read_that_is_lost_on_its_way_is_given_up() -> None:
    cluster = Cluster()
    cluster.elect(1)
    assert cluster.read(2, b"lost") == ProposalAccepted(forwarded=True)
    cluster.process(2)
    cluster.wire.clear()
    cluster.tick_all(2 * ELECTION_TICKS - 1)
    assert cluster.nodes[2].dropped == []
    cluster.tick_all()
    assert cluster.nodes[2].dropped == [DroppedLater("read", b"lost", "no_answer")]
    assert cluster[2].status().leader == 1, "the leader was heard all the time"


def test_an_answer_that_is_late_counts_all_the_same() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.read(2, b"late")
    cluster.process(2)
    (asked,) = cluster.wire
    cluster.wire.clear()
    cluster.tick_all(3 * ELECTION_TICKS)
    assert cluster.nodes[2].dropped == [DroppedLater("read", b"late", "no_answer")]
    for _ in range(2):  # the second time it is nobody's
        cluster.deliver(asked)
        cluster.stabilize()
    assert answered(cluster, 2) == [b"late"] and len(cluster.nodes[2].dropped) == 1


def test_reads_that_the_leader_before_was_asked_are_given_up() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    cluster.read(2, b"asked")
    cluster.process(2)
    cluster.tick(2, ELECTION_TICKS)
    cluster.tick(3, ELECTION_TICKS)
    cluster[3].campaign(pre_vote=False)
    cluster.stabilize(2, 3)
    assert cluster[3].status().role == "leader"
    assert cluster.nodes[2].dropped == [DroppedLater("read", b"asked", "leader_changed")]


def test_a_leader_that_steps_down_says_which_reads_it_drops() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    for context in (b"a", b"b"):
        cluster.read(1, context)
    cluster.tick(1, 2 * ELECTION_TICKS)
    cluster.stabilize(1)
    assert cluster[1].status().role == "follower"
    assert cluster.nodes[1].dropped == [DroppedLater("read", context, "not_leader") for context in (b"a", b"b")]


def test_a_new_leader_that_steps_down_before_its_first_commit_says_so_too() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.crash(1)
    cluster.tick(2, ELECTION_TICKS)
    cluster.tick(3, ELECTION_TICKS)
    cluster.drop = lambda message: message.kind == "append_reply"
    cluster[2].campaign(pre_vote=False)
    cluster.stabilize()
    assert cluster[2].status().role == "leader" and cluster[2].status().commit < cluster[2].status().last_index
    cluster.read(2, b"early")
    cluster.isolate(2)
    cluster.tick(2, 2 * ELECTION_TICKS)
    cluster.stabilize(2)
    assert cluster.nodes[2].dropped == [DroppedLater("read", b"early", "not_leader")]


def test_who_forwarded_a_proposal_hears_that_it_was_refused() -> None:
    cluster = Cluster(uncommitted_bytes_max=10)
    cluster.elect(1)
    cluster.propose(1, "12345678")
    assert cluster.propose(2, "refused", b"mine") == ProposalAccepted(forwarded=True)
    assert cluster.propose(2, "refused without a word") == ProposalAccepted(forwarded=True)
    cluster.process(2)
    while cluster.wire:
        cluster.deliver(cluster.wire.pop(0))
    cluster.stabilize()
    assert cluster.nodes[2].dropped == [DroppedLater("proposal", b"mine", "too_many_uncommitted_bytes")]
    assert cluster.data(2) == ["12345678"]
    assert cluster[2].propose_conf_change([], context=b"change") == ProposalAccepted(forwarded=True)
    cluster.stabilize()
    assert cluster.nodes[2].dropped[1:] == [DroppedLater("proposal", b"change", "invalid_conf_change")]


def test_who_forwarded_a_read_hears_that_it_was_refused() -> None:
    cluster = Cluster(reads_max=1)
    cluster.elect(1)
    cluster.read(1, b"first")
    cluster.read(2, b"second")
    assert cluster.read(2, b"third") == Dropped("too_many_reads")
    cluster.process(2)
    cluster.deliver(cluster.wire.pop())
    cluster.stabilize()
    assert answered(cluster, 1) == [b"first"]
    assert cluster.nodes[2].dropped == [DroppedLater("read", b"second", "too_many_reads")]


def test_one_of_an_older_version_is_told_no_refusal_that_it_would_take_for_an_answer() -> None:
    cluster = Cluster(reads_max=1)
    cluster.elect(1)
    cluster.read(1, b"first")
    cluster.deliver(Message("read_index", 1, 2, 1, context=b"second"))
    cluster.process(1)
    assert not [message for message in cluster.wire if message.kind == "read_index_reply"]


def test_only_the_leader_that_was_asked_answers_a_read() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.read(2, b"asked")
    cluster.deliver(Message("read_index_reply", 2, 3, 1, index=1, context=b"asked"))
    cluster.deliver(Message("read_index_reply", 2, 1, 1, index=1, context=b"of another life"))
    cluster.deliver(Message("propose_reply", 2, 3, 1, reject=True, context=b"never refused"))
    cluster.process(2)
    assert answered(cluster, 2) == [] and cluster.nodes[2].dropped == []
    cluster.stabilize()
    assert answered(cluster, 2) == [b"asked"]


def test_a_reason_that_is_not_known_here_is_a_reason() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.deliver(Message("propose_reply", 2, 1, 1, reject=True, hint=10_000, context=b"mine"))
    cluster.process(2)
    assert cluster.nodes[2].dropped == [DroppedLater("proposal", b"mine", "not_leader")]


def test_an_election_begins_without_pre_vote_on_request() -> None:
    cluster = Cluster()
    assert cluster[1].campaign(pre_vote=False)
    assert (cluster[1].status().role, cluster[1].status().term) == ("candidate", 1)
    cluster.stabilize()
    assert cluster[1].status().role == "leader"
    assert not cluster[1].campaign(pre_vote=False), "who leads has no reason to"
    cluster.add(4)
    assert not cluster[4].campaign(pre_vote=False), "nor has who is no voter"


def test_a_probe_on_its_way_is_shown() -> None:
    cluster = Cluster()
    cluster.elect(1)
    assert not cluster[1].status().progress[2].paused
    cluster.isolate(2)
    cluster[1].report_unreachable(2)
    cluster.stabilize()
    assert cluster[1].status().progress[2].paused
    cluster.heal()
    cluster.tick_all()
    assert not cluster[1].status().progress[2].paused
