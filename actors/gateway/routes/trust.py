"""The cluster's authority and the certificates of its hosts."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.trust import (
    RenewalAsked,
    RenewalRequest,
    RotationBegun,
    RotationRequest,
    TrustAnswer,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.security.messages import RenewCertificate, RotateAuthority, ShowTrust
from actorgrid.errors import WrongState

ROUTES = RouteTable(Route)

COMMIT_TIMEOUT_S = 35.0


@ROUTES.add("GET", "/api/ca", TrustAnswer, "trust", Right.MANAGE_TRUST, errors=(WrongState,))
async def get_trust(call: RequestContext) -> Any:
    """The cluster's authority: fingerprint, who has its key, certificates of members."""
    return await _ask(call, ShowTrust())


@ROUTES.add(
    "POST", "/api/ca/rotate", RotationBegun, "trust", Right.MANAGE_TRUST, request=RotationRequest, errors=(WrongState,)
)
async def post_rotation(call: RequestContext) -> Any:
    """Introduce the next authority; the rest of the rotation follows by itself.

    Or call one off.
    """
    return await _ask(call, RotateAuthority(call.body_as(RotationRequest).call_off))


@ROUTES.add(
    "POST", "/api/ca/renew", RenewalAsked, "trust", Right.MANAGE_TRUST, request=RenewalRequest, errors=(WrongState,)
)
async def post_renewal(call: RequestContext) -> Any:
    """Have this host ask for a new certificate now."""
    return await _ask(call, RenewCertificate(call.body_as(RenewalRequest).new_key))


async def _ask(call: RequestContext, request: Any) -> Any:
    if call.app.host.enrolment is None:
        raise WrongState(
            "this host is alone, so it has no authority",
            asked="the cluster's trust",
            found="no cluster",
            hint="begin one: start it with actorgrid up --listen ADDRESS",
        )
    return await call.ask("join_server", request, COMMIT_TIMEOUT_S)
