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

from actorgrid.access import ALL_TENANTS, Identity, Role
from actorgrid.actors.ledger.credential_records import ApiKeyRecord
from actorgrid.errors import BadRequest, NotFound, WrongState

from .command import VERSION
from .record_checks import KEY_LAST, check_api_key

PREFIX = "agk1"
ID_BYTES, SECRET_BYTES = 5, 30
TTL_MIN_S, TTL_DEFAULT_S, TTL_MAX_S = 60.0, 30 * 86_400.0, 3650 * 86_400.0
_LABEL = b"actorgrid api key 1\0"


def make_key(
    key_id: bytes,
    secret: bytes,
    user_id: str,
    made_by: str,
    at: float,
    ttl_s: float = TTL_DEFAULT_S,
    *,
    role: Role = Role.ADMIN,
    tenant: str | None = None,
    name: str = "",
) -> tuple[str, ApiKeyRecord]:
    """A key's text, and the record of it for the ledger. *key_id* and *secret*: 5 and 30 random bytes.

    It opens doors until *ttl_s* seconds after *at* (seconds since the epoch), with its *role* in its *tenant*; without
    a tenant it is one that hosts of before know, an administrator's of all. Raises BadRequest for a time that cannot
    be.
    """
    assert len(key_id) == ID_BYTES and len(secret) == SECRET_BYTES
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        raise BadRequest(
            "an API key lives between a minute and ten years",
            asked=f"{ttl_s:g} s",
            found=f"{TTL_MIN_S:g} to {TTL_MAX_S:g} s",
        )
    id = _write(key_id)
    text = f"{PREFIX}.{id}.{_write(secret)}"
    record: ApiKeyRecord = {
        "id": id,
        "sha256": hash_of(text),
        "user_id": user_id,
        "roles": [role.value],
        "made_by": made_by,
        "made_at": at,
        "expires_at": at + ttl_s,
        "revoked_at": None,
    }
    if tenant is not None:
        record |= {"tenant": tenant, "last": text[-KEY_LAST:]}
    if name:
        record["name"] = name
    return text, record


def identity_of(record: ApiKeyRecord) -> Identity | None:
    """Who shows the key that *record* is about. One of before there were roles is an administrator's.

    ``None``: nobody. An entry of a lower version may hold anything in the place of a role.
    """
    name = f"{record['user_id']} (key {record['id']})"
    if "tenant" not in record:
        return Identity(name, record["user_id"], Role.ADMIN, ALL_TENANTS, record["id"])
    try:
        check_api_key(record, VERSION)
    except BadRequest:
        return None
    return Identity(name, record["user_id"], Role(record["roles"][0]), record["tenant"], record["id"])


def key_id_of(text: str) -> str | None:
    """The id in a text that may be a key; ``None`` for one that cannot be."""
    parts = text.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX and len(text) < 100 else None


def opens(record: ApiKeyRecord | None, text: str, now_s: float) -> bool:
    """Whether *text* is the key that *record* is about, and still good at *now_s*. Takes the same time for all."""
    right = hmac.compare_digest(hash_of(text), record["sha256"] if record is not None else hash_of(""))
    return right and record is not None and record["revoked_at"] is None and now_s < record["expires_at"]


def revoke_key(record: ApiKeyRecord | None, at: float) -> ApiKeyRecord:
    """The record of the key once it is revoked and opens nothing any more. Raises NotFound."""
    if record is None:
        raise NotFound("no API key of that id", hint="list them with: actorgrid key list")
    return record if record["revoked_at"] is not None else {**record, "revoked_at": at}


def check_rotation(same: list[ApiKeyRecord], key: ApiKeyRecord, rotates: bool) -> None:
    """Whether *key* may be made beside *same*, the good keys of its name. Raises NotFound, WrongState."""
    name = key.get("name", "")
    if rotates and not same:
        raise NotFound(
            f"no good API key is called {name}",
            asked=name,
            hint="actorgrid key list shows names; make one with actorgrid key create --name",
        )
    if rotates and len(same) > 1:
        raise WrongState(
            f"two API keys are called {name} already",
            asked=name,
            found=", ".join(each["id"] for each in same),
            hint="take the older one back first: actorgrid key revoke ID",
        )
    if same and not rotates:
        raise WrongState(
            f"an API key is called {name} already",
            asked=name,
            found=same[0]["id"],
            hint="take another name, or: actorgrid key rotate NAME",
        )


def hash_of(text: str) -> str:
    """What the ledger keeps of a key's text."""
    return hashlib.sha256(_LABEL + text.encode("utf-8", "replace")).hexdigest()


def _write(data: bytes) -> str:
    return base64.b32encode(data).decode("ascii").lower()
