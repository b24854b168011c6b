"""Frames: a 4-byte big-endian length, then that many bytes of msgpack holding one array ``[kind, ...]``.

Bytes in, values out; no socket here. Nothing is unpickled: payloads are opaque ``bytes``.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from actorgrid.errors import FrameTooLarge, MalformedBody

MAX_FRAME_BYTES = 64 * 2**20
HEADER_BYTES = 4

_LENGTH = struct.Struct(">I")
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def encode_frame(fields: list[Any] | tuple[Any, ...], max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame. Raises FrameTooLarge when its body is over *max_bytes*."""
    body: bytes = _pack(fields)
    if len(body) > max_bytes:
        raise FrameTooLarge(
            f"a frame of {len(body)} bytes is over the limit of {max_bytes}",
            asked=str(fields[0])[:40],
            hint="send large values through a file or in pieces",
        )
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into frames. Holds at most one frame and one read beyond it.

    After an error the stream has no known frame border left: close the connection.
    """

    __slots__ = ("_held", "_max_bytes", "_need")

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._need = HEADER_BYTES

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not complete."""
        return len(self._held)

    @property
    def held(self) -> bytes:
        """These bytes, for a decoder that goes on in place of this one."""
        return bytes(self._held)

    def feed(self, data: bytes | bytearray | memoryview) -> list[list[Any]]:
        """The frames completed by *data*, in order.

        Raises FrameTooLarge on an announced length over the limit (before the bytes are collected), and
        MalformedBody when a frame is not msgpack of a non-empty array that starts with its kind.
        """
        held = self._held
        if held:
            held += data
            if len(held) < self._need:
                return []
            view = memoryview(bytes(held))
            held.clear()
        else:
            view = memoryview(data)
        frames: list[list[Any]] = []
        at, end = 0, len(view)
        self._need = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            (length,) = _LENGTH.unpack_from(view, at)
            if length > self._max_bytes:
                raise FrameTooLarge(
                    f"a frame announces {length} bytes, the limit is {self._max_bytes}",
                    hint="the other side speaks another protocol, or sends too large a value",
                )
            stop = at + HEADER_BYTES + length
            if stop > end:
                self._need = HEADER_BYTES + length
                break
            frames.append(_decode(view[at + HEADER_BYTES : stop]))
            at = stop
        if at < end:
            held += view[at:]
        return frames


def _decode(body: memoryview) -> list[Any]:
    try:
        fields = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, RecursionError, OverflowError, TypeError) as error:
        raise MalformedBody(f"a frame is not msgpack: {type(error).__name__}") from None
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
        raise MalformedBody("a frame is not an array that starts with its kind", found=type(fields).__name__)
    return fields
