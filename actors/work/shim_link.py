"""WorkerManager's end of one shim's control socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from actorgrid.supervisors.runtime import Runtime, Waiter
from actorgrid.transports.frames import encode_frame

from .frame_link import FrameLink
from .work_records import WorkSpec

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
        self._on_worker_frame = on_worker_frame
        self._link = FrameLink(runtime, self._heard, self.hang_up, MAX_FRAME)
        self._version = SPEC_VERSION

    def connect(self, spec: WorkSpec) -> bool:
        """Connect to the shim of that spec; ``False`` when nobody listens there."""
        stream = connected_stream(spec)
        if stream is None:
            return False
        self._version = spec["v"]
        self._link.attach(stream)
        return True

    def send(self, frame: list[Any]) -> bool:
        """Queue a frame in the socket; ``False`` when the shim is gone or does not read."""
        return self._link.send(frame)

    def renew(self, deadline: float) -> None:
        """Let the shim live to *deadline*, on CLOCK_BOOTTIME; one that does not hear it keeps to the last it heard."""
        self.send(["renew", deadline] if self._version >= DEADLINES else ["renew"])

    def hang_up(self) -> None:
        """Close our side; the shim goes on by itself until its lease ends."""
        self._link.close()
        self.known.set(False)
        self.closed.set(None)

    def _heard(self, frames: list[list[Any]]) -> None:
        for frame in frames:
            match frame:
                case ["state", {"pid": int(pid)}]:  # a map with more fits, too
                    self.pid = pid
                    self.known.set(True)
                case ["worker", list(inner)] if self._on_worker_frame is not None:
                    self._on_worker_frame(inner)


def connected_stream(spec: WorkSpec) -> socket.socket | None:
    """A stream to the shim of that spec, to which its token was said; None when nobody listens there."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.setblocking(False)
    try:
        stream.connect(spec["control_path"])
        stream.send(encode_frame(["hello", spec["token"]]))
    except OSError:
        stream.close()
        return None
    return stream
