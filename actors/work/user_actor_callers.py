"""Who calls an actor of the user's: their connections, whose call is next, what is answered. No code of theirs runs.

Each caller has a queue of its own, and they take turns: its calls begin in the order in which it made them, and one
that sends thousands holds up no other's.

A caller on another host comes by agents, over connections that may break: we read one end of a socket pair, and
notice nothing of that (kept_connections.py).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
from collections import deque

from actorgrid.errors import (
    ActorDied,
    ActorGridError,
    MalformedBody,
    Overloaded,
    PeerRefused,
    PythonMismatch,
    TransportError,
    UnknownAllocation,
    WrongToken,
)
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.kept_stream import Keep, parse_keep
from actorgrid.transports.task_frames import CancelTask, encode_failure
from actorgrid.transports.user_actor_frames import (
    BEGUN,
    PROTOCOL_VERSION,
    ActorHello,
    FarPrelude,
    MethodCall,
    StopActor,
    encode_actor_refused,
    encode_actor_welcome,
    parse_caller_frame,
)

from .client_hello import is_secret
from .environment import PYTHON
from .kept_connections import KeptConnections

READ_BYTES = 256 * 1024
HELLO_BYTES = 4096  # a stranger may make us hold no more than this
MAX_CALLERS = 1000
MAX_STRANGERS = 64
MAX_WAITING = 1000  # calls of one caller that are read ahead; more stay in its socket
MAX_WAITING_BYTES = 64 * 2**20
MAX_UNSENT_BYTES = 16 * 2**20  # answers of one caller; with more it does not read, and none of its calls begins
LAST_WORDS_S = 5.0
FAR_PATIENCE_S = 90.0
"""For so long we wait for a caller on another host to be back: longer than it tries."""


class Caller:
    """One connection."""

    __slots__ = (
        "begun_fd", "cancelled", "decoder", "far", "gone", "last_begun", "mask", "objects", "out", "queued", "socket",
        "stream_id", "waiting", "waiting_bytes", "welcome",
    )  # fmt: skip

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder()
        self.welcome = False
        self.objects = False  # whether it takes what is kept in the object store for it
        self.gone = False  # what it asked for before it left is done, and the answers are dropped
        self.waiting: deque[MethodCall] = deque()
        self.waiting_bytes = 0
        self.queued = False  # whether it stands in line
        self.cancelled: set[int] = set()  # ids of waiting calls
        self.out = bytearray()
        self.begun_fd = -1
        self.last_begun = 0
        self.far = False  # whether an agent is in front of it
        self.stream_id = ""  # of one that comes over a network
        self.mask = select.EPOLLIN

    def takes_file(self, begun_fd: int) -> None:
        """Leave word in that file from the next ``leaves_word`` on: before it is known who this is, it may hold what
        the incarnation before us has begun of the same caller, who has yet to ask for that."""
        if self.begun_fd >= 0:
            os.close(self.begun_fd)
        self.begun_fd = begun_fd

    def leaves_word(self) -> None:
        """Say in the file which call was begun last, for when we are no more."""
        if self.begun_fd >= 0:
            os.pwrite(self.begun_fd, BEGUN.pack(self.last_begun), 0)

    def begins(self, call: MethodCall) -> None:
        """Leave word that the call begins."""
        self.last_begun = call.call_id
        self.leaves_word()


class Callers:
    """All of them. *epoll* is told whom to listen to; *on_cancel* is called with calls that are to be given up."""

    def __init__(self, listener: socket.socket, epoll: select.epoll, secret: str, incarnation: int) -> None:
        self._listener = listener
        self._epoll = epoll
        self._secret = secret.encode()
        self._incarnation = incarnation
        self._callers: dict[int, Caller] = {}
        self._line: deque[Caller] = deque()  # those of whom a call waits
        self._dirty: dict[int, Caller] = {}  # to whom something is to be sent
        self.cancelled: deque[tuple[Caller, int]] = deque()  # calls that may run, and are not wanted any more
        self.stopping = False
        self._kept = KeptConnections(patience_s=FAR_PATIENCE_S)
        listener.setblocking(False)
        epoll.register(listener, select.EPOLLIN)

    @property
    def waiting(self) -> bool:
        """Whether there is a call to begin."""
        return bool(self._line)

    def next(self) -> tuple[Caller, MethodCall]:
        """Take the next call out of the line, for it to begin. Raises IndexError when there is none."""
        caller = self._line.popleft()
        call = caller.waiting.popleft()
        caller.waiting_bytes -= len(call.args)
        caller.queued = False
        self._stand_in_line(caller)
        if not caller.gone and not caller.mask & select.EPOLLIN:
            self._listen(caller)
        caller.begins(call)
        return caller, call

    def answer(self, caller: Caller, frame: bytes) -> None:
        """Queue an answer."""
        if not caller.gone:
            caller.out += frame
            self._dirty[caller.socket.fileno()] = caller

    def ready(self, fd: int, mask: int) -> bool:
        """Deal with a ready descriptor; ``False`` when it is none of these."""
        if fd == self._listener.fileno():
            self._accept()
            return True
        caller = self._callers.get(fd)
        if caller is None:
            return False
        if mask & select.EPOLLOUT:
            self._dirty[fd] = caller
        if mask & select.EPOLLIN:
            self._read(caller)
        elif mask & (select.EPOLLHUP | select.EPOLLERR):
            self._leave(caller)
        return True

    def flush(self) -> None:
        """Send what is queued, as far as it is taken now."""
        for caller in list(self._dirty.values()):
            self._dirty.pop(caller.socket.fileno(), None)
            if caller.gone:
                continue
            try:
                del caller.out[: caller.socket.send(caller.out, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                pass
            except OSError:
                self._leave(caller)
                continue
            self._listen(caller)
            self._stand_in_line(caller)

    def close(self) -> None:
        """Say the last that is to be said, for a few seconds, and hang up on all."""
        self._listener.close()
        for caller in list(self._callers.values()):
            caller.socket.settimeout(LAST_WORDS_S)
            with contextlib.suppress(OSError):  # it left, or does not read
                caller.socket.sendall(caller.out)
            self._leave(caller)
        self._kept.send_last(LAST_WORDS_S)

    # -- inside

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        strangers = [caller for caller in self._callers.values() if not caller.welcome]
        if len(strangers) >= MAX_STRANGERS:
            self._leave(strangers[0])  # who said nothing yet gives way
        connection.setblocking(False)
        caller = Caller(connection)
        self._callers[connection.fileno()] = caller
        self._epoll.register(connection, select.EPOLLIN)

    def _read(self, caller: Caller) -> None:
        try:
            if caller.welcome:
                data = caller.socket.recv(READ_BYTES)
            else:
                data, descriptors, _, _ = socket.recv_fds(caller.socket, HELLO_BYTES, 1)
                for descriptor in descriptors:
                    caller.takes_file(descriptor)
            for frame in caller.decoder.feed(data):
                self._take(caller, frame)
                if caller.gone:
                    return
            if not caller.welcome and caller.decoder.pending_bytes > HELLO_BYTES:
                raise PeerRefused("the first frame must be a hello, and short")
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except (ActorGridError, TransportError) as error:
            if not caller.gone:
                with contextlib.suppress(OSError):  # it left: there is nobody to tell
                    caller.socket.send(bytes(caller.out) + encode_actor_refused(error), socket.MSG_DONTWAIT)
            data = b""
        if not data:
            self._leave(caller)
        elif not caller.gone:
            self._listen(caller)

    def _take(self, caller: Caller, frame: list[object]) -> None:
        if not caller.welcome and (keep := parse_keep(frame)) is not None:
            self._keep(caller, keep)
            return
        message = parse_caller_frame(frame)
        if not caller.welcome:
            if isinstance(message, FarPrelude):
                caller.far = True
                return
            if not isinstance(message, ActorHello):
                raise PeerRefused("the first frame must be a hello")
            self._check(message)
            caller.welcome, caller.objects = True, message.objects
            caller.leaves_word()
            self.answer(caller, encode_actor_welcome(self._incarnation))
        elif isinstance(message, MethodCall):
            if self.stopping:
                late = ActorDied("the actor is being stopped, and begins nothing more", asked=message.method)
                self.answer(caller, encode_failure(message.call_id, late))
                return
            caller.waiting.append(message)
            caller.waiting_bytes += len(message.args)
            self._stand_in_line(caller)
        elif isinstance(message, CancelTask):
            if any(call.call_id == message.task_id for call in caller.waiting):
                caller.cancelled.add(message.task_id)
            else:
                self.cancelled.append((caller, message.task_id))
        elif isinstance(message, StopActor):
            self.stopping = True
        else:
            raise MalformedBody("a second hello")

    def _keep(self, caller: Caller, keep: Keep) -> None:
        """Go on with a caller over one end of a socket pair, or, with one that is back, as before."""
        if not is_secret(keep.secret, self._secret):
            raise WrongToken("this handle is not of this actor", hint="use the handle that its creation gave")
        if caller.stream_id:
            raise MalformedBody("a kept stream inside of another")
        connection, fd = caller.socket, caller.socket.fileno()
        before = next((each for each in self._callers.values() if each.stream_id == keep.stream_id), None)
        if before is not None and self._kept.attach(connection, keep):
            if caller.begun_fd >= 0:  # the agent may have made another file, as it has started again
                before.takes_file(os.dup(caller.begun_fd))
                before.leaves_word()
            self._callers.pop(fd)
            self._epoll.unregister(fd)
            caller.socket, spare = socket.socketpair()  # the connection is not ours to close any more
            spare.close()
            self._callers[caller.socket.fileno()] = caller
            self._epoll.register(caller.socket, select.EPOLLIN)
            self._leave(caller)
            return
        if keep.received:
            raise UnknownAllocation(
                "the actor knows nothing of that stream: it was begun again since, or has given the caller up",
                found=f"{keep.received} bytes of it had come",
                hint="ask what was begun, and begin another stream",
            )
        inner = self._kept.adopt(connection, keep)  # which leaves all as it was where it refuses
        self._callers.pop(fd)
        self._epoll.unregister(fd)
        inner.setblocking(False)
        caller.socket, caller.stream_id, caller.decoder = inner, keep.stream_id, FrameDecoder()
        caller.mask = select.EPOLLIN
        self._callers[inner.fileno()] = caller
        self._epoll.register(inner, select.EPOLLIN)

    def _check(self, hello: ActorHello) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise PeerRefused("another protocol version", asked=str(hello.version), found=str(PROTOCOL_VERSION))
        if not hmac.compare_digest(hello.secret.encode("utf-8", "replace"), self._secret):
            raise WrongToken("this handle is not of this actor", hint="use the handle that its creation gave")
        if hello.python != PYTHON:
            raise PythonMismatch(
                "caller and actor cannot exchange objects", asked=f"Python {hello.python}", found=f"Python {PYTHON}"
            )
        if sum(caller.welcome for caller in self._callers.values()) >= MAX_CALLERS:
            raise Overloaded(
                f"{MAX_CALLERS} processes call this actor already", hint="let fewer hold its handle, or make another"
            )

    def _stand_in_line(self, caller: Caller) -> None:
        if caller.waiting and not caller.queued and len(caller.out) < MAX_UNSENT_BYTES:
            caller.queued = True
            self._line.append(caller)

    def _listen(self, caller: Caller) -> None:
        has_room = len(caller.waiting) < MAX_WAITING and caller.waiting_bytes < MAX_WAITING_BYTES
        mask = (select.EPOLLIN if has_room else 0) | (select.EPOLLOUT if caller.out else 0)
        if mask != caller.mask:
            caller.mask = mask
            self._epoll.modify(caller.socket, mask)

    def _leave(self, caller: Caller) -> None:
        if caller.gone:
            return
        caller.gone = True
        fd = caller.socket.fileno()
        self._callers.pop(fd, None)
        self._dirty.pop(fd, None)
        self._epoll.unregister(fd)
        caller.socket.close()
        caller.out.clear()
        self._stand_in_line(caller)
        if caller.begun_fd >= 0:
            os.close(caller.begun_fd)
            caller.begun_fd = -1
