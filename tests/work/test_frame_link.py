"""The one link that carries frames between the agent and its shims and zygote."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from actorgrid.actors.work.frame_link import FrameLink
from actorgrid.supervisors.inline import InlineNode, InlineRuntime
from actorgrid.transports.frames import FrameDecoder, encode_frame


class Ends:
    """Our end, as a link, and the other, as a socket."""

    def __init__(self) -> None:
        self.node = InlineNode(real_time=True)
        self.heard: list[list[Any]] = []
        self.reads = self.ended = 0
        self.link = FrameLink(InlineRuntime(self.node, "test", ()), self._hear, self._end, 4 * 2**20)
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(60)

    def _hear(self, frames: list[list[Any]]) -> None:
        self.reads += 1
        self.heard += frames

    def _end(self) -> None:
        self.ended += 1
        self.link.close()

    def read(self, count: int) -> list[list[Any]]:
        """That many frames at the other end, while ours makes progress."""
        decoder, found = FrameDecoder(), list[list[Any]]()
        self.theirs.setblocking(False)

        def enough() -> bool:
            with suppress(BlockingIOError):
                found.extend(decoder.feed(self.theirs.recv(65_536)))
            return len(found) >= count

        self.node.run_until(enough, 60.0, "frames")
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.link.close()
    made.ours.close()
    made.theirs.close()
    made.node._selector.close()


def test_frames_that_come_in_pieces_are_heard_whole(ends: Ends) -> None:
    ends.link.attach(ends.ours)
    data = encode_frame(["one", 1]) + encode_frame(["two", b"x" * 7_000])
    for at in range(0, len(data), 3_000):
        reads = ends.reads
        ends.theirs.sendall(data[at : at + 3_000])
        ends.node.run_until(lambda before=reads: ends.reads > before, 60.0, "a read")
    assert ends.heard == [["one", 1], ["two", b"x" * 7_000]] and ends.ended == 0


def test_what_is_queued_before_there_is_a_socket_and_beyond_its_buffer_arrives_in_order(ends: Ends) -> None:
    ends.link.queue(["first", 0])
    ends.link.attach(ends.ours)
    for number in range(1, 50):
        ends.link.queue(["next", number, b"x" * 50_000])
    assert [frame[1] for frame in ends.read(50)] == list(range(50))


def test_a_frame_that_went_in_by_half_ends_the_link_and_one_that_did_not_go_in_does_not(ends: Ends) -> None:
    ends.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    ends.link.attach(ends.ours)
    small = 0
    while ends.link.send(["fill", b"x" * 500]):
        small += 1
    assert small > 0 and ends.ended == 0
    assert len(ends.read(small)) == small
    assert not ends.link.send(["large", b"x" * 2**20]) and ends.ended == 1
    assert not ends.link.send(["after"])


@pytest.mark.parametrize("sent", [b"", b"\xff\xff\xff\xff", b"\0\0\0\1\xc1"])
def test_an_end_and_what_is_no_frame_are_told_once(ends: Ends, sent: bytes) -> None:
    ends.link.attach(ends.ours)
    ends.theirs.sendall(sent)
    ends.theirs.shutdown(socket.SHUT_WR)
    ends.node.run_until(lambda: ends.ended > 0, 60.0, "the end")
    assert ends.ended == 1 and ends.heard == [] and not ends.link.send(["after"])


def test_nothing_of_a_connection_before_reaches_the_next(ends: Ends) -> None:
    ends.link.attach(ends.ours)
    ends.theirs.sendall(encode_frame(["whole"])[:-2])
    ends.theirs.close()
    ends.node.run_until(lambda: ends.ended > 0, 60.0, "the end")
    ends.ours, ends.theirs = socket.socketpair()
    ends.link.attach(ends.ours)
    ends.theirs.sendall(encode_frame(["whole"]))
    ends.node.run_until(lambda: bool(ends.heard), 10.0, "a frame")
    assert ends.heard == [["whole"]]
