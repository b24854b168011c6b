"""Signing in by an identity provider: a token of its is taken at the door, and an API key of the cluster given for it.

The key is like any other: every door takes it, ``key revoke`` ends it within a second, and its role and tenant are
those that the settings give to one of the person's groups. Nothing of this is loaded where nobody signs in.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from actorgrid.actors.security.oidc_tokens import (
    SignedInPerson,
    TokenRules,
    check_extra,
    check_token,
    read_header,
    read_keys,
)
from actorgrid.actors.security.provider_keys import ProviderKeys
from actorgrid.actors.security.token_rate_limit import Rate, TokenRateLimit
from actorgrid.errors import ActorGridError, HostUnreachable, NotFound, WrongToken

if TYPE_CHECKING:
    from actorgrid.configs.oidc_section import OidcSection

    from .server.application import GatewayApp

TRIES_OF_ONE, TRIES_IN_ALL = Rate(10.0, 0.5), Rate(50.0, 10.0)
"""Tokens of the provider that are looked at, good ones too: of one address of another machine, and in all."""
FETCH_WAIT_S: Final = 10.0
"""Two more than the provider has (``ANSWER_S``): names are looked up, and the resolver has a time of its own."""


class SignIns:
    """What the door keeps of an identity provider. In the loop's thread."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._keys = ProviderKeys()
        self._fetch: asyncio.Task[None] | None = None
        self._tries = TokenRateLimit("tokens of an identity provider", TRIES_OF_ONE, TRIES_IN_ALL)
        self._has_extra = False

    @property
    def settings(self) -> OidcSection:
        """The provider's settings. Raises NotFound where there is none."""
        settings = self._app.settings.oidc
        if not settings.issuer:
            raise NotFound(
                "nobody signs in here by an identity provider",
                asked="oidc.issuer",
                found="not set on this host",
                hint="an administrator sets it (docs/oidc.md), or makes a key: actorgrid key create",
            )
        return settings

    async def person_of(self, token: str, nonce: str, source: str) -> SignedInPerson:
        """Who shows *token*. *source*: his address, if of another machine.

        Raises WrongToken, NotAllowed, Overloaded, HostUnreachable (the provider's keys cannot be had), NotSupported
        (the extra is missing).
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        self._tries.check(source, loop.time())
        self._tries.count(source, loop.time())
        if not self._has_extra:
            await self._app.in_pool(check_extra)
            self._has_extra = True
        rules = rules_of(settings)
        header = read_header(token, rules)
        key = self._keys.find(header, loop.time())
        if key is None:
            if self._fetching or self._keys.may_fetch(loop.time()):
                await self._fetched(settings)
            key = self._keys.find(header, loop.time())
        if key is None:
            raise WrongToken(
                "the token is signed with a key that the identity provider does not have",
                asked=f"kid {ascii(header.key_id)[:80]}, {header.algorithm}",
                found=rules.issuer[:200],
                hint=f"its keys are asked for again in {self._keys.wait_s(loop.time()):.0f} s at the earliest",
            )
        return check_token(token, header, key, rules, time.time(), nonce)

    @property
    def _fetching(self) -> bool:
        return self._fetch is not None and not self._fetch.done()

    async def _fetched(self, settings: OidcSection) -> None:
        """Wait for the provider's keys; all who want them share one fetch."""
        if not self._fetching:
            self._fetch = asyncio.create_task(self._ask(settings.issuer, settings.ca_file))
        assert self._fetch is not None
        try:
            # Shielded: were the first to ask cancelled, the others would lose what they share.
            await asyncio.wait_for(asyncio.shield(self._fetch), FETCH_WAIT_S)
        except TimeoutError:
            raise HostUnreachable(
                "the identity provider gives no answer in time", asked=settings.issuer[:200]
            ) from None

    async def _ask(self, issuer: str, ca_file: str) -> None:
        from actorgrid.identity_provider import fetch_keys  # with http.client, which a door does without

        loop = asyncio.get_running_loop()
        try:
            told = await self._app.in_pool(lambda: read_keys(fetch_keys(issuer, ca_file)))
        except ActorGridError as error:
            self._keys.failed(error, loop.time())
            raise
        self._keys.fetched(told, loop.time())


def rules_of(settings: OidcSection) -> TokenRules:
    """What the settings ask of a token."""
    return TokenRules(
        issuer=settings.issuer,
        client_id=settings.client_id,
        audience=settings.audience or settings.client_id,
        token=settings.token,
        algorithms=tuple(settings.algorithms),
        user_claim=settings.user_claim,
        user_domain=settings.user_domain,
        groups_claim=settings.groups_claim,
        skew_s=settings.skew_s,
        age_s=settings.token_age_s,
    )
