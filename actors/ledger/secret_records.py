"""What the ledger keeps of secrets: names, whose they are, and their values sealed. It has no key that opens one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from actorgrid.access import tenant_of
from actorgrid.secret_words import SECRET_BYTES_MAX, is_secret_name

from .field_checks import Check, check_fields, is_number, is_truth, is_user, refused

BOXES_MAX = 4
"""Keys that one value is sealed to: those of the authorities there are, and of a host that was alone before."""
BOX_CHARS_MAX = 2 * (SECRET_BYTES_MAX + 256)


class SecretRecord(TypedDict):
    """A secret."""

    name: str
    user_id: str
    """Whose it is; the tenant is in that name, and the secret's name is one of that tenant."""
    shared: bool
    """Whether all users of the tenant may give it to their work."""
    boxes: dict[str, str]
    """The value, sealed in hex, by the key that opens it: ``authority N`` or ``host ID``."""
    set_at: float
    """When it was set last, by the clock of the host that took it."""
    set_by: str
    """Who set it, as shown to people."""


def _are_boxes(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and 0 < len(value) <= BOXES_MAX
        and all(
            isinstance(key, str) and len(key) <= 100 and isinstance(text, str) and 0 < len(text) <= BOX_CHARS_MAX
            for key, text in value.items()
        )
    )


_SECRET: dict[str, Check] = {
    "name": is_secret_name,
    "user_id": is_user,
    "shared": is_truth,
    "boxes": _are_boxes,
    "set_at": is_number,
    "set_by": is_user,
}


def check_secret(secret: SecretRecord) -> None:
    """Raises BadRequest for what is no secret's record."""
    check_fields("secret", secret, _SECRET, {})
    if len(secret) != len(_SECRET):
        raise refused("a secret has no further fields", found=", ".join(sorted(set(secret) - set(_SECRET)))[:200])


def check_boxes(boxes: dict[str, str]) -> None:
    """Raises BadRequest for what is no sealed value."""
    if not _are_boxes(boxes):
        raise refused("boxes are sealed values by their keys", found=f"{len(boxes)} of them")


def secret_key(tenant: str, name: str) -> str:
    """The id of a secret in the ledger."""
    return f"{tenant}/{name}"


def key_of_secret(record: SecretRecord) -> str:
    """The id of the secret that *record* is of."""
    return secret_key(tenant_of(record["user_id"]), record["name"])


def is_for(record: SecretRecord, user: str) -> bool:
    """Whether work of *user* may be given the secret."""
    shared = record["shared"] and tenant_of(user) == tenant_of(record["user_id"])
    return shared or record["user_id"] == user


def secrets_for(records: Iterable[SecretRecord], user: str, names: Iterable[str]) -> dict[str, SecretRecord | None]:
    """Of *names*, the secrets that *user* may give to work; ``None`` where there is none, or not for that user."""
    known = {key_of_secret(each): each for each in records}
    found = {name: known.get(secret_key(tenant_of(user), name)) for name in names}
    return {name: each if each is not None and is_for(each, user) else None for name, each in found.items()}
