"""The secret of the members, with which they seal their gossip: the latest only, since members keep the one before.

It lies in the log and in snapshots as it is: whoever has those files, or the cluster's keys beside them, is a member.
A host that was removed is sent nothing of the log any more, and each secret is made by chance, so it never learns the
next. Events and subscribers hear of its number alone.
"""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.actors.ledger.answers import GossipKeyAnswer
from actorgrid.actors.ledger.commands import RotateGossipKey
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.actors.ledger.reachability import GossipKey, GossipKeyRecord
from actorgrid.errors import StaleToken

from .members import Members

MEMBERS_MIN = 2
"""A host that is the only member has nobody to speak with."""


class GossipKeys:
    """*changed* is told (number as text, {"number": number}, a word) of each new one."""

    def __init__(self, members: Members, changed: Callable[[str, Plain, str], None]) -> None:
        self._record: GossipKeyRecord | None = None
        self._members = members
        self._changed = changed

    @applies(RotateGossipKey)
    def rotate(self, command: RotateGossipKey, _entry: EntryContext) -> GossipKeyAnswer:
        """Take the next secret. Raises StaleToken for a number that is not the next."""
        known = 0 if self._record is None else self._record["number"]
        if command.number != known + 1:
            raise StaleToken(
                "the members have another secret by now", asked=f"number {command.number}", found=f"number {known}"
            )
        self._record = {"number": command.number, "secret": command.secret, "removals": self._members.removals}
        self._changed(str(command.number), {"number": command.number}, "rotated")
        return {"number": command.number}

    def now(self) -> GossipKey:
        """The latest, and whether the next is due."""
        if self._record is None:
            return GossipKey(0, len(self._members.records) >= MEMBERS_MIN, b"")
        due = self._record["removals"] != self._members.removals
        return GossipKey(self._record["number"], due, bytes.fromhex(self._record["secret"]))

    def rest(self) -> Plain:
        """What a snapshot holds of it: nothing before the first, as in ledgers of earlier versions."""
        return {} if self._record is None else {"gossip_key": self._record}

    def load(self, header: Plain) -> None:
        """Load what a snapshot held; for a new, empty object."""
        record = header.get("gossip_key")
        if record is not None:
            number, secret = int(record["number"]), str(record["secret"])
            bytes.fromhex(secret)
            self._record = {"number": number, "secret": secret, "removals": int(record["removals"])}
