"""The join tokens that the cluster knows: made, taken back, and used, with which a host becomes a member.

What a token is, and when it still counts, is in ``ledger/join_tokens.py``; here are the records. They hold no secret.
A use and the member that comes of it are one entry, so there is never one without the other.

Bounds: 1,000 tokens; at that, those whose time is over make room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from actorgrid.actors.ledger.answers import CredentialAnswer, MemberAnswer, RevokeAnswer
from actorgrid.actors.ledger.commands import CreateJoinToken, RedeemJoinToken, RevokeJoinToken
from actorgrid.actors.ledger.credential_records import JoinTokenRecord
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.errors import WrongState

from ..join_tokens import redeem, revoke_token
from .credentials import CredentialTable
from .members import Members

JOIN_TOKENS_MAX = 1_000


class JoinTokens(CredentialTable[JoinTokenRecord]):
    """The join tokens' records by id. See CredentialTable for *changed*."""

    def __init__(self, members: Members, changed: Callable[[str, JoinTokenRecord | None, str], None]) -> None:
        hint = "make one for several hosts: actorgrid token create --uses N"
        super().__init__(changed, JOIN_TOKENS_MAX, "join token", "all in their time", hint)
        self._members = members

    @applies(CreateJoinToken)
    def create(self, command: CreateJoinToken, entry: EntryContext) -> CredentialAnswer:
        """Add a token. Raises WrongState for an id that is taken, on a host without a cluster, or at the bound."""
        record = command.token
        if record["cluster_id"] != self._members.cluster_id:
            raise WrongState(
                "the join token is not for this cluster",
                asked=record["cluster_id"],
                found=self._members.cluster_id or "a host that is alone",
                hint="a cluster begins with: actorgrid up --listen ADDRESS",
            )
        return self._add(record, [id for id, known in self.records.items() if known["expires_at"] < entry.at])

    @applies(RevokeJoinToken)
    def revoke(self, command: RevokeJoinToken, entry: EntryContext) -> RevokeAnswer:
        """Revoke a token; a second time changes nothing. Raises UnknownJoinToken."""
        return self._revoked(revoke_token(self.records.get(command.token_id), entry.at))

    @applies(RedeemJoinToken)
    def redeem(self, command: RedeemJoinToken, entry: EntryContext) -> MemberAnswer:
        """Use a token and let the host in; gives its node number.

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
