"""What the tables of API keys and join tokens have in common: records that are made, end at a time, and are revoked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from actorgrid.actors.ledger.answers import CredentialAnswer, RevokeAnswer
from actorgrid.actors.ledger.credential_records import ApiKeyRecord, JoinTokenRecord
from actorgrid.errors import WrongState

R = TypeVar("R", ApiKeyRecord, JoinTokenRecord)


class CredentialTable(Generic[R]):
    """Records by their ids, at most *records_max*; at that, those that are over make room.

    *changed* is told of each that is new, other or gone: its id, its record or ``None``, and a word. *noun*, *full* and
    *hint* are what a refusal says: "API key", what they all are at the bound, and what to do then.
    """

    def __init__(
        self, changed: Callable[[str, R | None, str], None], records_max: int, noun: str, full: str, hint: str
    ) -> None:
        self.records: dict[str, R] = {}
        self._changed: Callable[[str, R | None, str], None] = changed
        self._records_max = records_max
        self._noun, self._full, self._hint = noun, full, hint

    def load(self, records: list[R]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((record["id"], record) for record in records)

    def _add(self, record: R, over: list[str]) -> CredentialAnswer:
        """Add a record; *over*: the ids that may go. Raises WrongState for an id that is taken, or at the bound."""
        if record["id"] in self.records:
            article = "an" if self._noun[0] in "Aa" else "a"
            raise WrongState(f"there is {article} {self._noun} of that id already", asked=record["id"])
        if len(self.records) >= self._records_max:
            if not over:
                raise WrongState(
                    f"the ledger holds its maximum of {self._noun}s",
                    found=f"{self._records_max}, {self._full}",
                    hint=self._hint,
                )
            # All of them, in the order they came: every host's ledger, of whatever version, has to forget the same.
            for id in over:
                del self.records[id]
                self._changed(id, None, "forgotten")
        self._put(record, "created")
        return {"id": record["id"], "expires_at": record["expires_at"]}

    def _revoked(self, record: R) -> RevokeAnswer:
        """Replace a record by its revoked form; a second time it is the same object, and nothing changes."""
        if record is not self.records[record["id"]]:
            self._put(record, "revoked")
        return {"id": record["id"], "revoked_at": record["revoked_at"]}

    def _put(self, record: R, word: str) -> None:
        self.records[record["id"]] = record
        self._changed(record["id"], record, word)
