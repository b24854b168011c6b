"""Streams that outlive their connections: nothing lost, nothing twice, whatever breaks and wherever it is cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.errors import FrameTooLarge, MalformedBody
from actorgrid.transports.frames import encode_frame
from actorgrid.transports.kept_stream import (
    ACK,
    DATA,
    END,
    FIRST_FRAME_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    Keep,
    KeptStream,
    encode_keep,
    encode_kept,
    parse_keep,
    take_first_frame,
)


def test_an_end_that_came_before_the_connection_broke_comes_again() -> None:
    near, far = KeptStream(), KeptStream()
    far.write(b"last")
    far.end()
    assert near.feed(bytes(far.out)) == b"last"
    assert near.ended
    near.connect(0)  # nobody had taken it
    far.connect(near.received)
    assert not near.ended
    assert near.feed(bytes(far.out)) == b"last"
    assert near.ended


def segment(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(4, "big") + body


class Pair:
    """Two sides and the connection between them, which loses what is under way when it breaks."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.sides = KeptStream(), KeptStream()
        self.wires = bytearray(), bytearray()  # from the first, from the second
        self.untaken = bytearray(), bytearray()
        self.came = bytearray(), bytearray()  # to the second, to the first
        self.breaks()

    def breaks(self) -> None:
        for lost in (*self.wires, *self.untaken):
            lost.clear()
        first, second = self.sides
        first.connect(second.received)
        second.connect(first.received)

    def moves(self) -> None:
        for number, side in enumerate(self.sides):
            count = self.dice.randrange(len(side.out) + 1)
            self.wires[number].extend(side.out[:count])
            del side.out[:count]
        for number, wire in enumerate(self.wires):
            count = self.dice.randrange(len(wire) + 1)
            self.untaken[number].extend(self.sides[1 - number].feed(bytes(wire[:count])))
            del wire[:count]
            self.takes(number, self.dice.randrange(len(self.untaken[number]) + 1))

    def takes(self, number: int, count: int) -> None:
        self.came[number].extend(self.untaken[number][:count])
        del self.untaken[number][:count]
        self.sides[1 - number].taken(count)

    def settles(self) -> None:
        while any(side.out for side in self.sides) or any(self.wires):
            for number, side in enumerate(self.sides):
                self.wires[number].extend(side.out)
                side.out.clear()
                data, self.wires[number][:] = bytes(self.wires[number]), b""
                self.untaken[number].extend(self.sides[1 - number].feed(data))
                self.takes(number, len(self.untaken[number]))


@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.sampled_from("wrbm"), st.integers(1, 300_000)), max_size=60),
)
def test_everything_comes_once_and_in_order_however_often_it_breaks(seed: int, steps: list[tuple[str, int]]) -> None:
    pair = Pair(seed)
    sent = bytearray(), bytearray()
    for what, size in steps:
        if what == "b":
            pair.breaks()
        elif what == "m":
            pair.moves()
        else:
            number = 0 if what == "w" else 1
            data = pair.dice.randbytes(size)
            taken = pair.sides[number].write(data)
            sent[number].extend(data[:taken])
    pair.breaks()
    pair.settles()
    assert pair.came == sent
    assert all(side.room <= WINDOW_BYTES for side in pair.sides)


def test_no_more_is_taken_than_the_window_until_the_other_side_has_it() -> None:
    pair = Pair(1)
    first, second = pair.sides
    assert first.write(bytes(WINDOW_BYTES + 1)) == WINDOW_BYTES
    assert first.write(b"x") == first.room == 0
    pair.settles()
    assert first.room > WINDOW_BYTES - WINDOW_BYTES // 8
    assert second.received == WINDOW_BYTES


def test_who_ignores_the_window_is_refused() -> None:
    side = KeptStream()
    full = segment(DATA, bytes(PIECE_BYTES)) * (WINDOW_BYTES // PIECE_BYTES)
    assert len(side.feed(full)) == WINDOW_BYTES
    with pytest.raises(MalformedBody, match="window"):
        side.feed(segment(DATA, b"x"))


def test_the_end_is_told_again_over_the_next_connection() -> None:
    pair = Pair(2)
    first, second = pair.sides
    first.write(b"last")
    first.end()
    assert first.write(b"more") == 0
    first.out.clear()  # sent, and lost with the connection
    pair.breaks()
    pair.settles()
    assert pair.came[0] == b"last" and second.ended


@pytest.mark.parametrize(
    "bytes_",
    [
        segment(3, b""),
        segment(DATA, b""),
        segment(ACK, b"1234567"),
        segment(END, b"x"),
        bytes([DATA]) + (PIECE_BYTES + 1).to_bytes(4, "big"),
        segment(ACK, (5).to_bytes(8, "big")),
        segment(END, b"") + segment(DATA, b"x"),
    ],
)
def test_what_is_no_stream_is_refused_by_name(bytes_: bytes) -> None:
    side = KeptStream()
    side.write(b"four")
    with pytest.raises(MalformedBody):
        side.feed(bytes_)


@pytest.mark.parametrize("received", [-1, 5])
def test_what_cannot_have_come_is_refused(received: int) -> None:
    side = KeptStream()
    side.write(b"four")
    with pytest.raises(MalformedBody):
        side.connect(received)


def test_the_first_frames_are_read_to_their_last_byte_and_no_further() -> None:
    stream_id = "ab" * 16
    came = bytearray(encode_keep("s", stream_id, 7)[:-1])
    assert take_first_frame(came) is None
    came += encode_keep("s", stream_id, 7)[-1:] + b"rest"
    frame = take_first_frame(came)
    assert frame is not None and parse_keep(frame) == Keep("s", stream_id, 7) and came == b"rest"
    assert parse_keep(["hello", {}]) is None
    assert take_first_frame(bytearray(encode_kept(3))) == ["kept", {"received": 3}]
    with pytest.raises(FrameTooLarge):
        take_first_frame(bytearray((FIRST_FRAME_BYTES + 1).to_bytes(4, "big")))
    for fields in ({"version": 2, "secret": "s", "id": stream_id, "received": 0}, {}, {"id": 1}):
        with pytest.raises(MalformedBody):
            parse_keep(["keep", fields])
    for wrong in ("AB" * 16, "ab", "zz" * 16):
        with pytest.raises(MalformedBody):
            parse_keep(["keep", {"version": 1, "secret": "s", "id": wrong, "received": 0}])
    with pytest.raises(MalformedBody):
        take_first_frame(bytearray(encode_frame(["x"])[:4] + b"\xc1\xc1\xc1"))
