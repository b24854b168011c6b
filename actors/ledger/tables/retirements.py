"""Which openings of the shared state's store are gone, and all they wrote on every member: the record of the ledger.

The ledger cannot see who holds what; the host whose openings they were finds it (``replication/retirement_due.py``).
This is the order in which it becomes true for everybody: each retirement has the next *level*, decided from the one
before, so that a host which did not know of that one decides anew. A floor never falls, and is never above the
incarnation that the host has now, whose opening is alive.

A record is kept for good, also of a host that is no member any more: a member which comes back after years may have its
names still.

Bound: 20,000 hosts, each with up to 256 finals of its last retirement.
"""

from __future__ import annotations

from collections.abc import Callable

from actorgrid.actors.ledger.answers import RetirementAnswer
from actorgrid.actors.ledger.commands import RetireOrigins
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.errors import NotFound, StaleIncarnation, WrongState

from ..retirement_records import RetirementRecord
from .hosts import Hosts
from .members import Members

RETIREMENTS_MAX = 20_000


class Retirements:
    """The records by host id. *changed* is told of each that is new or other: id, record, and a word."""

    def __init__(
        self, members: Members, hosts: Hosts, changed: Callable[[str, RetirementRecord | None, str], None]
    ) -> None:
        self._members = members
        self._hosts = hosts
        self._changed = changed
        self.records: dict[str, RetirementRecord] = {}

    @property
    def level(self) -> int:
        """The number of the last retirement."""
        return max((record["level"] for record in self.records.values()), default=0)

    def load(self, records: list[RetirementRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((record["host_id"], record) for record in records)

    @applies(RetireOrigins)
    def retire(self, command: RetireOrigins, _entry: EntryContext) -> RetirementAnswer:
        """Retire openings of a host. Raises WrongState for one decided before another retirement, for a floor that
        falls and at the bound; StaleIncarnation for a floor above the host's present start; NotFound for a proposer
        that is no member, or not the host's own while it is one."""
        host_id, floor, level = command.host, command.floor, self.level
        self._check_proposer(host_id, command.by)
        if command.level != level + 1:
            raise WrongState(
                "origins were retired meanwhile",
                asked=f"level {command.level}",
                found=f"level {level} is the last",
                hint="look again at what all members hold",
            )
        known = self.records.get(host_id)
        if known is None and len(self.records) >= RETIREMENTS_MAX:
            raise WrongState("the ledger holds its maximum of retirements", found=f"{RETIREMENTS_MAX} hosts")
        if known is not None and floor < known["floor"]:
            raise WrongState(
                f"openings of host {host_id} are retired already",
                asked=f"below {floor}",
                found=f"below {known['floor']}",
            )
        record = self._hosts.records.get(host_id)
        if host_id in self._members.records and (record is None or floor > record["incarnation"]):
            raise StaleIncarnation(
                f"host {host_id} has not come so far",
                asked=f"retire what is below incarnation {floor}",
                found="it is not registered" if record is None else f"incarnation {record['incarnation']}",
            )
        made: RetirementRecord = {
            "host_id": host_id,
            "floor": floor,
            "level": command.level,
            "base": command.base,
            "finals": [list(each) for each in command.finals],
        }
        self.records[host_id] = made
        self._changed(host_id, made, "")
        return {"host": host_id, "floor": floor, "level": command.level}

    def _check_proposer(self, host_id: str, by: str) -> None:
        if by not in self._members.records:
            raise NotFound(f"host {by} is no member", asked=by, found=f"{len(self._members.records)} members")
        if host_id in self._members.records and by != host_id:
            raise NotFound(
                f"host {host_id} is a member, and speaks for itself",
                asked=f"retire its openings, by {by}",
                hint="it does so after it has started again, when all members hold what it wrote",
            )
        if host_id not in self._members.records and host_id in self._hosts.records:
            raise NotFound(f"host {host_id} is registered without being a member", asked=host_id)
