"""What replicas say to each other: typed messages, and their bytes with every field checked.

msgpack arrays that begin with a version and a kind. A message larger than one packet goes as fragments, and comes whole
or not at all. Decoding touches nothing: what is wrong raises MalformedBody, a later version NotSupported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from actorgrid.errors import MalformedBody, NotSupported
from actorgrid.hotpath import checked_pairs

from .causal import Replica, check_count, replica_from_plain
from .key_tree import DEPTH, FAN_OUT, HASH_BYTES, Path
from .plain import MAX_KEY_BYTES, pack, unpack
from .retirement import NOBODY, RetiredOrigins, retired_from_plain, retired_to_plain
from .version_vector import HASH_BYTES as VECTOR_HASH_BYTES
from .version_vector import MAX_ORIGINS, SHORT_BYTES, Vector, from_plain, to_plain

VERSION = 1
PACKET_BYTES = 60 * 2**10
"""Of one packet: fits a datagram's largest size, and lets urgent frames of the link pass soon."""
MESSAGE_BYTES_MAX = 16 * 2**20
"""Of a message in fragments: a key's whole state, at most."""
FRAGMENT_BYTES = PACKET_BYTES - 64
FRAGMENTS_MAX = MESSAGE_BYTES_MAX // FRAGMENT_BYTES + 1
SEQUENCE_MAX = 2**48
NODES_MAX = 64
"""Of one question of a walk: the answer is up to 16 times as long."""
ITEMS_MAX = 4096
"""Deltas, or states, in one message: to look at one takes up to some 50 us, and nothing else is done meanwhile."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A round begins: the hash of the sender's vector, and of its tree (empty: not computed now).

    ``level``, here and below: how many retirements of origins the sender has carried out. Vectors and states of two
    levels are not to be compared. Level 0, where nothing was ever retired, is not written.
    """

    vector_hash: bytes
    root: bytes
    level: int = 0


@dataclass(frozen=True, slots=True)
class VectorTold:
    """All that the sender holds durably.

    ``ask``: tell yours, if it is other than mine; ``repair``: walk my tree, my log is too short for you.

    ``opening`` is the epoch under which the sender opened its store, here and in the answers of a walk: one that lost
    its disk half way through a walk answers it with less than the vector that it told before.
    """

    vector: Vector
    opening: int
    ask: bool = False
    repair: bool = False
    retired: RetiredOrigins = NOBODY
    """The sender's level; to one who is not as far, with what is retired there."""
    confirm: bool = False
    """``ask``, also if it is the same as mine."""
    reads_parts: bool = False
    """The sender reads ``VectorPart``, which hosts of the version before do not."""


@dataclass(frozen=True, slots=True)
class VectorPart:
    """Some entries of a vector, by the short ids of their origins, and ``rest``, the hash of all others.

    The other fields are those of ``VectorTold``. ``again``: in answer to a part by which the vector was not found.
    """

    entries: tuple[tuple[bytes, int], ...]
    rest: bytes
    opening: int
    level: int
    ask: bool = False
    confirm: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class DeltaRun:
    """Deltas of one origin without a gap, from ``first`` on, each (key, bytes)."""

    origin: Replica
    first: int
    deltas: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Deltas:
    """Intervals for the receiver."""

    runs: tuple[DeltaRun, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """What the sender holds durably of these origins."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class Descend:
    """Of a walk, by who repairs itself: its hashes of the children of these nodes."""

    walk: int
    nodes: tuple[tuple[Path, bytes], ...]


@dataclass(frozen=True, slots=True)
class Below:
    """The answer: for each node asked of, its children that differ, with the hashes of *their* children."""

    walk: int
    opening: int
    nodes: tuple[tuple[Path, tuple[tuple[Path, bytes], ...]], ...]
    level: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """Of a walk: the keys of these buckets with digests; only keys whose hash is behind ``after`` are wanted."""

    walk: int
    buckets: tuple[tuple[Path, bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class States:
    """The answer: whole states of keys that differ. ``behind``: the hash to go on behind, empty when that was all.

    A state without bytes is one that is too large to send.
    """

    walk: int
    opening: int
    buckets: tuple[tuple[Path, bytes, tuple[tuple[str, bytes], ...]], ...]
    level: int = 0


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a message."""

    message: int
    index: int
    count: int
    data: bytes


Message = Digest | VectorTold | Deltas | Ack | Descend | Below | Listing | States | Fragment | VectorPart


class Kind(IntEnum):
    """The second field of a message: which of them it is."""

    DIGEST = 1
    VECTOR = 2
    DELTAS = 3
    ACK = 4
    DESCEND = 5
    BELOW = 6
    LISTING = 7
    STATES = 8
    FRAGMENT = 9
    VECTOR_PART = 10


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    plain = [VERSION, *_plain(message)]
    match message:
        case VectorTold(retired=retired) if retired.level:
            plain.append(retired_to_plain(retired))
        case Digest(level=level) | Below(level=level) | States(level=level) if level:
            plain.append(level)
    return pack(plain)


def _plain(message: Message) -> list[Any]:
    match message:
        case Digest(vector_hash, root, _):
            return [Kind.DIGEST.value, vector_hash, root]
        case VectorTold(vector, opening, ask, repair, _, confirm, reads_parts):
            return [Kind.VECTOR.value, opening, _flags(ask, repair, confirm, reads_parts), to_plain(vector)]
        case VectorPart(entries, rest, opening, level, ask, confirm, again):
            return [Kind.VECTOR_PART.value, opening, _flags(ask, confirm, again), level, rest, entries]
        case Deltas(runs):
            return [Kind.DELTAS.value, [[*run.origin, run.first, run.deltas] for run in runs]]
        case Ack(vector):
            return [Kind.ACK.value, to_plain(vector)]
        case Descend(walk, nodes):
            return [Kind.DESCEND.value, walk, nodes]
        case Below(walk, opening, below, _):
            return [Kind.BELOW.value, walk, opening, below]
        case Listing(walk, buckets):
            return [Kind.LISTING.value, walk, buckets]
        case States(walk, opening, states, _):
            return [Kind.STATES.value, walk, opening, states]
        case Fragment(number, index, count, data):
            return [Kind.FRAGMENT.value, number, index, count, data]


def _flags(*flags: bool) -> int:
    return sum(1 << place for place, flag in enumerate(flags) if flag)


def decode_message(data: bytes) -> Message:
    """The message of some bytes. Raises MalformedBody, NotSupported."""
    if not isinstance(data, bytes) or len(data) > MESSAGE_BYTES_MAX:
        raise MalformedBody("a message of the shared state is too large", found=f"{len(data)} bytes")
    whole = unpack(data)
    if not isinstance(whole, list) or len(whole) < 3 or type(whole[0]) is not int or type(whole[1]) is not int:
        raise MalformedBody("not a message of the shared state")
    if whole[0] != VERSION or not Kind.DIGEST <= whole[1] <= Kind.VECTOR_PART:
        raise NotSupported(
            "a message of the shared state of another version",
            asked=f"version {whole[0]}, kind {whole[1]}",
            found=f"version {VERSION}, kinds {Kind.DIGEST:d} to {Kind.VECTOR_PART:d}",
            hint="hosts of a cluster should run the same version, or neighbouring ones",
        )
    try:
        return _message(whole[1], whole[2:])
    except (TypeError, ValueError, LookupError) as error:  # the last: a slice of a mapping, from Python 3.12 on
        if isinstance(error, MalformedBody):
            raise
        raise MalformedBody(f"not a message of the shared state: {error}") from error


def _message(kind: int, fields: list[Any]) -> Message:
    match kind:
        case Kind.DIGEST:
            vector_hash, root, *more = fields
            tree = root if root == b"" else _sized(root, HASH_BYTES)
            return Digest(_sized(vector_hash, VECTOR_HASH_BYTES), tree, _level(more))
        case Kind.VECTOR:
            opening, flags, vector, *more = fields
            asks, told = check_count(flags, 0), from_plain(vector)
            ask, repair, confirm, parts = bool(asks & 1), bool(asks & 2), bool(asks & 4), bool(asks & 8)
            return VectorTold(told, check_count(opening, 0), ask, repair, _retired(more), confirm, parts)
        case Kind.VECTOR_PART:
            opening, flags, level, rest, entries = fields
            asks = check_count(flags, 0)
            _few(len(entries), MAX_ORIGINS)
            return VectorPart(
                tuple((_sized(short, SHORT_BYTES), check_count(count, 0)) for short, count in entries),
                _sized(rest, VECTOR_HASH_BYTES),
                check_count(opening, 0),
                check_count(level, 0),
                bool(asks & 1),
                bool(asks & 2),
                bool(asks & 4),
            )
        case Kind.DELTAS:
            [plain] = fields
            runs = tuple(_run(run) for run in plain)
            _few(sum(len(run.deltas) for run in runs), ITEMS_MAX)
            return Deltas(runs)
        case Kind.ACK:
            [vector] = fields
            return Ack(from_plain(vector))
        case Kind.DESCEND:
            walk, nodes = fields
            _few(len(nodes), NODES_MAX)
            return Descend(check_count(walk, 0), tuple(_node(node) for node in nodes))
        case Kind.BELOW:
            walk, opening, below, *more = fields
            _few(len(below), NODES_MAX)
            _few(max((len(nodes) for _path, nodes in below), default=0), FAN_OUT)
            return Below(
                check_count(walk, 0),
                check_count(opening, 0),
                tuple((_path(path), tuple(_node(node) for node in nodes)) for path, nodes in below),
                _level(more),
            )
        case Kind.LISTING:
            walk, buckets = fields
            _few(len(buckets), NODES_MAX)
            return Listing(
                check_count(walk, 0), tuple((_bucket(path), _after(after), _digests(d)) for path, after, d in buckets)
            )
        case Kind.STATES:
            walk, opening, buckets, *more = fields
            _few(sum(len(states) for _path, _after, states in buckets), ITEMS_MAX)
            return States(
                check_count(walk, 0),
                check_count(opening, 0),
                tuple((_bucket(path), _after(after), _pairs(s)) for path, after, s in buckets),
                _level(more),
            )
    number, index, count, data = fields
    if check_count(count, 2) > FRAGMENTS_MAX or check_count(index, 0) >= count or not isinstance(data, bytes):
        raise MalformedBody("not a fragment")
    if not data or len(data) > FRAGMENT_BYTES:
        raise MalformedBody("a fragment of a wrong size")
    return Fragment(check_count(number, 0), index, count, data)


def _level(more: list[Any]) -> int:
    """A level at the end of a message: of a cluster in which something was retired, so that all hosts read it."""
    if not more:
        return 0
    [level] = more
    return check_count(level, 1)


def _retired(more: list[Any]) -> RetiredOrigins:
    if not more:
        return NOBODY
    [plain] = more
    _level(plain[:1])
    return retired_from_plain(plain)


def _few(count: int, most: int) -> None:
    if count > most:
        raise MalformedBody(f"{count} in one message of the shared state, at most {most}")


def _run(plain: Any) -> DeltaRun:
    host, epoch, first, deltas = plain
    pairs = _pairs(deltas)
    if not pairs or check_count(first, 1) + len(pairs) > SEQUENCE_MAX:
        raise MalformedBody("a run without deltas, or beyond the last sequence")
    return DeltaRun(replica_from_plain([host, epoch]), first, pairs)


def _pairs(plain: Any) -> tuple[tuple[str, bytes], ...]:
    pairs = checked_pairs(plain, MAX_KEY_BYTES)
    if pairs is None:
        raise MalformedBody("not keys of the shared state, each with bytes")
    return pairs


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise MalformedBody("not bytes")
    return data


def _sized(data: Any, size: int) -> bytes:
    if not isinstance(data, bytes) or len(data) != size:
        raise MalformedBody(f"not {size} bytes")
    return data


def _after(data: Any) -> bytes:
    return b"" if data == b"" and isinstance(data, bytes) else _sized(data, HASH_BYTES)


def _digests(data: Any) -> bytes:
    if len(_bytes(data)) % (2 * HASH_BYTES):
        raise MalformedBody("not a listing")
    return _bytes(data)


def _path(path: Any) -> Path:
    if not isinstance(path, bytes) or len(path) >= DEPTH or any(nibble >= FAN_OUT for nibble in path):
        raise MalformedBody("not a node of the tree")
    return path


def _bucket(path: Any) -> Path:
    if not isinstance(path, bytes) or len(path) != DEPTH or any(nibble >= FAN_OUT for nibble in path):
        raise MalformedBody("not a bucket of the tree")
    return path


def _node(plain: Any) -> tuple[Path, bytes]:
    path, hashes = plain
    return _path(path), _sized(hashes, FAN_OUT * HASH_BYTES)


def compares_states(packet: bytes) -> bool:
    """Whether all that is staged must be durable before this packet: what compares may not see what may yet go."""
    return not is_of_kind(packet, Kind.DELTAS, Kind.ACK)


def is_of_kind(packet: bytes, *kinds: Kind) -> bool:
    """Whether a packet says that it is of one of *kinds*: its third byte, as msgpack has a small number in one."""
    return len(packet) > 2 and packet[2] in kinds


def message_bytes(packet: bytes) -> int:
    """How large the message may be that a packet is, or is a part of."""
    if not is_of_kind(packet, Kind.FRAGMENT):
        return len(packet)
    try:
        part = decode_message(packet)
    except (MalformedBody, NotSupported):
        return len(packet)
    return part.count * FRAGMENT_BYTES if isinstance(part, Fragment) else len(packet)


def fragments(data: bytes, message: int) -> list[bytes]:
    """A message as packets: itself when it fits one."""
    if len(data) <= PACKET_BYTES:
        return [data]
    count = -(-len(data) // FRAGMENT_BYTES)
    return [
        encode(Fragment(message, index, count, data[index * FRAGMENT_BYTES : (index + 1) * FRAGMENT_BYTES]))
        for index in range(count)
    ]
