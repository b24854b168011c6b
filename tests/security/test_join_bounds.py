"""A join takes its time and its turn, and what is not part of one is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.join_tokens import JoinClaim
from actorgrid.actors.security.certificate_requests import make_request
from actorgrid.actors.security.certificates import digest
from actorgrid.actors.security.join_acceptor import EXCHANGES_MAX, EXCHANGES_PER_SOURCE_MAX, JoinExchange, Redeem
from actorgrid.actors.security.join_messages import (
    VERSION_HIGH,
    JoinHello,
    JoinWelcome,
    encode,
    encode_claim,
    read_capabilities,
)
from actorgrid.actors.security.joiner import Close, JoinFailed, SendBytes
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.token_rate_limit import TokenRateLimit
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    CallTimeout,
    MalformedMessage,
    NotLeader,
    Overloaded,
    PeerGone,
    PeerRefused,
    TrustError,
)
from actorgrid.transports.frames import FrameDecoder, encode_frame
from tests.security.join_rig import (
    CAPABILITIES,
    ENCODING,
    Member,
    claim_for,
    failure,
    new_joiner,
    refusal,
)
from tests.security.rig import CLUSTER, NOW_S, Cluster


def test_a_visit_waits_ten_seconds_for_the_claim_and_thirty_for_the_ledger() -> None:
    member = Member(Cluster())
    silent = member.exchange()
    silent.begin(0.0)
    assert silent.tick(9.9) == []
    assert isinstance(refusal(silent.tick(10.0)), CallTimeout)
    assert silent.tick(99.0) == [] and silent.received(b"x", 99.0, NOW_S) == []

    exchange = member.exchange()
    claim = claim_for(member, exchange)
    (asked,) = exchange.received(claim, 9.0, NOW_S)
    assert isinstance(asked, Redeem) and exchange.tick(38.9) == []
    assert isinstance(refusal(exchange.tick(39.0)), CallTimeout)
    answer = member.redeem(asked)
    assert (
        isinstance(answer, JoinWelcome) and exchange.welcome(answer) == [] and exchange.refuse(NotLeader("late")) == []
    )
    assert member.door.exchanges == 0


def test_a_joiner_gives_up_and_says_where() -> None:
    joiner = new_joiner(Cluster().token())
    assert joiner.tick(59.0) == []
    error = failure(joiner.tick(60.0)[0])  # type: ignore[arg-type]
    assert isinstance(error, CallTimeout) and "before it took the claim" in error.found
    assert joiner.tick(61.0) == joiner.closed() == joiner.received(b"x", NOW_S) == []


def test_a_connection_that_closes_early_is_named() -> None:
    joiner = new_joiner(Cluster().token())
    assert isinstance(failure(joiner.closed()[0]), PeerGone)  # type: ignore[arg-type]


def test_only_so_many_visits_at_once() -> None:
    member = Member(Cluster())
    exchanges = [member.exchange(f"10.0.0.{number // EXCHANGES_PER_SOURCE_MAX}") for number in range(EXCHANGES_MAX)]
    for source in ("10.0.0.0", "10.0.0.200"):
        with pytest.raises(Overloaded):
            member.exchange(source)
    exchanges[0].closed()
    exchanges[0].closed()
    assert member.door.exchanges == EXCHANGES_MAX - 1
    with pytest.raises(Overloaded):
        member.exchange("10.0.0.1")
    member.exchange("10.0.0.200")
    assert member.door.refused == {"Overloaded": 3}


def test_a_visitor_that_never_ends_its_handshake_is_left() -> None:
    member = Member(Cluster())
    exchange = member.exchange()
    assert exchange.tick(9.9) == []
    assert exchange.tick(10.0) == [Close()]
    assert (member.door.exchanges, dict(member.door.sources)) == (0, {})


def test_a_second_claim_is_refused_and_redeems_nothing() -> None:
    member = Member(Cluster())
    exchange = member.exchange()
    claim = claim_for(member, exchange)
    steps = exchange.received(claim + claim, 0.0, NOW_S)
    assert isinstance(refusal(steps), MalformedMessage)


def test_bytes_may_come_one_by_one() -> None:
    member = Member(Cluster())
    exchange = member.exchange()
    claim = claim_for(member, exchange)
    steps = [step for at in range(len(claim)) for step in exchange.received(claim[at : at + 1], 0.0, NOW_S)]
    assert [type(step) for step in steps] == [Redeem]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        encode_frame(["claim", []]),
        encode_frame(["claim", {}]),
        encode_frame(["hello", {}]),
        encode_frame(["claim", {"version": 9}]),
        b"\x00\x00\x00\x03\x92\x01\x80",
        (200_000).to_bytes(4, "big"),
        b"\x00\x01\xff\xff" + b"\x91" * 0x1FFFF,
    ],
)
def test_garbage_is_refused_counted_and_costs_no_entry(data: bytes) -> None:
    member = Member(Cluster())
    exchange = member.exchange()
    exchange.begin(0.0)
    steps = exchange.received(data, 0.0, NOW_S)
    assert refusal(steps).code in {"MalformedMessage", "MalformedBody", "FrameTooLarge"}
    assert sum(member.door.refused.values()) == 1 and member.door.token_rate_limit.wrong_total == 1


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SHARED = Member(Cluster())
SHARED_TOKEN = SHARED.cluster.token(uses=1000)


def fields_of(data: bytes) -> dict[str, Any]:
    (frame,) = FrameDecoder().feed(data)
    found: dict[str, Any] = frame[1]
    return found


def own_visit() -> JoinExchange:
    exchange = SHARED.door.open("10.0.0.2", SHARED.cluster.bundle, SHARED.material.certificate, bytes(32), 0.0)
    assert len(exchange.begin(0.0)) == 1
    return exchange


def own_claim(host_id: str = "host-b", request: bytes | None = None, packed: bytes | None = None) -> JoinClaim:
    """A claim that a holder of the token signs, whatever it holds."""
    request = make_request(new_private_key(), CLUSTER, "host-b", CAPABILITIES.addresses) if request is None else request
    packed = CAPABILITIES.pack() if packed is None else packed
    server = digest(SHARED.material.certificate)
    return JoinClaim(CLUSTER, SHARED_TOKEN.token_id, host_id, bytes(32), server, request, packed).signed(SHARED_TOKEN)


@given(st.data())
def test_a_claim_with_any_field_replaced_is_refused_by_name(data: st.DataObject) -> None:
    SHARED.door.token_rate_limit = TokenRateLimit()
    fields = fields_of(encode_claim(own_claim()))
    fields[data.draw(st.sampled_from([*sorted(fields), "more"]))] = data.draw(anything)
    exchange = own_visit()
    steps = exchange.received(encode_frame(["claim", fields]), 0.0, NOW_S)
    if fields["version"] in (1, 2) and isinstance(steps[0], Redeem):
        exchange.closed()
        return
    assert isinstance(refusal(steps), TrustError | MalformedMessage)
    assert SHARED.door.exchanges == 0


packed_anything = st.dictionaries(
    st.sampled_from(["cpu_milli", "memory_mib", "addresses", "software", "rack", "devices", "measured", "x"]), anything
).map(lambda fields: encode_frame([fields])[5:])


@given(
    st.sampled_from(["host-c", "HOST", "a/b"]) | st.none(),
    st.binary(max_size=80) | st.none(),
    st.binary(max_size=80) | packed_anything | st.none(),
)
def test_a_holder_of_the_token_who_signs_nonsense_is_refused_by_name(
    host_id: str | None, request: bytes | None, packed: bytes | None
) -> None:
    SHARED.door.token_rate_limit = TokenRateLimit()
    exchange = own_visit()
    steps = exchange.received(encode_claim(own_claim(host_id or "host-b", request, packed)), 0.0, NOW_S)
    if (host_id, request, packed) == (None, None, None):
        assert isinstance(steps[0], Redeem)
        exchange.closed()
    else:
        assert isinstance(refusal(steps), TrustError | MalformedMessage)
    assert SHARED.door.exchanges == 0


def hello_of(member: Member) -> bytes:
    exchange = member.exchange()
    (hello,) = exchange.begin(0.0)
    exchange.closed()
    assert isinstance(hello, SendBytes)
    return hello.data


HELLO = hello_of(SHARED)


@given(st.integers(0, len(HELLO) - 1), st.integers(1, 255))
def test_a_hello_with_any_byte_changed_fails_by_name_or_changes_nothing_that_counts(at: int, flip: int) -> None:
    changed = bytearray(HELLO)
    changed[at] ^= flip
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    steps = joiner.received(bytes(changed), NOW_S)
    if steps and isinstance(steps[0], JoinFailed):
        return
    assert all(isinstance(step, SendBytes) for step in steps)


@given(st.binary(max_size=300))
def test_a_joiner_that_is_sent_garbage_fails_by_name_or_waits(data: bytes) -> None:
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    steps = joiner.received(data, NOW_S)
    assert steps == [] or isinstance(steps[0], JoinFailed)


def test_a_member_that_speaks_out_of_turn_is_left() -> None:
    def said(*messages: bytes) -> ActorGridError:
        joiner = new_joiner(SHARED_TOKEN)
        joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
        steps = [step for message in messages for step in joiner.received(message, NOW_S)]
        return failure(next(step for step in steps if isinstance(step, JoinFailed)))

    welcome = encode(
        JoinWelcome(CLUSTER, "host-b", 2, SHARED.cluster.certificate("host-b"), SHARED.cluster.bundle, b"x")
    )
    assert isinstance(said(welcome), MalformedMessage)
    assert isinstance(said(HELLO, HELLO), MalformedMessage)
    assert isinstance(said(encode_frame(["claim", {}])), MalformedMessage)
    assert isinstance(said(encode_frame(["refused", {}])), MalformedMessage)


def test_versions_without_overlap_are_named() -> None:
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    future = JoinHello((VERSION_HIGH + 1, VERSION_HIGH + 2), "9.0", CLUSTER, bytes(32), SHARED.cluster.bundle)
    error = failure(joiner.received(encode(future), NOW_S)[0])  # type: ignore[arg-type]
    assert isinstance(error, PeerRefused) and "no protocol version" in str(error)


def test_a_member_that_says_it_is_too_old_to_sign_who_votes_lets_nobody_in() -> None:
    """Else a false one would only have to say that it is older."""
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    error = failure(
        joiner.received(encode(JoinHello((1, 1), "0.1", CLUSTER, bytes(32), SHARED.cluster.bundle)), NOW_S)[0]
    )  # type: ignore[arg-type]
    assert isinstance(error, PeerRefused) and "upgraded already" in error.hint


def test_a_host_of_the_version_before_is_let_in_by_the_words_that_it_knows() -> None:
    fields = fields_of(encode_claim(own_claim()))
    exchange = own_visit()
    (asked,) = exchange.received(encode_frame(["claim", {**fields, "version": 1}]), 0.0, NOW_S)
    assert isinstance(asked, Redeem)
    welcome = SHARED.redeem(asked)
    assert isinstance(welcome, JoinWelcome)
    sent, _ = exchange.welcome(welcome)
    assert isinstance(sent, SendBytes)
    told = fields_of(sent.data)
    assert set(told) == {"cluster_id", "host_id", "node", "certificate", "bundle", "voters"}
    assert told["voters"][0][:3] == ["host-a", 1, "10.0.0.1:7402"]


def test_a_hello_before_tls_is_up_is_not_answered() -> None:
    error = failure(new_joiner(SHARED_TOKEN).received(HELLO, NOW_S)[0])  # type: ignore[arg-type]
    assert isinstance(error, MalformedMessage)


# -- capabilities


def test_capabilities_come_back_as_they_were_packed() -> None:
    assert read_capabilities(CAPABILITIES.pack()) == CAPABILITIES


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_milli": -1},
        {"cpu_milli": 2**60},
        {"addresses": ("not an address",)},
        {"addresses": tuple(f"10.0.0.{n}" for n in range(40))},
        {"listens": {str(n): "x" for n in range(9)}},
        {"rack": "x" * 300},
        {"software": "line\nline"},
        {"devices": tuple({"uuid": str(n)} for n in range(300))},
        {"devices": ({"nested": {"a": 1}},)},
        {"devices": tuple({"name": "x" * 5000} for _ in range(20))},
        {"measured": {"a": float("nan")}},
        {"measured": {str(n): 1.0 for n in range(50)}},
    ],
)
def test_capabilities_beyond_their_bounds_are_refused_before_they_are_sent(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        replace(CAPABILITIES, **change).pack()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_capabilities_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_capabilities(data)
