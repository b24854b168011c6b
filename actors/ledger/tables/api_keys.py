"""The API keys that the cluster knows. What a key is, and when it opens, is in ``ledger/api_keys.py``; here are the
records, which hold no secret.

Bounds: 1,000 keys; at that, those that open nothing any more make room.
"""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.actors.ledger.answers import CredentialAnswer, RevokeAnswer
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.record_types import ApiKeyRecord

from ..api_keys import revoke_key
from .credentials import CredentialTable

API_KEYS_MAX = 1_000


class ApiKeys(CredentialTable[ApiKeyRecord]):
    """The API keys' records by id. See CredentialTable for *changed*."""

    def __init__(self, changed: Callable[[str, ApiKeyRecord | None, str], None]) -> None:
        super().__init__(changed, API_KEYS_MAX, "API key", "all good", "revoke some: actorgrid key list")

    @applies(CreateApiKey)
    def create(self, command: CreateApiKey, entry: EntryContext) -> CredentialAnswer:
        """Add a key. Raises WrongState for an id that is taken, or at the bound."""
        over = [id for id, key in self.records.items() if key["revoked_at"] is not None or key["expires_at"] < entry.at]
        return self._add(command.key, over)

    @applies(RevokeApiKey)
    def revoke(self, command: RevokeApiKey, entry: EntryContext) -> RevokeAnswer:
        """Revoke a key; a second time changes nothing. Raises NotFound."""
        return self._revoked(revoke_key(self.records.get(command.key_id), entry.at))
