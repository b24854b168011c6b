"""API keys and roles as requests ask for them and answers show them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from actorgrid.access import TENANT_MAX, Role
from actorgrid.actors.ledger.record_checks import KEY_NAME_MAX
from actorgrid.models import AnswerBody, RequestBody

LIFE_S, LIFE_MAX_S = 30 * 86_400.0, 3650 * 86_400.0
OVERLAP_S = 86_400.0
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class ModelKeyLimits(RequestBody):
    """What a key for models alone may be used for. Limits hold over all gateways together; 0: there is none."""

    models: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list, max_length=256, description="the models that may be asked; empty: all"
    )
    requests_per_minute: int = Field(default=0, ge=0, le=2**53)
    tokens_per_minute: int = Field(default=0, ge=0, le=2**53, description="tokens of prompts and answers")
    tokens_per_month: int = Field(default=0, ge=0, le=2**53, description="in a month of the calendar (UTC)")
    requests_per_month: int = Field(default=0, ge=0, le=2**53, description="in a month of the calendar (UTC)")


class KeyRequest(RequestBody):
    """Whose an API key is, what may be done with it, and how long it lives.

    Without a role and a tenant it is an administrator's of all tenants.
    """

    user_id: str = Field(default="local", min_length=1, max_length=128, description="the name; the tenant is added")
    ttl_s: float = Field(default=LIFE_S, ge=60, le=LIFE_MAX_S)
    role: Role | None = None
    tenant: str | None = Field(default=None, max_length=TENANT_MAX, description="* is all of them; else default")
    name: str = Field(default="", max_length=KEY_NAME_MAX, pattern=rf"^$|{_NAME}", description="to rotate it by")
    serving: ModelKeyLimits | None = Field(
        default=None, description="given: it opens the model gateways alone, within these limits; its role is user"
    )


class RotateRequest(RequestBody):
    """How long the new key lives, and how much longer the old one."""

    ttl_s: float = Field(default=LIFE_S, ge=60, le=LIFE_MAX_S)
    overlap_s: float = Field(default=OVERLAP_S, ge=0, le=LIFE_S)
    tenant: str | None = Field(default=None, max_length=TENANT_MAX, description="where two tenants have the name")


class KeyMade(AnswerBody):
    """A new API key. ``key`` is shown here and nowhere else.

    ``url``: where clients of other machines reach this host; ``ca_fingerprint``: by what they know the cluster, null
    for a host that is alone. ``retires``: the keys whose place it takes, good until ``retire_at``.
    """

    key: str
    id: str
    user_id: str
    role: Role
    tenant: str
    name: str
    expires_at: float
    url: str
    ca_fingerprint: str | None
    retires: list[str] = []
    retire_at: float | None = None


class ModelKeyView(AnswerBody):
    """What a key for models alone may be used for; 0: without a limit."""

    models: list[str]
    requests_per_minute: int
    tokens_per_minute: int
    tokens_per_month: int
    requests_per_month: int = 0


class ApiKey(AnswerBody):
    """What the cluster knows of an API key: no secret. ``last``: the end of its text; empty for one of before.

    ``serving``: null, but for a key for models alone.
    """

    id: str
    user_id: str
    role: Role
    tenant: str
    name: str
    last: str
    roles: list[str]
    made_by: str
    made_at: float
    expires_at: float
    revoked_at: float | None
    serving: ModelKeyView | None = None


class KeysAnswer(AnswerBody):
    """API keys that are remembered, in the order they were made."""

    keys: list[ApiKey]


class KeyRevoked(AnswerBody):
    """It opens nothing from then on."""

    id: str
    revoked_at: float


class SelfAnswer(AnswerBody):
    """Who asks, by the token that was shown; ``rights``: what each right reaches (own, tenant, all; null: nothing)."""

    name: str
    user_id: str
    role: Role
    tenant: str
    key_id: str | None
    work_id: str | None
    rights: dict[str, Any]
