"""What waits to be sent: the bytes and the large messages come out in order, and each sender is told once."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.transports.unix import queue as send_queue
from actorgrid.transports.unix.large import Large
from actorgrid.transports.unix.queue import Chunks, Done, SendQueue

CHUNK = send_queue.CHUNK_BYTES
HEADER = b"head"

frames = st.tuples(st.just("frame"), st.sampled_from([1, 2, 100, 70_000, CHUNK // 2 - 5, CHUNK // 2, CHUNK, 3 * CHUNK]))
larges = st.tuples(st.just("large"), st.integers(1, 1000))
sends = st.tuples(st.just("send"), st.floats(0.0, 1.0))
refusals = st.tuples(st.just("refuse"), st.none())


class Told:
    def __init__(self) -> None:
        self.sent: list[int] = []

    def expect(self, number: int) -> Done:
        return lambda ok: self.sent.append(number if ok else -number)


@given(st.lists(frames | larges | sends | refusals, max_size=30))
def test_everything_comes_out_in_order_and_who_sent_it_is_told_once_when_its_last_byte_is_out(
    steps: list[tuple[str, Any]],
) -> None:
    queue, told = SendQueue(Chunks()), Told()
    waiting: list[tuple[int, str, bytes]] = []  # the model: what is left of each frame
    number = 0
    for what, value in steps:
        expected: list[int] = []
        if what == "frame":
            number += 1
            payload = bytes([number]) * value
            queue.add((HEADER, payload), told.expect(number))
            waiting.append((number, "bytes", HEADER + payload))
        elif what == "large":
            number += 1
            payload = bytes([number]) * value
            queue.add_large(Large(1, payload), len(HEADER) + value, told.expect(number))
            waiting.append((number, "large", HEADER + payload))
        elif what == "send" and waiting and waiting[0][1] == "large":
            assert queue.large is not None
            assert HEADER + queue.large.payload == waiting[0][2]
            expected = [waiting.pop(0)[0]]
            for done in queue.large_sent():
                done(True)
        elif what == "refuse" and waiting and waiting[0][1] == "large":
            queue.stream_large(HEADER)
            waiting[0] = (waiting[0][0], "bytes", waiting[0][2])
        elif what == "send" and waiting:
            views = b"".join(queue.views(2 * CHUNK))
            assert views
            count = int(len(views) * value)
            for done in queue.sent(count):
                done(True)
            while count or (waiting and not waiting[0][2]):
                at, kind, left = waiting.pop(0)
                assert kind == "bytes"
                step = min(count, len(left))
                assert views[:step] == left[:step]
                views, count = views[step:], count - step
                if step < len(left):
                    waiting.insert(0, (at, kind, left[step:]))
                    break
                expected.append(at)
        assert told.sent[len(told.sent) - len(expected) :] == expected
        assert queue.bytes == sum(len(left) for _, _, left in waiting)
        assert bool(queue) == bool(waiting) and queue.frames >= len(waiting)
        if not waiting:
            assert queue.frames == 0
    before = list(told.sent)
    for done in queue.clear():
        done(False)
    assert told.sent == before + [-at for at, _, _ in waiting]
    assert not queue and queue.bytes == queue.frames == 0


def test_frames_of_any_size_share_chunks_and_no_room_is_left_between_them() -> None:
    queue = SendQueue(Chunks())
    for _ in range(1000):
        queue.add((HEADER, bytes(9_996)), None)
    assert [len(view) for view in queue.views(2**30)] == [CHUNK] * (10_000_000 // CHUNK) + [10_000_000 % CHUNK]


def test_no_memory_for_a_chunk_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SendQueue(Chunks())
    queue.add((bytes(CHUNK),), None)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(send_queue, "CHUNK_BYTES", 2**40)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, hard))
    try:
        with pytest.raises(MemoryError, match="to be sent"):
            SendQueue(Chunks()).add((b"x",), None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert queue.bytes == CHUNK
