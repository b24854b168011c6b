"""API keys: what opens the HTTP door of every host of a cluster, how one is written, and what the ledger keeps of it.

    agk1.ID.SECRET

ID names the record in the ledger, SECRET is 240 random bits; both in base 32. The ledger keeps a hash of the secret.
A plain one will do: nobody guesses 240 bits, so there is nothing that a slow hash would protect.

Records are JSON values; :func:`revoke_key` is pure, for the ledger's ``apply``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from actorgrid.actors.ledger.record_types import ApiKeyRecord
from actorgrid.errors import BadRequest, NotFound

PREFIX = "agk1"
ID_BYTES, SECRET_BYTES = 5, 30
TTL_MIN_S, TTL_DEFAULT_S, TTL_MAX_S = 60.0, 30 * 86_400.0, 3650 * 86_400.0
ROLES = ("admin",)
_LABEL = b"actorgrid api key 1\0"


def make_key(
    key_id: bytes, secret: bytes, user_id: str, made_by: str, at: float, ttl_s: float = TTL_DEFAULT_S
) -> tuple[str, ApiKeyRecord]:
    """A key's text, and the record of it for the ledger. *key_id* and *secret*: 5 and 30 random bytes.

    It opens doors until *ttl_s* seconds after *at* (seconds since the epoch). Raises BadRequest for a time that cannot
    be.
    """
    assert len(key_id) == ID_BYTES and len(secret) == SECRET_BYTES
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        raise BadRequest(
            "an API key lives between a minute and ten years",
            asked=f"{ttl_s:g} s",
            found=f"{TTL_MIN_S:g} to {TTL_MAX_S:g} s",
        )
    name = _write(key_id)
    text = f"{PREFIX}.{name}.{_write(secret)}"
    record: ApiKeyRecord = {
        "id": name,
        "sha256": _hash(text),
        "user_id": user_id,
        "roles": list(ROLES),
        "made_by": made_by,
        "made_at": at,
        "expires_at": at + ttl_s,
        "revoked_at": None,
    }
    return text, record


def key_id_of(text: str) -> str | None:
    """The id in a text that may be a key; ``None`` for one that cannot be."""
    parts = text.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX and len(text) < 100 else None


def opens(record: ApiKeyRecord | None, text: str, now_s: float) -> bool:
    """Whether *text* is the key that *record* is about, and still good at *now_s*. Takes the same time for all."""
    right = hmac.compare_digest(_hash(text), record["sha256"] if record is not None else _hash(""))
    return right and record is not None and record["revoked_at"] is None and now_s < record["expires_at"]


def revoke_key(record: ApiKeyRecord | None, at: float) -> ApiKeyRecord:
    """The record of the key once it is revoked and opens nothing any more. Raises NotFound."""
    if record is None:
        raise NotFound("no API key of that id", hint="list them with: actorgrid key list")
    return record if record["revoked_at"] is not None else {**record, "revoked_at": at}


def _hash(text: str) -> str:
    return hashlib.sha256(_LABEL + text.encode("utf-8", "replace")).hexdigest()


def _write(data: bytes) -> str:
    return base64.b32encode(data).decode("ascii").lower()
