"""Sends one webhook: one POST to an address that was looked at, over verified TLS, in a limited time. For a thread.

Redirects are not followed: one would lead around what the address was looked at for.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from time import monotonic, time
from urllib.parse import urlsplit

from actorgrid.bounded_http import bounded_link, request_path

from .allowed_addresses import IpAddress, IpNetwork, is_allowed, refusal
from .deliveries import SendResult
from .destinations import Destination
from .name_lookup import look_up
from .outgoing import OutgoingMessage, one_line
from .signature import signed_headers

ANSWER_BYTES_MAX = 500
"""Of what a receiver says why it refuses; more is not read."""
AGAIN = (408, 425, 429)
"""Statuses below 500 that say: later."""
ADDRESSES_MAX = 4


def send_webhook(
    message: OutgoingMessage,
    destination: Destination,
    allowed: Sequence[IpNetwork],
    ca_file: str,
    timeout_s: float,
) -> SendResult:
    """POST *message*. *allowed* and https hold for addresses that users named. Never raises."""
    parts = urlsplit(destination.url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    deadline = monotonic() + timeout_s
    try:
        found = look_up(host, port, timeout_s)
    except (OSError, UnicodeError) as error:
        return SendResult(f"the name {host} leads nowhere: {getattr(error, 'strerror', None) or error}")
    addresses = list(dict.fromkeys(_address(each[4]) for each in found))
    if not destination.trusted:
        for address in addresses:  # all of them: a name of a good and a bad address is not asked which it means
            refused = refusal(address, allowed)
            if refused:
                return SendResult(f"{host}: {refused}", final=True)
        if parts.scheme != "https" and not all(is_allowed(address, allowed) for address in addresses):
            return SendResult(f"{host}: over the public internet only https is spoken", final=True)
    context = None
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except OSError as error:
            return SendResult(f"notifications.ca_file cannot be used: {error}")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    failure = "it has no address"
    for address in addresses[:ADDRESSES_MAX]:
        try:
            with socket.create_connection((str(address), port), max(0.1, deadline - monotonic())) as sock:
                return _post(sock, host, context, message, destination, deadline)
        except ssl.SSLCertVerificationError as error:
            return SendResult(f"{host} cannot be trusted: {error.verify_message}")
        except (OSError, http.client.HTTPException) as error:
            over = monotonic() >= deadline
            failure = f"no answer in {timeout_s:g} s" if over else one_line(str(error) or type(error).__name__)
            if over:
                break
    return SendResult(f"{host}: {failure}")


def _post(
    plain: socket.socket,
    host: str,
    context: ssl.SSLContext | None,
    message: OutgoingMessage,
    destination: Destination,
    deadline: float,
) -> SendResult:
    parts = urlsplit(destination.url)
    with bounded_link(plain, parts, context, deadline) as connection:
        body = message.body()
        headers = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "User-Agent": "actorgrid",
            "Connection": "close",
            **signed_headers(message.message_id, int(time()), body, destination.keys),
        }
        path = request_path(parts)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        status = answer.status
        said = b"" if 200 <= status < 300 else answer.read(ANSWER_BYTES_MAX)
        if 200 <= status < 300:
            return SendResult()
        if 300 <= status < 400:
            return SendResult(
                f"{host} redirects ({status}), which is not followed: write where it leads to", final=True
            )
        text = said.decode("utf-8", "replace")
        for secret in (path, parts.path, parts.query):  # many servers say in a refusal what they were asked for
            text = text.replace(secret, "...") if len(secret) > 1 else text
        text = one_line(text).strip()
        reason = f"{host} answers {status} {one_line(answer.reason)[:60]}" + (f": {text}" if text else "")
        return SendResult(reason[:480], status < 500 and status not in AGAIN, _pause(answer.getheader("Retry-After")))


def _pause(text: str | None) -> float:
    """The seconds that a receiver asks for; a date, which needs its clock, counts as nothing."""
    return float(text) if text and text.isascii() and text.isdigit() and len(text) <= 6 else 0.0


def _address(told: Sequence[object]) -> IpAddress:
    return ipaddress.ip_address(str(told[0]).partition("%")[0])
