"""What the join door takes from other servers of its host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MakeJoinToken:
    """Answer: {"token", "id", "expires_at", "uses_max"}; the text of the token is nowhere else. Raises BadRequest."""

    ttl_s: float
    uses: int
    by: str


@dataclass(frozen=True, slots=True)
class TakeBackJoinToken:
    """It lets nobody in any more. Answer: {"id", "revoked_at"}. Raises UnknownJoinToken."""

    token_id: str
