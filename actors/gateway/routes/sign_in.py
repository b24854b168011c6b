"""Signing in by an identity provider: what it is, and an API key for a token of its. Both without a token of ours."""

from __future__ import annotations

import os
from time import time
from typing import Any

from actorgrid.access import ALL_TENANTS, DEFAULT_TENANT, Identity, Right, Role, check_user_name, in_tenant
from actorgrid.actors.gateway.routes.keys import key_made
from actorgrid.actors.gateway.schemas.keys import KeyMade
from actorgrid.actors.gateway.schemas.sign_in import SignInOffer, SignInRequest
from actorgrid.actors.gateway.server.auth import ADMIN, is_here
from actorgrid.actors.gateway.server.route import REQUEST_STATE, RequestContext, Route, RouteTable
from actorgrid.actors.ledger.api_keys import ID_BYTES, SECRET_BYTES, make_key
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.credential_records import ApiKeyRecord
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.records import UNKNOWN_USER
from actorgrid.actors.security.oidc_tokens import SignedInPerson, key_id_for
from actorgrid.errors import (
    BadRequest,
    HostUnreachable,
    NotAllowed,
    NotFound,
    NotSupported,
    WrongState,
    WrongToken,
)
from actorgrid.group_bindings import choose_binding, read_binding

ROUTES = RouteTable(Route)
MADE_BY = "oidc "
"""How the maker of such a key begins; then comes who it is to the provider (``sub``)."""
KEYS_OF_ONE = 4
"""Good keys of one user by signing in; one more takes the oldest back, as the ledger keeps 1,000 of all."""


@ROUTES.add("GET", "/login/oidc", SignInOffer, "keys", Right.SIGN_IN, errors=(NotFound,), token=False)
async def get_sign_in(call: RequestContext) -> Any:
    """By which identity provider one signs in."""
    settings = call.app.sign_ins.settings
    return {name: getattr(settings, name) for name in SignInOffer.model_fields}


@ROUTES.add(
    "POST",
    "/login/oidc",
    KeyMade,
    "keys",
    Right.SIGN_IN,
    request=SignInRequest,
    errors=(NotFound, NotSupported, HostUnreachable, WrongState),
    token=False,
)
async def post_sign_in(call: RequestContext) -> Any:
    """Sign in: an API key for the identity provider's token, which is good for one.

    Its role and tenant are those that the settings give to one of the person's groups; its text is in this answer and
    nowhere else.
    """
    wanted, app, state = call.body_as(SignInRequest), call.app, REQUEST_STATE.get()
    source = "" if is_here(state.address) else str(state.address)
    person = await app.sign_ins.person_of(wanted.token, wanted.nonce, source)
    # Who asked stands in the audit log, also of a refusal: as the provider's, since there is no user of ours yet.
    stranger = f"{MADE_BY}{person.subject}".replace("@", " at ")[:128]
    state.who = Identity(stranger, stranger, Role.VIEWER, "")
    settings, now_s = app.sign_ins.settings, time()
    binding = choose_binding(map(read_binding, settings.groups), person.groups, wanted.tenant, wanted.role)
    user = user_of(person, binding.tenant, settings.user_claim)
    text, record = make_key(
        key_id_for(wanted.token, ID_BYTES),
        os.urandom(SECRET_BYTES),
        user,
        f"{MADE_BY}{person.subject}"[:128],
        now_s,
        min(wanted.ttl_s or settings.key_ttl_s, settings.key_ttl_s),
        role=binding.role,
        tenant=binding.tenant,
    )
    records: list[ApiKeyRecord] = (await call.ask("consensus", Query("api_keys"), 10.0))["api_keys"]
    if any(each["id"] == record["id"] for each in records):
        raise WrongToken("a key was given for that token already", asked=record["id"], hint="sign in again")
    await call.propose(CreateApiKey(record, at=now_s))
    state.who = Identity(user, user, binding.role, binding.tenant, record["id"])
    for key_id in older_keys(records, user, now_s):
        await call.propose(RevokeApiKey(key_id, user, at=now_s))
    return key_made(call, text, record)


def user_of(person: SignedInPerson, tenant: str, claim: str) -> str:
    """The whole name of who signed in. Raises NotAllowed for a name that is none here, or the host's own."""
    try:
        check_user_name(person.user)
    except BadRequest as error:
        raise NotAllowed(
            "your name at the identity provider is none here",
            asked=f"the claim {claim}: {ascii(person.user)[:100]}",
            found=error.found,
            hint="oidc.user_claim names another claim; oidc.user_domain takes @DOMAIN off",
        ) from None
    if tenant in (DEFAULT_TENANT, ALL_TENANTS) and person.user in (ADMIN, UNKNOWN_USER):
        raise NotAllowed("that name is the host's own", asked=person.user, hint="oidc.user_claim names another claim")
    return in_tenant(person.user, tenant)


def older_keys(records: list[ApiKeyRecord], user: str, now_s: float) -> list[str]:
    """The ids of *user*'s keys by signing in that a further one takes the place of: the oldest."""
    good = [
        each
        for each in records
        if each["user_id"] == user
        and each["made_by"].startswith(MADE_BY)
        and each["revoked_at"] is None
        and now_s < each["expires_at"]
    ]
    good.sort(key=lambda each: each["made_at"])
    return [each["id"] for each in good[: max(0, len(good) + 1 - KEYS_OF_ONE)]]
