"""Packets between members, and their bytes: MessagePack, one encoding for each value, at most 1,400 bytes sealed.

Reading is strict. Bytes with anything wrong give the reason, and nothing of them counts; no field reaches the core
whose type and bounds are not what it must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgpack

from .records import ADDRESS_BYTES_MAX, INCARNATION_MAX, LEFT, NAME_BYTES_MAX, MemberStatus

PING, PING_REQ, ACK, NACK, GOSSIP = range(5)
KINDS = ("ping", "ping_req", "ack", "nack", "gossip")
"""By their numbers on the wire: append, never reorder."""

DATAGRAM_BYTES_MAX = 1_400
"""With the headers of IP and UDP it passes an Ethernet of 1,500 and most tunnels in one piece: a datagram in fragments
is lost when one of them is."""
SEAL_BYTES_MAX = 18 + NAME_BYTES_MAX + 16
BODY_BYTES_MAX = DATAGRAM_BYTES_MAX - SEAL_BYTES_MAX
SEQUENCE_MAX = 2**32 - 1
RECORDS_MAX = 64
"""In one packet; no more fit."""
MEMBERS_MAX = 8_192
"""In a table, and so in a full state."""
STATE_BYTES_MAX = MEMBERS_MAX * 256
STATE_FORMAT = 1

_HEAD_BYTES = 16
"""At most: the array, the kind, the sequence, the heads of two texts and of the records."""

Malformed = Literal["oversize", "malformed"]


class Packet(NamedTuple):
    """What one datagram says.

    * ping: ``sequence``, and in ``target`` who is meant, so that another host at that address does not answer for it
    * ping_req: please ping ``target``, and answer with this ``sequence``
    * ack, nack: ``sequence`` of the ping or ping_req; a nack is a helper's: no answer so far, but I am well
    * gossip: nothing but ``records``, which all others carry too
    """

    kind: int
    sender: str
    sequence: int
    target: str
    records: tuple[MemberStatus, ...]


class FullState(NamedTuple):
    """All that ``sender`` knows of all members. It goes over a link, not in a datagram; ``wants_reply``: send yours."""

    sender: str
    wants_reply: bool
    records: tuple[MemberStatus, ...]


def record_bytes(record: MemberStatus) -> int:
    """What a record takes in a packet, at most."""
    return 17 + len(record.name) + len(record.address) + len(record.by)


def packet_bytes(packet: Packet) -> int:
    """What the datagram of a packet takes, at most."""
    return _HEAD_BYTES + 34 + len(packet.sender) + len(packet.target) + sum(map(record_bytes, packet.records))


def room_bytes(target: str) -> int:
    """What is left for records in a packet about *target*."""
    return BODY_BYTES_MAX - _HEAD_BYTES - len(target)


def encode_packet(packet: Packet) -> bytes:
    """The bytes of *packet*, without its sender: that is in the seal."""
    return _pack((packet.kind, packet.sequence, packet.target, packet.records))


def decode_packet(data: bytes, sender: str) -> Packet | Malformed:
    """The packet in *data*, or why there is none."""
    if len(data) > BODY_BYTES_MAX:
        return "oversize"
    tree = _unpacked(data)
    if type(tree) is not tuple or len(tree) != 4:
        return "malformed"
    kind, sequence, target, rows = tree
    if type(kind) is not int or not 0 <= kind < len(KINDS):
        return "malformed"
    if type(sequence) is not int or not 0 <= sequence <= SEQUENCE_MAX:
        return "malformed"
    if kind in (PING, PING_REQ):
        if not is_name(target):
            return "malformed"
    elif target != "" or type(target) is not str:
        return "malformed"
    records = _records(rows, RECORDS_MAX)
    if records is None or _pack(tree) != data:
        return "malformed"
    return Packet(kind, sender, sequence, target, records)


def encode_state(state: FullState) -> bytes:
    """The bytes of *state*."""
    return _pack((STATE_FORMAT, state.sender, state.wants_reply, state.records))


def decode_state(data: bytes) -> FullState | Malformed:
    """The full state in *data*, or why there is none."""
    if len(data) > STATE_BYTES_MAX:
        return "oversize"
    tree = _unpacked(data)
    if type(tree) is not tuple or len(tree) != 4:
        return "malformed"
    number, sender, wants_reply, rows = tree
    if type(number) is not int or number != STATE_FORMAT or type(wants_reply) is not bool or not is_name(sender):
        return "malformed"
    records = _records(rows, MEMBERS_MAX)
    if records is None or _pack(tree) != data:
        return "malformed"
    return FullState(sender, wants_reply, records)


def is_name(value: object) -> bool:
    """Whether it may be a member's name: 1 to 64 printable ASCII characters."""
    return type(value) is str and 0 < len(value) <= NAME_BYTES_MAX and value.isascii() and value.isprintable()


def _pack(tree: Sequence[object]) -> bytes:
    return cast(bytes, msgpack.packb(tree, use_bin_type=True))


def _unpacked(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError):
        return None


def _records(rows: object, count_max: int) -> tuple[MemberStatus, ...] | None:
    if type(rows) is not tuple or len(rows) > count_max:
        return None
    found = []
    for row in rows:
        if type(row) is not tuple or len(row) != 5:
            return None
        name, address, incarnation, state, by = row
        # Written out, not as calls of is_name: thirty records must be read in a few microseconds each.
        if not (type(name) is type(address) is type(by) is str and type(incarnation) is type(state) is int):
            return None
        if not (0 < len(name) <= NAME_BYTES_MAX and 0 < len(address) <= ADDRESS_BYTES_MAX):
            return None
        if not (0 < len(by) <= NAME_BYTES_MAX and 0 <= incarnation <= INCARNATION_MAX and 0 <= state <= LEFT):
            return None
        words = name + address + by
        if not (words.isascii() and words.isprintable()):
            return None
        found.append(MemberStatus(name, address, incarnation, state, by))
    return tuple(found)
