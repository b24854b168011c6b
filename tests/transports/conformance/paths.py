"""Pairs of ends of every carrier of messages, made for the one suite of tests: ``test_message_paths.py``.

A carrier joins by a subclass of ``PathRig`` and a line in ``RIGS``.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorgrid.errors import ActorGridError, FrameTooLarge, MailboxFull, PeerGone
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.paths import Buffer, MessagePath, PathKind, ignore_end, nothing
from actorgrid.transports.peer.calls import Stream
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from actorgrid.transports.peer.hosts import PeerHosts
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.rdma.limits import RdmaLimits
from actorgrid.transports.shared_memory.path import SharedMemoryPath
from actorgrid.transports.shared_memory.segment import HEADER_BYTES, offer, take, unavailable
from actorgrid.transports.unix import outgoing
from actorgrid.transports.unix.incoming import FRAME_BYTES_MAX
from actorgrid.transports.unix.mesh import Mesh
from actorgrid.transports.unix.socket_path import SocketPath
from tests.patience import Patience
from tests.transports.peer_certificates import Authority
from tests.transports.peer_conformance import QUICK
from tests.transports.rdma import stub_verbs
from tests.transports.rdma.messages import RdmaMessages

STREAM_MESSAGE_MAX = 8 * 2**20
LIMITS = replace(QUICK, handshake_s=20.0, idle_s=1.5)
_LENGTH = struct.Struct(">I")
WAIT_S = 60.0


class End:
    """One end, and what it was told. It takes what comes, unless ``reads`` is off."""

    def __init__(self, path: MessagePath) -> None:
        self.path = path
        self.came: list[bytes] = []
        self.rooms = 0
        self.ends: list[ActorGridError] = []
        self.over: ActorGridError | None = None
        self.reads = True
        path.on_message, path.on_room, path.on_end = self.take, self._room, self.ends.append

    def take(self) -> None:
        """Take all that is there."""
        try:
            while self.reads and self.over is None and (message := self.path.take()) is not None:
                self.came.append(message)
        except ActorGridError as error:
            self.over = error

    def _room(self) -> None:
        self.rooms += 1

    def send_all(self, messages: list[bytes], until: Callable[[Callable[[], bool]], None]) -> None:
        """Send all of them, as there is credit."""
        for message in messages:
            while not self.path.send(message):
                before = self.rooms
                until(lambda before=before: self.rooms > before)  # type: ignore[misc]


class PathRig:
    """Two ends in one test. ``pump`` lets both sides live, except for who is stopped."""

    kind: PathKind
    notices_silence = False
    """Whether a side that is stopped is taken for dead."""
    bound_bytes = 64 * 2**20
    """No reader who does not take costs more than that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stopped: set[str] = set()
        self.a: End
        self.b: End

    def pump(self) -> None:
        """Let both sides do what there is to do."""
        raise NotImplementedError

    def until(self, condition: Callable[[], Any], what: str = "the condition") -> None:
        """Let both sides live until *condition* holds."""
        patience = Patience(WAIT_S)
        while not condition():
            assert not patience.is_over, f"{what}: not reached"
            self.pump()

    def kill(self) -> None:
        """What the kernel does when the process of ``b`` is killed: its descriptors close, and nothing is said."""
        raise NotImplementedError

    def flood(self) -> None:
        """As a hostile other side: ``b`` writes bytes that are no protocol, whatever ``a`` says."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing behind."""


# -- the mesh of a host's processes


class MeshPath:
    """A message path over the meshes of two processes."""

    kind = PathKind.UNIX
    largest_bytes = FRAME_BYTES_MAX

    def __init__(self, mesh: Mesh, peer: str) -> None:
        self.on_message = self.on_room = nothing
        self.on_end = ignore_end
        self.mesh = mesh
        self._peer = peer
        self._error: ActorGridError | None = None
        self._told = False
        mesh.connect(peer)
        mesh.on_peer_lost(self._lost)

    def _lost(self, peer: str) -> None:
        self._error = PeerGone(f"{peer} is gone")
        self.mesh.read_rest(peer)

    def look(self) -> None:
        """Tell of what came."""
        if self.mesh.inbox or self._error is not None:
            self.on_message()
        if self._error is not None and not self._told:
            self._told = True
            self.on_end(self._error)

    def send(self, message: Buffer) -> bool:
        if self._error is not None:
            raise self._error
        try:
            self.mesh.post(self._peer, 0, bytes(message))
        except MailboxFull:
            self.mesh.when_capacity(self._peer, self.on_room)
            return False
        return True

    def take(self) -> bytes | None:
        if self.mesh.inbox:
            return bytes(self.mesh.inbox.popleft()[2])
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        self.mesh.close()


class UnixRig(PathRig):
    """Two meshes."""

    kind = PathKind.UNIX
    bound_bytes = 8 * 2**20

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(outgoing, "QUEUED_BYTES_MAX", self.bound_bytes)  # of 256 MiB, which take seconds
        self._meshes = [Mesh(folder, b"k" * 32, name) for name in "ab"]
        ours, theirs = MeshPath(self._meshes[0], "b"), MeshPath(self._meshes[1], "a")
        self._paths = {"a": ours, "b": theirs}
        self.a, self.b = End(ours), End(theirs)

    def pump(self) -> None:
        for name, path in self._paths.items():
            if name in self.stopped or path.mesh.loop.closed:
                continue
            if not path.mesh.inbox:
                path.mesh.poll(0.001)
            path.look()

    def kill(self) -> None:
        self.stopped.add("b")
        self._meshes[1].close()

    def flood(self) -> None:
        raise NotImplementedError("strangers get no further than the key: tests/transports/test_unix_mesh.py")

    def close(self) -> None:
        self._patch.undo()
        for mesh in self._meshes:
            mesh.close()


# -- streams between hosts


class StreamPath:
    """A message path over a stream between two hosts: each message with its length before it."""

    largest_bytes = STREAM_MESSAGE_MAX
    held_max = 512 * 1024

    def __init__(self, kind: PathKind, stream: Stream | None = None) -> None:
        self.kind = kind
        self.on_message = self.on_room = nothing
        self.on_end = ignore_end
        self._out = bytearray()
        self._in = bytearray()
        self._unconsumed = 0
        self._error: ActorGridError | None = None
        self._short = False
        self._stream: Stream | None = None
        if stream is not None:
            self.attach(stream)

    def attach(self, stream: Stream) -> None:
        """Go over *stream*."""
        self._stream = stream
        stream.attach(self._came, self._ended, self._flush)
        self._flush()

    def send(self, message: Buffer) -> bool:
        if len(message) > self.largest_bytes:
            raise FrameTooLarge(f"a message of {len(message)} bytes is over {self.largest_bytes}")
        if self._error is not None:
            raise self._error
        if len(self._out) > self.held_max:
            self._short = True
            return False
        self._out += _LENGTH.pack(len(message))
        self._out += message
        self._flush()
        return True

    def _flush(self) -> None:
        while self._stream is not None and self._out and (taken := self._stream.write(self._out)):
            del self._out[:taken]
        if self._short and len(self._out) <= self.held_max:
            self._short = False
            self.on_room()

    def _came(self, data: bytes) -> None:
        self._in += data
        self._unconsumed += len(data)
        self._let_in()
        self.on_message()

    def _let_in(self) -> None:
        # As long as the first message is not whole, more has to come, however large the window is.
        if not self._is_whole() and self._unconsumed and self._stream is not None:
            count, self._unconsumed = self._unconsumed, 0
            self._stream.consumed(count)

    def _is_whole(self) -> bool:
        return len(self._in) >= _LENGTH.size and len(self._in) >= _LENGTH.size + _LENGTH.unpack_from(self._in)[0]

    def take(self) -> bytes | None:
        if not self._is_whole():
            if self._error is not None:
                raise self._error
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._in)[0])
        message = bytes(self._in[_LENGTH.size : end])
        del self._in[:end]
        self._let_in()
        return message

    def _ended(self, error: ActorGridError | None) -> None:
        if self._error is None:
            self._error = error or PeerGone("the other side has ended the stream")
            self.on_message()
            self.on_end(self._error)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.end()


class StreamsRig(PathRig):
    """A stream between two nets."""

    notices_silence = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._theirs = StreamPath(self.kind)
        nets = self._make_nets()
        self._ours = StreamPath(self.kind, nets["a"].open_stream("b", "messages", b""))
        self.a, self.b = End(self._ours), End(self._theirs)
        self.nets = nets

    def _make_nets(self) -> dict[str, PeerHosts]:
        raise NotImplementedError

    def _opened(self, stream: Stream) -> None:
        self._theirs.attach(stream)

    def close(self) -> None:
        for net in self.nets.values():
            net.close()


class TlsRig(StreamsRig):
    """Over sockets with mutual TLS, each side with a loop of its own, so that either can be stopped."""

    kind = PathKind.TLS

    def _make_nets(self) -> dict[str, PeerHosts]:
        self._loops = {name: InlineNode(real_time=True) for name in "ab"}
        authority, ports, nets = Authority(), {}, {}
        for name in "ba":
            net = nets[name] = PeerNet(
                self._loops[name],
                authority.identity(self.folder, "c1", name),
                ("127.0.0.1", 0),
                resolve=lambda other: [("127.0.0.1", ports[other])],
                admit=lambda _host_id, _fingerprint: None,
                on_call=lambda call: call.reply(b""),
                on_cast=lambda _host_id, _target, _body: None,
                on_stream=self._opened,
                limits=LIMITS,
            )
            ports[name] = net.port
        return nets

    def pump(self) -> None:
        for name, loop in self._loops.items():
            if name not in self.stopped:
                loop.step(0.001)

    def kill(self) -> None:
        self.stopped.add("b")
        for end in list(self.nets["b"]._ends):
            end._socket.close()  # type: ignore[attr-defined]

    def flood(self) -> None:
        self.stopped.add("b")
        (bulk,) = [end for end in self.nets["b"]._ends if end.streams]
        bulk._socket.setblocking(True)  # type: ignore[attr-defined]
        with suppress(OSError):
            bulk._socket.sendall(b"\xff" * 2**14)  # type: ignore[attr-defined]


class MemoryRig(StreamsRig):
    """Through memory, on a clock of its own, with faults from a seed."""

    kind = PathKind.TLS  # it stands for that one
    _killed = False

    def _make_nets(self) -> dict[str, PeerHosts]:
        self._loop = InlineNode()
        self._network = FaultyNetwork(self._loop, 7, limits=LIMITS)
        return {
            name: FaultyNet(
                self._network,
                name,
                on_call=lambda call: call.reply(b""),
                on_cast=lambda _host_id, _target, _body: None,
                on_stream=self._opened,
                admit=lambda _host_id, _fingerprint: None,
            )
            for name in "ab"
        }

    def pump(self) -> None:
        if not self._killed:
            self._network.mend()
            if "b" in self.stopped:
                self._network.cut({"a"}, {"b"})
        if not self._loop.step():
            self._loop.advance(0.01)

    def kill(self) -> None:
        self._killed = True
        self._network.crash("b")


# -- one socket, and shared memory beside one


class SocketRig(PathRig):
    """Messages over one unix socket."""

    kind = PathKind.UNIX
    bound_bytes = 16 * 2**20

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._loops = {name: InlineNode(real_time=True) for name in "ab"}
        self._socket, self._other_socket = socket.socketpair()
        self.a, self.b = (End(path) for path in self._make())

    def _make(self) -> tuple[MessagePath, MessagePath]:
        return SocketPath(self._socket, self._loops["a"]), SocketPath(self._other_socket, self._loops["b"])

    def pump(self) -> None:
        for name, loop in self._loops.items():
            if name not in self.stopped:
                loop.step(0.001)

    def kill(self) -> None:
        self.stopped.add("b")
        self._other_socket.close()

    def flood(self) -> None:
        self.stopped.add("b")
        self._other_socket.send(b"\xff" * 64)

    def close(self) -> None:
        for end in (self.a, self.b):
            with suppress(ValueError, OSError):  # what a test closed under it
                end.path.close()


class SharedMemoryRig(SocketRig):
    """Two rings, and a socket that says who lives."""

    kind = PathKind.SHARED_MEMORY

    def _make(self) -> tuple[MessagePath, MessagePath]:
        with ThreadPoolExecutor(1) as beside:
            taken = beside.submit(take, self._other_socket)
            offered = offer(self._socket, 2**24)
        ours = SharedMemoryPath(offered, self._socket, self._loops["a"])
        self.segment = taken.result()
        return ours, SharedMemoryPath(self.segment, self._other_socket, self._loops["b"])

    def flood(self) -> None:
        self.stopped.add("b")
        second = HEADER_BYTES + self.segment.ring_bytes
        self.segment.memory[second : second + 8] = b"\xff" * 8  # the head of what a reads
        os.eventfd_write(self.segment.other_bell, 1)


# -- RDMA, over a stub of the verbs


class RdmaRig(PathRig):
    """A pair of the stub, and links through memory as the TLS beside it; in virtual machines: tests/transports/rdma."""

    kind = PathKind.RDMA
    notices_silence = True
    bound_bytes = 2 * 16 * 2**20
    _killed = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._patch = pytest.MonkeyPatch()
        self._fabric = stub_verbs.install(self._patch)
        self._loop = InlineNode()
        self._network = FaultyNetwork(self._loop, 7, limits=LIMITS)
        self._rdma: dict[str, RdmaMessages] = {}
        self.nets = {name: self._net(name) for name in "ab"}
        for name, net in self.nets.items():
            self._rdma[name] = RdmaMessages(self._loop, name, net.open_stream, limits=RdmaLimits(resume_s=3.0))
        self._rdma["a"].want("b")
        while not all(self._carried_by_rdma(name) for name in "ab"):
            self.pump()
        ours, theirs = self._rdma["a"].peer("b"), self._rdma["b"].peer("a")
        assert ours is not None and theirs is not None
        self.a, self.b = End(ours), End(theirs)

    def _carried_by_rdma(self, name: str) -> bool:
        return [path.carrier for path in self._rdma[name].status()[1]] == ["rdma"]

    def _net(self, name: str) -> FaultyNet:
        return FaultyNet(
            self._network,
            name,
            on_call=lambda call: call.reply(b""),
            on_cast=lambda _host_id, _target, _body: None,
            on_stream=lambda stream: self._rdma[name].take(stream),
            admit=lambda _host_id, _fingerprint: None,
        )

    def pump(self) -> None:
        if not self._killed:
            self._network.mend()
            self._fabric.cut = "b" in self.stopped
            if self._fabric.cut:
                self._network.cut({"a"}, {"b"})
        if not self._loop.step():
            self._loop.advance(0.01)

    def kill(self) -> None:
        self._killed = self._fabric.cut = True
        self._network.crash("b")

    def flood(self) -> None:
        raise NotImplementedError("it is reset and goes on over TLS: tests/transports/rdma/test_rdma_streams.py")

    def close(self) -> None:
        for rdma in self._rdma.values():
            rdma.close()
        for net in self.nets.values():
            net.close()
        self._patch.undo()


RIGS: dict[str, type[PathRig]] = {
    "unix": UnixRig,
    "tls": TlsRig,
    "memory": MemoryRig,
    "socket": SocketRig,
    "rdma": RdmaRig,
}
if not unavailable():
    RIGS["shared_memory"] = SharedMemoryRig
