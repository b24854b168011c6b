"""API keys: what opens the HTTP door of every host of the cluster, for whom and how far; and who one is by them."""

from __future__ import annotations

import os
from time import time
from typing import Any, cast

from actorgrid.access import (
    ALL_TENANTS,
    DEFAULT_TENANT,
    Right,
    Role,
    check_tenant,
    check_user_name,
    in_tenant,
    may_grant,
)
from actorgrid.actors.gateway.schemas.keys import (
    KeyMade,
    KeyRequest,
    KeyRevoked,
    KeysAnswer,
    RotateRequest,
    SelfAnswer,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.api_keys import ID_BYTES, SECRET_BYTES, identity_of, make_key
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.credential_records import ApiKeyRecord, ModelKeyRecord
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.messages import Query
from actorgrid.errors import BadRequest, NotAllowed, NotFound, WrongState

ROUTES = RouteTable(Route)

_SHOWN = ("id", "user_id", "roles", "made_by", "made_at", "expires_at", "revoked_at")
_OF_ONE_KEY = ("id", "sha256", "made_by", "made_at", "expires_at", "revoked_at", "last")
"""What a key that takes another's place has of its own; the rest goes on to it."""


@ROUTES.add("GET", "/api/me", SelfAnswer, "keys", Right.SEE_SELF, unlimited=True)
async def get_me(call: RequestContext) -> Any:
    """Who asks: user, role and tenant of the token that was shown, and what that may do."""
    who = call.who
    rights: dict[str, str | None] = {}
    for right in Right:
        scope = who.scope(right)
        rights[right.name.lower()] = (
            None if scope is None else "own" if scope.user is not None else "all" if scope.is_all else "tenant"
        )
    return {
        "name": who.name,
        "user_id": who.user,
        "role": who.role,
        "tenant": who.tenant,
        "key_id": who.key_id,
        "work_id": who.work_id,
        "rights": rights,
    }


@ROUTES.add("GET", "/api/keys", KeysAnswer, "keys", Right.LIST_KEYS)
async def get_api_keys(call: RequestContext) -> Any:
    """API keys: whose they are, what they may, who made them.

    Those in reach that are remembered; none with its secret, which nobody has but who made it.
    """
    records = (await call.ask("consensus", Query("api_keys"), 10.0))["api_keys"]
    return {"keys": [_view(record) for record in records if _in_reach(call, record)]}


@ROUTES.add("POST", "/api/keys", KeyMade, "keys", Right.MAKE_KEYS, request=KeyRequest, errors=(WrongState,))
async def post_api_key(call: RequestContext) -> Any:
    """Make an API key; its text is in this answer and nowhere else."""
    wanted, now_s = call.body_as(KeyRequest), time()
    if wanted.serving is not None:
        if wanted.role not in (None, Role.USER):
            raise BadRequest("a key for models has the role user", asked=wanted.role.value if wanted.role else "")
        wanted = wanted.model_copy(update={"role": Role.USER})
    role, tenant = _binding(call, wanted)
    user = wanted.user_id
    if tenant is not None:
        check_user_name(user)
        user = in_tenant(user, tenant)
    text, record = make_key(
        os.urandom(ID_BYTES),
        os.urandom(SECRET_BYTES),
        user,
        call.caller,
        now_s,
        wanted.ttl_s,
        role=role,
        tenant=tenant,
        name=wanted.name,
    )
    if wanted.serving is not None:
        record["serving"] = cast("ModelKeyRecord", wanted.serving.model_dump())
    await call.propose(CreateApiKey(record, retire_at=None if wanted.name else ABSENT, at=now_s))
    return key_made(call, text, record)


@ROUTES.add(
    "POST",
    "/api/keys/{name}/rotate",
    KeyMade,
    "keys",
    Right.MAKE_KEYS,
    request=RotateRequest,
    errors=(NotFound, WrongState),
)
async def rotate_api_key(call: RequestContext) -> Any:
    """Make another API key of the same name, for the same; the one before is good for a while beside it."""
    wanted, name, now_s = call.body_as(RotateRequest), call.part("name"), time()
    records: list[ApiKeyRecord] = (await call.ask("consensus", Query("api_keys"), 10.0))["api_keys"]
    same = [
        record
        for record in records
        if record.get("name") == name
        and _in_reach(call, record)
        and wanted.tenant in (None, record["tenant"])
        and record["revoked_at"] is None
        and now_s < record["expires_at"]
    ]
    if not same:
        raise NotFound(f"no good API key is called {name[:64]}", asked=name[:64], hint="actorgrid key list")
    if len({record["tenant"] for record in same}) > 1:
        found = ", ".join(sorted({record["tenant"] for record in same}))
        raise BadRequest("several tenants have a key of that name", asked=name, found=found, hint="--tenant says whose")
    before = same[-1]
    text, record = make_key(
        os.urandom(ID_BYTES),
        os.urandom(SECRET_BYTES),
        before["user_id"],
        call.caller,
        now_s,
        wanted.ttl_s,
        role=Role(before["roles"][0]),
        tenant=before["tenant"],
        name=name,
    )
    record = {**before, **{field: record[field] for field in _OF_ONE_KEY}}  # type: ignore[literal-required,typeddict-item]
    retire_at = now_s + wanted.overlap_s
    await call.propose(CreateApiKey(record, retire_at=retire_at, at=now_s))
    return {**key_made(call, text, record), "retires": [each["id"] for each in same], "retire_at": retire_at}


@ROUTES.add("DELETE", "/api/keys/{id}", KeyRevoked, "keys", Right.REVOKE_KEYS, errors=(NotFound,), unlimited=True)
async def delete_api_key(call: RequestContext) -> Any:
    """Take an API key back: it opens nothing any more."""
    key_id = call.part("id")
    if not call.scope.is_all:
        record = call.app.ledger.api_keys.get(key_id)
        if record is None or not _in_reach(call, record):
            raise NotFound("no API key of that id", hint="list them with: actorgrid key list")
    return await call.propose(RevokeApiKey(key_id, call.caller, at=time()))


def _binding(call: RequestContext, wanted: KeyRequest) -> tuple[Role, str | None]:
    """The role and tenant that are asked for; without a tenant it is a key as hosts of before know them.

    Raises BadRequest, and NotAllowed for more than whoever asks may give.
    """
    if wanted.role is None and wanted.tenant is None and not wanted.name and call.who.is_cluster_admin:
        return Role.ADMIN, None
    if wanted.role is None and not (call.who.is_cluster_admin and wanted.tenant in (None, ALL_TENANTS)):
        raise BadRequest("which role is the key to have?", found=", ".join(Role), hint="actorgrid key roles")
    if wanted.role is None:
        return Role.ADMIN, ALL_TENANTS
    tenant = wanted.tenant
    if tenant is None:
        tenant = DEFAULT_TENANT if call.who.tenant == ALL_TENANTS else call.who.tenant
    if tenant != ALL_TENANTS:
        check_tenant(tenant)
    if not may_grant(call.who, tenant):
        raise NotAllowed(
            "nobody gives a role where he has none",
            asked=f"{wanted.role.value} of tenant {tenant}",
            found=f"{call.caller}: {call.who.role.value} of tenant {call.who.tenant}",
            hint="an administrator of all tenants may",
        )
    return wanted.role, tenant


def _in_reach(call: RequestContext, record: ApiKeyRecord) -> bool:
    """Whether a key may be seen and taken back: by its user, or in its tenant. One of all tenants is in no tenant."""
    if call.scope.is_all:
        return True
    return record.get("tenant", ALL_TENANTS) == call.who.tenant and call.scope.covers(record["user_id"])


def _view(record: ApiKeyRecord) -> dict[str, Any]:
    who = identity_of({**record, "revoked_at": None})
    return {
        **{name: record[name] for name in _SHOWN},  # type: ignore[literal-required]
        "role": Role.VIEWER if who is None else who.role,
        "tenant": record.get("tenant", ALL_TENANTS),
        "name": record.get("name", ""),
        "last": record.get("last", ""),
        "serving": record.get("serving"),
    }


def key_made(call: RequestContext, text: str, record: ApiKeyRecord) -> dict[str, Any]:
    """The answer with a new key's text."""
    return {
        **_view(record),
        "key": text,
        "url": call.app.url,
        "ca_fingerprint": call.app.authority,
        "retires": [],
        "retire_at": None,
    }
