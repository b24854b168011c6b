"""Commands of the ledger about join tokens and API keys."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import ABSENT, Absent, Env, Id, Plain, Text, Truth, Whole, is_table
from ..record_checks import check_api_key, check_join_token
from ..record_types import ApiKeyRecord, JoinTokenRecord


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
    """Create an API key, good on every host; *key* is the record of ``ledger/api_keys.py``, which holds no secret."""

    key: Annotated[ApiKeyRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the key's record."""
        check_api_key(plain["key"])


@verb("revoke_api_key", Proposer.DOOR)
class RevokeApiKey(Command):
    """Revoke an API key: it opens nothing any more."""

    key_id: Text
    by: Text = ""
