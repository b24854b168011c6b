"""A process's connection to the object store of its host: questions from any thread, words that need no answer.

There is no thread for it: of the threads that wait for answers one reads for all. Words of finalizers are sent when
whoever holds the lock is done, or with the next that is said: nothing here is waited for inside of one.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from actorgrid.errors import (
    ActorGridError,
    HostUnreachable,
    MalformedBody,
    PeerGone,
    PeerRefused,
    TooManySessions,
    TransportError,
)
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.object_frames import (
    MAX_SLOTS,
    MAX_STORE_FRAME,
    Failed,
    Place,
    StoreFrame,
    StoreRefused,
    StoreWelcome,
    encode_hello,
    encode_question,
    parse_store_frame,
)

CONNECT_PATIENCE_S = 10.0
"""A store that died is started again by its host meanwhile."""
CONNECT_AGAIN_S = 0.02
READ_BYTES = 256 * 1024
MAX_FDS = 16


class TakesDescriptors(Protocol):
    """Whoever asks where objects lie."""

    def took_descriptor(self, kind: str, fd: int, writable: bool) -> None:
        """Keep the descriptor of the memory, or of the part of the disk, that its objects lie in."""


class StoreConnection:
    """The connection to the store that listens at *path*; made at the first question, and again when it was lost.

    ``generation`` is another after each: what the store before knew of this process is over then.
    """

    prelude = b""
    """What is said before hello."""
    patience_s = CONNECT_PATIENCE_S
    again_s = CONNECT_AGAIN_S
    whose = "this host"

    def __init__(self, path: str) -> None:
        self.path = path
        self.generation = 0
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self.welcome: StoreWelcome | None = None
        self._lock = threading.Lock()  # to connect and to send
        self._answers = threading.Condition(threading.Lock())
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder(MAX_STORE_FRAME)
        self._out = bytearray()
        self._last_question = 0
        self._waiting: dict[int, tuple[TakesDescriptors | None, bool]] = {}
        self._answered: dict[int, StoreFrame] = {}
        self._reading = False
        self._fds: deque[int] = deque()
        self.soon: deque[Callable[[], bytes]] = deque()  # words of finalizers: made where the lock is held
        self.unconfirmed = False  # whether the store may not have taken note yet of what is referred to here
        self._free_slots = list(range(MAX_SLOTS - 1, -1, -1))

    def after_fork(self) -> None:
        """Begin anew in a forked child: the connection is the parent's."""
        if self._socket is not None:
            self._socket.close()
        self.generation += 1
        self._begin()

    # -- questions and words

    @property
    def is_lost(self) -> bool:
        """Whether there was a connection, and is none."""
        return self._socket is None and self.welcome is not None

    def connect(self) -> None:
        """Connect, unless that is done. Raises HostUnreachable."""
        with self._lock:
            self._connected()

    def ask(self, kind: str, *fields: Any, taker: TakesDescriptors | None = None, writable: bool = False) -> Any:
        """Ask, and wait for the answer. Raises what the store refuses with, PeerGone when it went meanwhile, and
        HostUnreachable when there is none."""
        with self._lock:
            stream = self._connected()
            self._last_question += 1
            question = self._last_question
            self._waiting[question] = taker, writable
            unconfirmed, self.unconfirmed = self.unconfirmed, False
            try:
                self._send(stream, encode_question(kind, question, *fields))
            except BaseException:
                self._waiting.pop(question, None)
                raise
        self.flush()
        try:
            answer = self._await(stream, question)
        except BaseException:
            self._waiting.pop(question, None)
            self._answered.pop(question, None)
            self.unconfirmed |= unconfirmed
            raise
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def say(self, word: Callable[[], bytes]) -> None:
        """Say what *word* makes, with our lock held, and what needs no answer; where no store is, nobody hears it."""
        with self._lock:
            frame = word()
            if self._socket is not None:
                self._out += frame
                self._push(self._socket)

    def say_soon(self, word: Callable[[], bytes]) -> None:
        """Have the frame said that *word* makes: from a finalizer, which may run with our lock held."""
        self.soon.append(word)
        self.flush()

    def flush(self) -> None:
        """Send what waits, unless somebody else is at it."""
        while (self.soon or self._out) and self._lock.acquire(blocking=False):
            try:
                while self.soon:
                    self._out += self.soon.popleft()()
                if self._socket is None:
                    self._out.clear()
                elif not self._push(self._socket):
                    return
            finally:
                self._lock.release()

    def take_slot(self) -> int:
        """A number for one more space. Raises TooManySessions."""
        if not self._free_slots:
            raise TooManySessions(f"this process uses {MAX_SLOTS} spaces of the object store", hint="close clients")
        return self._free_slots.pop()

    def free_slot(self, slot: int) -> None:
        """Use the number for another space from now on."""
        self._free_slots.append(slot)

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            if self._socket is not None:
                self._lose(self._socket)

    def __del__(self) -> None:
        # Dropped with the last space that used it: nobody asks anything any more.
        if self._socket is not None:
            with suppress(OSError):
                self._push(self._socket)
            self._socket.close()

    # -- with the lock held

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        until = time.monotonic() + self.patience_s
        while True:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                stream.connect(self.path)
                self._greet(stream)
                return stream
            except (OSError, TransportError) as error:
                stream.close()
                if time.monotonic() >= until or isinstance(error, PeerRefused):
                    raise HostUnreachable(
                        f"the object store of {self.whose} does not answer: {error}",
                        asked=self.path,
                        hint="is the agent running? It starts the store: actorgrid status",
                    ) from error
            time.sleep(self.again_s)

    def _greet(self, stream: socket.socket) -> None:
        stream.sendall(self.prelude + encode_hello())
        decoder = FrameDecoder(MAX_STORE_FRAME)
        frames: list[list[Any]] = []
        stream.settimeout(self.patience_s)
        while not frames:
            data = stream.recv(READ_BYTES)
            if not data:
                raise PeerGone("the object store hung up")
            frames = decoder.feed(data)
        answer = parse_store_frame(frames[0])
        if isinstance(answer, StoreRefused):
            raise PeerRefused(f"the object store refuses: {answer.error.message}") from answer.error
        if not isinstance(answer, StoreWelcome):
            raise PeerRefused("the object store did not say welcome")
        stream.settimeout(None)
        self.generation += 1
        self._decoder, self._socket, self.welcome = decoder, stream, answer
        self._out.clear()

    def _send(self, stream: socket.socket, frame: bytes) -> None:
        self._out += frame
        try:
            while self._out:
                del self._out[: stream.send(self._out)]
        except OSError as error:
            self._lose(stream)
            raise PeerGone(f"the object store is gone: {error}") from error

    def _push(self, stream: socket.socket) -> bool:
        try:
            while self._out:
                del self._out[: stream.send(self._out, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return False
        except OSError:
            self._lose(stream)
            return False
        return True

    def _lose(self, stream: socket.socket) -> None:
        if self._socket is stream:
            self._socket = None
            self.generation += 1
            self._out.clear()
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            with self._answers:
                if not self._reading:  # else whoever reads it sees the end, and closes it
                    stream.close()

    # -- answers

    def _await(self, stream: socket.socket, question: int) -> StoreFrame:
        while True:
            with self._answers:
                while question not in self._answered and self._reading and self._socket is stream:
                    self._answers.wait()
                answer = self._answered.pop(question, None)
                if answer is not None:
                    return answer
                if self._socket is not stream:
                    self._waiting.pop(question, None)
                    raise PeerGone("the object store went away", hint="its host starts another one")
                self._reading = True
            frames: list[StoreFrame] | None = None
            try:
                frames = self._read(stream)
            finally:
                with self._answers:
                    self._reading = False
                    if self._socket is not stream:
                        stream.close()
                    for frame in frames or ():
                        number = frame.question  # type: ignore[union-attr]
                        if self._waiting.pop(number, None) is not None:
                            self._answered[number] = frame
                    self._answers.notify_all()
            if frames is None:
                with self._lock:
                    self._lose(stream)
                with self._answers:
                    self._answers.notify_all()

    def _read(self, stream: socket.socket) -> list[StoreFrame] | None:
        """What the store said; ``None`` when it is gone, or says what is no protocol."""
        try:
            data, fds, _, _ = socket.recv_fds(stream, READ_BYTES, MAX_FDS)
        except OSError:
            return None
        self._fds.extend(fds)
        if not data:
            return None
        try:
            frames = [parse_store_frame(frame) for frame in self._decoder.feed(data)]
            for frame in frames:
                if isinstance(frame, StoreWelcome | StoreRefused):
                    raise MalformedBody("a second welcome")
                if isinstance(frame, Place) and frame.comes_fd:
                    self._hand_over(frame)
        except (ActorGridError, IndexError):
            return None
        return frames

    def _hand_over(self, place: Place) -> None:
        fd = self._fds.popleft()
        taker, writable = self._waiting.get(place.question, (None, False))
        if taker is None:
            os.close(fd)
        else:
            taker.took_descriptor(place.kind, fd, writable)


_all: weakref.WeakSet[StoreConnection] = weakref.WeakSet()


def _begin_anew() -> None:
    for connection in list(_all):
        connection.after_fork()


os.register_at_fork(after_in_child=_begin_anew)
