"""Commands of the ledger about who belongs to the cluster."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import ABSENT, Absent, Env, Id, Since, Site, Text, Truth, Whole


@verb("found_cluster", Proposer.LEADER)
class FoundCluster(Command):
    """Make the ledger a cluster's, with the host it lies on as its first member."""

    cluster_id: Id
    host_id: Id
    addresses: Env
    fingerprint: Text


@verb("add_member", Proposer.LEADER)
class AddMember(Command):
    """Let a host in; the answer names its node. *addresses* by what listens there: raft, calls, join."""

    host_id: Id
    addresses: Env
    fingerprint: Text
    rack: Text | None = None
    version: Text = ""
    votes: Truth | Absent = ABSENT
    ledger_version: Whole | Absent = ABSENT


@verb("change_member", Proposer.ITSELF)
class ChangeMember(Command):
    """Change a member's record: its addresses, software, site, one more certificate, whether it may vote."""

    host_id: Id
    addresses: Env | Absent = ABSENT
    fingerprint: Text | Absent = ABSENT
    rack: Text | Absent | None = ABSENT
    version: Text | Absent = ABSENT
    votes: Truth | Absent = ABSENT
    ledger_version: Whole | Absent = ABSENT
    site: Annotated[Site, Since(4)] | Absent = ABSENT


@verb("remove_member", Proposer.LEADER)
class RemoveMember(Command):
    """Remove a member, which never returns under this node number. *force*: also when it has work, which is
    lost then."""

    host_id: Id
    by: Text = ""
    force: Truth = False
