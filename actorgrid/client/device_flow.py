"""The device flow (RFC 8628): a person signs in with a browser anywhere, and a program without one gets the token.

Bounds: it waits at most half an hour, between two questions 0.1 to 60 s, and longer each time the provider asks for it
or does not answer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import BadRequest, CallTimeout, HostUnreachable, NotAllowed, NotFound
from actorgrid.identity_provider import IdentityProvider, ask_provider, read_endpoint, unusable

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
WAIT_MAX_S = 1800.0
PAUSE_S, PAUSE_LEAST_S, PAUSE_MAX_S = 5.0, 0.1, 60.0
SLOWER_S = 5.0
"""What ``slow_down`` adds to the pause (3.5)."""
CODE_MAX = 2048


@dataclass(frozen=True, slots=True)
class DevicePrompt:
    """What the person is shown: where to go, and what to type there."""

    url: str
    code: str
    url_with_code: str
    """Empty, or an address where the code need not be typed."""
    expires_s: float


def device_token(
    provider: IdentityProvider,
    client_id: str,
    scopes: str,
    kind: str,
    show: Callable[[DevicePrompt], None],
    *,
    ca_file: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, str]:
    """The token of that *kind* (``id_token``, ``access_token``) that the provider gives to whoever signs in, and the
    nonce that it was asked for with.

    Raises NotFound (the provider has no device flow), NotAllowed (the person, or the provider, said no), CallTimeout,
    HostUnreachable.
    """
    if not provider.device_authorization_endpoint:
        raise NotFound(
            "the identity provider has no device flow (RFC 8628)",
            asked=provider.issuer,
            hint="an administrator may have to turn it on there, for this client",
        )
    nonce = secrets.token_urlsafe(24)
    form = {"client_id": client_id, "scope": scopes, "nonce": nonce}
    answer = ask_provider(provider.device_authorization_endpoint, form=form, ca_file=ca_file)
    if answer.status != 200:
        raise _refused(provider, answer.body)
    code = answer.body.get("device_code")
    prompt = _prompt(provider, answer.body)
    if not isinstance(code, str) or not 0 < len(code) <= CODE_MAX:
        raise unusable(provider.issuer, "no device_code")
    show(prompt)
    pause_s = _number(answer.body.get("interval"), PAUSE_S, PAUSE_LEAST_S, PAUSE_MAX_S)
    deadline_s = time.monotonic() + prompt.expires_s
    form = {"grant_type": GRANT, "device_code": code, "client_id": client_id}
    while True:
        sleep(pause_s)
        if time.monotonic() >= deadline_s:
            raise _too_late()
        try:
            answer = ask_provider(provider.token_endpoint, form=form, ca_file=ca_file)
        except HostUnreachable:
            pause_s = min(2 * pause_s, PAUSE_MAX_S)  # 3.5: back off, and go on until the code is over
            continue
        if answer.status == 200:
            token = answer.body.get(kind)
            if not isinstance(token, str) or not token:
                raise unusable(provider.issuer, f"no {kind}", "oidc.scopes has to name openid for an id_token")
            return token, nonce
        error = answer.body.get("error")
        if error == "slow_down":
            pause_s = min(pause_s + SLOWER_S, PAUSE_MAX_S)
        elif error == "expired_token":
            raise _too_late()
        elif error != "authorization_pending" and answer.status < 500:
            raise _refused(provider, answer.body)


def _prompt(provider: IdentityProvider, told: dict[str, Any]) -> DevicePrompt:
    url, code = told.get("verification_uri", told.get("verification_url")), told.get("user_code")
    whole = told.get("verification_uri_complete", "")
    try:
        for each in (url, whole) if whole else (url,):
            if not isinstance(each, str):
                raise BadRequest("missing")
            read_endpoint(each)
    except BadRequest:
        raise unusable(provider.issuer, f"verification_uri is {ascii(url)[:200]}") from None
    if not isinstance(code, str) or not 0 < len(code) <= 64 or not code.isprintable():
        raise unusable(provider.issuer, f"user_code is {ascii(code)[:80]}")
    return DevicePrompt(str(url), code, whole, _number(told.get("expires_in"), WAIT_MAX_S, 1.0, WAIT_MAX_S))


def _number(value: Any, otherwise: float, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return otherwise
    return float(min(max(value, least), most))


def _too_late() -> CallTimeout:
    return CallTimeout("nobody has signed in while the code was good", hint="once more: actorgrid login")


def _refused(provider: IdentityProvider, told: dict[str, Any]) -> NotAllowed:
    said = f"{told.get('error')}: {told.get('error_description', '')}"
    return NotAllowed("the identity provider refuses", asked=provider.issuer, found=ascii(said)[1:-1][:300])
