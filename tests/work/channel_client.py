"""A client at the socket of a job's channels, without what lies between it and a person."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Any

from actorgrid.errors import error_from_dict
from actorgrid.transports.channel_frames import WINDOW_BYTES, ChannelPurpose
from actorgrid.transports.frames import FrameDecoder, encode_frame
from actorgrid.transports.kept_stream import KeptStream, encode_keep, take_first_frame


class ChannelClient:
    """One channel; ``drop`` and ``connect`` break its connection and make another."""

    def __init__(self, found: dict[str, Any], purpose: ChannelPurpose | None = None) -> None:
        self._found = found
        self._id = secrets.token_hex(16)
        self._stream = KeptStream(WINDOW_BYTES)
        self._decoder = FrameDecoder()
        self._frames: list[list[Any]] = []
        self.socket: socket.socket
        self.connect()
        if purpose is not None:
            self.send_bytes(purpose.frame())

    def connect(self) -> None:
        self._decoder = FrameDecoder()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._greet()
        except Exception:
            self.socket.close()
            raise

    def _greet(self) -> None:
        self.socket.settimeout(30)
        self.socket.connect(self._found["path"])
        self.socket.sendall(encode_keep(self._found["secret"], self._id, self._stream.received))
        came = bytearray()
        while (frame := take_first_frame(came)) is None:
            data = self.socket.recv(65536)
            assert data, "hung up on before an answer"
            came += data
        if frame[0] == "refused":
            raise error_from_dict(frame[1])
        assert frame[0] == "kept", frame
        self._stream.connect(frame[1]["received"])
        self._flush()
        self._feed(bytes(came))

    def drop(self) -> None:
        self.socket.close()

    def send(self, *frame: Any) -> None:
        self.send_bytes(encode_frame(list(frame)))

    def send_bytes(self, data: bytes) -> None:
        while self._stream.room < len(data):
            came = self.socket.recv(65536)
            assert came, "hung up on"
            self._feed(came)
        self._stream.write(data)
        self._flush()

    def frame(self) -> list[Any]:
        """The next frame; ``["gone"]`` when the shim has hung up."""
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                return ["gone"]
            self._feed(data)
        return self._frames.pop(0)

    def until_over(self) -> tuple[bytes, bytes, dict[str, Any]]:
        """All output, all errors, and the fields of the end."""
        found = {"out": b"", "err": b""}
        while True:
            match self.frame():
                case ["over", dict(fields)]:
                    return found["out"], found["err"], fields
                case ["failed", dict(record)]:
                    raise error_from_dict(record)  # type: ignore[arg-type]
                case ["out" | "err" as stream, bytes(data)]:
                    found[stream] += data
                case ["gone"]:
                    raise AssertionError(f"gone after {found}")

    def until_out(self, wanted: bytes) -> bytes:
        """Output until *wanted* is in it."""
        found = b""
        while wanted not in found:
            match self.frame():
                case ["out", bytes(data)]:
                    found += data
                case ["gone" | "over" | "failed", *_] as frame:
                    raise AssertionError(f"{frame} after {found!r}")
        return found

    def come_back_saying(self, said: bytes) -> None:
        """Go on over another connection, with *said* right behind the greeting, until that is hung up on."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as another:
            another.settimeout(30)
            another.connect(self._found["path"])
            another.sendall(encode_keep(self._found["secret"], self._id, self._stream.received) + said)
            with suppress(ConnectionResetError):
                while another.recv(65536):
                    pass

    def leave(self) -> None:
        """End the channel, as a client does."""
        self._stream.end()
        self._flush()
        self.socket.close()

    def _feed(self, data: bytes) -> None:
        carried = self._stream.feed(data)
        self._stream.taken(len(carried))
        self._frames += self._decoder.feed(carried)
        self._flush()

    def _flush(self) -> None:
        if self._stream.out:
            self.socket.sendall(self._stream.out)
            self._stream.out.clear()
