"""Signing in by an identity provider, as requests ask for it and answers show it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from actorgrid.access import TENANT_MAX, Role
from actorgrid.actors.security.oidc_tokens import TOKEN_MAX
from actorgrid.models import AnswerBody, RequestBody


class SignInOffer(AnswerBody):
    """By which identity provider one signs in here, and what is asked of it (OpenID Connect, RFC 8628)."""

    issuer: str
    client_id: str
    scopes: str
    token: Literal["id_token", "access_token"]


class SignInRequest(RequestBody):
    """The identity provider's token, and what is wanted for it."""

    token: str = Field(min_length=1, max_length=TOKEN_MAX, description="an ID or access token, as the offer says")
    nonce: str = Field(default="", max_length=256, description="what the provider was asked with, if anything")
    tenant: str | None = Field(default=None, min_length=1, max_length=TENANT_MAX, description="of several, this one")
    role: Role | None = Field(default=None, description="of several, this one")
    ttl_s: float | None = Field(default=None, ge=60, le=604_800, description="a shorter life of the key")
