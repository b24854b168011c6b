"""What a joining host and a member of the cluster say to each other, and how strictly it is read.

Frames as everywhere (``transports/frames.py``), of at most 128 KiB, each with one map of exactly these fields:

    member   ["hello", {"versions": [low, high], "software", "cluster_id", "nonce", "bundle"}]
    joiner   ["claim", {"version", "token_id", "cluster_id", "host_id", "request", "capabilities", "signature"}]
    member   ["welcome", {"cluster_id", "host_id", "node", "certificate", "bundle", "statement"}]
    member   ["refused", {error}]     instead of hello or welcome

``bundle`` and ``certificate`` are public. ``request`` and ``capabilities`` are bytes, because the signature is over
them as they are. ``statement`` says who votes, signed (``voters_statement.py``); its challenge is the claim's digest.
No frame carries a secret.

In version 1 a welcome has ``voters`` in place of it, which nobody has signed. A member still answers a host of that
version so; a joiner takes no such welcome, from whatever member: a false one would only have to say that it is older.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import msgpack
from cryptography import x509

from actorgrid.actors.ledger.join_tokens import NONCE_BYTES, JoinClaim
from actorgrid.actors.ledger.names import ADDRESSES_MAX, check_id, plain_address
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    KeyUnusable,
    MalformedMessage,
    error_from_dict,
)
from actorgrid.transports.frames import encode_frame

from .certificate_requests import REQUEST_BYTES_MAX
from .certificates import CERTIFICATE_BYTES_MAX, pem, read_certificate
from .trust_bundle import TrustBundle, read_bundle
from .voters_statement import STATEMENT_BYTES_MAX, VoterAddress, voter_row

VERSION_LOW, VERSION_HIGH = 1, 2
"""What a member speaks."""
STATED_SINCE = 2
"""The version from which on a welcome says who votes, signed: the least that a joiner speaks."""
MESSAGE_BYTES_MAX = 128 * 1024
CAPABILITIES_BYTES_MAX = 64 * 1024
DEVICES_MAX, MEASURED_MAX, PLACES_MAX, TEXT_MAX = 256, 32, 8, 200
_SIGNATURE_BYTES = 64

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a joining host has and where it listens.

    ``addresses``: what its certificate may name. ``listens``: HOST:PORT by what is served there (``raft``, ``calls``,
    ``join``, ``https``). ``devices``: plain maps as the ledger's ``register_host`` takes them, checked there.
    ``measured``: figures by name, their units in the names (``network_mib_per_s``).
    """

    cpu_milli: int
    memory_mib: int
    addresses: tuple[str, ...]
    listens: dict[str, str] = field(default_factory=dict)
    software: str = ""
    rack: str | None = None
    devices: tuple[Fields, ...] = ()
    measured: dict[str, float] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The bytes that are signed and sent. Raises BadRequest when there is more than a claim may carry."""
        packed: bytes = msgpack.packb(asdict(self))
        try:
            read_capabilities(packed)
        except MalformedMessage as error:
            raise BadRequest(f"these capabilities cannot be told: {error.message}", found=error.found) from error
        return packed


@dataclass(frozen=True, slots=True)
class JoinHello:
    """The member's first words, before which the joiner sends nothing."""

    versions: tuple[int, int]
    software: str
    cluster_id: str
    nonce: bytes
    bundle: TrustBundle


@dataclass(frozen=True, slots=True)
class JoinWelcome:
    """What makes a host a member. The authority's key is not part of it: that follows when it becomes a voter.

    ``voters`` is what a host of version 1 is sent, ``statement`` what any later one is: of the two, one arrives.
    """

    cluster_id: str
    host_id: str
    node: int
    certificate: x509.Certificate
    bundle: TrustBundle
    statement: bytes
    voters: tuple[VoterAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """The member's answer that refuses a host, with the error."""

    error: ActorGridError


def encode(message: JoinHello | JoinWelcome | JoinRefused, version: int = VERSION_HIGH) -> bytes:
    """A member's message as one frame, to a joiner that speaks *version*."""
    if isinstance(message, JoinHello):
        fields: Fields = {
            "versions": list(message.versions),
            "software": message.software[:TEXT_MAX],
            "cluster_id": message.cluster_id,
            "nonce": message.nonce,
            "bundle": message.bundle.to_plain(),
        }
        return encode_frame(["hello", fields], MESSAGE_BYTES_MAX)
    if isinstance(message, JoinWelcome):
        fields = {
            "cluster_id": message.cluster_id,
            "host_id": message.host_id,
            "node": message.node,
            "certificate": pem(message.certificate),
            "bundle": message.bundle.to_plain(),
        }
        if version >= STATED_SINCE:
            fields["statement"] = message.statement
        else:
            fields["voters"] = [voter_row(voter) for voter in message.voters]
        return encode_frame(["welcome", fields], MESSAGE_BYTES_MAX)
    error = message.error
    short = {
        "code": error.code,
        "message": error.message[:1000],
        "asked": error.asked[:1000],
        "found": error.found[:1000],
        "hint": error.hint[:1000],
        "details": {},
    }
    return encode_frame(["refused", short], MESSAGE_BYTES_MAX)


def encode_claim(claim: JoinClaim) -> bytes:
    """A joiner's claim as one frame; the member adds nonce and server by itself."""
    fields = {
        "version": VERSION_HIGH,
        "token_id": claim.token_id,
        "cluster_id": claim.cluster_id,
        "host_id": claim.host_id,
        "request": claim.request,
        "capabilities": claim.capabilities,
        "signature": claim.signature,
    }
    return encode_frame(["claim", fields], MESSAGE_BYTES_MAX)


def read_answer(frame: list[Any]) -> JoinHello | JoinWelcome | JoinRefused:
    """Read a member's message. Raises MalformedMessage, or TrustError for certificates in it that cannot be right."""
    kind, fields = _open(frame)
    try:
        if kind == "hello":
            _hold(kind, fields, _HELLO)
            low, high = fields["versions"]
            return JoinHello(
                (low, high),
                fields["software"],
                check_id("cluster", fields["cluster_id"]),
                fields["nonce"],
                read_bundle(fields["bundle"]),
            )
        if kind == "welcome":
            _hold(kind, fields, _WELCOME)
            return JoinWelcome(
                check_id("cluster", fields["cluster_id"]),
                check_id("host", fields["host_id"]),
                fields["node"],
                read_certificate(fields["certificate"].encode()),
                read_bundle(fields["bundle"]),
                fields["statement"],
            )
    except (KeyUnusable, BadRequest) as error:
        raise MalformedMessage(f"{kind}: {error.message}", found=error.found) from error
    if kind == "refused":
        _hold(kind, fields, _REFUSED)
        return JoinRefused(error_from_dict(fields))
    raise MalformedMessage("a member says nothing of that kind", found=kind[:40])


def read_claim(frame: list[Any], nonce: bytes, server: str) -> tuple[JoinClaim, int]:
    """Read a joiner's claim, with what it was signed for on our side, and which version it speaks.

    Raises MalformedMessage.
    """
    kind, fields = _open(frame)
    if kind != "claim":
        raise MalformedMessage("a joining host says nothing of that kind", found=kind[:40])
    version = fields.get("version")
    if type(version) is int and not VERSION_LOW <= version <= VERSION_HIGH:
        raise MalformedMessage(
            "the joining host speaks another protocol version",
            asked=f"{VERSION_LOW} to {VERSION_HIGH}",
            found=str(version)[:20],
            hint="upgrade the older side",
        )
    _hold(kind, fields, _CLAIM)
    claim = JoinClaim(
        fields["cluster_id"],
        fields["token_id"],
        fields["host_id"],
        nonce,
        server,
        fields["request"],
        fields["capabilities"],
        fields["signature"],
    )
    return claim, int(fields["version"])


def read_capabilities(packed: bytes) -> Capabilities:
    """Read what :meth:`Capabilities.pack` packed. Raises MalformedMessage."""
    if len(packed) > CAPABILITIES_BYTES_MAX:
        raise MalformedMessage("capabilities are too large", found=f"{len(packed)} bytes")
    try:
        fields = msgpack.unpackb(packed, raw=False)
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        raise MalformedMessage(f"capabilities are not msgpack: {type(error).__name__}") from None
    if not isinstance(fields, dict):
        raise MalformedMessage("capabilities are not a map", found=type(fields).__name__)
    _hold("capabilities", fields, _CAPABILITIES)
    try:
        addresses = tuple(plain_address(address) for address in fields["addresses"])
    except BadRequest as error:
        raise MalformedMessage(f"capabilities: {error.message}", found=error.asked) from error
    return Capabilities(
        fields["cpu_milli"],
        fields["memory_mib"],
        addresses,
        fields["listens"],
        fields["software"],
        fields["rack"],
        tuple(fields["devices"]),
        {name: float(value) for name, value in fields["measured"].items()},
    )


# -- what each field may be

_Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_MAX and (value == "" or value.isprintable())


def _id(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(check_id("host", value))
    except BadRequest:
        return False


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _bytes(least: int, most: int) -> _Check:
    return lambda value: isinstance(value, bytes) and least <= len(value) <= most


def _rows(check: _Check, most: int) -> _Check:
    return lambda value: isinstance(value, list) and len(value) <= most and all(check(row) for row in value)


def _flat(value: Any) -> bool:
    plain = (str, int, float, bool, type(None))
    return isinstance(value, dict) and all(_text(name) and isinstance(part, plain) for name, part in value.items())


def _places(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= PLACES_MAX
        and all(_text(name) and _text(place) for name, place in value.items())
    )


def _figures(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MEASURED_MAX
        and all(_text(name) and type(part) in (int, float) and abs(part) < 2**53 for name, part in value.items())
    )


_HELLO: dict[str, _Check] = {
    "versions": lambda value: _rows(_whole, 2)(value) and len(value) == 2,
    "software": _text,
    "cluster_id": _id,
    "nonce": _bytes(NONCE_BYTES, NONCE_BYTES),
    "bundle": lambda value: isinstance(value, dict),
}
_WELCOME: dict[str, _Check] = {
    "cluster_id": _id,
    "host_id": _id,
    "node": _whole,
    "certificate": lambda value: isinstance(value, str) and len(value) <= CERTIFICATE_BYTES_MAX,
    "bundle": lambda value: isinstance(value, dict),
    "statement": _bytes(1, STATEMENT_BYTES_MAX),
}
_REFUSED: dict[str, _Check] = {
    "code": _text,
    "message": lambda value: isinstance(value, str),
    "asked": lambda value: isinstance(value, str),
    "found": lambda value: isinstance(value, str),
    "hint": lambda value: isinstance(value, str),
    "details": lambda value: value == {},
}
_CLAIM: dict[str, _Check] = {
    "version": _whole,
    "token_id": _text,
    "cluster_id": _id,
    "host_id": _id,
    "request": _bytes(1, REQUEST_BYTES_MAX),
    "capabilities": _bytes(1, CAPABILITIES_BYTES_MAX),
    "signature": _bytes(_SIGNATURE_BYTES, _SIGNATURE_BYTES),
}
_CAPABILITIES: dict[str, _Check] = {
    "cpu_milli": _whole,
    "memory_mib": _whole,
    "addresses": _rows(_text, ADDRESSES_MAX),
    "listens": _places,
    "software": _text,
    "rack": lambda value: value is None or _text(value),
    "devices": _rows(_flat, DEVICES_MAX),
    "measured": _figures,
}


def _open(frame: list[Any]) -> tuple[str, Fields]:
    if len(frame) != 2 or not isinstance(frame[1], dict):
        raise MalformedMessage("a message of the join protocol is a kind and a map", found=str(frame[0])[:40])
    return frame[0], frame[1]


def _hold(what: str, fields: Fields, checks: dict[str, _Check]) -> None:
    """Check that *fields* are exactly those of *checks* and each passes. Raises MalformedMessage."""
    if set(fields) != set(checks):
        wrong = sorted(str(name)[:40] for name in set(fields) ^ set(checks))
        raise MalformedMessage(f"{what} has other fields than it should", found=", ".join(wrong[:10]))
    for name, good in checks.items():
        if not good(fields[name]):
            raise MalformedMessage(f"{what}: field {name!r} is wrong", found=type(fields[name]).__name__)
