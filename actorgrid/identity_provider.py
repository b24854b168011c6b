"""What is asked of an identity provider (OpenID Connect): its discovery document, its keys, its token endpoint.

Plain ``http.client``, for a thread or the command line. One request has a time for all of it, an answer has a bound,
TLS is verified (HTTP goes to this machine alone), and no redirect is followed: one would lead to where nobody said.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from actorgrid.errors import BadRequest, HostUnreachable

from .bounded_http import bounded_link, is_here, request_path, tls_context

ANSWER_S = 8.0
"""For one answer, or several that are asked for together (``Deadline``)."""
ANSWER_BYTES_MAX = 512 * 1024
URL_MAX = 2048
ADDRESSES_MAX = 4
_DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """What the provider said: a JSON object."""

    status: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """Where the provider is asked for what, as its discovery document says (OpenID Connect Discovery 1.0, 3)."""

    issuer: str
    jwks_uri: str
    token_endpoint: str
    device_authorization_endpoint: str
    """Empty: it has no device flow (RFC 8628)."""


def read_endpoint(url: str) -> SplitResult:
    """The parts of an address of the provider. Raises BadRequest: it is https, or http on this machine."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    good = parts.scheme == "https" or (parts.scheme == "http" and is_here(parts.hostname or ""))
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= URL_MAX
    if not (good and plain and parts.hostname and port != 0) or parts.username is not None or parts.fragment:
        raise BadRequest(
            "not the address of an identity provider",
            asked=ascii(url)[:200],
            found="https://HOST[:PORT][/PATH]; http:// on this machine alone",
        )
    return parts


def discover(issuer: str, ca_file: str = "", deadline_s: float | None = None) -> IdentityProvider:
    """Ask *issuer* where it is asked for what. Raises HostUnreachable, also for what fits no provider of that name."""
    answer = ask_provider(issuer.rstrip("/") + _DISCOVERY, ca_file=ca_file, deadline_s=deadline_s)
    if answer.status != 200:
        raise unusable(issuer, f"status {answer.status} for {_DISCOVERY}")
    told = answer.body
    if told.get("issuer") != issuer:
        raise unusable(issuer, f"it calls itself {ascii(told.get('issuer'))[:200]}", "oidc.issuer is to be just that")
    found = {}
    for name in ("jwks_uri", "token_endpoint", "device_authorization_endpoint"):
        text = told.get(name, "" if name.startswith("device") else None)
        try:
            if not isinstance(text, str):
                raise BadRequest("missing")
            if text:
                endpoint = read_endpoint(text)
                if endpoint.scheme != "https" and issuer.startswith("https:"):
                    raise BadRequest("not https")
        except BadRequest:
            raise unusable(issuer, f"{name} is {ascii(text)[:200]}") from None
        found[name] = text
    return IdentityProvider(issuer, **found)


def fetch_keys(issuer: str, ca_file: str = "") -> list[Any]:
    """The provider's keys (RFC 7517, 5), as it has them: nothing is checked yet. Raises HostUnreachable."""
    deadline_s = monotonic() + ANSWER_S
    provider = discover(issuer, ca_file, deadline_s)
    answer = ask_provider(provider.jwks_uri, ca_file=ca_file, deadline_s=deadline_s)
    keys = answer.body.get("keys")
    if answer.status != 200 or not isinstance(keys, list):
        raise unusable(issuer, f"status {answer.status} and no list of keys at {provider.jwks_uri}"[:300])
    return keys


def ask_provider(
    url: str, *, form: Mapping[str, str] | None = None, ca_file: str = "", deadline_s: float | None = None
) -> ProviderAnswer:
    """GET *url*, or POST a *form*. *deadline_s*: until when, by ``monotonic()``; else 8 s from now.

    Raises HostUnreachable where there is no answer, one that is no JSON object, or a redirect.
    """
    parts = read_endpoint(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    deadline_s = monotonic() + ANSWER_S if deadline_s is None else deadline_s
    context = tls_context(ca_file) if secure else None
    where = f"{parts.scheme}://{parts.netloc}"
    failure = "the name has no address"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unusable(where, f"the name leads nowhere: {getattr(error, 'strerror', None) or error}") from None
    for *_, address in found[:ADDRESSES_MAX]:
        try:
            with socket.create_connection(address[:2], max(0.1, deadline_s - monotonic())) as sock:  # type: ignore[arg-type]
                return _exchange(sock, parts, context, form, deadline_s)
        except ssl.SSLCertVerificationError as error:
            raise unusable(where, f"it cannot be trusted: {error.verify_message}", "oidc.ca_file, --ca") from None
        except (OSError, http.client.HTTPException) as error:
            failure = str(error)[:200] or type(error).__name__
            if monotonic() >= deadline_s:
                failure = "no answer in time"
                break
    raise unusable(where, failure)


def unusable(who: str, found: str, hint: str = "") -> HostUnreachable:
    """The error for a provider that does not answer, or not as one."""
    return HostUnreachable("the identity provider gives no answer of use", asked=who[:200], found=found, hint=hint)


def _exchange(
    plain: socket.socket,
    parts: SplitResult,
    context: ssl.SSLContext | None,
    form: Mapping[str, str] | None,
    deadline_s: float,
) -> ProviderAnswer:
    # An answer that was not read to its end keeps the socket open: it is closed first.
    with bounded_link(plain, parts, context, deadline_s) as link, contextlib.ExitStack() as opened:
        headers = {"Host": parts.netloc, "Accept": "application/json", "User-Agent": "actorgrid", "Connection": "close"}
        path = request_path(parts)
        if form is None:
            link.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            link.request("POST", path, urlencode(form), headers)
        answer = opened.enter_context(contextlib.closing(link.getresponse()))
        where = f"{parts.scheme}://{parts.netloc}"
        if 300 <= answer.status < 400:
            raise unusable(where, f"it redirects ({answer.status}), which is not followed")
        data = answer.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            raise unusable(where, f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if monotonic() >= deadline_s:
            raise unusable(where, "no answer in time")
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise unusable(where, f"status {answer.status} and no JSON object")
        return ProviderAnswer(answer.status, body)
