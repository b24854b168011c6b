"""The codec of links between hosts: what it carries, and that it refuses everything else at a bounded price."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedMessage, NotLeader
from actorgrid.transports.peer.frames import (
    BULK,
    BULK_BYTES_MAX,
    CHUNK_BYTES_MAX,
    COMPRESSED,
    CONTROL_BYTES_MAX,
    HELLO_BYTES_MAX,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    Bye,
    Call,
    Cancel,
    Cast,
    Failure,
    Frame,
    Hello,
    PeerDecoder,
    Ping,
    Pong,
    Reply,
    Retire,
    StreamCredit,
    StreamData,
    StreamEnd,
    StreamOpen,
    StreamReset,
    decode_error,
    encode,
    encode_error,
)

IDS = st.integers(0, 2**63 - 1)
WORDS = st.text(st.characters(categories=["L", "N", "P"]), max_size=40)
BODIES = st.binary(max_size=300) | st.integers(0, 60_000).map(bytes)
FRAMES = st.one_of(
    st.builds(Hello, st.just(MAGIC), IDS, IDS, WORDS, WORDS),
    st.builds(Bye, WORDS, WORDS),
    st.just(Retire()),
    st.builds(Ping, IDS),
    st.builds(Pong, IDS),
    st.builds(Call, IDS, WORDS, BODIES),
    st.builds(Reply, IDS, BODIES),
    st.builds(Failure, IDS, BODIES),
    st.builds(Cancel, IDS),
    st.builds(Cast, WORDS, BODIES),
    st.builds(StreamOpen, IDS, WORDS, BODIES, IDS, st.booleans()),
    st.builds(StreamData, IDS, BODIES),
    st.builds(StreamCredit, IDS, IDS),
    st.builds(StreamEnd, IDS),
    st.builds(StreamReset, IDS, BODIES),
)


def opened() -> PeerDecoder:
    decoder = PeerDecoder()
    decoder.open_up()
    return decoder


def decode_all(decoder: PeerDecoder, data: bytes) -> list[Frame]:
    decoder.feed(data)
    found = []
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return found


def raw(fields: Any, flags: int = 0) -> bytes:
    body = fields if isinstance(fields, bytes) else msgpack.packb(fields, use_bin_type=True)
    return struct.pack(">IB", len(body), flags) + body


@given(st.lists(st.tuples(FRAMES, st.booleans()), max_size=8), st.integers(1, 5000))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent: list[tuple[Frame, bool]], piece: int) -> None:
    data = b"".join(encode(frame, compress) for frame, compress in sent)
    decoder, found = opened(), []
    for start in range(0, len(data), piece):
        found += decode_all(decoder, data[start : start + piece])
    assert found == [frame for frame, _compress in sent]
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_give_frames_or_a_named_error(data: bytes, is_open: bool) -> None:
    decoder = opened() if is_open else PeerDecoder()
    try:
        decode_all(decoder, data)
    except (FrameTooLarge, MalformedMessage):
        return
    assert decoder.pending_bytes <= len(data)


@given(FRAMES, st.booleans(), st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_byte_gives_a_frame_or_a_named_error(frame: Frame, compress: bool, at: int, flip: int) -> None:
    data = bytearray(encode(frame, compress))
    data[at % len(data)] ^= flip
    try:
        decode_all(opened(), bytes(data))
    except (FrameTooLarge, MalformedMessage):
        return


def test_large_bodies_are_compressed_where_it_pays_and_only_there() -> None:
    text, noise = b"the same words " * 3000, random.Random(4).randbytes(50_000)
    assert len(encode(Call(1, "t", text), compress=True)) < len(text) / 10
    assert len(encode(Call(1, "t", text))) > len(text)
    assert len(encode(StreamData(1, text), compress=True)) < len(text) / 10
    assert len(encode(Call(1, "t", noise), compress=True)) > len(noise)
    assert len(encode(Call(1, "t", text[:4000]), compress=True)) > 4000


@pytest.mark.parametrize("length", [HELLO_BYTES_MAX + 1, 2**32 - 1])
def test_before_hello_a_long_frame_is_refused_by_its_length_alone(length: int) -> None:
    decoder = PeerDecoder()
    decoder.feed(struct.pack(">IB", length, 0))
    with pytest.raises(FrameTooLarge):
        decoder.next()


@pytest.mark.parametrize(("flags", "limit"), [(0, CONTROL_BYTES_MAX), (BULK, BULK_BYTES_MAX)])
def test_a_frame_over_its_bound_is_refused_by_its_length_alone(flags: int, limit: int) -> None:
    decoder = opened()
    decoder.feed(struct.pack(">IB", limit, flags))
    assert decoder.next() is None
    decoder = opened()
    decoder.feed(struct.pack(">IB", limit + 1, flags))
    with pytest.raises(FrameTooLarge):
        decoder.next()


def test_what_is_too_large_is_refused_where_it_is_sent() -> None:
    assert encode(Call(2**63 - 1, "t" * 256, bytes(PAYLOAD_BYTES_MAX)))
    assert encode(StreamData(2**63 - 1, bytes(CHUNK_BYTES_MAX)))
    for frame in (Call(1, "t", bytes(CONTROL_BYTES_MAX)), StreamData(1, bytes(CHUNK_BYTES_MAX + 1))):
        with pytest.raises(FrameTooLarge):
            encode(frame)


@pytest.mark.parametrize(
    "data",
    [
        raw([99]),
        raw([]),
        raw({}),
        raw({1: 2}),
        raw(7),
        raw(b"\xc1"),
        raw(b""),
        raw([4]),
        raw([4, 1, 2]),
        raw([4, True]),
        raw([4, -1]),
        raw([4, 2**63]),
        raw([4, 1.0]),
        raw([True, 1]),
        raw([10, 1, "t", "text, not bytes"]),
        raw([10, 1, b"t", b""]),
        raw([10, 1, "two\nlines", b""]),
        raw([10, 1, "t" * 257, b""]),
        raw([10, 1, "t", []]),
        raw([10, 1, "t", {}]),
        raw([[10], 1]),
        raw([20, 1, "t", b"", 1, 1]),
        raw(b"\x91\xd6\xff\0\0\0\0"),
        raw(b"\x91" * 2000),
        raw(msgpack.packb([4, 1]) + b"\0"),
        raw([21, 1, b"data outside of the bulk lane"]),
        raw([14, "t", b"a cast in the bulk lane"], BULK),
        raw([4, 1], 4),
        raw([4, 1], 0x80),
        raw(b"not zlib", COMPRESSED),
        raw(zlib.compress(msgpack.packb([4, 1])) + b"more", COMPRESSED),
        raw(zlib.compress(msgpack.packb([4, 1]))[:-1], COMPRESSED),
    ],
)
def test_anything_else_is_malformed(data: bytes) -> None:
    decoder = opened()
    decoder.feed(data)
    with pytest.raises(MalformedMessage):
        decoder.next()


def test_nothing_is_compressed_or_bulk_before_hello() -> None:
    for flags in (COMPRESSED, BULK):
        decoder = PeerDecoder()
        decoder.feed(raw([4, 1], flags))
        with pytest.raises(MalformedMessage):
            decoder.next()


def test_a_bomb_costs_no_more_than_the_bound() -> None:
    bomb = zlib.compress(bytes(200 * 2**20), 9)
    assert len(bomb) < BULK_BYTES_MAX
    nested = zlib.compress(b"\x98" + b"\x98" * 8 * 100_000, 9)
    lists = zlib.compress(b"\x98" * 900_000, 9)
    for body in (bomb, nested, lists):
        for flags in (COMPRESSED, COMPRESSED | BULK):
            decoder = opened()
            decoder.feed(raw(body, flags))
            tracemalloc.start()
            try:
                with pytest.raises((FrameTooLarge, MalformedMessage)):
                    decoder.next()
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 4 * CONTROL_BYTES_MAX


@given(st.lists(st.integers(1, 8), min_size=1, max_size=400))
def test_arrays_within_arrays_are_refused_before_they_multiply(sizes: list[int]) -> None:
    body = b"".join(bytes([0x90 + size]) for size in sizes) + b"\xc0" * 8
    decoder = opened()
    decoder.feed(raw(body))
    with pytest.raises(MalformedMessage):
        decoder.next()


def test_errors_cross_with_their_values() -> None:
    error = NotLeader("not here", asked="a write", found="h2 leads", hint="ask h2", leader="h2", term=7)
    found = decode_error(encode_error(error))
    assert type(found) is NotLeader
    assert found.to_dict() == error.to_dict()


def test_an_error_with_values_that_cannot_be_carried_crosses_without_them() -> None:
    for details in ({"bad": object()}, {"long": "x" * 10**6}, {"number": 2**70}):
        found = decode_error(encode_error(ActorGridError("m" * 5000, **details)))
        assert found.message == "m" * 1024
        assert found.details == {}


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers(-5, 5) | st.text(max_size=8),
        lambda inner: st.dictionaries(
            st.sampled_from(["code", "message", "asked", "found", "hint", "details", "self", "kind", "x"]), inner
        ),
        max_leaves=8,
    ).map(lambda value: bytes(msgpack.packb(value)))
)
def test_any_bytes_for_an_error_give_an_error(data: bytes) -> None:
    try:
        assert isinstance(decode_error(data), ActorGridError)
    except MalformedMessage:
        return
