"""What two hosts say to each other on a link: frames, their kinds, their bounds and a strict decoder.

A frame is ``length (4, big-endian) | flags (1) | body``; *length* counts the body. The body is a flat msgpack array
``[kind number, field, ...]`` of the exact types that its class below names. Bytes in, values out; nothing is unpickled:
what a call or a stream carries is opaque ``bytes``.

Flags: COMPRESSED (the body is zlib, RFC 1950) and BULK (a piece of a stream, and nothing else). All others are zero.

Bounds, of the body as sent and as unpacked: 4 KiB before both sides have said Hello (and nothing compressed), then
1 MiB, and 256 KiB with BULK. A length over its bound is refused before a byte of the body is collected, a body that
inflates over it is refused when it reaches it. An array inside the body, a map, or more than 8 fields is refused.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, NamedTuple

import msgpack

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedMessage, error_from_dict

VERSION_LOW, VERSION_HIGH = 1, 1
"""The protocol versions this code speaks. The highest that both sides speak is used."""
MAGIC = "actorgrid"
HEADER_BYTES = 5
HELLO_BYTES_MAX = 4 * 1024
CONTROL_BYTES_MAX = 2**20
BULK_BYTES_MAX = 256 * 1024
PAYLOAD_BYTES_MAX = CONTROL_BYTES_MAX - 1024
"""What a call, a cast, an answer or a stream's head may carry: the rest of its frame is room for the other fields."""
CHUNK_BYTES_MAX = BULK_BYTES_MAX - 64
"""What one StreamData may carry."""
TEXT_CHARS_MAX = 256
ERROR_BYTES_MAX = 16 * 1024
COMPRESS_FROM_BYTES = 4 * 1024
PROBE_BYTES = 1024
WORTH_IT = 0.8
"""Compressed only where it comes to this share or less: below, zlib costs more time than the bytes it saves."""

COMPRESSED, BULK = 1, 2
CONTROL_LANE, BULK_LANE = "control", "bulk"
PIECES_LANE = "pieces"
"""A link of that lane carries no frames after its Hello: transports/bulk goes on with its TLS."""
LANES = (CONTROL_LANE, BULK_LANE)

_HEADER = struct.Struct(">IB")
_ID_MAX = 2**63 - 1
_FIELDS_MAX = 8
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Hello(NamedTuple):
    """The first frame of each side. *lane*: what the one who dialled will use the link for."""

    magic: str
    version_low: int
    version_high: int
    software: str
    lane: str


class Bye(NamedTuple):
    """The last frame: why the link is closed. *code* is a ``Refusal``."""

    code: str
    message: str


class Retire(NamedTuple):
    """Says that the sender begins nothing new on this link; what is under way goes on to its end."""


class Ping(NamedTuple):
    """Asks for a Pong of the same number."""

    number: int


class Pong(NamedTuple):
    """The answer to a Ping."""

    number: int


class Call(NamedTuple):
    """A request. The caller chooses the id, and uses none twice on one link."""

    id: int
    target: str
    body: bytes


class Reply(NamedTuple):
    """The answer to a call."""

    id: int
    body: bytes


class Failure(NamedTuple):
    """The answer to a call that failed: ``encode_error``."""

    id: int
    error: bytes


class Cancel(NamedTuple):
    """Says that the caller does not wait for that answer any more."""

    id: int


class Cast(NamedTuple):
    """A message without an answer."""

    target: str
    body: bytes


class StreamOpen(NamedTuple):
    """Opens a stream, both ways. *window*: how many bytes the sender of this takes before it grants more."""

    id: int
    target: str
    head: bytes
    window: int
    compress: bool


class StreamData(NamedTuple):
    """A piece of a stream."""

    id: int
    data: bytes


class StreamCredit(NamedTuple):
    """Grants so many bytes more of a stream, which the sender of this takes."""

    id: int
    more: int


class StreamEnd(NamedTuple):
    """Ends one direction of a stream: its sender writes no more; the other direction goes on."""

    id: int


class StreamReset(NamedTuple):
    """Ends a stream in both directions and drops what was under way; the error is ``encode_error``'s."""

    id: int
    error: bytes


Frame = (
    Hello
    | Bye
    | Retire
    | Ping
    | Pong
    | Call
    | Reply
    | Failure
    | Cancel
    | Cast
    | StreamOpen
    | StreamData
    | StreamCredit
    | StreamEnd
    | StreamReset
)

_KINDS: Final[dict[int, tuple[type[Any], tuple[type, ...]]]] = {
    1: (Hello, (str, int, int, str, str)),
    2: (Bye, (str, str)),
    3: (Retire, ()),
    4: (Ping, (int,)),
    5: (Pong, (int,)),
    10: (Call, (int, str, bytes)),
    11: (Reply, (int, bytes)),
    12: (Failure, (int, bytes)),
    13: (Cancel, (int,)),
    14: (Cast, (str, bytes)),
    20: (StreamOpen, (int, str, bytes, int, bool)),
    21: (StreamData, (int, bytes)),
    22: (StreamCredit, (int, int)),
    23: (StreamEnd, (int,)),
    24: (StreamReset, (int, bytes)),
}
_NUMBERS: Final[dict[type[Any], int]] = {kind: number for number, (kind, _types) in _KINDS.items()}
_STREAM_DATA = _NUMBERS[StreamData]


# -- out


def encode(frame: Frame, compress: bool = False) -> bytes:
    """One frame; *compress* allows it where it pays. Raises FrameTooLarge when the body is over its bound."""
    if type(frame) is StreamData and not compress:
        return _encode_chunk(frame)
    body: bytes = _pack([_NUMBERS[type(frame)], *frame])
    bulk = type(frame) is StreamData
    limit = HELLO_BYTES_MAX if type(frame) is Hello else BULK_BYTES_MAX if bulk else CONTROL_BYTES_MAX
    if len(body) > limit:
        raise FrameTooLarge(
            f"a {type(frame).__name__} of {len(body)} bytes is over the limit of {limit}",
            hint="send large values as a stream",
        )
    flags = BULK if bulk else 0
    if compress and len(body) > COMPRESS_FROM_BYTES:
        small = _smaller(body)
        if small is not None:
            body, flags = small, flags | COMPRESSED
    return _HEADER.pack(len(body), flags) + body


def _encode_chunk(frame: StreamData) -> bytes:
    # By hand: the packer and the header would each copy the data once more.
    size = len(frame.data)
    if size > CHUNK_BYTES_MAX:
        raise FrameTooLarge(f"a piece of {size} bytes is over the limit of {CHUNK_BYTES_MAX}")
    prefix = b"\x93" + _pack(_STREAM_DATA) + _pack(frame.id) + struct.pack(">BI", 0xC6, size)
    return b"".join((_HEADER.pack(len(prefix) + size, BULK), prefix, frame.data))


def _smaller(body: bytes) -> bytes | None:
    """*body* deflated; ``None`` where a probe from its middle says that this does not pay."""
    start = (len(body) - PROBE_BYTES) // 2
    if len(zlib.compress(body[start : start + PROBE_BYTES], 1)) > PROBE_BYTES * WORTH_IT:
        return None
    small = zlib.compress(body, 1)
    return small if len(small) <= len(body) * WORTH_IT else None


def encode_error(error: ActorGridError) -> bytes:
    """An error as the body of a Failure or StreamReset; details that are no plain values, or too long, are left out."""
    fields = error.to_dict()
    short: dict[str, Any] = {
        name: str(fields[name])[:1024] for name in ("code", "message", "asked", "found", "hint")
    } | {"details": {}}
    try:
        packed: bytes = _pack(fields)
    except (TypeError, ValueError, OverflowError):
        packed = _pack(short)
    return packed if len(packed) <= ERROR_BYTES_MAX else _pack(short)


def decode_error(data: bytes) -> ActorGridError:
    """The error that ``encode_error`` packed. Raises MalformedMessage."""
    if len(data) > ERROR_BYTES_MAX:
        raise MalformedMessage(f"an error of {len(data)} bytes", hint=f"the limit is {ERROR_BYTES_MAX}")
    try:
        fields = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedMessage(f"an error is not msgpack: {type(error).__name__}") from None
    details = fields.get("details") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not isinstance(details, dict):
        raise MalformedMessage("an error is not what an error is packed as", found=type(fields).__name__)
    # Names of the constructor's own arguments would be given twice.
    reserved = {"self", "message", "asked", "found", "hint"}
    plain = {str(name): value for name, value in details.items() if str(name) not in reserved}
    return error_from_dict({**fields, "details": plain})


# -- in


class PeerDecoder:
    """Cuts a byte stream into frames. Holds at most one frame, and what was fed beyond it.

    After an error the stream has no known border left: close the connection. ``open_up`` when the Hello came.
    """

    __slots__ = ("_held", "_opened")

    def __init__(self) -> None:
        self._held = bytearray()
        self._opened = False

    def open_up(self) -> None:
        """Take frames of full size from now on: the other side has proven itself and said Hello."""
        self._opened = True

    @property
    def pending_bytes(self) -> int:
        """Bytes held of frames not taken yet."""
        return len(self._held)

    def feed(self, data: bytes) -> None:
        """Take bytes in; ``next`` gives what they complete."""
        self._held += data

    def next(self) -> Frame | None:
        """The next frame, ``None`` while it is not complete. Raises FrameTooLarge or MalformedMessage."""
        held = self._held
        if len(held) < HEADER_BYTES:
            return None
        length, flags = _HEADER.unpack_from(held)
        limit = self._limit(flags)
        if length > limit:
            raise FrameTooLarge(
                f"a frame announces {length} bytes, the limit is {limit}",
                hint="the other side speaks another protocol, or sends too large a value",
            )
        end = HEADER_BYTES + length
        if len(held) < end:
            return None
        with memoryview(held) as view, view[HEADER_BYTES:end] as body:
            frame = _parse(_inflate(body, limit) if flags & COMPRESSED else body)
        del held[:end]
        if (type(frame) is StreamData) != bool(flags & BULK):
            raise MalformedMessage("a frame's flags do not fit its kind", found=f"{type(frame).__name__}, {flags}")
        return frame

    def _limit(self, flags: int) -> int:
        if flags & ~(COMPRESSED | BULK) or (flags and not self._opened):
            raise MalformedMessage(f"a frame has flags that mean nothing here: {flags:#04x}")
        if not self._opened:
            return HELLO_BYTES_MAX
        return BULK_BYTES_MAX if flags & BULK else CONTROL_BYTES_MAX


def _inflate(body: memoryview, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise MalformedMessage(f"a compressed frame cannot be read: {error}") from None
    if len(found) > limit:
        raise FrameTooLarge(f"a compressed frame of {len(body)} bytes holds more than {limit}")
    if not inflater.eof or inflater.unused_data:
        raise MalformedMessage("a compressed frame is cut short, or followed by more")
    return found


def _one_array() -> Any:
    """A hook that lets one array through, the body: the first one inside it is complete before it, and fails there."""
    seen = False

    def hook(found: list[Any]) -> list[Any]:
        nonlocal seen
        if seen:
            raise ValueError("an array within an array")
        seen = True
        return found

    return hook


def _parse(body: bytes | memoryview) -> Frame:
    try:
        fields = msgpack.unpackb(
            body,
            raw=False,
            list_hook=_one_array(),
            max_array_len=_FIELDS_MAX,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedMessage(f"a frame is not msgpack of a flat array: {type(error).__name__}") from None
    if type(fields) is not list or not fields or type(fields[0]) is not int or fields[0] not in _KINDS:
        raise MalformedMessage("a frame is not an array that starts with a known kind", found=repr(fields)[:40])
    kind, types = _KINDS[fields.pop(0)]
    if len(fields) != len(types):
        raise MalformedMessage(f"a {kind.__name__} has {len(fields)} fields instead of {len(types)}")
    for field, wanted in zip(fields, types, strict=True):
        if type(field) is not wanted:
            raise MalformedMessage(f"a {kind.__name__} holds {type(field).__name__} instead of {wanted.__name__}")
        if isinstance(field, int) and not 0 <= field <= _ID_MAX:
            raise MalformedMessage(f"a {kind.__name__} holds a number out of range")
        if isinstance(field, str) and (len(field) > TEXT_CHARS_MAX or not field.isprintable()):
            raise MalformedMessage(f"a {kind.__name__} holds text that is too long or cannot be printed")
    frame: Frame = kind(*fields)
    return frame
