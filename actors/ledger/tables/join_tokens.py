"""The join tokens that the cluster knows: made, taken back, and used, with which a host becomes a member.

What a token is, and when it still counts, is in ``ledger/join_tokens.py``; here are the records. They hold no secret.
A use and the member that comes of it are one entry, so there is never one without the other.

Bounds: 1,000 tokens; at that, those whose time is over make room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from actorgrid.actors.ledger.commands import CreateJoinToken, RedeemJoinToken, RevokeJoinToken
from actorgrid.actors.ledger.entry import Entry, applies
from actorgrid.actors.ledger.record_types import JoinTokenRecord
from actorgrid.errors import WrongState

from ..join_tokens import redeem, revoke_token
from .members import Members

JOIN_TOKENS_MAX = 1_000

Plain = dict[str, Any]


class JoinTokens:
    """*changed* is told of each that is new, other or gone: its id, its record or ``None``, and a word."""

    def __init__(self, members: Members, changed: Callable[[str, JoinTokenRecord | None, str], None]) -> None:
        self.records: dict[str, JoinTokenRecord] = {}
        self._members = members
        self._changed = changed

    @applies(CreateJoinToken)
    def create(self, command: CreateJoinToken, entry: Entry) -> Plain:
        """Keep a new one. Raises WrongState for an id that is taken, on a host without a cluster, or at the bound."""
        record = cast("JoinTokenRecord", command.token)
        if record["cluster_id"] != self._members.cluster_id:
            raise WrongState(
                "the join token is not for this cluster",
                asked=record["cluster_id"],
                found=self._members.cluster_id or "a host that is alone",
                hint="a cluster begins with: actorgrid up --listen ADDRESS",
            )
        if record["id"] in self.records:
            raise WrongState("there is a join token of that id already", asked=record["id"])
        over = [id for id, known in self.records.items() if known["expires_at"] < entry.at]
        if len(self.records) >= JOIN_TOKENS_MAX and not over:
            raise WrongState(
                "the ledger holds its maximum of join tokens",
                found=f"{JOIN_TOKENS_MAX}, all in their time",
                hint="make one for several hosts: actorgrid token create --uses N",
            )
        if len(self.records) >= JOIN_TOKENS_MAX:
            for id in over:
                del self.records[id]
                self._changed(id, None, "forgotten")
        self._put(record, "created")
        return {"id": record["id"], "expires_at": record["expires_at"]}

    @applies(RevokeJoinToken)
    def revoke(self, command: RevokeJoinToken, entry: Entry) -> Plain:
        """Take one back; a second time changes nothing. Raises UnknownJoinToken."""
        record = revoke_token(self.records.get(command.token_id), entry.at)
        if record is not self.records[record["id"]]:
            self._put(record, "revoked")
        return {"id": record["id"], "revoked_at": record["revoked_at"]}

    @applies(RedeemJoinToken)
    def redeem(self, command: RedeemJoinToken, entry: Entry) -> Plain:
        """Use one, and let the host in; gives its node number.

        Raises what ``security.join_tokens.redeem`` does, and WrongState as ``Members.admit``.
        """
        record = redeem(
            self.records.get(command.token_id),
            self._members.cluster_id,
            command.host_id,
            command.fingerprint,
            entry.at,
        )
        answer = self._members.admit(replace(command, votes="voter" in record["roles"]), entry)
        if record is not self.records[record["id"]]:
            self._put(record, "used")
        return answer

    def load(self, records: list[JoinTokenRecord]) -> None:
        """Become what a snapshot held; for a new, empty object."""
        self.records.update((record["id"], record) for record in records)

    def _put(self, record: JoinTokenRecord, word: str) -> None:
        self.records[record["id"]] = record
        self._changed(record["id"], record, word)
