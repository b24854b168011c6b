"""Bytes of packets: one encoding for each, and nothing else is taken; seals that strangers and replays do not pass."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.membership import packets
from actorgrid.actors.membership.packets import (
    DATAGRAM_BYTES_MAX,
    GOSSIP,
    MEMBERS_MAX,
    PING,
    PING_REQ,
    FullState,
    Packet,
    decode_packet,
    decode_state,
    encode_packet,
    encode_state,
    packet_bytes,
    record_bytes,
    room_bytes,
)
from actorgrid.actors.membership.records import INCARNATION_MAX, LIFE_MAX, MemberStatus
from actorgrid.actors.membership.replay_window import WINDOW, ReplayWindow
from actorgrid.actors.membership.seal import LIVES_AHEAD_MAX, PREVIOUS_KEY_S, DatagramSeal, Keyring
from tests.hostile.mutations import ODD

from .members import word

SECRET, OTHER = b"k" * 32, b"o" * 32
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
records = st.builds(MemberStatus, names, names, st.integers(0, INCARNATION_MAX), st.integers(0, 3), names)


@st.composite
def all_packets(draw: st.DrawFn) -> Packet:
    kind = draw(st.integers(0, 4))
    target = draw(names) if kind in (PING, PING_REQ) else ""
    room, taken = room_bytes(target), []
    for record in draw(st.lists(records, max_size=20)):
        room -= record_bytes(record)
        if room < 0:
            break
        taken.append(record)
    return Packet(kind, draw(names), draw(st.integers(0, packets.SEQUENCE_MAX)), target, tuple(taken))


def ends(life: int = 3) -> tuple[DatagramSeal, DatagramSeal]:
    return DatagramSeal("a", life, Keyring(1, SECRET)), DatagramSeal("b", 1, Keyring(1, SECRET))


@given(all_packets())
def test_a_packet_that_was_written_is_read_and_takes_what_was_reckoned(packet: Packet) -> None:
    assert decode_packet(encode_packet(packet), packet.sender) == packet
    datagram = DatagramSeal(packet.sender, 1, Keyring(1, SECRET)).seal(packet)
    assert len(datagram) <= packet_bytes(packet) <= DATAGRAM_BYTES_MAX
    reader = DatagramSeal("the reader, whose name has a space", 1, Keyring(1, SECRET))
    assert reader.open(datagram, 0.0) == packet


@given(st.lists(records, max_size=20), names, st.booleans())
def test_a_full_state_that_was_written_is_read(found: list[MemberStatus], sender: str, wants_reply: bool) -> None:
    state = FullState(sender, wants_reply, tuple(found))
    assert decode_state(encode_state(state)) == state


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_strictly_or_refused(data: bytes) -> None:
    packet, state = decode_packet(data, "a"), decode_state(data)
    assert isinstance(packet, str) or encode_packet(packet) == data
    assert isinstance(state, str) or encode_state(state) == data


@settings(max_examples=300)
@given(all_packets(), st.data())
def test_bytes_that_were_changed_are_another_packet_or_refused(packet: Packet, data: st.DataObject) -> None:
    whole = bytearray(encode_packet(packet))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    read = decode_packet(changed, packet.sender)
    assert isinstance(read, str) or encode_packet(read) == changed


def trees() -> list[Any]:
    """A good packet with something odd in each place of it."""
    good = [PING, 7, "b", [["b", "b:1", 5, 0, "b"]]]
    found: list[Any] = [*ODD, [], good[:3], [*good, 0]]
    for odd in ODD:
        found += [[*good[:place], odd, *good[place + 1 :]] for place in range(4)]
        found += [[*good[:3], [odd]]]
        found += [[*good[:3], [[*good[3][0][:place], odd, *good[3][0][place + 1 :]]]] for place in range(5)]  # type: ignore[index]
    return found


def test_odd_values_in_any_place_are_refused() -> None:
    taken = 0
    for tree in trees():
        try:
            data = msgpack.packb(tree, use_bin_type=True, unicode_errors="surrogatepass")
        except (ValueError, OverflowError):
            continue
        for read in (decode_packet(data, "a"), decode_state(data)):
            assert isinstance(read, str | Packet | FullState)
            taken += not isinstance(read, str)
    assert taken < 40  # small numbers and short names are not odd where they stand


@pytest.mark.parametrize(
    "changed",
    [
        word("b")._replace(name=""),
        word("b")._replace(name="x" * 65),
        word("b")._replace(name="é"),
        word("b")._replace(name="a\x1b[31m"),
        word("b")._replace(address="x" * 73),
        word("b")._replace(incarnation=INCARNATION_MAX + 1),
        word("b")._replace(incarnation=-1),
        word("b")._replace(incarnation=True),
        word("b")._replace(state=4),
        word("b")._replace(by=""),
    ],
)
def test_a_record_out_of_bounds_is_refused_with_its_packet(changed: MemberStatus) -> None:
    packet = Packet(GOSSIP, "a", 0, "", (word("c"), changed))
    assert decode_packet(encode_packet(packet), "a") == "malformed"
    assert decode_state(encode_state(FullState("a", True, packet.records))) == "malformed"


def test_too_much_is_refused_before_it_is_looked_at() -> None:
    assert decode_packet(b"\xc1" * 10**6, "a") == "oversize"
    assert decode_state(b"\xc1" * 10**7) == "oversize"
    many = FullState("a", True, tuple(word(f"m{number}") for number in range(MEMBERS_MAX + 1)))
    assert decode_state(encode_state(many)) == "malformed"


def test_numbers_in_a_longer_encoding_are_refused() -> None:
    data = encode_packet(Packet(GOSSIP, "a", 5, "", ()))
    longer = data.replace(b"\x05", b"\xcc\x05", 1)
    assert msgpack.unpackb(longer) == msgpack.unpackb(data)
    assert decode_packet(longer, "a") == "malformed"


# -- the seal

PACKET = Packet(PING, "a", 7, "b", (word("c"), word("d", 1)))


@settings(max_examples=300)
@given(st.data())
def test_a_datagram_with_any_bit_changed_or_cut_is_refused_and_counted(data: st.DataObject) -> None:
    sender, reader = ends()
    whole = bytearray(sender.seal(PACKET))
    end = data.draw(st.integers(0, len(whole)))
    if end == len(whole) or data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        end = len(whole)
    assert reader.open(bytes(whole[:end]), 0.0) is None
    assert sum(reader.refused.values()) == 1
    # Nothing of it counted: what is sent next is taken, whatever counter the forgery had.
    assert reader.open(sender.seal(PACKET), 0.0) == PACKET


@settings(max_examples=200)
@given(st.binary(max_size=1_500))
def test_any_datagram_is_refused(data: bytes) -> None:
    _, reader = ends()
    assert reader.open(data, 0.0) is None
    assert sum(reader.refused.values()) == 1
    assert not reader._windows and not reader._ciphers


def test_every_refusal_has_its_reason() -> None:
    sender, reader = ends()
    datagram = sender.seal(PACKET)
    assert reader.open(datagram, 0.0) == PACKET
    forged = datagram[:-1] + bytes([datagram[-1] ^ 1])
    strangers = DatagramSeal("a", 3, Keyring(1, OTHER))
    for _ in range(3):
        strangers.seal(PACKET)
    late_key = DatagramSeal("a", 3, Keyring(2, SECRET)).seal(PACKET)
    old = DatagramSeal("a", 2, Keyring(1, SECRET)).seal(PACKET)
    future = DatagramSeal("a", 3 + LIVES_AHEAD_MAX + 1, Keyring(1, SECRET)).seal(PACKET)
    for bad in (
        b"",
        datagram[:17],
        datagram[:20],
        b"\x02" + datagram[1:],
        datagram,
        datagram + bytes(1_500),
        strangers.seal(PACKET),
        late_key,
        old,
        future,
        DatagramSeal("b", 9, Keyring(1, SECRET)).seal(PACKET),
        forged[:10] + bytes([9]) + forged[11:],
    ):
        assert reader.open(bad, 0.0) is None
    assert reader.refused == {
        "truncated": 3,
        "version": 1,
        "replayed": 1,
        "oversize": 1,
        "forged": 2,
        "key_unknown": 1,
        "old_life": 1,
        "future": 1,
        "own_name": 1,
    }


def test_a_datagram_is_taken_once_and_those_that_were_overtaken_still() -> None:
    sender, reader = ends()
    sent = [sender.seal(PACKET._replace(sequence=number)) for number in range(3 * WINDOW)]
    order = list(range(3 * WINDOW))
    dice = random.Random(5)
    taken = []
    for start in range(0, len(order), WINDOW // 2):
        some = order[start : start + WINDOW // 2]
        dice.shuffle(some)
        for number in (*some, *some):
            packet = reader.open(sent[number], 0.0)
            if packet is not None:
                taken.append(packet.sequence)
    assert sorted(taken) == order
    assert reader.refused == {"replayed": 3 * WINDOW}


@given(st.lists(st.integers(0, 3 * WINDOW), max_size=200))
def test_the_window_takes_nothing_twice(counters: list[int]) -> None:
    window, seen, top = ReplayWindow(1), set(), -1
    for counter in counters:
        fresh = window.fresh(1, counter)
        assert fresh == (counter not in seen and counter > top - WINDOW)
        if fresh:
            window.mark(1, counter)
            seen.add(counter)
            top = max(top, counter)


def test_a_sender_that_starts_again_begins_a_new_count_and_its_former_life_is_over() -> None:
    first, reader = ends(life=3)
    early = [first.seal(PACKET) for _ in range(5)]
    assert reader.open(early[4], 0.0) == PACKET
    again = DatagramSeal("a", 4, Keyring(1, SECRET))
    assert reader.open(again.seal(PACKET), 0.0) == PACKET
    assert reader.open(early[3], 0.0) is None
    assert reader.refused == {"old_life": 1}


def test_no_nonce_comes_twice_over_packets_lives_senders_and_keys() -> None:
    seen = set()
    for secret_number in (1, 2):
        for name in ("a", "b"):
            for life in (1, 2):
                seal = DatagramSeal(name, life, Keyring(secret_number, SECRET))
                for _ in range(20):
                    head = seal.seal(PACKET)[:19]
                    # Key number and sender make the key; life and counter the nonce.
                    seen.add((head[1:5], head[18:19], head[5:17]))
    assert len(seen) == 2 * 2 * 2 * 20


def test_the_key_before_is_taken_for_a_while_and_then_no_more() -> None:
    removed, reader = ends()
    reader_keys = reader._keys
    reader_keys.rotate(2, OTHER, 100.0)
    reader_keys.rotate(1, SECRET, 100.0)  # an older one is not taken up again
    assert reader.open(removed.seal(PACKET), 100.0 + PREVIOUS_KEY_S - 0.1) == PACKET
    assert reader.open(removed.seal(PACKET), 100.0 + PREVIOUS_KEY_S) is None
    assert reader.refused == {"key_unknown": 1}
    assert DatagramSeal("c", 1, Keyring(2, OTHER)).open(reader.seal(PACKET), 0.0) == PACKET._replace(sender="b")


def test_a_member_that_was_forgotten_is_met_anew() -> None:
    sender, reader = ends()
    datagram = sender.seal(PACKET)
    assert reader.open(datagram, 0.0) == PACKET
    reader.forget("a")
    assert reader.open(datagram, 0.0) == PACKET


def test_of_more_senders_than_members_nothing_is_taken() -> None:
    _, reader = ends()
    reader._windows = {b"x%d" % number: ReplayWindow(1) for number in range(MEMBERS_MAX)}
    sender, _ = ends()
    assert reader.open(sender.seal(PACKET), 0.0) is None
    assert reader.refused == {"senders_full": 1}


def test_the_greatest_life_has_a_seal() -> None:
    _, reader = ends()
    assert reader.open(DatagramSeal("a", LIFE_MAX, Keyring(1, SECRET)).seal(PACKET), 0.0) == PACKET
