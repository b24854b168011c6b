"""The API keys that the cluster knows. What a key is, and when it opens, is in ``ledger/api_keys.py``; here are the
records, which hold no secret.

Bounds: 1,000 keys; at that, those that open nothing any more make room.
"""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.access import ALL_TENANTS
from actorgrid.actors.ledger.answers import CredentialAnswer, RevokeAnswer
from actorgrid.actors.ledger.commands import CreateApiKey, RevokeApiKey
from actorgrid.actors.ledger.credential_records import ApiKeyRecord
from actorgrid.actors.ledger.entry import EntryContext, applies

from ..api_keys import check_rotation, revoke_key
from ..field_checks import ABSENT
from .credentials import CredentialTable

API_KEYS_MAX = 1_000


class ApiKeys(CredentialTable[ApiKeyRecord]):
    """The API keys' records by id. See CredentialTable for *changed*."""

    def __init__(
        self,
        changed: Callable[[str, ApiKeyRecord | None, str], None],
        check_tenant: Callable[[str], None] = lambda _tenant: None,
    ) -> None:
        self._check_tenant = check_tenant
        super().__init__(changed, API_KEYS_MAX, "API key", "all good", "revoke some: actorgrid key list")

    @applies(CreateApiKey)
    def create(self, command: CreateApiKey, entry: EntryContext) -> CredentialAnswer:
        """Add a key. Raises WrongState for an id that is taken, at the bound, for a name that a good key has, and where
        one is to be rotated that has been already, or its tenant was removed; NotFound where there is none to rotate.
        """
        self._check_tenant(command.key.get("tenant", ALL_TENANTS))
        retire_at, same = command.retire_at, list[ApiKeyRecord]()
        if retire_at is not ABSENT:
            same = self._good(command.key, entry.at)
            check_rotation(same, command.key, retire_at is not None)
        over = [id for id, key in self.records.items() if key["revoked_at"] is not None or key["expires_at"] < entry.at]
        answer = self._add(command.key, over)
        if isinstance(retire_at, int | float):
            for key in same:
                if key["expires_at"] > retire_at:
                    self._put({**key, "expires_at": retire_at}, "rotated")
        return answer

    def revoke_of(self, tenant: str, at: float) -> None:
        """Revoke all keys of *tenant*."""
        for record in list(self.records.values()):
            if record.get("tenant") == tenant:
                self._revoked(revoke_key(record, at))

    def _good(self, like: ApiKeyRecord, at: float) -> list[ApiKeyRecord]:
        """The keys that are called as *like* is, in its tenant, and open something at that time."""
        return [
            key
            for key in self.records.values()
            if key.get("name") == like.get("name")
            and key.get("tenant") == like.get("tenant")
            and key["revoked_at"] is None
            and at < key["expires_at"]
        ]

    @applies(RevokeApiKey)
    def revoke(self, command: RevokeApiKey, entry: EntryContext) -> RevokeAnswer:
        """Revoke a key; a second time changes nothing. Raises NotFound."""
        return self._revoked(revoke_key(self.records.get(command.key_id), entry.at))
