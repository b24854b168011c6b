"""What the join server takes from other servers of its host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MakeJoinToken:
    """Answer: {"token", "id", "expires_at", "uses_max"}; the text of the token is nowhere else. Raises BadRequest."""

    ttl_s: float
    uses: int
    by: str


@dataclass(frozen=True, slots=True)
class MaterialChanged:
    """Cast to the host's servers that have links: its certificate or bundle on disk is another, for the next link."""


@dataclass(frozen=True, slots=True)
class StateVoters:
    """Sign who votes, for the member *host_id* and in answer to its *challenge* (``voters_statement.py``).

    Answer: {"statement"}. Raises WrongState on a host without the authority's key, or for no member.
    """

    host_id: str
    challenge: bytes


@dataclass(frozen=True, slots=True)
class ShowTrust:
    """Answer: the authorities, who has their keys, what each member carries (see ``Keeping.shown``)."""


@dataclass(frozen=True, slots=True)
class RotateAuthority:
    """Introduce the next generation of the authority, or call a rotation off. Answer: {"generation", "fingerprint"}.

    Raises WrongState on a host without the authority's key, or in the middle of a rotation.
    """

    call_off: bool = False


@dataclass(frozen=True, slots=True)
class RenewCertificate:
    """Have this host ask for a certificate now. Answer: {"valid_until"} of the one that it has."""

    new_key: bool = False


@dataclass(frozen=True, slots=True)
class TakeBackJoinToken:
    """Revoke a join token: it lets nobody in any more. Answer: {"id", "revoked_at"}. Raises UnknownJoinToken."""

    token_id: str
