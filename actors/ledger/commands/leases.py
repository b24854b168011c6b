"""Commands of the ledger about leases of sessions."""

from dataclasses import field
from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import ABSENT, Absent, Env, Id, Indexes, Isolation, Plain, Text, Whole, is_table, refused
from ..record_checks import check_resources
from ..record_types import ResourcesRecord
from ..records import UNKNOWN_USER


@verb("grant_lease", Proposer.LEADER, new_work=True)
class GrantLease(Command):
    """Give a client's session a worker with these devices."""

    lease_id: Id
    session_id: Text
    host: Text
    incarnation: Whole
    gpu_indexes: Indexes
    resources: Annotated[ResourcesRecord, is_table]
    term: Whole
    pool: Text | None = None
    env: Env = field(default_factory=dict)
    user_id: Text = UNKNOWN_USER
    max_isolation_s: Isolation | Absent = ABSENT

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the resources: a session's worker is one process."""
        check_resources(plain["resources"])
        if "gang" in plain["resources"]:
            raise refused("a session's worker is one process", found=f"gang={plain['resources']['gang']}")


@verb("release_lease", Proposer.ITS_WORK)
class ReleaseLease(Command):
    """Free a session's allocation; one that is gone is no error."""

    lease_id: Text
