"""The API keys that the cluster knows. What a key is, and when it opens, is in ``ledger/api_keys.py``; here are the
records, which hold no secret.

Bounds: 1,000 keys; at that, those that open nothing any more make room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.entry import Entry, applies
from actorgrid.actors.ledger.record_types import ApiKeyRecord
from actorgrid.errors import WrongState

from ..api_keys import revoke_key

API_KEYS_MAX = 1_000

Plain = dict[str, Any]


class ApiKeys:
    """*changed* is told of each that is new, other or gone: its id, its record or ``None``, and a word."""

    def __init__(self, changed: Callable[[str, ApiKeyRecord | None, str], None]) -> None:
        self.records: dict[str, ApiKeyRecord] = {}
        self._changed = changed

    @applies(CreateApiKey)
    def create(self, command: CreateApiKey, entry: Entry) -> Plain:
        """Keep a new one. Raises WrongState for an id that is taken, or at the bound."""
        record = cast("ApiKeyRecord", command.key)
        if record["id"] in self.records:
            raise WrongState("there is an API key of that id already", asked=record["id"])
        over = [id for id, key in self.records.items() if key["revoked_at"] is not None or key["expires_at"] < entry.at]
        if len(self.records) >= API_KEYS_MAX and not over:
            raise WrongState(
                "the ledger holds its maximum of API keys",
                found=f"{API_KEYS_MAX}, all good",
                hint="revoke some: actorgrid key list",
            )
        if len(self.records) >= API_KEYS_MAX:
            for id in over:
                del self.records[id]
                self._changed(id, None, "forgotten")
        self._put(record, "created")
        return {"id": record["id"], "expires_at": record["expires_at"]}

    @applies(RevokeApiKey)
    def revoke(self, command: RevokeApiKey, entry: Entry) -> Plain:
        """Take one back; a second time changes nothing. Raises NotFound."""
        record = revoke_key(self.records.get(command.key_id), entry.at)
        if record is not self.records[record["id"]]:
            self._put(record, "revoked")
        return {"id": record["id"], "revoked_at": record["revoked_at"]}

    def load(self, records: list[ApiKeyRecord]) -> None:
        """Become what a snapshot held; for a new, empty object."""
        self.records.update((record["id"], record) for record in records)

    def _put(self, record: ApiKeyRecord, word: str) -> None:
        self.records[record["id"]] = record
        self._changed(record["id"], record, word)
