"""The end of a membership in the ledger: nothing of the host is left in any table but who removed it.

A host that leaves has no work any more; one that is gone for good may be removed with its work (``force``), which then
counts as lost. Nobody can know that such work does not run on: whoever forces it says that its machine is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actorgrid.actors.ledger.answers import MemberAnswer
from actorgrid.actors.ledger.commands import EndAttempt, RemoveMember
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.errors import WorkerLost, WrongState

from .allocations import Allocations
from .attempts import Attempts
from .hosts import Hosts
from .jobs import LOST
from .members import Members

NAMED_MAX = 5


class Removal:
    """Removes members, over all tables that know of a host; *forget*: what makes the others forget one."""

    def __init__(
        self,
        members: Members,
        hosts: Hosts,
        given: Allocations,
        attempts: Attempts,
        forget: Iterable[Callable[[str], None]],
    ) -> None:
        self._members, self._hosts, self._given = members, hosts, given
        self._attempts, self._forget = attempts, tuple(forget)

    @applies(RemoveMember)
    def remove(self, command: RemoveMember, entry: EntryContext) -> MemberAnswer:
        """Carry out ``remove_member``. Raises NotFound, or WrongState for the last that may vote and for a host that
        has work, unless it is forced."""
        host_id = command.host_id
        self._members.check_removal(host_id)
        held = sorted(id for id, record in self._given.records.items() if record["host"] == host_id)
        if held and not command.force:
            raise WrongState(
                f"host {host_id} has work",
                asked="to remove it",
                found=f"{len(held)}: {', '.join(held[:NAMED_MAX])}",
                hint="let it end there first: actorgrid leave waits for it",
            )
        for id in held:
            self._lose(id, command, entry)
        answer = self._members.remove(command, entry.at)
        self._hosts.remove(host_id)
        for forget in self._forget:
            forget(host_id)
        return {**answer, "lost": held}

    def _lose(self, id: str, command: RemoveMember, entry: EntryContext) -> None:
        allocation = self._given.records.get(id)
        if allocation is None:
            return  # it went with another member of its gang
        if allocation["owner"]["kind"] == "session":
            self._given.take_back(id)
            return
        error = WorkerLost(
            f"attempt {id} was lost with its host",
            found=f"host {command.host_id} was removed by {command.by or 'request'}",
            hint="it is tried again elsewhere",
        )
        end = EndAttempt(id, allocation["token"], LOST, charge=False, error=error.to_dict())
        self._attempts.end(end, entry)
