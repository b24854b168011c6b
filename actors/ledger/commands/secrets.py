"""Commands of the ledger about secrets: set, sealed to other keys, removed. None holds a value that is open."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import Env, Number, Plain, Text, is_table
from ..secret_records import SecretRecord, check_boxes, check_secret

SECRETS_SINCE = 10
"""The version from which there are secrets."""


@verb("set_secret", Proposer.DOOR, since=SECRETS_SINCE, new_work=True)
class SetSecret(Command):
    """Set a secret, or set it anew; the value is sealed before it comes here."""

    secret: Annotated[SecretRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the secret's record."""
        check_secret(plain["secret"])


@verb("reseal_secret", Proposer.VOTER, since=SECRETS_SINCE)
class ResealSecret(Command):
    """Seal a secret to the keys there are now; nothing where it was set anew meanwhile (*set_at*)."""

    tenant: Text
    name: Text
    set_at: Number
    boxes: Env

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the sealed values."""
        check_boxes(plain["boxes"])


@verb("remove_secret", Proposer.DOOR, since=SECRETS_SINCE)
class RemoveSecret(Command):
    """Forget a secret."""

    tenant: Text
    name: Text
