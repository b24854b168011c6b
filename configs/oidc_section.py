"""Settings of signing in by an identity provider (OpenID Connect)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from actorgrid.errors import BadRequest
from actorgrid.group_bindings import BINDINGS_MAX, read_binding

from .section import Section, setting

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Signatures by a key whose other half is secret: none by a secret that both ends know (HS256), and not ``none``."""


def _issuer(text: str) -> str:
    if text:
        from actorgrid.identity_provider import read_endpoint

        try:
            read_endpoint(text)
        except BadRequest as error:
            raise PydanticCustomError("no_issuer", "{fault}", {"fault": str(error)}) from None
    return text


def _algorithms(words: list[str]) -> list[str]:
    wrong = [word for word in words if word not in ALGORITHMS]
    if wrong:
        raise PydanticCustomError(
            "no_algorithm",
            "{word} is no signature that is taken; there are {known}",
            {"word": repr(wrong[0]), "known": ", ".join(ALGORITHMS)},
        )
    return words


def _bindings(lines: list[str]) -> list[str]:
    for line in lines:
        try:
            read_binding(line)
        except BadRequest as error:
            raise PydanticCustomError("no_binding", "{fault}", {"fault": str(error)}) from None
    return lines


class OidcSection(Section):
    """Signing in by an identity provider (OpenID Connect): actorgrid login."""

    issuer: Annotated[str, AfterValidator(_issuer)] = setting(
        "",
        "the identity provider, as its tokens name it: https://id.example.org/realms/lab; empty: none",
        max_length=2048,
    )
    client_id: str = setting("", "what this cluster is called there: a public client that may use the device flow")
    audience: str = setting("", "whom tokens have to be for; empty: the client_id")
    token: Literal["id_token", "access_token"] = setting("id_token", "which of the provider's tokens is shown here")
    scopes: str = setting("openid", "what the device flow asks for, separated by spaces", max_length=1024)
    groups: Annotated[list[str], AfterValidator(_bindings)] = setting(
        [],
        "which group has which role where, as GROUP=ROLE@TENANT (tenant *: all); the first that fits counts",
        live=True,
        max_length=BINDINGS_MAX,
    )
    groups_claim: str = setting(
        "groups", "the claim with the groups; parts with dots between lead inside: realm_access.roles", max_length=256
    )
    user_claim: str = setting(
        "sub", "the claim with the user's name; preferred_username may be changed by people, with many providers"
    )
    user_domain: str = setting("", "taken off the name's end, with its @ (example.org); names without it are refused")
    algorithms: Annotated[list[str], AfterValidator(_algorithms)] = setting(
        ["RS256", "ES256"], "signatures that are taken", min_length=1, max_length=len(ALGORITHMS)
    )
    key_ttl_s: float = setting(43_200.0, "how long the API key lives that is given", live=True, ge=60, le=604_800)
    token_age_s: float = setting(300.0, "a token that is older is refused", live=True, ge=10, le=3600)
    skew_s: float = setting(60.0, "so far the provider's clock may be from ours", live=True, ge=0, le=300)
    ca_file: str = setting("", "certificates of authorities that the provider is believed by; empty: the system's")

    @model_validator(mode="after")
    def _names_its_client(self) -> OidcSection:
        if self.issuer and not self.client_id:
            raise PydanticCustomError(
                "inconsistent",
                "issuer is set, and client_id is empty: tokens for anybody would be taken",
                {"key": "client_id"},
            )
        return self
