"""The hosts that belong to the cluster: who they are, where they listen, and the number each has among the voters.

Part of the replicated state, apart from Raft's own configuration: a host is a member from the moment its entry is
applied, and the leader then brings the configuration into line (``electorate_policy.py``). Numbers are given once and
never again, so a host that lost its data and joins anew is another node to Raft (Ongaro's dissertation, 11.2.1).

Bounds: 10,000 members, 8 certificates each; of those who were removed the last 1,000 are remembered.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import cast

from actorgrid.actors.ledger.answers import MemberAnswer
from actorgrid.actors.ledger.commands import AddMember, ChangeMember, FoundCluster, RedeemJoinToken, RemoveMember
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import ABSENT, Plain
from actorgrid.actors.ledger.record_types import MemberRecord, RemovedRecord
from actorgrid.errors import NotFound, WrongState

MEMBERS_MAX = 10_000
FINGERPRINTS_MAX = 8
_OF_ITS_OWN = ("addresses", "rack", "version", "ledger_version", "votes", "site")
"""What a member may say anew."""
REMOVED_MAX = 1_000


class Members:
    """*changed* is told of each member that is new, other or gone: the host's id, its record or ``None``, and a word.

    A record is {"host_id", "node", "addresses": {"raft", "calls", "join"}, "fingerprints", "rack", "version",
    "ledger_version", "votes", "joined_at"}, and "site" once it said one. ``votes``: whether it may become a voter.
    """

    def __init__(self, changed: Callable[[str, MemberRecord | None, str], None]) -> None:
        self.records: dict[str, MemberRecord] = {}
        self.removed: dict[str, RemovedRecord] = {}
        """Who is a member no more: {"node", "at", "by", "left"}; ``left``: in order, by its own will or as planned."""
        self.cluster_id = ""
        self.nodes_total = 0
        self._changed = changed

    @applies(FoundCluster)
    def found(self, command: FoundCluster, entry: EntryContext) -> MemberAnswer:
        """Make this ledger a cluster's, with its first member. Raises WrongState when it is one already."""
        if self.cluster_id:
            raise WrongState(
                "this ledger is a cluster's already", asked=command.cluster_id, found=f"cluster {self.cluster_id}"
            )
        self.cluster_id = command.cluster_id
        first = AddMember(command.host_id, command.addresses, command.fingerprint)
        return self.add(first, entry)

    @applies(AddMember)
    def add(self, command: AddMember | RedeemJoinToken, entry: EntryContext) -> MemberAnswer:
        """Let a host in; gives its node number. Raises WrongState for one that is in, or at the bound."""
        host_id = command.host_id
        if host_id in self.records:
            raise WrongState(
                f"host {host_id} is a member already",
                asked=host_id,
                found=f"node {self.records[host_id]['node']}",
                hint="if it lost its data, remove it first: actorgrid leave --host HOST",
            )
        if len(self.records) >= MEMBERS_MAX:
            raise WrongState("the ledger holds its maximum of members", found=f"{MEMBERS_MAX} hosts")
        self.nodes_total += 1
        self.removed.pop(host_id, None)
        record: MemberRecord = {
            "host_id": host_id,
            "node": self.nodes_total,
            "addresses": command.addresses,
            "fingerprints": [command.fingerprint],
            "rack": command.rack,
            "version": command.version,
            "ledger_version": 1 if command.ledger_version is ABSENT else command.ledger_version,
            "votes": True if command.votes is ABSENT else command.votes,
            "joined_at": entry.at,
        }
        self._put(record, "joined")
        return {"host_id": host_id, "node": self.nodes_total, "cluster_id": self.cluster_id}

    def admit(self, command: RedeemJoinToken, entry: EntryContext) -> MemberAnswer:
        """Let a host in that has proven its right, or in again under the key that it has here already.

        Raises WrongState for a host id that lives under another key.
        """
        known = self.records.get(command.host_id)
        if known is not None and command.fingerprint not in known["fingerprints"]:
            raise WrongState(
                f"host {command.host_id} is a member already, with another key",
                asked=command.host_id,
                found=f"node {known['node']}",
                hint="if it lost its key, remove it first; a token lets in new hosts only",
            )
        if known is None:
            return self.add(command, entry)
        return {**self.change(command, entry), "cluster_id": self.cluster_id}

    @applies(ChangeMember)
    def change(self, command: ChangeMember | RedeemJoinToken, _entry: EntryContext) -> MemberAnswer:
        """Change a member's record to what it says now: its addresses, its software, one more certificate.

        Raises NotFound.
        """
        record = self._get(command.host_id)
        fields: Plain = {
            name: getattr(command, name) for name in _OF_ITS_OWN if getattr(command, name, ABSENT) is not ABSENT
        }
        fingerprint = command.fingerprint
        if fingerprint is not ABSENT and fingerprint not in record["fingerprints"]:
            # The oldest goes: a certificate is renewed long before eight others were.
            fields["fingerprints"] = [*record["fingerprints"], fingerprint][-FINGERPRINTS_MAX:]
        changed = cast("MemberRecord", {**record, **fields})
        if changed != record:
            self._put(changed, "changed")
        return {"host_id": record["host_id"], "node": record["node"]}

    def keep_only(self, host_id: str, fingerprint: str) -> None:
        """Accept only this one of a member's certificates from now on."""
        record = self._get(host_id)
        if record["fingerprints"] != [fingerprint]:
            self._put({**record, "fingerprints": [fingerprint]}, "")

    def refuse_removed(self, host_id: str) -> None:
        """Raises WrongState for a host that was a member and is none any more."""
        gone = self.removed.get(host_id)
        if gone is not None:
            raise WrongState(f"host {host_id} is no member any more", found=f"removed by {gone['by'] or 'request'}")

    def check_removal(self, host_id: str) -> None:
        """Raises NotFound, or WrongState for the last that may vote."""
        record = self._get(host_id)
        others = [other for other in self.records.values() if other is not record and other["votes"]]
        if not others:
            raise WrongState(
                f"host {host_id} is the last that may vote",
                asked="to remove it",
                hint="stop the agent instead, and delete its data when the cluster is not wanted any more",
            )

    def remove(self, command: RemoveMember, at: float) -> MemberAnswer:
        """Remove a member that passed ``check_removal``. Raises NotFound."""
        record = self._get(command.host_id)
        del self.records[record["host_id"]]
        left = not command.force
        self.removed[record["host_id"]] = {"node": record["node"], "at": at, "by": command.by, "left": left}
        while len(self.removed) > REMOVED_MAX:
            del self.removed[next(iter(self.removed))]
        self._changed(record["host_id"], None, "removed")
        return {"host_id": record["host_id"], "node": record["node"]}

    @property
    def removals(self) -> int:
        """How many members have been removed so far."""
        return self.nodes_total - len(self.records)

    def rest(self) -> Plain:
        """The part of the table's state that is no record."""
        return {"cluster_id": self.cluster_id, "nodes_total": self.nodes_total, "removed": list(self.removed.items())}

    def load(self, rest: Plain, records: list[MemberRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.cluster_id, self.nodes_total = rest["cluster_id"], rest["nodes_total"]
        self.removed.update((host_id, how) for host_id, how in rest.get("removed", ()))
        self.records.update((record["host_id"], record) for record in records)

    def _get(self, host_id: str) -> MemberRecord:
        record = self.records.get(host_id)
        if record is None:
            near = difflib.get_close_matches(host_id, self.records, 1)
            raise NotFound(
                f"host {host_id} is no member of the cluster",
                asked=host_id,
                found=f"{len(self.records)} members",
                hint=f"did you mean {near[0]}?" if near else "actorgrid hosts lists them",
            )
        return record

    def _put(self, record: MemberRecord, word: str) -> None:
        self.records[record["host_id"]] = record
        self._changed(record["host_id"], record, word)
