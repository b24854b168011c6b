"""The cluster's authority and the certificates of its hosts."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.gateway.schemas.trust import (
    RenewalAsked,
    RenewalRequest,
    RotationBegun,
    RotationRequest,
    TrustAnswer,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route
from actorgrid.actors.security.messages import RenewCertificate, RotateAuthority, ShowTrust
from actorgrid.errors import WrongState

COMMIT_TIMEOUT_S = 35.0


async def get_trust(call: RequestContext) -> Any:
    """The authorities, who has their keys, what each member carries."""
    return await _ask(call, ShowTrust())


async def post_rotation(call: RequestContext) -> Any:
    """Begin a rotation, or call one off."""
    return await _ask(call, RotateAuthority(call.body_as(RotationRequest).call_off))


async def post_renewal(call: RequestContext) -> Any:
    """Have this host renew its certificate."""
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


ROUTES = (
    Route(
        "GET",
        "/api/ca",
        "The cluster's authority: fingerprint, who has its key, certificates of members",
        get_trust,
        TrustAnswer,
        "trust",
        errors=(WrongState,),
    ),
    Route(
        "POST",
        "/api/ca/rotate",
        "Introduce the next authority; the rest of the rotation follows by itself",
        post_rotation,
        RotationBegun,
        "trust",
        request=RotationRequest,
        errors=(WrongState,),
    ),
    Route(
        "POST",
        "/api/ca/renew",
        "Have this host ask for a new certificate now",
        post_renewal,
        RenewalAsked,
        "trust",
        request=RenewalRequest,
        errors=(WrongState,),
    ),
)
