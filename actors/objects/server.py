"""The object store's process: sockets and files for what the core decides. One for each host, child of a shim.

It outlives the agent as work does, and holds no code or key of anybody: it passes bytes that it does not look at. Whom
it talks to is told by the secrets of spaces. From the agent, by its shim, come::

    ["report", n, objects_max]  ->  ["report", n, {"figures", "spaces", "store", "limits"}]
"""

from __future__ import annotations

import os
import queue
import resource
import secrets
import select
import socket
import threading
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from actorgrid.configs.work_uids import is_of_work
from actorgrid.errors import ActorGridError, MalformedBody, PeerRefused, TransportError
from actorgrid.transports.frames import FrameDecoder, encode_frame
from actorgrid.transports.object_frames import (
    MAX_STORE_FRAME,
    PROTOCOL_VERSION,
    Data,
    Failed,
    HelloStore,
    Part,
    StoreWelcome,
    encode_answer,
    encode_failed,
    encode_refused,
    encode_welcome,
    parse_process_frame,
)
from actorgrid.transports.peer_uid import uid_of_peer

from .block_allocator import FileOf, Punch, StoreLimits
from .core import Instruction, ObjectStoreCore
from .files import SpaceFiles
from .records import Answer, CloseFiles, HangUp, ReadPiece, ReadSmall, Reserve, SpillCopy, StoreSpec, WriteSmall

READ_BYTES = 256 * 1024
HELLO_BYTES = 4096
MAX_CONNECTIONS = 4096
MAX_STRANGERS = 64
CONNECTIONS_OF_UID_MAX, STRANGERS_OF_UID_MAX = 512, 16
"""Of work that has a uid of its own: that of one user keeps no others out."""
MAX_UNSENT_BYTES = 64 * 2**20
"""Of answers to one process: one that reads none is hung up on."""
PAUSE_BYTES = 2**20
"""While so much of answers is not sent to a process, it is not listened to: it may ask for more than memory holds."""
TICK_S = 0.5


class _Process:
    """A process that is connected, or a stranger that has not said hello."""

    def __init__(self, connection: socket.socket, uid: int) -> None:
        self.socket = connection
        self.uid = uid
        self.decoder = FrameDecoder(MAX_STORE_FRAME)
        self.welcome = False
        self.unsent: deque[tuple[memoryview, int]] = deque()  # with a descriptor that goes along, or -1
        self.unsent_bytes = 0
        self.frames: deque[list[Any]] = deque()  # came, and wait until there is less unsent
        self.attended = False  # being taken: what is to be listened for is told by the end of that
        self.mask = select.EPOLLIN


class ObjectStore:
    """The loop of the store."""

    def __init__(self, listener: socket.socket, control: socket.socket, host_id: str, files: Path, limits: StoreLimits):
        self._listener = listener
        self._control = control
        self._control_decoder = FrameDecoder()
        self._files = SpaceFiles(files, limits)
        self._limits = limits
        self._host_id = host_id
        self.core = ObjectStoreCore(secrets.token_hex(8), host_id, limits)
        self._processes: dict[int, _Process] = {}
        self._epoll = select.epoll()
        self._moved_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._copies: queue.SimpleQueue[tuple[int, Callable[[], bool]]] = queue.SimpleQueue()
        self._moved: deque[tuple[int, bool]] = deque()
        listener.setblocking(False)
        control.setblocking(False)
        self._control_out = bytearray()
        self._control_mask = select.EPOLLIN
        for fd in (listener.fileno(), control.fileno(), self._moved_fd):
            self._epoll.register(fd, select.EPOLLIN)

    def run(self, is_over: Callable[[], bool]) -> NoReturn:
        """Serve until the shim hangs up."""
        threading.Thread(target=self._copy, name="actorgrid-spill", daemon=True).start()
        tick_at = monotonic() + TICK_S
        while True:
            wait_s = -1 if self.core.is_idle else max(0.0, tick_at - monotonic())
            for fd, mask in self._epoll.poll(wait_s):
                if is_over():
                    os._exit(0)
                self._ready(fd, mask)
                self._carry_out()
            now = monotonic()
            if now >= tick_at:
                tick_at = now + TICK_S
                self.core.tick(now)
                self._carry_out()

    def _ready(self, fd: int, mask: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif fd == self._control.fileno():
            self._read_control()
        elif fd == self._moved_fd:
            os.eventfd_read(fd)
            while self._moved:
                ticket, ok = self._moved.popleft()
                self.core.moved(ticket, ok, monotonic())
        elif fd in self._processes:
            process = self._processes[fd]
            if mask & select.EPOLLOUT:
                self._flush(fd, process)
                self._attend(fd, process, reads=False)
            if mask & ~select.EPOLLOUT:
                self._attend(fd, process)

    # -- processes

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        strangers = [fd for fd, process in self._processes.items() if not process.welcome]
        uid = uid_of_peer(connection)
        if len(self._processes) >= MAX_CONNECTIONS or not self._may_come(uid):
            connection.close()
            return
        if len(strangers) >= MAX_STRANGERS:
            self._drop(strangers[0])  # who said nothing yet gives way
        connection.setblocking(False)
        self._processes[connection.fileno()] = _Process(connection, uid)
        self._epoll.register(connection, select.EPOLLIN)

    def _may_come(self, uid: int) -> bool:
        """Whether a process of that uid may: the agent's, and work that has one of its own, in its bounds."""
        if uid in (os.geteuid(), 0):
            return True
        others = [process for process in self._processes.values() if process.uid == uid]
        strangers = sum(not process.welcome for process in others)
        return is_of_work(uid) and len(others) < CONNECTIONS_OF_UID_MAX and strangers < STRANGERS_OF_UID_MAX

    def _attend(self, fd: int, process: _Process, reads: bool = True) -> None:
        if self._processes.get(fd) is not process:
            return
        process.attended = True
        try:
            if reads:
                data = process.socket.recv(READ_BYTES if process.welcome else HELLO_BYTES)
                if not data:
                    self._drop(fd)
                    return
                process.frames += process.decoder.feed(data)
            while process.frames and process.unsent_bytes < PAUSE_BYTES:
                message = parse_process_frame(process.frames.popleft())
                if process.welcome:
                    self.core.take(fd, message, monotonic())
                    self._carry_out()
                    if self._processes.get(fd) is not process:
                        return
                elif isinstance(message, HelloStore) and message.version == PROTOCOL_VERSION:
                    process.welcome = True
                    self.core.connect(fd, process.uid if is_of_work(process.uid) else 0)
                    welcome = StoreWelcome(
                        self.core.store_id, self._host_id, self._limits.memory_bytes, self._limits.disk_bytes
                    )
                    self._send(fd, encode_welcome(welcome))
                else:
                    raise PeerRefused("the first frame must be a hello of this version", found=type(message).__name__)
            if not process.welcome and process.decoder.pending_bytes > HELLO_BYTES:
                raise PeerRefused("the first frame must be a hello, and short")
        except BlockingIOError:
            pass
        except (ActorGridError, TransportError) as error:
            self._refuse(fd, process, error)
        except OSError:
            self._drop(fd)
        process.attended = False
        self._listen(fd, process)

    def _refuse(self, fd: int, process: _Process, error: Exception) -> None:
        if isinstance(error, ActorGridError) and not process.unsent:
            with suppress(OSError):
                process.socket.send(encode_refused(error), socket.MSG_DONTWAIT)
        self._drop(fd)

    def _drop(self, fd: int) -> None:
        process = self._processes.pop(fd, None)
        if process is None:
            return
        self._epoll.unregister(fd)
        for _, descriptor in process.unsent:
            if descriptor >= 0:
                os.close(descriptor)
        process.socket.close()
        if process.welcome:
            self.core.disconnect(fd, monotonic())

    def _send(self, fd: int, frame: bytes, descriptor: int = -1) -> None:
        process = self._processes.get(fd)
        if process is None:
            if descriptor >= 0:
                os.close(descriptor)
            return
        process.unsent.append((memoryview(frame), descriptor))
        process.unsent_bytes += len(frame)
        if process.unsent_bytes > MAX_UNSENT_BYTES:
            self._drop(fd)
        else:
            self._flush(fd, process)

    def _flush(self, fd: int, process: _Process) -> None:
        try:
            while process.unsent:
                frame, descriptor = process.unsent[0]
                if descriptor >= 0:
                    sent = socket.send_fds(process.socket, [frame], [descriptor], socket.MSG_DONTWAIT)
                    os.close(descriptor)
                else:
                    sent = process.socket.send(frame, socket.MSG_DONTWAIT)
                process.unsent_bytes -= sent
                if sent == len(frame):
                    process.unsent.popleft()
                else:
                    process.unsent[0] = frame[sent:], -1
        except BlockingIOError:
            pass
        except OSError:
            self._drop(fd)
            return
        self._listen(fd, process)

    def _listen(self, fd: int, process: _Process) -> None:
        reads = 0 if process.frames or process.unsent_bytes >= PAUSE_BYTES else select.EPOLLIN
        mask = reads | (select.EPOLLOUT if process.unsent or process.frames else 0)
        if mask != process.mask and not process.attended and self._processes.get(fd) is process:
            process.mask = mask
            self._epoll.modify(fd, mask)

    # -- what the core decides

    def _carry_out(self) -> None:
        while orders := self.core.take_orders():
            for order in orders:
                self._obey(order)

    def _obey(self, order: Instruction) -> None:
        match order:
            case Answer(number, Failed(question, error)):
                self._send(number, encode_failed(question, error))
            case Answer(number, frame, None):
                self._send(number, encode_answer(frame))
            case Answer(number, frame, FileOf() as file, writable):
                self._send_place(number, frame, file, writable)
            case ReadSmall(number, question, file, offset, size):
                self._send(number, encode_answer(Data(question, self._files.read(file, offset, size))))
            case ReadPiece(number, question, file, offset, size):
                data = self._files.read(file, offset, size)
                self._send(number, encode_answer(Part(question, zlib.crc32(data), data)))
            case WriteSmall(file, offset, data):
                self._files.write(file, offset, data)
            case Reserve(ticket, file, offset, size):
                self.core.reserved(ticket, self._files.reserve(file, offset, size), monotonic())
            case SpillCopy(ticket, source, source_offset, target, target_offset, size):
                try:
                    copier = self._files.copier(source, source_offset, target, target_offset, size)
                except OSError:
                    self.core.moved(ticket, False, monotonic())
                else:
                    self._copies.put((ticket, copier.run))
            case Punch(file, offset, size):
                self._files.punch(file, offset, size)
            case CloseFiles(space):
                self._files.close(space)
            case HangUp(number, error):
                process = self._processes.get(number)
                if process is not None:
                    self._refuse(number, process, error)

    def _send_place(self, number: int, frame: Any, file: FileOf, writable: bool) -> None:
        try:
            descriptor = self._files.to_send(file, writable)
        except OSError as error:  # no more descriptors, or no memory for another file
            refused = MalformedBody(f"the object store cannot open a file: {error.strerror}")
            self._obey(HangUp(number, refused))
            return
        self._send(number, encode_answer(frame), descriptor)

    def _copy(self) -> None:
        while True:
            ticket, run = self._copies.get()
            self._moved.append((ticket, run()))
            os.eventfd_write(self._moved_fd, 1)

    # -- the agent

    def _read_control(self) -> None:
        self._flush_control()
        try:
            data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        for frame in self._control_decoder.feed(data):
            match frame:
                case ["report", int(number), int(objects_max)]:
                    limits = self._limits._asdict()
                    figures, spaces = self.core.figures(), self.core.spaces(objects_max)
                    report = {"figures": figures, "spaces": spaces, "store": self.core.store_id, "limits": limits}
                    self._control_out += encode_frame(["report", number, report])
                    self._flush_control()

    def _flush_control(self) -> None:
        with suppress(BlockingIOError):
            while self._control_out:
                del self._control_out[: self._control.send(self._control_out)]
        mask = select.EPOLLIN | (select.EPOLLOUT if self._control_out else 0)
        if mask != self._control_mask:
            self._control_mask = mask
            self._epoll.modify(self._control.fileno(), mask)


def serve(spec: StoreSpec, listener: socket.socket, control: socket.socket, is_over: Callable[[], bool]) -> NoReturn:
    """Be the store of the host, as its spec says."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limits = StoreLimits(spec["memory_bytes"], spec["disk_bytes"])
    ObjectStore(listener, control, spec["host_id"], Path(spec["folder"]), limits).run(is_over)
