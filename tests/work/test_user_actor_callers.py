"""Callers of an actor that come from other hosts: over connections that break and are there again."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actorgrid.actors.work import user_actor_callers
from actorgrid.actors.work.environment import PYTHON
from actorgrid.actors.work.user_actor_callers import Callers
from actorgrid.errors import error_from_dict
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.kept_stream import KeptStream, encode_keep, take_first_frame
from actorgrid.transports.user_actor_frames import (
    BEGUN,
    BEGUN_UNKNOWN,
    encode_actor_hello,
    encode_call,
    encode_far_prelude,
)
from tests.processes import until

SECRET, STREAM = "s" * 32, "0123456789abcdef" * 2


class FarCallerHere:
    """A caller with its agent in front of it, as an actor sees both."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream = KeptStream()
        self.frames: list[list[object]] = []
        self.decoder = FrameDecoder()

    def connect(self, secret: str = SECRET) -> list[object]:
        """A new connection; the first frame that comes back."""
        self.file = os.memfd_create("begun")
        os.pwrite(self.file, BEGUN.pack(BEGUN_UNKNOWN), 0)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(self.path))
        self.socket.setblocking(False)
        socket.send_fds(self.socket, [encode_far_prelude()], [self.file])
        self.socket.send(encode_keep(secret, STREAM, self.stream.received))
        came = bytearray()
        answer: list[list[object]] = []

        def answered() -> bool:
            self.turn()
            with suppress(BlockingIOError):
                came.extend(self.socket.recv(2**16))
            frame = take_first_frame(came)
            if frame is not None:
                answer.append(frame)
            return bool(answer)

        until(answered, "the first frame")
        if answer[0][0] == "kept":
            self.stream.connect(answer[0][1]["received"])  # type: ignore[index]
            self._take(bytes(came))
        return answer[0]

    turn: Callable[[], None]

    def say(self, data: bytes) -> None:
        self.stream.write(data)
        self.pump()

    def pump(self) -> None:
        with suppress(BlockingIOError):
            if self.stream.out:
                del self.stream.out[: self.socket.send(self.stream.out)]
            self._take(self.socket.recv(2**16))

    def _take(self, data: bytes) -> None:
        got = self.stream.feed(data)
        self.stream.taken(len(got))
        self.frames += self.decoder.feed(got)

    def begun(self) -> int:
        return int(BEGUN.unpack(os.pread(self.file, BEGUN.size, 0))[0])

    def close(self) -> None:
        self.socket.close()
        os.close(self.file)


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[Callers]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "actor"))
    listener.listen(8)
    epoll = select.epoll()
    made = Callers(listener, epoll, SECRET, 1)
    made.epoll = epoll  # type: ignore[attr-defined]
    yield made
    made.close()
    epoll.close()


def look(callers: Callers) -> None:
    for fd, mask in callers.epoll.poll(0.001):  # type: ignore[attr-defined]
        callers.ready(fd, mask)
    callers.flush()


@pytest.fixture
def far(callers: Callers, tmp_path: Path) -> Iterator[FarCallerHere]:
    caller = FarCallerHere(tmp_path / "actor")
    caller.turn = lambda: look(callers)
    yield caller
    caller.close()


def turns(callers: Callers, far: FarCallerHere, done: Callable[[], bool]) -> None:
    def step() -> bool:
        far.pump()
        look(callers)
        return done()

    until(step, "it was said")


def test_it_goes_on_over_the_next_connection_and_in_the_next_file(callers: Callers, far: FarCallerHere) -> None:
    assert far.connect()[0] == "kept"
    far.say(encode_actor_hello(SECRET, PYTHON) + encode_call(1, "add", b"") + encode_call(2, "add", b""))
    turns(callers, far, lambda: callers.waiting and bool(far.frames))
    assert far.frames == [["welcome", {"incarnation": 1}]]
    assert far.begun() == 0
    caller, call = callers.next()
    assert call.call_id == far.begun() == 1
    far.close()
    callers.answer(caller, encode_actor_hello("an answer", ""))
    look(callers)
    assert far.connect()[0] == "kept"
    assert far.begun() == 1, "its agent has another file by now"
    turns(callers, far, lambda: len(far.frames) == 2)
    assert callers.next()[1].call_id == far.begun() == 2
    far.say(encode_call(3, "add", b""))
    turns(callers, far, lambda: callers.waiting)
    assert callers.next()[1].call_id == 3


def test_without_the_secret_nothing_is_kept(callers: Callers, far: FarCallerHere) -> None:
    kind, record = far.connect("another")
    assert kind == "refused" and error_from_dict(record).code == "WrongToken"  # type: ignore[arg-type]
    far.close()
    assert far.connect()[0] == "kept"


def test_one_that_goes_on_with_what_never_began_is_refused(callers: Callers, far: FarCallerHere) -> None:
    far.stream.received = 5  # as one that the incarnation before has spoken with
    kind, record = far.connect()
    assert kind == "refused"
    assert error_from_dict(record).code == "UnknownAllocation", "it asks what was begun, and comes anew"  # type: ignore[arg-type]
    assert far.begun() == BEGUN_UNKNOWN, "what the incarnation before has said there is for the caller to read"


def test_one_that_stays_away_is_given_up(callers: Callers, far: FarCallerHere) -> None:
    callers._kept._patience_s = 0.05
    assert far.connect()[0] == "kept"
    far.say(encode_actor_hello(SECRET, PYTHON))
    turns(callers, far, lambda: bool(far.frames))
    far.close()

    def nobody() -> bool:
        look(callers)
        return not callers._callers

    until(nobody, "nobody waits for it any more")
    assert far.connect()[0] == "refused"
    assert user_actor_callers.FAR_PATIENCE_S > 60.0, "longer than it tries"
