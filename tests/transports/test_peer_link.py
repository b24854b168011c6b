"""One link without a socket: versions, time, the order of what is sent, and bytes that are not what they should be."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import ActorGridError, FrameTooLarge, MailboxFull, PeerGone, UnknownKey
from actorgrid.transports.peer.limits import PeerLimits, Refusal
from actorgrid.transports.peer.link import SEND_BYTES, LinkUp, PeerLink
from actorgrid.transports.peer.session import CONTROL_TURN_BYTES, Called, Cancelled, CastReceived, LinkDown, Replied
from actorgrid.transports.peer.streams import PIECE_BYTES, StreamEnded, StreamOpened, StreamReceived, StreamWritable
from actorgrid.transports.peer.tls import PeerIdentity
from tests.transports.peer_certificates import Authority
from tests.transports.peer_pair import Pair

LIMITS = PeerLimits()


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[PeerIdentity, PeerIdentity]:
    authority, folder = Authority(), tmp_path_factory.mktemp("certificates")
    return authority.identity(folder, "c1", "a"), authority.identity(folder, "c1", "b")


@pytest.fixture
def pair(identities: tuple[PeerIdentity, PeerIdentity]) -> Pair:
    return Pair(*identities).up()


def downs(pair: Pair, link: PeerLink) -> list[str]:
    return [str(event.refusal) for event in pair.take(link) if isinstance(event, LinkDown)]


def test_both_sides_learn_who_the_other_is(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities, software="2.0")
    pair.settle()
    (told_a,), (told_b,) = pair.events[pair.a], pair.events[pair.b]
    assert isinstance(told_a, LinkUp)
    assert isinstance(told_b, LinkUp)
    assert (told_a.host_id, told_a.version, told_a.software) == ("b", 1, "2.0")
    assert (told_b.host_id, told_b.version, told_b.software) == ("a", 1, "1")
    assert len({told_a.fingerprint, told_b.fingerprint}) == 2
    assert {len(told_a.fingerprint), len(told_b.fingerprint)} == {64}


@pytest.mark.parametrize(("versions", "spoken"), [((1, 5), 1), ((0, 1), 1)])
def test_the_highest_version_that_both_speak_is_spoken(
    identities: tuple[PeerIdentity, PeerIdentity], versions: tuple[int, int], spoken: int
) -> None:
    pair = Pair(*identities, versions=versions)
    pair.settle()
    assert [event.version for event in pair.events[pair.a] if isinstance(event, LinkUp)] == [spoken]


def test_without_a_common_version_both_sides_say_so(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities, versions=(2, 3))
    pair.settle()
    assert {*downs(pair, pair.a), *downs(pair, pair.b)} <= {"version", "refused_us"}


def test_bytes_may_come_one_by_one(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities)

    def trickle(source: PeerLink, to: PeerLink) -> int:
        data = source.bytes_to_send()
        for at in range(len(data)):
            to.receive(data[at : at + 1], pair.now_s)
            pair.drain(to)
        return len(data)

    while trickle(pair.a, pair.b) + trickle(pair.b, pair.a):
        pass
    pair.up()
    pair.a.session.call("t", b"body")
    trickle(pair.a, pair.b)
    assert pair.take(pair.b) == [Called(1, "t", b"body")]


# -- time


def test_a_handshake_has_its_time(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities)
    for _ in range(round(LIMITS.handshake_s / LIMITS.tick_s)):
        pair.tick(LIMITS.tick_s)
    assert pair.take(pair.a) == pair.take(pair.b) == []
    pair.tick(0.1)
    assert downs(pair, pair.a) == downs(pair, pair.b) == ["handshake_timeout"]


def test_a_pause_of_this_side_is_no_part_of_a_handshake(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities)
    pair.tick(10 * LIMITS.handshake_s)
    assert pair.take(pair.a) == pair.take(pair.b) == []
    pair.up()


def test_a_ping_measures_the_round_trip(pair: Pair) -> None:
    pair.tick(LIMITS.ping_s, pair.a)
    pair.move(pair.a)
    pair.now_s += 0.25
    pair.move(pair.b)
    assert pair.a.session.rtt_s == pytest.approx(0.25)


def test_a_side_that_does_not_answer_is_silent_after_the_idle_time(pair: Pair) -> None:
    for _ in range(40):
        pair.tick(0.5)
        pair.a.bytes_to_send()  # lost
        pair.b.bytes_to_send()
    assert downs(pair, pair.a) == downs(pair, pair.b) == ["silent"]


def test_traffic_alone_does_not_hide_that_pings_are_not_answered(pair: Pair) -> None:
    pair.tick(LIMITS.ping_s)
    while not (ends := downs(pair, pair.a)):
        pair.a.bytes_to_send()  # lost: b hears nothing, and says something all the time
        pair.b.session.cast("t", b"")
        pair.move(pair.b)
        pair.tick(0.5, pair.a)
    assert ends == ["silent"]


def test_links_that_are_answered_stay_up(pair: Pair) -> None:
    for _ in range(100):
        pair.tick(0.5)
        pair.settle()
    assert not downs(pair, pair.a)
    assert not downs(pair, pair.b)


def test_a_side_that_was_stopped_itself_does_not_blame_the_other(pair: Pair) -> None:
    pair.tick(LIMITS.ping_s, pair.a)
    pair.tick(3600.0, pair.a)
    assert not downs(pair, pair.a)
    pair.settle()
    pair.tick(0.5, pair.a)
    assert not downs(pair, pair.a)


# -- calls


def test_calls_answers_and_cancels_cross(pair: Pair) -> None:
    first, second = pair.a.session.call("t", b"1"), pair.a.session.call("t", b"2")
    pair.settle()
    assert pair.take(pair.b) == [Called(first, "t", b"1"), Called(second, "t", b"2")]
    pair.a.session.cancel(first)
    pair.b.session.fail(second, UnknownKey("no"))
    pair.settle()
    assert pair.take(pair.b) == [Cancelled(first)]
    pair.b.session.reply(first, b"too late")
    pair.settle()
    (answer,) = pair.take(pair.a)
    assert isinstance(answer, Replied)
    assert answer.id == second
    assert isinstance(answer.error, UnknownKey)


def test_answers_that_are_not_taken_give_way_to_small_refusals(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities, replace(LIMITS, unsent_bytes_max=100_000)).up()
    for _ in range(20):
        pair.a.session.call("t", b"")
    pair.settle()
    noise = random.Random(1).randbytes(20_000)
    for event in pair.take(pair.b):
        assert isinstance(event, Called)
        pair.b.session.reply(event.id, noise)
    assert pair.b.unsent_bytes < 120_000
    pair.settle()
    errors = [event.error for event in pair.take(pair.a) if isinstance(event, Replied)]
    assert len(errors) == 20
    assert sum(isinstance(error, MailboxFull) for error in errors) == 16


def test_a_caller_that_never_reads_is_cut_off_at_the_bound(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    lax = replace(LIMITS, unsent_bytes_max=2**24, calls_max=10**6)
    pair = Pair(*identities, lax, limits=replace(LIMITS, unsent_bytes_max=1000, served_max=1)).up()
    held = 0
    for _ in range(20_000):
        pair.a.session.call("t", b"")
        if pair.a.unsent_bytes > 10_000:
            pair.b.receive(pair.a.bytes_to_send(), pair.now_s)
            pair.drain(pair.b)
            held = max(held, pair.b.unsent_bytes)
    assert downs(pair, pair.b) == ["not_reading"]
    assert held < 2 * 2**20


def test_what_is_not_sent_is_bounded_and_refused_by_name(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities, replace(LIMITS, unsent_bytes_max=100_000)).up()
    with pytest.raises(MailboxFull, match="not sent yet"):
        for _ in range(1000):
            pair.a.session.cast("t", random.Random(1).randbytes(1000))
    assert pair.a.unsent_bytes < 101_000
    pair.settle()
    pair.a.session.cast("t", b"again")


def test_a_target_that_cannot_be_carried_is_refused(pair: Pair) -> None:
    for target in ("t" * 257, "two\nlines"):
        with pytest.raises(FrameTooLarge):
            pair.a.session.cast(target, b"")


def test_nothing_goes_before_it_is_up_nor_after_its_end(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities)
    with pytest.raises(PeerGone):
        pair.a.session.call("t", b"")
    pair.up()
    pair.a.close(Refusal.CLOSING, "bye")
    with pytest.raises(PeerGone):
        pair.a.session.call("t", b"")
    pair.settle()
    assert downs(pair, pair.a) == ["closing"]
    assert downs(pair, pair.b) == ["gone"]


def test_requests_that_are_answered_or_cancelled_free_their_room(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities, replace(LIMITS, served_bytes_max=1000)).up()
    for number in range(10):
        call_id = pair.a.session.call("t", bytes(900))
        pair.settle()
        assert isinstance(pair.take(pair.b)[0], Called)
        assert pair.b.held_bytes == 900
        if number % 2:
            pair.b.session.reply(call_id, b"")
        else:
            pair.a.session.cancel(call_id)
        pair.settle()
        pair.take(pair.b)
        assert pair.b.held_bytes == 0


# -- lanes and streams


def test_control_overtakes_what_streams_have_waiting(pair: Pair) -> None:
    stream = pair.a.session.open_stream("bulk", b"")
    pair.settle()
    assert pair.a.session.write(stream, bytes(LIMITS.stream_window_bytes)) == LIMITS.stream_window_bytes
    pair.move(pair.a)
    assert pair.moved[pair.a] < LIMITS.stream_window_bytes
    pair.take(pair.b)
    pair.a.session.cast("t", b"urgent")
    pair.move(pair.a)
    assert pair.take(pair.b)[0] == CastReceived("t", b"urgent")


def test_a_flood_of_control_leaves_streams_their_share(pair: Pair) -> None:
    stream = pair.a.session.open_stream("bulk", b"")
    pair.settle()
    pair.a.session.write(stream, bytes(LIMITS.stream_window_bytes))
    noise = random.Random(1).randbytes(10_000)
    for _ in range(300):
        pair.a.session.cast("t", noise)
    pair.take(pair.b)
    while not any(isinstance(event, StreamReceived) for event in pair.events[pair.b]):
        pair.move(pair.a)
    before = sum(len(event.body) for event in pair.take(pair.b) if isinstance(event, CastReceived))
    assert before <= CONTROL_TURN_BYTES + SEND_BYTES


def test_one_load_is_small_enough_for_what_comes_next_to_overtake(pair: Pair) -> None:
    stream = pair.a.session.open_stream("bulk", b"")
    pair.settle()
    pair.a.session.write(stream, bytes(LIMITS.stream_window_bytes))
    assert len(pair.a.bytes_to_send()) < 2 * SEND_BYTES


@pytest.mark.parametrize("pieces", range(1, 6))
def test_a_link_is_restless_until_the_end_of_a_stream_is_sent(pair: Pair, pieces: int) -> None:
    """Who carries its bytes asks whether to go on: an end that no load had a place for would wait for the next ping."""
    stream = pair.a.session.open_stream("bulk", b"")
    pair.settle()
    pair.take(pair.b)
    assert pair.a.session.write(stream, bytes(pieces * PIECE_BYTES)) == pieces * PIECE_BYTES
    pair.a.session.end_stream(stream)
    while pair.a.restless:
        pair.move(pair.a)
    assert pair.take(pair.b)[-1] == StreamEnded(stream, None)


def test_a_link_is_restless_until_a_grant_a_reset_or_a_pong_is_sent(pair: Pair) -> None:
    stream = pair.a.session.open_stream("bulk", b"")
    pair.settle()
    pair.a.session.write(stream, bytes(LIMITS.stream_window_bytes))
    pair.settle()
    assert not pair.b.restless
    pair.b.session.consumed(stream, LIMITS.stream_window_bytes)
    assert pair.b.restless
    pair.settle()
    pair.b.session.reset_stream(stream, UnknownKey("no such"))
    assert pair.b.restless
    pair.settle()
    pair.tick(LIMITS.ping_s, pair.a)
    pair.b.receive(pair.a.bytes_to_send(), pair.now_s)
    pair.drain(pair.b)
    assert pair.b.restless
    pair.settle()
    assert not pair.a.restless
    assert not pair.b.restless


def test_streams_take_turns(pair: Pair) -> None:
    streams = [pair.a.session.open_stream("bulk", b"") for _ in range(3)]
    pair.settle()
    pair.take(pair.b)
    for stream in streams:
        pair.a.session.write(stream, bytes(200_000))
    pair.settle()
    order = [event.id for event in pair.take(pair.b) if isinstance(event, StreamReceived)]
    assert order[:6] == [*streams, *streams]


def test_a_writer_learns_of_room_once_it_was_short_of_it(pair: Pair) -> None:
    stream = pair.a.session.open_stream("bulk", b"")
    assert pair.a.session.write(stream, b"not yet") == 0
    pair.settle()
    assert StreamWritable(stream) in pair.take(pair.a)
    window = LIMITS.stream_window_bytes
    assert pair.a.session.write(stream, bytes(window + 1)) == window
    pair.settle()
    assert pair.take(pair.a) == []
    pair.b.session.consumed(stream, window)
    pair.settle()
    assert pair.take(pair.a) == [StreamWritable(stream)]
    assert pair.a.session.capacity(stream) == window


def test_claiming_to_have_consumed_more_than_came_grants_no_more_than_the_window(
    identities: tuple[PeerIdentity, PeerIdentity],
) -> None:
    pair = Pair(*identities, replace(LIMITS, stream_unsent_bytes=2**40), limits=LIMITS).up()
    stream = pair.a.session.open_stream("bulk", b"")
    pair.settle()
    pair.b.session.consumed(stream, 10**9)
    pair.settle()
    assert pair.a.session.capacity(stream) == LIMITS.stream_window_bytes


def test_a_stream_that_was_reset_ignores_what_was_under_way(pair: Pair) -> None:
    stream = pair.a.session.open_stream("bulk", b"head")
    pair.settle()
    assert pair.take(pair.b) == [StreamOpened(stream, "bulk", b"head")]
    pair.a.session.write(stream, bytes(100_000))
    data = pair.a.bytes_to_send()
    pair.b.session.reset_stream(stream, UnknownKey("unwanted"))
    pair.b.receive(data, pair.now_s)
    pair.drain(pair.b)
    assert pair.take(pair.b) == []
    pair.settle()
    (ended,) = [event for event in pair.take(pair.a) if isinstance(event, StreamEnded)]
    assert isinstance(ended.error, UnknownKey)
    with pytest.raises(PeerGone):
        pair.a.session.write(stream, b"more")
    assert not downs(pair, pair.b)


def test_opening_and_dropping_streams_without_end_is_cut_off(identities: tuple[PeerIdentity, PeerIdentity]) -> None:
    pair = Pair(*identities, replace(LIMITS, streams_max=10**6), limits=replace(LIMITS, streams_max=4)).up()
    for _ in range(2000):
        pair.a.session.open_stream("bulk", b"")
    for _ in range(20):
        pair.b.receive(pair.a.bytes_to_send(), pair.now_s)
        pair.drain(pair.b)
    assert downs(pair, pair.b) == ["not_reading"]


# -- retirement


def test_a_retired_link_ends_once_nothing_is_under_way(pair: Pair) -> None:
    call_id = pair.a.session.call("t", b"")
    pair.settle()
    pair.a.session.retire()
    pair.settle()
    assert pair.b.session.retiring
    pair.tick(0.5)
    assert not downs(pair, pair.a)
    assert [event.id for event in pair.events[pair.b] if isinstance(event, Called)] == [call_id]
    pair.take(pair.b)
    pair.b.session.reply(call_id, b"done")
    pair.settle()
    assert pair.take(pair.a) == [Replied(call_id, b"done", None)]
    pair.tick(0.5)
    pair.settle()
    assert downs(pair, pair.a) == downs(pair, pair.b) == ["retired"]


def test_a_link_that_one_side_has_retired_waits_for_what_the_other_may_have_sent(pair: Pair) -> None:
    pair.b.session.call("t", b"sent before b knew")
    under_way = pair.b.bytes_to_send()
    pair.a.session.retire()
    pair.a.bytes_to_send()
    pair.tick(0.5, pair.a)
    assert not downs(pair, pair.a)
    pair.a.receive(under_way, pair.now_s)
    pair.drain(pair.a)
    assert pair.take(pair.a) == [Called(1, "t", b"sent before b knew")]


# -- bytes that are wrong


SPOILERS = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, 10**6), st.integers(0, 2**16)),
    st.tuples(st.just("replace"), st.integers(1, 2000), st.integers(0, 2**16)),
    st.tuples(st.just("repeat"), st.just(0), st.just(0)),
)


def spoil(how: tuple[str, int, int], data: bytes) -> bytes:
    kind, at, value = how
    at %= len(data)
    match kind:
        case "flip":
            return data[:at] + bytes([data[at] ^ (value & 255 or 1)]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "insert":
            return data[:at] + random.Random(value).randbytes(value % 5000) + data[at:]
        case "replace":
            return random.Random(value).randbytes(how[1])
        case _:
            return data + data


@settings(max_examples=150)
@given(stage=st.integers(0, 9), side=st.booleans(), how=SPOILERS)
def test_bytes_spoiled_at_any_stage_end_the_link_with_a_named_reason_and_nothing_else(
    identities: tuple[PeerIdentity, PeerIdentity], stage: int, side: bool, how: tuple[str, int, int]
) -> None:
    pair = Pair(*identities)
    opened = False
    for turn in range(12):
        for source in (pair.a, pair.b):
            hit = turn == stage and (source is pair.a) is side
            pair.move(source, (lambda data: spoil(how, data)) if hit else None)
        if turn > 2 and not opened and pair.a.session.usable and pair.b.session.usable:
            stream = pair.a.session.open_stream("bulk", b"head")
            opened = True
        if opened and pair.a.session.usable:
            pair.a.session.call("t", b"x" * 5000)
            if pair.a.session.capacity(stream):
                pair.a.session.write(stream, bytes(3000))
    pair.tick(LIMITS.idle_s * 0.4)
    for link in (pair.a, pair.b):
        ends = [event for event in pair.events[link] if isinstance(event, LinkDown)]
        assert len(ends) <= 1
        for event in ends:
            assert isinstance(event.error, ActorGridError)
            assert event is pair.events[link][-1]
        for event in pair.events[link]:  # TLS lets nothing through that was not sent
            if isinstance(event, Called):
                assert (event.target, event.body) == ("t", b"x" * 5000)
        assert link.held_bytes < 2**20


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"])
def test_a_handshake_that_never_ends_is_held_to_its_bound(
    identities: tuple[PeerIdentity, PeerIdentity], first: bytes
) -> None:
    tracemalloc.start()
    try:
        pair = Pair(*identities)
        received = 0
        data = first + b"\x16\x03\x03\x00\x01\x00" * 1000
        while not pair.events[pair.b] and received < 10**7:
            pair.b.receive(data, pair.now_s)
            received += len(data)
            pair.drain(pair.b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert downs(pair, pair.b) in (["tls"], ["plain_text"])
    assert received <= LIMITS.handshake_bytes_max + len(data)
    assert peak < 2**20


def test_bombs_in_a_row_cost_memory_for_one_at_a_time(pair: Pair) -> None:
    for _ in range(30):
        pair.a.session.cast("t", bytes(10**6))
    data = pair.a.bytes_to_send()
    assert len(data) < 200_000
    tracemalloc.start()
    try:
        pair.b.receive(data, pair.now_s)
        found = 0
        while (event := pair.b.next_event()) is not None:
            assert isinstance(event, CastReceived)
            found += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == 30
    assert peak < 5 * 10**6
