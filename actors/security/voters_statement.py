"""Who votes in a cluster, as a host that votes signs it for one that has just joined.

A new host has no log that says who votes, and must believe a leader before it can have one. Only voters have the
authority's key, so what is signed with it a voter has said, whoever brings it. A statement is good for one host (its id
and key) and for one question: the *challenge* is what the new host chose itself, so that one of yesterday is no answer
to it, and no clock has to tell. Of two statements that a host has, the one of the later entry of the log counts
(``StatedVoters.position``). Why so: docs/decisions/0096.

    {"authority": generation, "body": bytes, "signature": bytes}     ECDSA with SHA-256 over a label and the body
    body: {"cluster_id", "host_id", "node", "fingerprint", "challenge", "epoch", "index", "term", "at", "voters"}
    voter: [host id, node, HOST:PORT for Raft, for calls, for HTTP, fingerprint of its key]

No socket, clock or dice. Bounds: 8 KiB, 16 voters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from actorgrid.actors.ledger.names import check_id
from actorgrid.errors import BadRequest, MalformedMessage, StatementRefused, WrongCluster

from .authority import Authority
from .certificates import p256_key
from .trust_bundle import TrustBundle

CHALLENGE_BYTES = 32
STATEMENT_BYTES_MAX = 8 * 1024
VOTERS_MAX, ADDRESS_CHARACTERS_MAX = 16, 200
NUMBER_MAX = 2**53
"""What any reader of JSON and msgpack keeps exactly."""
_LABEL = b"actorgrid voters statement 1\0"
_SIGNATURE_BYTES_MAX = 80
_FINGERPRINT_CHARACTERS = 64
_HEX = frozenset("0123456789abcdef")
_HINT = (
    "join by another member of the cluster (--join HOST); a host that sends such things is in wrong hands or damaged"
)


@dataclass(frozen=True, slots=True)
class VoterAddress:
    """A voter's addresses for a joined host: its number in Raft, and HOST:PORT for Raft, for calls and for HTTP.

    ``fingerprint``: of its key, by which its links are known before the new host has the ledger.
    """

    host_id: str
    node: int
    raft: str
    calls: str
    http: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class StatedVoters:
    """Who votes, for host ``host_id`` (``node`` to Raft) with the key of ``fingerprint``, in answer to ``challenge``.

    ``voters``: those of the configuration that is applied where it was signed, of both halves of a joint one.
    """

    cluster_id: str
    host_id: str
    node: int
    fingerprint: str
    challenge: bytes
    epoch: int
    index: int
    """Of the last entry that was applied where it was signed."""
    term: int
    at: float
    """When it was signed, in seconds since the epoch: for people. Nothing is decided by it."""
    voters: tuple[VoterAddress, ...]

    @property
    def position(self) -> tuple[int, int]:
        """Which of two statements is the later one."""
        return self.epoch, self.index


def sign_voters(authority: Authority, stated: StatedVoters) -> bytes:
    """The statement, signed. Raises BadRequest for one that could not be read back: of no voter, or of too many."""
    body: bytes = msgpack.packb(
        {
            "cluster_id": stated.cluster_id,
            "host_id": stated.host_id,
            "node": stated.node,
            "fingerprint": stated.fingerprint,
            "challenge": stated.challenge,
            "epoch": stated.epoch,
            "index": stated.index,
            "term": stated.term,
            "at": stated.at,
            "voters": [voter_row(voter) for voter in stated.voters],
        }
    )
    try:
        _read_body(body)
    except MalformedMessage as error:
        raise BadRequest(f"who votes cannot be stated: {error.message}", found=error.found) from error
    signature = authority.key.sign(_LABEL + body, ec.ECDSA(hashes.SHA256()))
    packed: bytes = msgpack.packb({"authority": authority.generation, "body": body, "signature": signature})
    return packed


def check_voters(
    statement: bytes, bundle: TrustBundle, host_id: str, fingerprint: str, challenges: Collection[bytes]
) -> StatedVoters:
    """What *statement* says to this host, which has that key and asked with one of *challenges*.

    Raises MalformedMessage, WrongCluster, and StatementRefused when no authority of *bundle* has signed it, or it is
    for another host, another key or another question.
    """
    fields = _open("a statement of who votes", statement, STATEMENT_BYTES_MAX, _STATEMENT)
    generation, body = fields["authority"], fields["body"]
    by = next((each for each in bundle.authorities if each.generation == generation), None)
    known = ", ".join(str(each.generation) for each in bundle.authorities)
    if by is None:
        raise StatementRefused(
            "who votes was stated by an authority that is not trusted here",
            asked=f"generation {known}",
            found=f"generation {generation}",
            hint="was the authority rotated meanwhile? Join again with a new token",
        )
    # Before a word of it is read.
    try:
        p256_key(by.certificate).verify(fields["signature"], _LABEL + body, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise StatementRefused(
            "who votes was not stated by the cluster's authority",
            asked=f"signed by generation {generation}, fingerprint {by.fingerprint}",
            found="another signature",
            hint=_HINT,
        ) from None
    stated = _read_body(body)
    if stated.cluster_id != bundle.cluster_id:
        raise WrongCluster("the statement is another cluster's", asked=bundle.cluster_id, found=stated.cluster_id)
    if (stated.host_id, stated.fingerprint) != (host_id, fingerprint):
        raise StatementRefused(
            "who votes was stated for another host",
            asked=f"host {host_id}, key {fingerprint}",
            found=f"host {stated.host_id}, key {stated.fingerprint}",
            hint=_HINT,
        )
    if stated.challenge not in challenges:
        raise StatementRefused(
            "who votes was stated in answer to another question",
            asked=", ".join(challenge.hex() for challenge in challenges)[:200],
            found=f"{stated.challenge.hex()}, as of entry {stated.index}",
            hint=_HINT,
        )
    return stated


def voter_row(voter: VoterAddress) -> list[Any]:
    """The voter as it is written in messages."""
    return [voter.host_id, voter.node, voter.raft, voter.calls, voter.http, voter.fingerprint]


def _read_body(body: bytes) -> StatedVoters:
    fields = _open("what is stated of who votes", body, STATEMENT_BYTES_MAX, _BODY)
    voters = tuple(VoterAddress(*row) for row in fields["voters"])
    if len({voter.node for voter in voters}) != len(voters) or len({voter.host_id for voter in voters}) != len(voters):
        raise MalformedMessage("a voter is stated twice", found=", ".join(voter.host_id for voter in voters)[:200])
    return StatedVoters(
        fields["cluster_id"],
        fields["host_id"],
        fields["node"],
        fields["fingerprint"],
        fields["challenge"],
        fields["epoch"],
        fields["index"],
        fields["term"],
        float(fields["at"]),
        voters,
    )


def _open(what: str, packed: bytes, bytes_max: int, checks: dict[str, Callable[[Any], bool]]) -> dict[str, Any]:
    if len(packed) > bytes_max:
        raise MalformedMessage(f"{what} is too large", found=f"{len(packed)} bytes")
    try:
        fields = msgpack.unpackb(packed, raw=False)
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        raise MalformedMessage(f"{what} is not msgpack: {type(error).__name__}") from None
    if not isinstance(fields, dict) or set(fields) != set(checks):
        names = sorted(str(name)[:40] for name in fields) if isinstance(fields, dict) else [type(fields).__name__]
        raise MalformedMessage(f"{what} has other fields than it should", found=", ".join(names[:10]))
    for name, good in checks.items():
        if not good(fields[name]):
            raise MalformedMessage(f"{what}: field {name!r} is wrong", found=type(fields[name]).__name__)
    return fields


def _is_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(check_id("host", value))
    except BadRequest:
        return False


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < NUMBER_MAX


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= ADDRESS_CHARACTERS_MAX and (value == "" or value.isprintable())


def _is_fingerprint(value: Any) -> bool:
    return isinstance(value, str) and len(value) == _FINGERPRINT_CHARACTERS and set(value) <= _HEX


def _is_stated_voter(value: Any) -> bool:
    # A voter without a number is none to Raft, and one without a key could be anybody.
    return (
        isinstance(value, list)
        and len(value) == 6
        and _is_id(value[0])
        and _is_number(value[1])
        and value[1] > 0
        and all(_is_address(address) for address in value[2:5])
        and _is_fingerprint(value[5])
    )


_STATEMENT: dict[str, Callable[[Any], bool]] = {
    "authority": _is_number,
    "body": lambda value: isinstance(value, bytes),
    "signature": lambda value: isinstance(value, bytes) and len(value) <= _SIGNATURE_BYTES_MAX,
}
_BODY: dict[str, Callable[[Any], bool]] = {
    "cluster_id": _is_id,
    "host_id": _is_id,
    "node": lambda value: _is_number(value) and value > 0,
    "fingerprint": _is_fingerprint,
    "challenge": lambda value: isinstance(value, bytes) and len(value) == CHALLENGE_BYTES,
    "epoch": _is_number,
    "index": _is_number,
    "term": _is_number,
    "at": lambda value: type(value) in (int, float) and abs(value) < NUMBER_MAX,
    "voters": lambda value: (
        isinstance(value, list) and 0 < len(value) <= VOTERS_MAX and all(_is_stated_voter(row) for row in value)
    ),
}
