"""How a leader sends: batches, what may be on the way, the common point of logs, snapshots in chunks, bounds."""

from __future__ import annotations

from zlib import crc32

import pytest

from actorgrid.actors.raft.messages import (
    ConfState,
    Dropped,
    Entry,
    HardState,
    Message,
    ProposalAccepted,
    RaftConfig,
    RaftSnapshot,
    SnapshotChunk,
)
from actorgrid.actors.raft.snapshots import IncomingSnapshot
from actorgrid.actors.raft.storage.memory import Compacted, MemoryStorage, Unavailable
from actorgrid.errors import LogCorrupted
from tests.raft.cluster import Cluster


def appends(cluster: Cluster, to: int) -> list[Message]:
    return [message for message in cluster.wire if message.to == to and message.kind == "append"]


def test_proposals_between_two_readys_travel_in_one_message() -> None:
    cluster = Cluster()
    cluster.elect(1)
    for n in range(64):
        cluster.propose(1, f"{n}")
    cluster.begin(1)
    assert [len(message.entries) for message in appends(cluster, 2)] == [64]
    assert appends(cluster, 2)[0].entries is appends(cluster, 3)[0].entries, "they are read once"


def test_a_message_holds_at_most_so_many_entries_and_bytes_but_one_at_least() -> None:
    cluster = Cluster(message_entries_max=3, message_bytes_max=10)
    cluster.elect(1)
    for data in ("a", "b", "c", "d", "123456", "123456", "x" * 50, "e"):
        cluster.propose(1, data)
    cluster.begin(1)
    sizes = [[len(entry.data) for entry in message.entries] for message in appends(cluster, 2)]
    assert sizes == [[1, 1, 1], [1, 6], [6], [50], [1]]


def test_appends_are_sent_on_without_waiting_up_to_the_limit_of_messages() -> None:
    cluster = Cluster(message_entries_max=1, inflight_messages_max=4)
    cluster.elect(1)
    for n in range(10):
        cluster.propose(1, f"{n}")
    cluster.begin(1)
    assert len(appends(cluster, 2)) == 4
    assert cluster[1].status().progress[2].inflight == 4
    cluster.stabilize()
    assert cluster[2].status().applied == 11
    assert cluster[1].status().progress[2].inflight == 0


def test_appends_are_sent_on_up_to_the_limit_of_bytes() -> None:
    cluster = Cluster(message_entries_max=1, inflight_bytes_max=25)
    cluster.elect(1)
    for _ in range(10):
        cluster.propose(1, "x" * 10)
    cluster.begin(1)
    assert len(appends(cluster, 2)) == 3
    cluster.stabilize()
    assert cluster[2].status().applied == 11


def test_one_append_at_a_time_looks_for_the_common_point() -> None:
    cluster = Cluster()
    cluster.drop = lambda message: message.kind == "append_reply"
    cluster[1].campaign()
    cluster.stabilize()
    cluster.propose(1, "a")
    cluster.begin(1)
    assert appends(cluster, 2) == []


def test_lost_appends_are_found_out_and_sent_again() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.drop = lambda message: message.kind == "append"
    for n in range(3):
        cluster.propose(1, f"{n}")
        cluster.stabilize()
    cluster.heal()
    assert cluster[1].status().progress[2].match == 1
    cluster.tick_all(1)
    assert cluster.data(2) == ["0", "1", "2"]


def test_a_whole_term_is_skipped_for_each_message_that_does_not_fit() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(1)
    for n in range(500):
        cluster.propose(1, f"{n}")
    cluster.stabilize()
    cluster.tick(2, 9)
    cluster.tick(3, 10)
    cluster.elect(2)
    cluster.heal()
    refused: list[Message] = []
    cluster.drop = lambda message: bool(message.kind == "append_reply" and message.reject and refused.append(message))
    cluster.tick_all(3)
    assert cluster[1].status().last_index == cluster[2].status().last_index
    assert len(refused) <= 2


def test_a_peer_that_is_reported_unreachable_is_asked_what_it_has() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "lost")
    cluster.begin(1)
    cluster.wire.clear()
    assert cluster[1].status().progress[2].state == "replicate"
    cluster[1].report_unreachable(2)
    assert cluster[1].status().progress[2].state == "probe"
    cluster.finish(1)
    cluster.stabilize()
    assert cluster.data(2) == ["lost"]


def test_followers_learn_at_once_that_an_entry_is_committed() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "a")
    cluster.stabilize()
    assert cluster.data(2) == cluster.data(3) == ["a"]


def test_one_ready_gives_out_a_bounded_part_of_what_is_committed() -> None:
    cluster = Cluster(apply_bytes_max=10)
    cluster.elect(1)
    for _ in range(4):
        cluster.propose(1, "12345")
    cluster.process(1)
    cluster.stabilize(2)
    for message in [message for message in cluster.wire if message.to == 1]:
        cluster.deliver(message)
    sizes = []
    while cluster.begin(1):
        under_way = cluster.nodes[1].under_way
        assert under_way is not None
        sizes.append(len(under_way.committed))
        cluster.finish(1)
    assert [size for size in sizes if size] == [2, 2]


def test_reads_are_bounded_and_forgotten_with_the_leadership() -> None:
    cluster = Cluster(reads_max=2)
    cluster.elect(1)
    assert isinstance(cluster.read(1, b"a"), ProposalAccepted)
    assert isinstance(cluster.read(1, b"b"), ProposalAccepted)
    assert cluster.read(1, b"c") == Dropped("too_many_reads")
    cluster.stabilize()
    assert isinstance(cluster.read(1, b"d"), ProposalAccepted)


def test_many_reads_take_one_round_of_messages() -> None:
    cluster = Cluster()
    cluster.elect(1)
    for n in range(100):
        cluster.read(1, f"{n}".encode())
    cluster.begin(1)
    assert len(cluster.wire) == 2
    cluster.finish(1)
    cluster.stabilize()
    assert len(cluster.nodes[1].read_states) == 100


def test_a_lone_voter_reads_at_once() -> None:
    cluster = Cluster([1])
    cluster.elect(1)
    cluster.read(1, b"a")
    cluster.begin(1)
    assert [state.context for state in cluster.nodes[1].read_states] == [b"a"]


def test_at_most_so_many_chunks_of_a_snapshot_are_on_the_way() -> None:
    cluster = Cluster(snapshot_chunk_bytes=10, snapshot_chunks_inflight=3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.stabilize()
    cluster.compact(1)
    cluster.heal()
    seen = 0
    cluster.tick(1)
    for _ in range(40):
        while cluster.process(1):
            pass
        on_the_way = [message for message in cluster.wire if message.kind == "snapshot"]
        seen = max(seen, len(on_the_way))
        assert all(message.chunk and len(message.chunk.data) <= 10 for message in on_the_way)
        cluster.stabilize(3)
        for message in [message for message in cluster.wire if message.to == 1]:
            cluster.wire.remove(message)
            cluster.deliver(message)
    assert seen == 3
    assert cluster[3].status().applied == 2


def test_a_snapshot_that_is_not_there_yet_is_asked_for_again() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.stabilize()
    cluster.compact(1)
    storage = cluster.nodes[1].storage
    there = storage.snapshot

    def unavailable() -> RaftSnapshot:
        raise Unavailable(0)

    storage.snapshot = unavailable  # type: ignore[method-assign]
    cluster.heal()
    cluster.tick_all(3)
    assert cluster[3].status().applied == 1
    storage.snapshot = there  # type: ignore[method-assign]
    cluster.tick_all(3)
    assert cluster[3].status().applied == 2


def test_a_node_without_members_is_not_given_a_log_that_does_not_say_them() -> None:
    """A log from before its first entry named the members: who joins needs a snapshot of it."""
    storage = MemoryStorage(ConfState(voters=(1,)))
    storage.append([Entry(1, 1, "command", b"old")])
    storage.set_hard_state(HardState(1, 1, 1))
    cluster = Cluster([1])
    cluster.nodes[1].storage = storage
    cluster.restart(1)
    cluster.elect(1)
    cluster.add(2)
    cluster.change(1, ("add_learner", 2))
    cluster.tick_all(3)
    assert cluster[2].status().last_index == 0
    cluster.compact(1)
    cluster.tick_all(3)
    assert cluster[2].status().config == ConfState(voters=(1,), learners=(2,))


def chunk(offset: int, data: bytes, whole: bytes, index: int = 5) -> SnapshotChunk:
    return SnapshotChunk(index, 1, ConfState(voters=(1,)), offset, len(whole), crc32(whole), data)


def test_chunks_make_a_snapshot_in_order_only() -> None:
    incoming = IncomingSnapshot(RaftConfig(node=1))
    assert incoming.take(chunk(2, b"cd", b"abcd")) is None
    assert incoming.received == 0
    assert incoming.take(chunk(0, b"ab", b"abcd")) is None
    assert incoming.take(chunk(0, b"ab", b"abcd")) is None
    assert incoming.received == 2
    assert incoming.take(chunk(2, b"cd", b"abcd")) == RaftSnapshot(5, 1, ConfState(voters=(1,)), b"abcd")
    assert incoming.received == 0


def test_another_snapshot_replaces_the_one_that_is_being_received() -> None:
    incoming = IncomingSnapshot(RaftConfig(node=1))
    incoming.take(chunk(0, b"ab", b"abcd"))
    assert incoming.take(chunk(0, b"x", b"x", index=6)) == RaftSnapshot(6, 1, ConfState(voters=(1,)), b"x")


def test_a_snapshot_that_is_not_what_was_sent_begins_again() -> None:
    incoming = IncomingSnapshot(RaftConfig(node=1))
    incoming.take(chunk(0, b"aX", b"abcd"))
    assert incoming.take(chunk(2, b"cd", b"abcd")) is None
    assert incoming.received == 0


def test_a_snapshot_over_the_limit_is_not_received() -> None:
    incoming = IncomingSnapshot(RaftConfig(node=1, snapshot_bytes_max=3))
    assert incoming.take(chunk(0, b"ab", b"abcd")) is None
    assert incoming.received == 0


def test_half_a_snapshot_is_dropped_once_the_log_has_caught_up() -> None:
    incoming = IncomingSnapshot(RaftConfig(node=1))
    incoming.take(chunk(0, b"ab", b"abcd"))
    incoming.drop_behind(4)
    assert incoming.received == 2
    incoming.drop_behind(5)
    assert incoming.received == 0


def test_an_empty_snapshot_arrives_too() -> None:
    assert IncomingSnapshot(RaftConfig(node=1)).take(chunk(0, b"", b"")) == RaftSnapshot(
        5, 1, ConfState(voters=(1,)), b""
    )


def test_a_log_that_ends_before_its_commit_index_does_not_start() -> None:
    cluster = Cluster([1])
    cluster.elect(1)
    storage = cluster.nodes[1].storage
    storage.set_hard_state(HardState(1, 1, 7))
    with pytest.raises(LogCorrupted, match="tail is lost"):
        cluster.restart(1)


def test_storage_in_memory_says_what_it_no_longer_has_and_not_yet() -> None:
    storage = MemoryStorage(ConfState(voters=(1,)))
    storage.append([Entry(n, 1, "command", b"12345") for n in range(1, 6)])
    assert len(storage.entries(1, 6, 12)) == 2
    assert len(storage.entries(1, 6, 0)) == 1
    with pytest.raises(Unavailable):
        storage.entries(1, 7, 100)
    with pytest.raises(Unavailable):
        storage.term(6)
    storage.create_snapshot(3, ConfState(voters=(1,)), b"state")
    storage.compact(3)
    assert (storage.first_index(), storage.last_index(), storage.term(3)) == (4, 5, 1)
    with pytest.raises(Compacted):
        storage.entries(3, 5, 100)
    with pytest.raises(Compacted):
        storage.term(2)
    with pytest.raises(Compacted):
        storage.compact(3)


def test_a_forwarded_change_of_members_that_is_none_is_dropped() -> None:
    cluster = Cluster()
    cluster.elect(1)
    before = cluster[1].status()
    for data in (b"", b"\x93\x01\x90\x00", b"junk"):
        cluster.step(Message("propose", 1, 2, before.term, entries=(Entry(0, 0, "conf_change", data),)))
    assert cluster[1].status() == before


def test_a_message_of_a_second_leader_in_one_term_is_refused_and_counted() -> None:
    cluster = Cluster()
    cluster.elect(1)
    term = cluster[1].status().term
    for to, kind in ((2, "heartbeat"), (1, "heartbeat"), (1, "append"), (2, "timeout_now"), (2, "damaged")):
        before = cluster[to].status()
        cluster.step(Message(kind, to, 3, term))  # type: ignore[arg-type]
        assert cluster[to].status() == before
    assert cluster[1].refused == {"leads in a term that another leads in": 2}
    cluster.propose(1, "a")
    cluster.stabilize()
    assert cluster[2].status().commit == cluster[1].status().commit


def test_a_ready_is_confirmed_before_the_next_one() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.propose(1, "a")
    cluster.begin(1)
    assert not cluster[1].has_ready()
    with pytest.raises(AssertionError, match="not confirmed"):
        cluster[1].ready()
