"""The ring of messages, compiled and in plain Python: the same answers, and each side talks with the other's twin."""

from __future__ import annotations

import random
from typing import Any

import pytest

import actorgrid.hotpath as hotpath
from actorgrid.errors import BadRequest, FrameTooLarge
from actorgrid.hotpath.reference.message_ring import FULL, HEADER_BYTES, PUSHED, PUSHED_RING
from actorgrid.hotpath.reference.message_ring import MessageRing as Reference

CAPACITY = 256
KINDS = [hotpath.MessageRing, Reference]


@pytest.mark.parametrize("pusher", KINDS)
@pytest.mark.parametrize("popper", KINDS)
def test_what_is_pushed_is_popped_in_order_through_many_turns(pusher: Any, popper: Any) -> None:
    memory, rng = bytearray(HEADER_BYTES + CAPACITY), random.Random(1)
    out, back = pusher(memory, 0, CAPACITY, True), popper(memory, 0, CAPACITY, False)
    sent: list[bytes] = []
    came: list[bytes] = []
    while len(came) < 400:
        message = rng.randbytes(rng.randrange(out.largest_bytes + 1))
        if rng.random() < 0.6 and out.push(message) != FULL:
            sent.append(message)
        elif (found := back.pop()) is not None:
            came.append(found)
    assert came == sent[: len(came)]
    out.close()
    back.close()


@pytest.mark.parametrize("kind", KINDS)
def test_who_sleeps_is_rung_once_and_who_finds_something_does_not_sleep(kind: Any) -> None:
    memory = bytearray(HEADER_BYTES + CAPACITY)
    out, back = kind(memory, 0, CAPACITY, True), kind(memory, 0, CAPACITY, False)
    assert out.push(b"a") == PUSHED
    assert not back.arm()
    assert back.pop() == b"a" and back.pop() is None
    assert back.arm()
    assert [out.push(b"b"), out.push(b"c")] == [PUSHED_RING, PUSHED]


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_for_room_is_rung_when_half_is_free(kind: Any) -> None:
    memory = bytearray(HEADER_BYTES + CAPACITY)
    out, back = kind(memory, 0, CAPACITY, True), kind(memory, 0, CAPACITY, False)
    while out.push(bytes(28)) != FULL:
        pass
    assert out.starve()
    rung = []
    while back.pop() is not None:
        rung.append(back.owed)
        back.take_ring()
    assert rung.count(True) == 1 and rung.index(True) == 3, "of 8 messages, the 4th leaves half"
    assert not out.starve()


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_is_refused(kind: Any) -> None:
    memory = bytearray(HEADER_BYTES + CAPACITY)
    for offset, capacity in ((0, 100), (0, 32), (0, 512), (8, CAPACITY), (64, CAPACITY), (-64, CAPACITY)):
        with pytest.raises(BadRequest):
            kind(memory, offset, capacity, True)
    out, back = kind(memory, 0, CAPACITY, True), kind(memory, 0, CAPACITY, False)
    with pytest.raises(FrameTooLarge):
        out.push(bytes(out.largest_bytes + 1))
    with pytest.raises(BadRequest):
        out.pop()
    with pytest.raises(BadRequest):
        back.push(b"")
