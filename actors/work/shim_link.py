"""WorkerManager's end of one shim's control socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.runtime import Runtime, Waiter
from actorgrid.transports.frames import FrameDecoder, encode_frame

MAX_FRAME = 4 * 2**20
SPEC_VERSION = 2
DEADLINES = 2
"""From this version on a shim is told until when it may live; before, that it may live its patience from then on."""


class ShimLink:
    """A connection to a living shim. ``closed`` is answered when the shim ends (or we hang up)."""

    def __init__(self, runtime: Runtime, on_worker_frame: Callable[[list[Any]], None] | None = None) -> None:
        self.closed = Waiter()
        self.pid: int | None = None  # of the command or worker
        self.known = Waiter()
        self._runtime = runtime
        self._on_worker_frame = on_worker_frame
        self._decoder = FrameDecoder(MAX_FRAME)
        self._socket: socket.socket | None = None
        self._version = SPEC_VERSION

    def connect(self, spec: dict[str, Any]) -> bool:
        """Call the shim of that spec; ``False`` when nobody listens there."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.setblocking(False)
        try:
            link.connect(spec["control_path"])
            link.send(encode_frame(["hello", spec["token"]]))
        except OSError:
            link.close()
            return False
        self._socket, self._version = link, spec["v"]
        self._runtime.watch(link.fileno(), self._read)
        return True

    def send(self, frame: list[Any]) -> bool:
        """Queue a frame in the socket; ``False`` when the shim is gone or does not read."""
        if self._socket is None:
            return False
        data = encode_frame(frame)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return False
        except OSError:
            return False  # the read side sees the end
        if sent < len(data):
            self.hang_up()  # half a frame cannot be taken back; connect again
            return False
        return True

    def renew(self, deadline: float) -> None:
        """Let the shim live to *deadline*, on CLOCK_BOOTTIME; one that does not hear it keeps to the last it heard."""
        self.send(["renew", deadline] if self._version >= DEADLINES else ["renew"])

    def hang_up(self) -> None:
        """Close our side; the shim goes on by itself until its lease ends."""
        if self._socket is not None:
            self._runtime.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self.known.set(False)
        self.closed.set(None)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(65536)
            frames = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, ActorGridError):
            data, frames = b"", []
        if not data:
            self.hang_up()
            return
        for frame in frames:
            match frame:
                case ["state", {"pid": int(pid)}]:
                    self.pid = pid
                    self.known.set(True)
                case ["worker", list(inner)] if self._on_worker_frame is not None:
                    self._on_worker_frame(inner)
