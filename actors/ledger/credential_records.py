"""What the ledger keeps of what opens doors: API keys and join tokens. None of it is a secret."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class JoinTokenRecord(TypedDict):
    """A join token as the ledger keeps it: nothing of it opens anything."""

    id: str
    """Its id: the first part of its text."""
    cluster_id: str
    """The cluster that it is for."""
    authority: str
    """Fingerprint of the cluster's authority."""
    verify_key: str
    """By which a claim to the token is checked, in hex."""
    made_by: str
    """Whoever asked for it."""
    made_at: float
    """When it was made."""
    expires_at: float
    """Until when it lets anybody in."""
    uses_max: int
    """How many hosts it lets in."""
    roles: list[str]
    """The roles that those become."""
    used_by: list[Any]
    """[host, fingerprint] of each host that it let in."""
    revoked_at: float | None
    """When it was taken back."""


class ModelKeyRecord(TypedDict):
    """What an API key for models alone may be used for: it opens model gateways and no other door."""

    models: list[str]
    """The models that may be asked; empty: all."""
    requests_per_minute: int
    """0: without a limit, as below."""
    tokens_per_minute: int
    """Tokens of prompts and answers."""
    tokens_per_month: int
    """The same, in a month of the calendar (UTC)."""
    requests_per_month: NotRequired[int]
    """Requests in a month of the calendar (UTC)."""


class ApiKeyRecord(TypedDict):
    """An API key as the ledger keeps it."""

    id: str
    """Its id: the first part of its text."""
    sha256: str
    """SHA-256 of its text, in hex."""
    user_id: str
    """The user for whom it opens doors."""
    roles: list[str]
    """The roles that say what may be done with it."""
    made_by: str
    """Whoever asked for it."""
    made_at: float
    """When it was made."""
    expires_at: float
    """Until when it opens anything."""
    revoked_at: float | None
    """When it was taken back."""
    tenant: NotRequired[str]
    """The tenant in which it has its one role; ``*``: in all. Absent: a key of before there were roles, which is an
    administrator's of all tenants whatever its ``roles`` say."""
    name: NotRequired[str]
    """What it is called when it is rotated: two good ones may have one name, in one tenant."""
    last: NotRequired[str]
    """The last characters of its text, by which people know it again."""
    serving: NotRequired[ModelKeyRecord]
    """Of a key for models alone: what it may be used for."""
