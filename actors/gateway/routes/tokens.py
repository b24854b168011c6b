"""Join tokens: what lets further hosts into the cluster."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.answers import TokenMade, TokenRequest, TokenRevoked, TokensAnswer
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.security.messages import MakeJoinToken, TakeBackJoinToken
from actorgrid.errors import BadRequest, UnknownJoinToken, WrongState

ROUTES = RouteTable(Route)

COMMIT_TIMEOUT_S = 35.0
_SHOWN = ("id", "made_by", "made_at", "expires_at", "uses_max", "used_by", "revoked_at")


@ROUTES.add("GET", "/api/tokens", TokensAnswer, "tokens", Right.MANAGE_TRUST)
async def get_tokens(call: RequestContext) -> Any:
    """Join tokens: who made them, who used them.

    All that are remembered; none with its secret, which nobody has but who made it.
    """
    records = (await call.ask("consensus", Query("join_tokens"), 10.0))["join_tokens"]
    return {"tokens": [{name: record[name] for name in _SHOWN} for record in records]}


@ROUTES.add(
    "POST",
    "/api/tokens",
    TokenMade,
    "tokens",
    Right.MANAGE_TRUST,
    request=TokenRequest,
    errors=(BadRequest, WrongState),
)
async def post_token(call: RequestContext) -> Any:
    """Make a join token; its text is in this answer and nowhere else."""
    if call.app.host.enrolment is None:
        raise WrongState(
            "this host is alone, so no other can join it",
            asked="a join token",
            found="no cluster",
            hint="begin one: start it with actorgrid up --listen ADDRESS",
        )
    wanted = call.body_as(TokenRequest)
    return await call.ask("join_server", MakeJoinToken(wanted.ttl_s, wanted.uses, by="http"), COMMIT_TIMEOUT_S)


@ROUTES.add("DELETE", "/api/tokens/{id}", TokenRevoked, "tokens", Right.MANAGE_TRUST, errors=(UnknownJoinToken,))
async def delete_token(call: RequestContext) -> Any:
    """Take a join token back: it lets nobody in any more."""
    token_id = call.part("id")
    if call.app.host.enrolment is None:
        raise UnknownJoinToken("no join token of that id", asked=token_id, found="a host that is alone has none")
    return await call.ask("join_server", TakeBackJoinToken(token_id), COMMIT_TIMEOUT_S)
