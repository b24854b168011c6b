"""What a process and the object store of its host say to each other, over a socket of the store's.

Process to store; ``q`` numbers a question, ``slot`` the spaces that the process has opened::

    ["hello", {"version"}]                             first, and once
    ["open", q, slot, secret, about]                   use a space; about: who owns it, where (SpaceAbout)
    ["close", slot]                                    and with it all that the process holds there
    ["create", q, slot, size]                          room for an object
    ["seal", q, slot, number, [key]]                   it is written; the objects that its value has references to
    ["abort", slot, number]                            it will not be
    ["put", q, slot, data, [key]]                      a small object, with its bytes
    ["get", q, slot, key, wait_s | nil]                read it; a large one is pinned where it lies
    ["piece", q, slot, key, offset, size]              some of it, with the frame: for a process on another host
    ["unpin", slot, [key]]                             it is not read any more: once for each "get" that pinned it
    ["hold", slot, key, token]                         it is referred to here; token: takes over what was given by it
    ["drop", slot, [[key, count]]]                     it is not any more, so many times
    ["give", slot, key, token]                         it is kept for whoever holds it by that token
    ["sync", q]                                        all that was said before has been taken note of
    ["look", q]                                        what there is here, of the spaces that this process has opened

Store to process::

    ["welcome", {"version", "store", "host", ...}]     or ["refused", error], and hangs up
    ["done", q]
    ["place", q, number, kind, offset, size, fds]      of a "create" or a "get"; fds: whether a descriptor comes along
    ["data", q, bytes]                                 of a small object
    ["part", q, crc32, bytes]                          of a piece
    ["made", q, number]
    ["here", q, {...}]
    ["failed", q, error]

A key is ``[store, number, host, size]``: the store that the object was made in, by an id that each start of a store has
anew, its number there, the host of that store, and the object's size. Descriptors are of a space's memory, a file in
memory, or of its part of the disk; each comes once for reading and once for writing. Whoever knows a space's secret may
use it, and nobody else.

A process on another host says this through the agents of both, behind one line that names the host of the store. It
gets no descriptors, and asks for pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, MalformedBody, error_from_dict

from .frames import encode_frame

PROTOCOL_VERSION = 1
SECRET_BYTES = 32
SMALL_BYTES = 64 * 1024
"""An object up to so large goes with the frames; a larger one is read and written where it lies."""
PIECE_BYTES_MAX = 2**20
"""Of one piece that goes to another host."""
FAR_LINE_MAX = 512
MAX_STORE_FRAME = 16 * 2**20
MAX_SIZE = 2**56
MAX_NUMBER = 2**63 - 1
MAX_SLOTS = 4096
MAX_KEYS = 200_000
"""The references that one object may hold."""
MAX_NAME_CHARS = 200
MEMORY, DISK = "memory", "disk"


class ObjectKey(NamedTuple):
    """Which object: whoever has it and the secret of its space can read it."""

    store: str
    """The id of the store that it was made in, 16 hexadecimal digits, another one at each start of a store."""
    number: int
    host: str
    """The id of that store's host; empty for a host on its own."""
    size: int
    """In bytes."""


class SpaceAbout(NamedTuple):
    """What is said of a space when it is opened."""

    owner: bool = False
    """Whether its objects end with this connection."""
    home: str = ""
    """The host of its owner; empty: this one."""
    user: str = ""
    session: str = ""
    pid: int = 0
    """Of the owner; these three are for people."""


class HelloStore(NamedTuple):
    """The first frame of a process."""

    version: int


class OpenSpace(NamedTuple):
    """Asks for the use of a space."""

    question: int
    slot: int
    secret: bytes
    about: SpaceAbout


class CloseSpace(NamedTuple):
    """Ends this process's use of a space."""

    slot: int


class CreateObject(NamedTuple):
    """Asks for room."""

    question: int
    slot: int
    size: int


class SealObject(NamedTuple):
    """Says that an object is written."""

    question: int
    slot: int
    number: int
    refers: tuple[ObjectKey, ...]


class AbortObject(NamedTuple):
    """Says that an object will not be written."""

    slot: int
    number: int


class PutObject(NamedTuple):
    """A small object."""

    question: int
    slot: int
    data: bytes
    refers: tuple[ObjectKey, ...]


class GetObject(NamedTuple):
    """Asks to read an object."""

    question: int
    slot: int
    key: ObjectKey
    wait_s: float | None


class GetPiece(NamedTuple):
    """Asks for some of an object's bytes."""

    question: int
    slot: int
    key: ObjectKey
    offset: int
    size: int


class UnpinObjects(NamedTuple):
    """Says that objects are not read any more."""

    slot: int
    keys: tuple[ObjectKey, ...]


class HoldObject(NamedTuple):
    """Says that an object is referred to."""

    slot: int
    key: ObjectKey
    token: int


class DropObjects(NamedTuple):
    """Says that objects are not referred to any more."""

    slot: int
    counts: tuple[tuple[ObjectKey, int], ...]


class GiveObject(NamedTuple):
    """Has an object kept for whoever will hold it by the token."""

    slot: int
    key: ObjectKey
    token: int


class SyncStore(NamedTuple):
    """Asks for an answer."""

    question: int


class LookStore(NamedTuple):
    """Asks what there is."""

    question: int


ProcessFrame = (
    HelloStore | OpenSpace | CloseSpace | CreateObject | SealObject | AbortObject | PutObject | GetObject
    | GetPiece | UnpinObjects | HoldObject | DropObjects | GiveObject | SyncStore | LookStore
)  # fmt: skip


class StoreWelcome(NamedTuple):
    """The store takes the process."""

    store: str
    host: str
    memory_bytes: int
    """As much as lies in memory at most."""
    disk_bytes: int
    """As much as lies on its disk at most."""


class StoreRefused(NamedTuple):
    """The store does not take the process, and hangs up."""

    error: ActorGridError


class DealtWith(NamedTuple):
    """A question was dealt with."""

    question: int


class Place(NamedTuple):
    """Where an object lies."""

    question: int
    number: int
    kind: str
    offset: int
    size: int
    comes_fd: bool


class Data(NamedTuple):
    """The bytes of a small object."""

    question: int
    data: bytes


class Part(NamedTuple):
    """Some of an object's bytes, with their CRC-32."""

    question: int
    checksum: int
    data: bytes


class Made(NamedTuple):
    """The number of a small object that was put."""

    question: int
    number: int


class Here(NamedTuple):
    """What there is."""

    question: int
    what: dict[str, Any]


class Failed(NamedTuple):
    """Why a question has no other answer."""

    question: int
    error: ActorGridError


StoreFrame = StoreWelcome | StoreRefused | DealtWith | Place | Data | Part | Made | Here | Failed


# -- to the store of another host


def far_path(store_path: str) -> str:
    """The socket that leads to the stores of other hosts, beside that of this host's own."""
    return store_path + "r"


def bulk_path(store_path: str) -> str:
    """The socket where large objects of other hosts are brought from, beside that of this host's own store."""
    return store_path + "b"


def encode_far_line(host_id: str) -> bytes:
    """The line that names the host, in front of hello."""
    return host_id.encode() + b"\n"


def parse_far_line(said: bytes) -> tuple[str, bytes] | None:
    """The host that is named, and what came behind the line; ``None`` while there is no line. Raises MalformedBody."""
    name, found, rest = said.partition(b"\n")
    if not found and len(said) < FAR_LINE_MAX:
        return None
    if not found or not 0 < len(name) <= MAX_NAME_CHARS or not name.isascii() or not name.decode("ascii").isprintable():
        raise MalformedBody("not the name of a host", found=repr(name[:40]))
    return name.decode("ascii"), rest


# -- process to store


def encode_hello() -> bytes:
    """The first frame of a process."""
    return encode_frame(["hello", {"version": PROTOCOL_VERSION}])


def encode_question(kind: str, question: int, *fields: Any) -> bytes:
    """The frame of another question. Raises FrameTooLarge."""
    return encode_frame([kind, question, *fields], MAX_STORE_FRAME)


def encode_word(kind: str, *fields: Any) -> bytes:
    """The frame of what needs no answer. Raises FrameTooLarge."""
    return encode_frame([kind, *fields], MAX_STORE_FRAME)


def parse_process_frame(frame: list[Any]) -> ProcessFrame:
    """Read a process's frame. Raises MalformedBody on anything outside the protocol."""
    match frame:
        case ["get", int(question), int(slot), list(key), (None | float() | int()) as wait_s] if _wait(wait_s):
            return GetObject(_number(question), _slot(slot), key_of(key), wait_s)
        case ["piece", int(question), int(slot), list(key), int(offset), int(size)] if 0 < size <= PIECE_BYTES_MAX:
            return GetPiece(_number(question), _slot(slot), key_of(key), _number(offset), size)
        case ["hold", int(slot), list(key), int(token)]:
            return HoldObject(_slot(slot), key_of(key), _number(token))
        case ["drop", int(slot), list(counts)] if len(counts) <= MAX_KEYS:
            return DropObjects(_slot(slot), tuple(_count(each) for each in counts))
        case ["unpin", int(slot), list(keys)]:
            return UnpinObjects(_slot(slot), keys_of(keys))
        case ["create", int(question), int(slot), int(size)] if 0 < size <= MAX_SIZE:
            return CreateObject(_number(question), _slot(slot), size)
        case ["seal", int(question), int(slot), int(number), list(refers)]:
            return SealObject(_number(question), _slot(slot), _number(number), keys_of(refers))
        case ["put", int(question), int(slot), bytes(data), list(refers)] if 0 < len(data) <= SMALL_BYTES:
            return PutObject(_number(question), _slot(slot), data, keys_of(refers))
        case ["give", int(slot), list(key), int(token)]:
            return GiveObject(_slot(slot), key_of(key), _number(token))
        case ["sync", int(question)]:
            return SyncStore(_number(question))
        case ["abort", int(slot), int(number)]:
            return AbortObject(_slot(slot), _number(number))
        case [
            "open",
            int(question),
            int(slot),
            bytes(secret),
            {"owner": bool(owner), "home": str(home), "user": str(user), "session": str(session), "pid": int(pid)},
        ] if len(secret) == SECRET_BYTES and max(map(len, (home, user, session))) <= MAX_NAME_CHARS:
            about = SpaceAbout(owner, home, user, session, pid if 0 <= pid < 2**31 else 0)
            return OpenSpace(_number(question), _slot(slot), secret, about)
        case ["close", int(slot)]:
            return CloseSpace(_slot(slot))
        case ["look", int(question)]:
            return LookStore(_number(question))
        case ["hello", {"version": int(version)}]:
            return HelloStore(version)
    raise MalformedBody("not a frame of a process at its object store", found=str(frame[0])[:40] if frame else "")


def key_of(fields: Any) -> ObjectKey:
    """Read a key. Raises MalformedBody."""
    match fields:
        case [str(store), int(number), str(host), int(size)] if (
            len(store) <= 32 and len(host) <= MAX_NAME_CHARS and 0 <= number <= MAX_NUMBER and 0 <= size <= MAX_SIZE
        ):
            return ObjectKey(store, number, host, size)
    raise MalformedBody("not the key of an object", found=type(fields).__name__)


def keys_of(fields: Sequence[Any]) -> tuple[ObjectKey, ...]:
    """Read keys. Raises MalformedBody."""
    if len(fields) > MAX_KEYS:
        raise MalformedBody("too many keys of objects", found=str(len(fields)), asked=f"at most {MAX_KEYS}")
    return tuple(key_of(each) for each in fields)


def _count(fields: Any) -> tuple[ObjectKey, int]:
    match fields:
        case [list(key), int(count)] if 1 <= count <= MAX_NUMBER:
            return key_of(key), count
    raise MalformedBody("not a count of an object", found=type(fields).__name__)


def _number(number: int) -> int:
    if not 0 <= number <= MAX_NUMBER or isinstance(number, bool):
        raise MalformedBody("a number is out of range", found=str(number)[:40])
    return number


def _slot(slot: int) -> int:
    if not 0 <= slot < MAX_SLOTS:
        raise MalformedBody("a slot is out of range", found=str(slot)[:40])
    return slot


def _wait(wait_s: float | None) -> bool:
    return wait_s is None or 0 <= wait_s < 1e9


# -- store to process


def encode_welcome(welcome: StoreWelcome) -> bytes:
    """The frame that takes the process."""
    return encode_frame(["welcome", {"version": PROTOCOL_VERSION, **welcome._asdict()}])


def encode_refused(error: ActorGridError) -> bytes:
    """The frame that refuses the process; close after it."""
    return encode_frame(["refused", error.to_dict()])


def encode_failed(question: int, error: ActorGridError) -> bytes:
    """The frame that says why a question has no other answer."""
    return encode_frame(["failed", question, error.to_dict()])


def encode_answer(answer: DealtWith | Place | Data | Part | Made | Here) -> bytes:
    """The frame of an answer."""
    return encode_frame([_NAMES[type(answer)], *answer], MAX_STORE_FRAME)


_NAMES: dict[type, str] = {DealtWith: "done", Place: "place", Data: "data", Part: "part", Made: "made", Here: "here"}


def parse_store_frame(frame: list[Any]) -> StoreFrame:
    """Read a store's frame. Raises MalformedBody on anything outside the protocol."""
    match frame:
        case ["place", int(question), int(number), ("memory" | "disk") as kind, int(offset), int(size), bool(comes)]:
            return Place(question, number, kind, offset, size, comes)
        case ["data", int(question), bytes(data)]:
            return Data(question, data)
        case ["part", int(question), int(checksum), bytes(data)]:
            return Part(question, checksum, data)
        case ["done", int(question)]:
            return DealtWith(question)
        case ["made", int(question), int(number)]:
            return Made(question, number)
        case ["failed", int(question), dict(error)]:
            return Failed(question, error_from_dict(error))
        case ["here", int(question), dict(what)]:
            return Here(question, what)
        case [
            "welcome",
            {"store": str(store), "host": str(host), "memory_bytes": int(memory), "disk_bytes": int(disk), **_rest},
        ]:
            return StoreWelcome(store, host, memory, disk)
        case ["refused", dict(error)]:
            return StoreRefused(error_from_dict(error))
    raise MalformedBody("not a frame of an object store", found=str(frame[0])[:40] if frame else "")
