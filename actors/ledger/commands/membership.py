"""Commands of the ledger about membership: the secret that gossip is sealed with, and who cannot be reached."""

from dataclasses import field
from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import Date, Id, Plain, Texts, Whole, is_text, refused

MEMBERSHIP_SINCE = 4
"""The version of the ledger that all members have to know before a cluster has a secret of its members."""
SECRET_HEX = 64
WITNESSES_MAX = 16


@verb("rotate_gossip_key", Proposer.LEADER, since=MEMBERSHIP_SINCE)
class RotateGossipKey(Command):
    """Give the members their next secret: 32 random bytes in hex, never derived from one before.

    Whoever shows a command to people leaves it out (``Command.shown``).
    """

    number: Whole
    term: Whole
    secret: Annotated[str, is_text] = field(repr=False)

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the secret's form; a refusal does not repeat it."""
        secret = plain["secret"]
        if len(secret) != SECRET_HEX or not set(secret) <= set("0123456789abcdef"):
            raise refused("rotate_gossip_key: field 'secret' is wrong", found=f"{len(secret)} characters")


@verb("mark_unreachable", Proposer.LEADER, since=MEMBERSHIP_SINCE)
class MarkUnreachable(Command):
    """Record that these *witnesses* did not reach a host, each by itself; without any, that it is reached again.

    A host that is marked gets nothing new. What it has goes on: only leases end it (``LoseHost``).
    """

    host: Id
    incarnation: Whole
    unreachable_since: Date
    witnesses: Texts
    term: Whole

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check that the witnesses are some hosts, none twice."""
        witnesses = plain["witnesses"]
        if len(witnesses) > WITNESSES_MAX or len(set(witnesses)) != len(witnesses):
            raise refused(
                "mark_unreachable: field 'witnesses' is wrong", found=f"{len(witnesses)}, {len(set(witnesses))} of them"
            )
