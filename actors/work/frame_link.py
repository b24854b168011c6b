"""The agent's end of a stream socket to a process of its own host: frames in, frames out, and its end told once."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.runtime import Runtime
from actorgrid.transports.frames import MAX_FRAME_BYTES, FrameDecoder, encode_frame

READ_BYTES = 65_536


class FrameLink:
    """Reads in the loop of *runtime*: *on_frames* gets what each read brought, which may be no whole frame yet.

    *on_end* is called when the other side closed, or sent what is no frame; it has to ``close``. What is queued has
    no bound here: whoever queues has one of its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        on_frames: Callable[[list[list[Any]]], None],
        on_end: Callable[[], None],
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._runtime = runtime
        self._on_frames = on_frames
        self._on_end = on_end
        self._max_frame_bytes = max_frame_bytes
        self._decoder = FrameDecoder(max_frame_bytes)
        self._socket: socket.socket | None = None
        self._queued = bytearray()

    def attach(self, stream: socket.socket) -> None:
        """Use *stream*, which is this link's from here on; what was queued before goes first."""
        stream.setblocking(False)
        self._socket = stream
        self._decoder = FrameDecoder(self._max_frame_bytes)  # half a frame of the socket before means nothing here
        self._runtime.watch(stream.fileno(), self._read)
        self._flush()

    def send(self, frame: list[Any]) -> bool:
        """Put a frame into the socket at once, or not at all: ``False`` when the other side is gone or does not read.

        One that went in by half is the end of the link: *on_end* is called.
        """
        if self._socket is None:
            return False
        data = encode_frame(frame)
        try:
            sent = self._socket.send(data)
        except OSError:
            return False  # it is full; or it is broken, and then the read side sees the end
        if sent < len(data):
            self._on_end()  # half a frame cannot be taken back, and the next one would be read as its rest
            return False
        return True

    def queue(self, frame: list[Any]) -> None:
        """Send a frame in its turn, as soon as there is somebody who takes it."""
        self._queued += encode_frame(frame)
        self._flush()

    def close(self) -> None:
        """Close the socket and forget what is queued; *on_end* is not called."""
        self._queued.clear()
        if self._socket is not None:
            self._runtime.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _flush(self) -> None:
        if self._socket is None or not self._queued:
            return
        try:
            while self._queued:
                del self._queued[: self._socket.send(self._queued)]
        except BlockingIOError:
            self._runtime.watch(self._socket.fileno(), self._read, self._flush)
            return
        except OSError:
            return  # it is dying: the read side sees it
        self._runtime.watch(self._socket.fileno(), self._read)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(READ_BYTES)
            frames = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, ActorGridError):
            data, frames = b"", []
        if data:
            self._on_frames(frames)
        else:
            self._on_end()
