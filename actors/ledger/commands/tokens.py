"""Commands of the ledger about join tokens and API keys."""

from typing import Annotated

from ..command import Command, Proposer, verb, version_of
from ..credential_records import ApiKeyRecord, JoinTokenRecord
from ..field_checks import ABSENT, Absent, Env, Id, Plain, Since, Text, Truth, Whole, is_number, is_table
from ..record_checks import api_key_version, check_api_key, check_join_token

ROLES_SINCE = 10
"""The version from which API keys have roles and tenants."""


@verb("create_join_token", Proposer.VOTER, new_work=True)
class CreateJoinToken(Command):
    """Create a join token; *token* is the record of ``ledger/join_tokens.py``, which holds no secret."""

    token: Annotated[JoinTokenRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the token's record."""
        check_join_token(plain["token"])


@verb("revoke_join_token", Proposer.DOOR)
class RevokeJoinToken(Command):
    """Revoke a join token: it lets nobody in any more."""

    token_id: Text


@verb("redeem_join_token", Proposer.VOTER)
class RedeemJoinToken(Command):
    """Use a token, and with that let its holder in as a member: one entry, so that neither is without the other.

    The same host with the same key gets the same answer again.
    """

    token_id: Text
    host_id: Id
    addresses: Env
    fingerprint: Text
    rack: Text | None = None
    version: Text = ""
    votes: Truth | Absent = ABSENT
    ledger_version: Whole | Absent = ABSENT


@verb("create_api_key", Proposer.VOTER, new_work=True)
class CreateApiKey(Command):
    """Create an API key, good on every host; *key* is the record of ``ledger/api_keys.py``, which holds no secret.

    *retire_at* is there where the key has a name: until then the good key of that name goes on, whose place it takes;
    ``None``: there is to be none.
    """

    key: Annotated[ApiKeyRecord, is_table]
    retire_at: Annotated[float, is_number, Since(ROLES_SINCE)] | Absent | None = ABSENT

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields, those of its key included."""
        named = () if self.retire_at is ABSENT else ("retire_at",)
        return max(version_of(CreateApiKey, named), api_key_version(self.key))

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the key's record."""
        check_api_key(plain["key"], plain["v"])


@verb("revoke_api_key", Proposer.DOOR)
class RevokeApiKey(Command):
    """Revoke an API key: it opens nothing any more."""

    key_id: Text
    by: Text = ""
