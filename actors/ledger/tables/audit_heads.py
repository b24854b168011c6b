"""The heads of the hosts' audit logs, so that what a log says of before is not one host's to change.

A head is taken only with the proof that the log it is of begins with the records of the one that is held. No signature
is read here: two versions of a library could judge one differently, and replicas must not; that a head is its host's,
the link says by which it came. A host that cannot go on begins another log: that is told, and the last head of the log
of before stays.

Bounds: one record a member, with 8 heads of logs of before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from actorgrid.errors import NotFound, WrongState

from ..answers import AuditHeadAnswer
from ..audit_head_records import ENDED_MAX, AuditHeadFacts, AuditHeadRecord
from ..commands import ReportAuditHead
from ..entry import EntryContext, applies
from ..merkle_proofs import is_consistent
from ..record_types import MemberRecord


class AuditHeads:
    """The heads by host. *changed* is told of each that is other or gone, with a word where people should hear."""

    def __init__(
        self, members: Mapping[str, MemberRecord], changed: Callable[[str, AuditHeadRecord | None, str], None]
    ) -> None:
        self.records: dict[str, AuditHeadRecord] = {}
        self._members = members
        self._changed = changed

    def load(self, records: Iterable[AuditHeadRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((record["host_id"], record) for record in records)

    def forget(self, host_id: str) -> None:
        """Forget a host that was removed."""
        if self.records.pop(host_id, None) is not None:
            self._changed(host_id, None, "")

    @applies(ReportAuditHead)
    def report(self, command: ReportAuditHead, _entry: EntryContext) -> AuditHeadAnswer:
        """Take a head. Raises NotFound for a host that is no member, WrongState for one that does not go on."""
        host_id = command.host_id
        if host_id not in self._members:
            raise NotFound("no such host is a member", asked=host_id)
        before = self.records.get(host_id)
        ended: list[AuditHeadFacts] = []
        number = 1
        if before is not None:
            number, ended = before["log"], before["ended"]
            if command.anew:
                number += 1
                ended = [*ended, _facts_of(before)]
                if len(ended) > ENDED_MAX:  # the first ones show what there was before somebody began anew and anew
                    del ended[ENDED_MAX // 2]
            elif not _goes_on(before, command):
                raise WrongState(
                    "the audit log does not go on from the head that the cluster holds",
                    asked=f"{command.size} records of {host_id}",
                    found=f"{before['size']} records of its log {number}",
                    hint="records were changed or cut off, or its folder was replaced",
                )
        facts: AuditHeadFacts = {
            "log": number,
            "size": command.size,
            "root": command.root,
            "note": command.note,
            "key": command.key,
            "at": command.at,
        }
        self.records[host_id] = {**facts, "host_id": host_id, "ended": ended}
        self._changed(host_id, self.records[host_id], "began anew" if before is not None and command.anew else "")
        return {"host_id": host_id, "log": number, "size": command.size}


def _goes_on(before: AuditHeadRecord, command: ReportAuditHead) -> bool:
    if command.key != before["key"]:
        return False
    if not before["size"]:  # an empty log is the beginning of every log (RFC 9162, 2.1.4)
        return not command.proof
    first, second = bytes.fromhex(before["root"]), bytes.fromhex(command.root)
    return is_consistent(before["size"], command.size, first, second, [bytes.fromhex(part) for part in command.proof])


def _facts_of(record: AuditHeadRecord) -> AuditHeadFacts:
    return {
        "log": record["log"],
        "size": record["size"],
        "root": record["root"],
        "note": record["note"],
        "key": record["key"],
        "at": record["at"],
    }
