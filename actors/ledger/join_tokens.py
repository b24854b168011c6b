"""Join tokens: what lets a new host in, how it is written, and what the ledger keeps of it.

    agj1.CLUSTER.AUTHORITY.ID.SECRET.CHECK

AUTHORITY is the fingerprint of the cluster's authority, by which the new host knows whom it talks to; ID names the
record in the ledger; SECRET is 16 random bytes; CHECK tells a damaged token from a wrong one. The last four are in
Crockford's base 32: case does not matter, and O, I and L are read as the digits they look like.

The secret is the seed of an Ed25519 key (RFC 8032). The ledger keeps its public half, the new host proves with a
signature that it has the secret, over what it asks for and whom it asks (``JoinClaim``). So a reader of the ledger, its
log or its backups learns nothing that lets anyone in, and a host that only passes a claim on can change nothing of it,
its certificate request least of all. A stored hash of the secret would give neither.

Records are JSON values; :func:`redeem` and :func:`revoke_token` are pure, for the ledger's ``apply``. The signature is
checked by :func:`check_claim`, once, by the voter that issues the certificate, before it proposes: verifiers may differ
about signatures made to be odd, and an entry of the log must mean the same on every host.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from actorgrid.actors.ledger.credential_records import JoinTokenRecord
from actorgrid.errors import (
    BadRequest,
    JoinTokenExpired,
    JoinTokenRevoked,
    JoinTokenUsed,
    MalformedJoinToken,
    UnknownJoinToken,
    WrongCluster,
)

from .names import check_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "agj1"
ID_BYTES, SECRET_BYTES, NONCE_BYTES = 5, 16, 32
ROLES = ("learner", "voter")
TTL_MIN_S, TTL_DEFAULT_S, TTL_MAX_S = 60.0, 3600.0, 30 * 86_400.0
USES_MAX = 1000
TOKEN_CHARACTERS_MAX = 400

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LOOKS_LIKE = str.maketrans({"o": "0", "i": "1", "l": "1"})
_FINGERPRINT_BYTES, _CHECK_BYTES = 32, 5
_LENGTHS = {"authority": 52, "id": 8, "secret": 26, "check": 8}
_KEY_LABEL, _CHECK_LABEL, _CLAIM_LABEL = b"actorgrid join key 1\0", b"actorgrid token check 1\0", b"actorgrid claim 1\0"


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token as its holder has it. It does not show its secret when printed; ``text`` does."""

    cluster_id: str
    authority: str
    """Fingerprint of the authority, 64 characters of hex."""
    token_id: str
    secret: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """The text of the token, which a person carries to the new host."""
        body = ".".join(
            (
                PREFIX,
                self.cluster_id,
                _write(bytes.fromhex(self.authority)),
                self.token_id,
                _write(self.secret),
            )
        )
        return f"{body}.{_check(body)}"

    def _key(self) -> Ed25519PrivateKey:
        # Where it is used: every ledger loads this module, and the one of a host alone needs 3 MB less without it.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        names = f"{self.cluster_id}\0{self.token_id}\0".encode()
        return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(_KEY_LABEL + names + self.secret).digest())


@dataclass(frozen=True, slots=True)
class JoinClaim:
    """What a new host asks for, whom it asks, and its proof. Plain enough to be passed on to the host that decides."""

    cluster_id: str
    token_id: str
    host_id: str
    nonce: bytes
    """32 random bytes of the host that was asked, so that a claim is good for one visit."""
    server: str
    """SHA-256, in hex, of the certificate (DER) which that host showed."""
    request: bytes
    """The certificate request, DER."""
    capabilities: bytes
    """What the host has, as it was packed."""
    signature: bytes = b""

    def transcript(self) -> bytes:
        """The bytes that are signed: every other field, each with its length before it."""
        parts = (
            self.cluster_id.encode(),
            self.token_id.encode(),
            self.host_id.encode(),
            self.nonce,
            self.server.encode(),
            self.request,
            self.capabilities,
        )
        return _CLAIM_LABEL + b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    @property
    def challenge(self) -> bytes:
        """What the answer to this very claim is known by: nobody can know it before, as the request's signature has
        chance in it."""
        return hashlib.sha256(self.transcript()).digest()

    def signed(self, token: JoinToken) -> JoinClaim:
        """The same claim with the signature of the token's holder."""
        return replace(self, signature=token._key().sign(self.transcript()))


# -- the text


def read_token(text: str) -> JoinToken:
    """Read the token that a person gave.

    Raises MalformedJoinToken, which says where the damage is, if that can be told.
    """
    given = "".join(text.split()).lower()
    if not given.startswith(f"{PREFIX}."):
        raise MalformedJoinToken(
            "this is not a join token",
            asked=f"{PREFIX}.CLUSTER.AUTHORITY.ID.SECRET.CHECK",
            found=f"{len(given)} characters that begin otherwise",
            hint="make one with: actorgrid token create (the admin token of a host is not one)",
        )
    parts = given.split(".")
    if len(given) > TOKEN_CHARACTERS_MAX or len(parts) != 6:
        raise MalformedJoinToken(
            "the join token is cut off, or more was pasted than the token",
            asked="6 parts between dots",
            found=f"{len(parts)} parts, {len(given)} characters",
            hint="copy it again, all of it",
        )
    _, cluster_id, *coded = parts
    plain = [part.translate(_LOOKS_LIKE) for part in coded]
    for (name, length), part in zip(_LENGTHS.items(), plain, strict=True):
        if len(part) != length:
            raise MalformedJoinToken(
                f"the {name} in the join token has {'lost' if len(part) < length else 'gained'} characters",
                asked=f"{length}",
                found=f"{len(part)}",
                hint="copy it again, all of it",
            )
    body = ".".join((PREFIX, cluster_id, *plain[:3]))
    if _check(body) != plain[3]:
        raise MalformedJoinToken(
            "the join token is damaged", found="its check does not fit", hint=_did_you_mean(body, plain[3])
        )
    try:
        check_id("cluster", cluster_id)
        authority, secret = _read(plain[0], _FINGERPRINT_BYTES).hex(), _read(plain[2], SECRET_BYTES)
        _read(plain[1], ID_BYTES)
    except ValueError as error:
        raise MalformedJoinToken("the join token is not one that actorgrid made", found=str(error)[:200]) from error
    return JoinToken(cluster_id, authority, plain[1], secret)


def _did_you_mean(body: str, check: str) -> str:
    """The one slip (a wrong character, two swapped) that explains a failed check; tries about 5,000 hashes at most."""
    right = _check(body)
    if sum(mine != theirs for mine, theirs in zip(right, check, strict=True)) == 1:
        return f"did you mean {right!r} at the end?"
    start = len(PREFIX) + 1
    for at in range(start, len(body)):
        for other in string.ascii_lowercase + string.digits + "-":
            if body[at] != "." and _check(f"{body[:at]}{other}{body[at + 1 :]}") == check:
                return f"did you mean {other!r} instead of {body[at]!r} at character {at + 1}?"
        pair = body[at : at + 2]
        if len(pair) == 2 and _check(body[:at] + pair[::-1] + body[at + 2 :]) == check:
            return f"did you mean {pair[::-1]!r} instead of {pair!r} at character {at + 1}?"
    return "copy it again, all of it"


# -- the record


def make_token(
    cluster_id: str,
    authority: str,
    token_id: bytes,
    secret: bytes,
    at: float,
    *,
    ttl_s: float = TTL_DEFAULT_S,
    uses: int = 1,
    roles: Iterable[str] = ROLES,
    made_by: str = "local",
) -> tuple[JoinToken, JoinTokenRecord]:
    """A token, and the record of it for the ledger. *token_id* and *secret*: 5 and 16 random bytes.

    It lets in *uses* hosts until *ttl_s* seconds after *at* (seconds since the epoch), to be what *roles* say. Raises
    BadRequest for a time, a number or a role that cannot be.
    """
    assert len(token_id) == ID_BYTES and len(secret) == SECRET_BYTES
    wanted = sorted(set(roles))
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        raise BadRequest(
            "a join token lives between a minute and 30 days", asked=f"{ttl_s} s", found=f"{TTL_MIN_S} to {TTL_MAX_S} s"
        )
    if not 1 <= uses <= USES_MAX:
        raise BadRequest("a join token lets in a limited number of hosts", asked=f"{uses}", found=f"1 to {USES_MAX}")
    if not wanted or not set(wanted) <= set(ROLES):
        raise BadRequest("no such role", asked=", ".join(wanted)[:80], found=", ".join(ROLES))
    token = JoinToken(check_id("cluster", cluster_id), authority, _write(token_id), secret)
    record: JoinTokenRecord = {
        "id": token.token_id,
        "cluster_id": cluster_id,
        "authority": authority,
        "verify_key": token._key().public_key().public_bytes_raw().hex(),
        "made_by": made_by,
        "made_at": at,
        "expires_at": at + ttl_s,
        "uses_max": uses,
        "roles": wanted,
        "used_by": [],
        "revoked_at": None,
    }
    return token, record


def check_claim(record: JoinTokenRecord | None, claim: JoinClaim) -> None:
    """Raises UnknownJoinToken unless *claim* was signed with the secret of the token that *record* is about."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    known = record is not None and record["id"] == claim.token_id
    try:
        if record is None or not known:
            raise InvalidSignature
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(record["verify_key"]))
        key.verify(claim.signature, claim.transcript())
    except InvalidSignature as error:
        # The same words for both: whoever guesses learns nothing about which ids exist.
        raise UnknownJoinToken(
            "no join token like this was made here",
            asked=claim.token_id[:40],
            hint="make a new one with: actorgrid token create",
        ) from error


def redeem(
    record: JoinTokenRecord | None, cluster_id: str, host_id: str, fingerprint: str, at: float
) -> JoinTokenRecord:
    """The record after the token let in host *host_id* with the key of that fingerprint; the old one is not changed.

    The same host with the same key may come again while the token lives, without a further use: its first answer may
    have been lost. Raises UnknownJoinToken, WrongCluster, JoinTokenRevoked, JoinTokenExpired, JoinTokenUsed.
    """
    hint = "make a new one with: actorgrid token create"
    if record is None:
        raise UnknownJoinToken("no join token like this was made here", hint=hint)
    named = f"token {record['id']}"
    if record["cluster_id"] != cluster_id:
        raise WrongCluster("the join token is for another cluster", asked=named, found=record["cluster_id"])
    if record["revoked_at"] is not None:
        raise JoinTokenRevoked("the join token was taken back", asked=named, hint=hint)
    if at > record["expires_at"]:
        raise JoinTokenExpired(
            "the join token has expired", asked=named, found=f"{at - record['expires_at']:.0f} s ago", hint=hint
        )
    if any(use["host_id"] == host_id and use["fingerprint"] == fingerprint for use in record["used_by"]):
        return record
    if len(record["used_by"]) >= record["uses_max"]:
        raise JoinTokenUsed(
            "the join token is used up", asked=named, found=f"{record['uses_max']} use(s), all made", hint=hint
        )
    return {**record, "used_by": [*record["used_by"], {"host_id": host_id, "fingerprint": fingerprint, "at": at}]}


def revoke_token(record: JoinTokenRecord | None, at: float) -> JoinTokenRecord:
    """The record of the token once it is revoked and lets nobody in any more. Raises UnknownJoinToken."""
    if record is None:
        raise UnknownJoinToken("no join token of that id", hint="list them with: actorgrid token list")
    return record if record["revoked_at"] is not None else {**record, "revoked_at": at}


def _check(body: str) -> str:
    return _write(hashlib.sha256(_CHECK_LABEL + body.encode()).digest()[:_CHECK_BYTES])


def _write(data: bytes) -> str:
    """Encode *data* in Crockford's base 32: lower case, most significant bit first, zeros at the end."""
    bits = int.from_bytes(data, "big") << (-len(data) * 8) % 5
    count = -(-len(data) * 8 // 5)
    return "".join(_ALPHABET[bits >> 5 * (count - 1 - at) & 31] for at in range(count))


def _read(text: str, length: int) -> bytes:
    if not re.fullmatch(f"[{_ALPHABET}]*", text):
        raise ValueError("a character that is not of base 32")
    bits = 0
    for character in text:
        bits = bits << 5 | _ALPHABET.index(character)
    spare = len(text) * 5 - length * 8
    if bits & (1 << spare) - 1:
        raise ValueError("bits beyond the end")
    return (bits >> spare).to_bytes(length, "big")
