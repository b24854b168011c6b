"""Secrets as requests set them and answers list them: no answer has a value."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from actorgrid.access import TENANT_MAX
from actorgrid.models import AnswerBody, RequestBody
from actorgrid.secret_words import SECRET_BYTES_MAX


def _count_no_characters(schema: dict[str, Any]) -> None:
    """Take out limits that are of bytes, where a schema would have them of base64's characters."""
    for name in ("minLength", "maxLength"):
        schema.pop(name, None)


class SecretRequest(RequestBody):
    """A secret's value, and who may use it."""

    value: bytes = Field(
        min_length=1,
        max_length=SECRET_BYTES_MAX,
        repr=False,
        description=f"base64 in JSON, of at most {SECRET_BYTES_MAX} bytes",
        json_schema_extra=_count_no_characters,
    )
    shared: bool = Field(default=False, description="all users of the tenant may give it to their work")
    user_id: str = Field(
        default="local", min_length=1, max_length=128, description="whose; counts from an administrator of all tenants"
    )


class SecretTenantQuery(RequestBody):
    """Which tenant's, for those who reach several."""

    tenant: str | None = Field(default=None, max_length=TENANT_MAX, description="else default, or one's own")


class SecretView(AnswerBody):
    """A secret, without its value."""

    name: str
    tenant: str
    user_id: str
    shared: bool
    set_at: float
    set_by: str


class SecretsAnswer(AnswerBody):
    """Secrets in reach, by tenant and name."""

    secrets: list[SecretView]


class SecretChanged(AnswerBody):
    """The secret that was set or removed."""

    name: str
    tenant: str
