"""Secrets: set, listed by name, removed. Their values go in and never come out here."""

from __future__ import annotations

from time import time
from typing import Any

from actorgrid.access import ALL_TENANTS, Right, Role, tenant_of
from actorgrid.actors.gateway.schemas.secrets import (
    SecretChanged,
    SecretRequest,
    SecretsAnswer,
    SecretTenantQuery,
)
from actorgrid.actors.gateway.server.rights import tenant_in_reach, user_for
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.commands import RemoveSecret, SetSecret
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import SecretRecords
from actorgrid.actors.ledger.secret_records import SecretRecord, secret_key
from actorgrid.errors import BadRequest, NotFound, QueueFull, WrongState
from actorgrid.secret_words import is_secret_name

ROUTES = RouteTable(Route)


@ROUTES.add("GET", "/api/secrets", SecretsAnswer, "secrets", Right.LIST_SECRETS)
async def get_secrets(call: RequestContext) -> Any:
    """Names of secrets, whose they are and when they were set.

    Those that one may use or remove; none with its value.
    """
    records = sorted(await _records(call), key=lambda each: (tenant_of(each["user_id"]), each["name"]))
    return {"secrets": [_view(record) for record in records if _in_reach(call, record)]}


@ROUTES.add(
    "PUT",
    "/api/secrets/{name}",
    SecretChanged,
    "secrets",
    Right.WRITE_SECRETS,
    request=SecretRequest,
    errors=(BadRequest, WrongState, QueueFull),
)
async def put_secret(call: RequestContext) -> Any:
    """Set a secret, or set it anew: attempts that begin from now on are given this value."""
    wanted, name = call.body_as(SecretRequest), call.part("name")
    if not is_secret_name(name):
        raise BadRequest(
            "not the name of a secret", asked=ascii(name)[:80], found="64 letters, digits, '_' and '-' at most"
        )
    from actorgrid.actors.security.secret_boxes import SecretBoxes  # cryptography: for those who have secrets

    user = user_for(call, wanted.user_id)
    host = call.app.host
    boxes = SecretBoxes(host.paths.security_dir, str(host.host_id))
    sealed = await call.app.in_pool(lambda: boxes.seal(wanted.value, user, name))
    now_s = time()
    secret: SecretRecord = {
        "name": name,
        "user_id": user,
        "shared": wanted.shared,
        "boxes": sealed,
        "set_at": now_s,
        "set_by": call.caller[:128],
    }
    return await call.propose(SetSecret(secret, at=now_s))


@ROUTES.add(
    "DELETE",
    "/api/secrets/{name}",
    SecretChanged,
    "secrets",
    Right.WRITE_SECRETS,
    query=SecretTenantQuery,
    errors=(NotFound,),
)
async def delete_secret(call: RequestContext) -> Any:
    """Forget a secret: what begins from now on is not given it."""
    name, tenant = call.part("name"), call.query_as(SecretTenantQuery).tenant
    if tenant is None:
        own = tenant_in_reach(call)
        tenant = tenant_of(call.who.user) if own == ALL_TENANTS else own
    records = {secret_key(tenant_of(each["user_id"]), each["name"]): each for each in await _records(call)}
    record = records.get(secret_key(tenant, name))
    if record is None or not call.scope.covers(record["user_id"]):
        raise NotFound("there is no such secret", asked=name[:100], hint="actorgrid secret list")
    return await call.propose(RemoveSecret(tenant, name, at=time()))


async def _records(call: RequestContext) -> list[SecretRecord]:
    found: SecretRecords = await call.ask("consensus", Query("secrets"), 10.0)
    return found["secrets"]


def _in_reach(call: RequestContext, record: SecretRecord) -> bool:
    """Whether it is one's own, or shared in one's tenant; operators and administrators see all of theirs."""
    if not call.scope.covers(record["user_id"]):
        return False
    return call.who.role is not Role.USER or record["shared"] or record["user_id"] == call.who.user


def _view(record: SecretRecord) -> dict[str, Any]:
    shown = {name: record[name] for name in ("name", "user_id", "shared", "set_at", "set_by")}
    return {**shown, "tenant": tenant_of(record["user_id"])}
