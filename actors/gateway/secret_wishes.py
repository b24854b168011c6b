"""Whether work that is asked for may have the secrets that it names. Decided again when they are released."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from actorgrid.errors import NotFound
from actorgrid.models import TaskRequest
from actorgrid.secret_words import wish_of

from ..ledger.messages import Query
from ..ledger.query_answers import SecretRecords
from ..ledger.secret_records import secrets_for

if TYPE_CHECKING:
    from .server.route import RequestContext


async def check_wishes(call: RequestContext, requests: Iterable[TaskRequest]) -> None:
    """Raises NotFound for a secret that is not there, or not for the user of the work: that is the same."""
    wished: dict[str, dict[str, None]] = {}
    for request in requests:
        if request.secrets:
            wished.setdefault(request.user_id, {}).update((wish_of(text)[0], None) for text in request.secrets)
    if not wished:
        return
    found: SecretRecords = await call.ask("consensus", Query("secrets"), 10.0)
    for user, names in wished.items():
        for name, record in secrets_for(found["secrets"], user, names).items():
            if record is None:
                raise NotFound(
                    f"{user} has no secret {name}",
                    asked=name,
                    hint="actorgrid secret list shows which there are, actorgrid secret set makes one",
                )
