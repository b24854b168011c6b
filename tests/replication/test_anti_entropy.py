"""What anti-entropy costs, and what it makes of packets that no honest replica sends."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.replication import standing as standing_module
from actorgrid.actors.replication.exchange import GossipLimits
from actorgrid.actors.replication.packets import (
    Ack,
    Below,
    DeltaRun,
    Deltas,
    Descend,
    Digest,
    Fragment,
    Listing,
    Message,
    States,
    VectorPart,
    VectorTold,
    decode_message,
    encode,
)
from actorgrid.actors.replication.replica import StateReplica
from actorgrid.actors.replication.retirement import RetiredOrigins
from actorgrid.actors.replication.types import GCounter, LWWRegister, MVRegister, ORSet, PNCounter
from actorgrid.errors import MalformedBody, NotSupported
from tests.replication.gossip_net import NOW_US, Town

OTHER = ("host-1", 77)


pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


# -- what it costs


def test_a_round_between_equals_is_one_packet_of_less_than_64_bytes(town: Town) -> None:
    town.mutate("host-0", "hits", "g_counter", "increment")
    town.settle()
    before = town.sent_bytes
    town.round("host-0")
    assert len(town.wire) == 2, "a digest to each other host"
    assert town.sent_bytes - before <= 2 * 64
    while town.deliver():
        pass
    assert town.sent_bytes - before <= 2 * 64, "nobody answers"


@pytest.mark.system
def test_ten_of_a_hundred_thousand_keys_are_repaired_in_ten_kilobytes_and_five_round_trips(tmp_path: Path) -> None:
    first = StateReplica(tmp_path / "a", "host-a", 1, random.Random(1))
    for number in range(100_000):
        key = f"key/{number:06}"
        state = LWWRegister()
        delta = state.put(first.me, number, NOW_US).to_bytes()
        first.states[key] = {"lww_register": state}
        first.stage_local(key, delta)
        if number % 5000 == 0:
            first.store.reserve(2**20)
            first.commit()
    first.commit()
    first.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    # No log: all that differs has to be found by a walk.
    sides = {
        name: StateReplica(tmp_path / name[-1], name, 2, random.Random(2), GossipLimits(log_bytes=0))
        for name in ("host-a", "host-b")
    }
    for side in sides.values():
        side.set_members(sides)
        side.digest()
    source, target = sides["host-a"], sides["host-b"]
    for number in range(0, 100_000, 10_000):
        state = source.states[f"key/{number:06}"]["lww_register"]
        assert isinstance(state, LWWRegister)
        source.stage_local(f"key/{number:06}", state.put(source.me, "new", NOW_US).to_bytes())
    wire = [("host-a", send) for send in source.commit() + source.round()]
    hops = size = 0
    while wire:
        hops += 1
        arriving, wire = wire, []
        for name, send in arriving:
            size += len(send.packet)
            replica = sides[send.peer]
            wire += [(send.peer, answer) for answer in replica.receive(name, send.packet, NOW_US) + replica.commit()]
    assert source.digest() == target.digest()
    assert source.gossip.vector == target.gossip.vector
    assert target.gossip.counts["states_taken"] <= 40
    assert size <= 10_000, size
    assert hops <= 10, hops
    for side in sides.values():
        side.close()


def test_in_a_small_cluster_a_put_is_one_packet_to_each_host_and_its_acknowledgement(tmp_path: Path) -> None:
    town = Town(tmp_path, 5, 1, GossipLimits())
    town.mutate("host-0", "hits", "g_counter", "increment")
    town.commit("host-0")
    town.push("host-0")
    packets = 0
    while town.deliver():
        packets += 1
    assert packets == 8
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {1}
    town.close()


def test_a_packet_keeps_to_its_size_and_one_set_is_under_way_to_a_peer(town: Town) -> None:
    for number in range(200):
        town.mutate("host-0", f"k{number}", "lww_register", "put", "x" * 1000)
    town.commit("host-0")
    town.push("host-0", everybody=True)
    assert [len(packet) <= 60 * 2**10 for _, _, packet in town.wire] == [True, True]
    town.push("host-0", everybody=True)
    assert len(town.wire) == 2, "the next one waits for an acknowledgement"
    while town.deliver():
        pass
    assert town.converged(), "and then they follow by themselves"


def test_a_peer_gets_no_more_than_its_bytes_in_a_round(tmp_path: Path) -> None:
    town = Town(tmp_path, 2, 1, GossipLimits(peer_bytes_a_round=100_000))
    for number in range(300):
        town.mutate("host-0", f"k{number}", "lww_register", "put", "x" * 1000)
    town.commit("host-0")
    town.push("host-0")
    while town.deliver():
        pass
    assert 50_000 < town.sent_bytes < 200_000
    assert not town.converged()
    town.settle()
    town.close()


# -- what is not believed


def deltas(*runs: tuple[tuple[str, int], int, list[tuple[str, bytes]]]) -> bytes:
    return encode(Deltas(tuple(DeltaRun(origin, first, tuple(pairs)) for origin, first, pairs in runs)))


def count(value: int = 1) -> bytes:
    return GCounter({OTHER: value}).to_bytes()


def offer(town: Town, packet: bytes, peer: str = "host-1") -> Any:
    replica = town.hosts["host-0"].replica
    sends = replica.receive(peer, packet, NOW_US) + replica.commit()
    return sends


def value(data: Any) -> bytes:
    found: bytes = msgpack.packb(data)
    return found


def test_a_good_delta_is_taken(town: Town) -> None:
    offer(town, deltas((OTHER, 1, [("k", count())])))
    assert town.hosts["host-0"].replica.states["k"]["g_counter"].value == 1


BIG_DOTS = [[["a", 1], ["b", 1], ["c", 1]], [[[0, 2**63 - 1], [1, 2**63 - 1], [2, 2**63 - 1]], []], []]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (b"\x93\x01\x03", "malformed"),
        (value([1, 3, 5]), "malformed"),
        (value([1, 3, [["host-1", 77, 1, 5]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 1, []]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 0, [["k", count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", -1, 1, [["k", count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 2**48, [["k", count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 1.0, [["k", count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", 77, True, [["k", count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 1, [["", count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 1, [["k" * 1025, count()]]]]]), "malformed"),
        (value([1, 3, [["host-1", 77, 1, [["k", "text"]]]]]), "malformed"),
        (deltas((OTHER, 1, [("k", b"\x00")])), "malformed"),
        (deltas((OTHER, 1, [("k", count()), ("l", b"junk")])), "malformed"),
        (deltas((OTHER, 1, [("k", value([1, "no_such_type", []]))])), "malformed"),
        (deltas((OTHER, 1, [("k", value([9, "g_counter", []]))])), "malformed"),
        (deltas((OTHER, 1, [("k", value([1, "g_counter", [[["h", 1], 2**64 - 1]]]))])), "malformed"),
        (deltas((OTHER, 1, [("k", value([1, "lww_register", [1, 0, ["h", 1], value(float("nan"))]]))])), "malformed"),
        (deltas((OTHER, 1, [("k", value([1, "lww_register", [1, 0, ["h", 1], b"\xd4\x05\x00"]]))])), "malformed"),
        (deltas((OTHER, 1, [("k", value([1, "lww_register", [1, 0, ["h", 1], b"\xcd\x00\x01"]]))])), "malformed"),
        (
            deltas((OTHER, 1, [("k", value([1, "lww_register", [1, 0, ["h", 1], b"\x91" * 400 + b"\x01"]]))])),
            "malformed",
        ),
        (
            deltas(
                (
                    OTHER,
                    1,
                    [
                        (
                            "k",
                            value(
                                [1, "or_set", [[["h", 1]], [[[0, 1]], []], [[0, 1, b"\x91" * 500 + b"\x01", [], None]]]]
                            ),
                        )
                    ],
                )
            ),
            "malformed",
        ),
        (deltas((("stranger", 1), 1, [("k", count())])), "forged"),
        (deltas((OTHER, 1, [("k", count())]), (("stranger", 1), 1, [("k", count())])), "forged"),
        (value([2, 3, []]), "version"),
        (value([1, 99, []]), "version"),
        (deltas((OTHER, 1, [("k", LWWRegister((NOW_US + 61_000_000, 0, OTHER, value(1))).to_bytes())])), "future"),
        (deltas((OTHER, 1, [("k", LWWRegister((2**62, 0, OTHER, value(1))).to_bytes())])), "future"),
        (encode(VectorTold({("h" * 300, 1): 1}, 1)), "malformed"),
        (value([1, 2, 1, 0, [["h", [[1, 0]]]]]), "malformed"),
        (value([1, 2, 1, 0, [[f"h{n}", [[1, 1]]] for n in range(5000)]]), "malformed"),
        (value([1, 5, 1, [[b"\x10", bytes(128)]]]), "malformed"),
        (value([1, 5, 1, [[b"", bytes(128)]] * 65]), "malformed"),
        (value([1, 5, 1, 7]), "malformed"),
        (value([1, 6, 1, 1, [[b"", [[b"\x00", bytes(128)]] * 17]]]), "malformed"),
        (value([1, 6, 1, 1, [[b"", 7]]]), "malformed"),
        (value([1, 7, 1, [[b"\x01" * 4, b"", b""]] * 65]), "malformed"),
        (value([1, 8, 1, 1, [[b"\x01" * 4, b"", 7]]]), "malformed"),
        (deltas((OTHER, 1, [("k", count())] * 4097)), "malformed"),
        (value([1, 5, 1, [[b"", bytes(127)]]]), "malformed"),
        (value([1, 7, 1, [[b"\x01" * 3, b"", b""]]]), "malformed"),
        (value([1, 7, 1, [[b"\x01" * 4, b"", bytes(15)]]]), "malformed"),
        (value([1, 9, 1, 0, 1, b"x"]), "malformed"),
        (value([1, 9, 1, 2, 2, b"x"]), "malformed"),
        (value([1, 9, 1, 0, 10**6, b"x"]), "malformed"),
    ],
)
def test_what_no_honest_replica_sends_is_counted_and_changes_nothing(town: Town, packet: bytes, reason: str) -> None:
    replica = town.hosts["host-0"].replica
    offer(town, packet)
    assert replica.gossip.refused[reason] == 1, replica.gossip.refused
    assert replica.states == {}
    assert replica.gossip.vector == {}
    assert replica.store.journal_bytes == 0
    offer(town, deltas((OTHER, 1, [("good", count())])))
    assert replica.states["good"]["g_counter"].value == 1, "and it goes on"


def test_what_is_dated_ahead_is_taken_when_its_time_has_come(town: Town) -> None:
    packet = deltas((OTHER, 1, [("k", LWWRegister((NOW_US + 90_000_000, 0, OTHER, value(1))).to_bytes())]))
    replica = town.hosts["host-0"].replica
    offer(town, packet)
    assert replica.states == {}
    replica.receive("host-1", packet, NOW_US + 40_000_000)
    assert replica.states["k"]["lww_register"].value == 1


def test_dots_beyond_all_counting_do_no_harm(town: Town) -> None:
    """``len`` of such a context raises OverflowError."""
    for _ in range(2):
        offer(town, deltas((OTHER, 1, [("k", value([1, "or_set", BIG_DOTS]))])))
    offer(town, deltas((OTHER, 2, [("k", value([1, "or_set", BIG_DOTS]))])))
    replica = town.hosts["host-0"].replica
    assert town.mutate("host-0", "k", "or_set", "add", "x") == {"x"}
    replica.commit()


@pytest.mark.parametrize("sign", [1, -1])
def test_counters_beyond_64_bits_are_shown_as_the_last_of_them(town: Town, sign: int) -> None:
    """Else nobody could be answered: the number does not fit the wire."""
    most = 2**63 - 1
    entries = {(f"h{number}", 1): (most, 0) if sign > 0 else (0, most) for number in range(3)}
    offer(town, deltas((OTHER, 1, [("k", PNCounter(entries).to_bytes())])))
    shown = town.hosts["host-0"].replica.states["k"]["pn_counter"].value
    assert shown == (2**64 - 1 if sign > 0 else -(2**63))
    value(shown)


def test_a_stranger_is_not_heard(town: Town) -> None:
    offer(town, deltas((OTHER, 1, [("k", count())])), "stranger")
    offer(town, deltas((OTHER, 1, [("k", count())])), "host-0")
    replica = town.hosts["host-0"].replica
    assert replica.gossip.refused["no_member"] == 2
    assert replica.states == {}


@pytest.mark.parametrize("how", ["vector", "ack", "deltas", "content", "state"])
def test_who_claims_deltas_of_ours_that_we_did_not_make_changes_nothing_and_we_count_anew(town: Town, how: str) -> None:
    town.mutate("host-0", "hits", "g_counter", "increment", 5)
    town.settle()
    replica = town.hosts["host-0"].replica
    me = replica.me
    forged = GCounter({me: 1000}).to_bytes()
    packets = {
        "vector": encode(VectorTold({me: 1000}, 1, ask=True)),
        "ack": encode(Ack({me: 1000})),
        "deltas": deltas((me, 2, [("hits", forged)])),
        "content": deltas((OTHER, 1, [("hits", forged)])),
        "state": encode(States(0, 1, ((b"\1\2\3\4", b"", (("hits", forged),)),))),
    }
    offer(town, packets[how])
    assert replica.states["hits"]["g_counter"].value == 5
    if how == "state":
        assert replica.me == me, "nobody asked for it"
        return
    assert replica.gossip.refused["forged"] == 1
    assert replica.me != me
    assert town.mutate("host-0", "hits", "g_counter", "increment", 5) == 10
    for _ in range(100):
        offer(town, encode(Ack({replica.me: 1000})))
    assert replica.gossip.counts["new_epochs"] == GossipLimits().new_epochs, "not for ever"
    town.settle()
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {10}


def test_a_false_claim_to_hold_other_hosts_deltas_is_healed(town: Town) -> None:
    """host-0 is told that it has all of host-1's, 500 of them, by a walk of equal trees."""
    town.settle()
    town.mutate("host-1", "hits", "g_counter", "increment")
    town.commit("host-1")
    origin = town.hosts["host-1"].replica.me
    replica = town.hosts["host-0"].replica
    replica.store.stage_vector({origin: 500})
    replica.commit()
    replica.gossip.vector[origin] = 500
    replica.gossip._hash = None
    town.settle()
    town.mutate("host-1", "hits", "g_counter", "increment")
    town.settle()
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {2}


def test_a_full_vector_takes_no_new_origins_and_states_still_come(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_module, "MAX_ORIGINS", 2)
    for name in town.names:
        town.mutate(name, "hits", "g_counter", "increment")
        town.commit(name)
    for _ in range(5):
        for name in town.names:
            town.round(name)
        while town.deliver():
            pass
    assert {host.replica.states["hits"]["g_counter"].value for host in town.hosts.values()} == {3}
    assert all(len(host.replica.gossip.vector) <= 2 for host in town.hosts.values())
    assert sum(host.replica.gossip.refused["vector_full"] for host in town.hosts.values()) > 0


def test_fragments_of_many_peers_are_not_all_kept(tmp_path: Path) -> None:
    town = Town(tmp_path, 4, 1, GossipLimits(partial_peers=1))
    replica = town.hosts["host-0"].replica
    for peer in ("host-1", "host-2", "host-3"):
        offer(town, encode(Fragment(1, 0, 3, b"x" * 1000)), peer)
    assert replica.gossip.refused["too_many_fragments"] == 2
    for _ in range(4):
        town.round("host-0")
    offer(town, encode(Fragment(1, 0, 3, b"x" * 1000)), "host-2")
    assert replica.gossip.refused["too_many_fragments"] == 2, "those that did not go on are forgotten"
    town.close()


MESSAGES: list[Message] = [
    Digest(bytes(16), b""),
    Digest(bytes(16), bytes(8)),
    VectorTold({OTHER: 5, ("host-1", 3): 2**40}, 9, ask=True),
    VectorTold({}, 0, repair=True),
    Deltas((DeltaRun(OTHER, 3, (("k", b"d"), ("l", b""))),)),
    Ack({OTHER: 1}),
    Descend(1, ((b"", bytes(128)), (b"\x01\x0f", bytes(range(128))))),
    Below(1, 2, ((b"", ((b"\x03", bytes(128)),)),)),
    Listing(1, ((b"\x01\x02\x03\x04", b"", bytes(16)),)),
    States(1, 2, ((b"\x01\x02\x03\x04", bytes(8), (("k", b"s"),)),)),
    Fragment(7, 1, 2, b"x"),
    # Of a cluster in which origins were retired. They come last: transcripts go by the places of the others.
    Digest(bytes(16), bytes(8), 3),
    VectorTold({OTHER: 5}, 9, ask=True, retired=RetiredOrigins(3)),
    VectorTold({}, 9, retired=RetiredOrigins(3, {"host-0": 7, "host-1": 2})),
    VectorTold({}, 9, ask=True, confirm=True),
    Below(1, 2, ((b"", ((b"\x03", bytes(128)),)),), 3),
    States(1, 2, ((b"\x01\x02\x03\x04", bytes(8), (("k", b"s"),)),), 3),
    # Of a version that tells vectors in part.
    VectorTold({OTHER: 5}, 9, ask=True, reads_parts=True),
    VectorPart(((bytes(6), 5), (b"abcdef", 0)), bytes(16), 9, 0, ask=True),
    VectorPart((), bytes(16), 9, 3, ask=True, confirm=True, again=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back_from_their_bytes(message: Message) -> None:
    assert decode_message(encode(message)) == message


def test_where_nothing_was_retired_messages_are_those_of_the_version_before() -> None:
    assert encode(Digest(b"v" * 16, b"t" * 8)) == msgpack.packb([1, 1, b"v" * 16, b"t" * 8])
    assert encode(VectorTold({OTHER: 5}, 9, ask=True)) == msgpack.packb([1, 2, 9, 1, [["host-1", [[77, 5]]]]])
    assert encode(Below(1, 2, ())) == msgpack.packb([1, 6, 1, 2, []])
    assert encode(States(1, 2, ())) == msgpack.packb([1, 8, 1, 2, []])


@pytest.mark.parametrize(
    "wrong",
    [
        [1, 1, bytes(16), bytes(8), 0],
        [1, 1, bytes(16), bytes(8), 1, 1],
        [1, 1, bytes(16), bytes(8), True],
        [1, 2, 9, 0, [], [0, []]],
        [1, 2, 9, 0, [], [1, [["h", 0]]]],
        [1, 2, 9, 0, [], [1, [[7, 1]]]],
        [1, 2, 9, 0, [], [1, [["h", 1]] * 20_001]],
        [1, 2, 9, 0, [], 1],
    ],
)
def test_a_level_that_is_none_is_refused(wrong: list[Any]) -> None:
    with pytest.raises(MalformedBody):
        decode_message(msgpack.packb(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        [1, 10, 9, 0, 0, bytes(16), 7],
        [1, 10, 9, 0, 0, bytes(15), []],
        [1, 10, 9, -1, 0, bytes(16), []],
        [1, 10, 9, 0, True, bytes(16), []],
        [1, 10, 9, 0, 0, bytes(16), [[bytes(5), 1]]],
        [1, 10, 9, 0, 0, bytes(16), [[bytes(6), -1]]],
        [1, 10, 9, 0, 0, bytes(16), [[bytes(6), 1, 1]]],
        [1, 10, 9, 0, 0, bytes(16), [[bytes(6), 1]] * 4_097],
        [1, 10, 9, 0, 0, bytes(16), [], 0],
    ],
)
def test_a_part_of_a_vector_that_is_none_is_refused(wrong: list[Any]) -> None:
    with pytest.raises(MalformedBody):
        decode_message(msgpack.packb(wrong))


@given(st.integers(0, len(MESSAGES) - 1), st.data())
@settings(max_examples=400, deadline=None)
def test_changed_bytes_are_refused_by_name_or_are_another_message(which: int, data: Any) -> None:
    whole = bytearray(encode(MESSAGES[which]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(MalformedBody, NotSupported):
        decode_message(cut)


def test_a_walk_asks_again_what_was_lost_and_gives_up_in_the_end(tmp_path: Path) -> None:
    town = Town(tmp_path, 2, 1, GossipLimits(log_bytes=0))
    town.mutate("host-0", "r", "mv_register", "put", 1)
    assert MVRegister.kind == "mv_register" and ORSet.kind == "or_set"
    town.commit("host-0")
    puller = town.hosts["host-1"].replica.gossip
    town.round("host-0")
    while not puller.walking:
        town.deliver()
    town.wire.clear()
    town.round("host-1")
    town.round("host-1")
    assert any(decode_message(packet) for source, _, packet in town.wire if source == "host-1" and packet[2] == 5)
    for _ in range(6):
        town.wire.clear()
        town.round("host-1")
    assert not puller.walking
    assert puller.counts["walks_given_up"] == 1
    town.settle()
    town.close()
