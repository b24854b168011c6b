"""API keys: what opens the HTTP door of every host of the cluster."""

from __future__ import annotations

import os
from time import time
from typing import Any

from actorgrid.actors.gateway.schemas.answers import KeyMade, KeyRequest, KeyRevoked, KeysAnswer
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.api_keys import ID_BYTES, SECRET_BYTES, make_key
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.messages import Query
from actorgrid.errors import NotFound, WrongState

ROUTES = RouteTable(Route)

_SHOWN = ("id", "user_id", "roles", "made_by", "made_at", "expires_at", "revoked_at")


@ROUTES.add("GET", "/api/keys", KeysAnswer, "keys")
async def get_api_keys(call: RequestContext) -> Any:
    """API keys: whose they are, who made them.

    All that are remembered; none with its secret, which nobody has but who made it.
    """
    records = (await call.ask("consensus", Query("api_keys"), 10.0))["api_keys"]
    return {"keys": [{name: record[name] for name in _SHOWN} for record in records]}


@ROUTES.add("POST", "/api/keys", KeyMade, "keys", request=KeyRequest, errors=(WrongState,))
async def post_api_key(call: RequestContext) -> Any:
    """Make an API key; its text is in this answer and nowhere else."""
    wanted, now_s = call.body_as(KeyRequest), time()
    text, record = make_key(
        os.urandom(ID_BYTES), os.urandom(SECRET_BYTES), wanted.user_id, call.caller, now_s, wanted.ttl_s
    )
    await call.propose(CreateApiKey(record, at=now_s))
    app = call.app
    return {
        "key": text,
        "id": record["id"],
        "user_id": record["user_id"],
        "expires_at": record["expires_at"],
        "url": app.url,
        "ca_fingerprint": app.authority,
    }


@ROUTES.add("DELETE", "/api/keys/{id}", KeyRevoked, "keys", errors=(NotFound,))
async def delete_api_key(call: RequestContext) -> Any:
    """Take an API key back: it opens nothing any more."""
    return await call.propose(RevokeApiKey(call.part("id"), call.caller, at=time()))
