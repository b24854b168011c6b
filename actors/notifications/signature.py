"""Signatures of webhooks, as Standard Webhooks 1.0 has them: HMAC-SHA256 of id, time and body, by a shared key.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

PREFIX = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX = 24, 64


def key_bytes(text: str) -> bytes:
    """The key of a text ``whsec_BASE64``, of 24 to 64 bytes. Raises ValueError."""
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"a signing key is {PREFIX} and base64 of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes")
    return key


def signed_headers(message_id: str, sent_at: int, body: bytes, keys: Iterable[str]) -> dict[str, str]:
    """The headers of a webhook; without keys it is not signed. Of several keys each signs: one is being replaced."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(sent_at)}
    signed = f"{message_id}.{sent_at}.".encode() + body
    signatures = [hmac.new(key_bytes(key), signed, hashlib.sha256).digest() for key in keys]
    if signatures:
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(each).decode()}" for each in signatures)
    return headers
