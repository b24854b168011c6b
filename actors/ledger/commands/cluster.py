"""Commands of the ledger about the cluster as a whole: leaderships, digests, settings, quotas."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import Env, Plain, SettingKey, Text, User, Value, Whole, is_table
from ..record_checks import check_limits
from ..record_types import QuotaRecord


@verb("new_term", Proposer.LEADER)
class NewTerm(Command):
    """Begin a new leadership; *epoch* only when the ledger was recovered from a backup or a single survivor."""

    term: Whole
    epoch: Whole | None = None


@verb("compare_digest", Proposer.LEADER)
class CompareDigest(Command):
    """Compare states: *digest* is the leader's at *index*, by kind of record. A voter with another one stops."""

    index: Whole
    digest: Env
    format: Whole


@verb("set_setting", Proposer.DOOR)
class SetSetting(Command):
    """Keep a setting's value over the files' one; ``None`` gives the files their say again."""

    key: SettingKey
    value: Value
    by: Text = ""


@verb("set_quota", Proposer.DOOR)
class SetQuota(Command):
    """Hold a user to *limits* (``*``: everyone without a quota of one's own); ``None`` removes the quota.

    A limit that is not named, or ``None``, is none. Lowering one stops nobody.
    """

    user: User
    limits: Annotated[QuotaRecord, is_table] | None
    by: Text = ""

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check that the limits are known ones."""
        if plain["limits"] is not None:
            check_limits(plain["limits"])
