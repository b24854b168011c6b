"""The hosts that have work: what each registered of itself, and whether it takes anything new.

Apart from ``members.py``: a host that is alone is registered here and is no member of anything.

``state`` is up, down or lost. A host is lost when the leader has not heard of it for longer than work there may go on
alone (docs/leases.md): that work's allocations have ended, and nothing is granted to it until it has confirmed that
nothing of it lives. ``seen_index`` is where the host last said that it is there; whoever decided from what was before
that has decided nothing.

Bound: 10,000 hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from actorgrid.actors.ledger.answers import HostAnswer, RegisterHostAnswer
from actorgrid.actors.ledger.commands import (
    AllowAbsence,
    ConfirmHost,
    DrainHost,
    LoseHost,
    MarkUnreachable,
    MeasureHost,
    RegisterHost,
)
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.reachability import UnreachableRecord
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.actors.ledger.records import new_host
from actorgrid.errors import ErrorRecord, HostLost, NotFound, StaleIncarnation, WrongState

from .members import Members

HOSTS_MAX = 10_000
UP, LOST = "up", "lost"


class Hosts:
    """The hosts' records by id.

    *changed* is told of each that is new, other or gone: id, record or ``None``, and a word.
    """

    def __init__(self, members: Members, changed: Callable[[str, HostRecord | None, str], None]) -> None:
        self._members = members
        self.records: dict[str, HostRecord] = {}
        self._changed = changed

    @applies(RegisterHost)
    def register(self, command: RegisterHost, entry: EntryContext) -> RegisterHostAnswer:
        """Register a host that came up, with its devices. Raises StaleIncarnation, or WrongState at the bound.

        One that was draining goes on draining: it may have been restarted for the very reason. One that was lost
        stays lost until it has confirmed what lives on it.
        """
        given = command.host
        host_id = given["host_id"]
        self._members.refuse_removed(host_id)
        known = self.records.get(host_id)
        if known is None and len(self.records) >= HOSTS_MAX:
            raise WrongState("the ledger holds its maximum of hosts", found=f"{HOSTS_MAX} hosts")
        if known is not None and given["incarnation"] < known["incarnation"]:
            raise StaleIncarnation(
                f"host {host_id} has started again since",
                asked=f"incarnation {given['incarnation']}",
                found=f"incarnation {known['incarnation']}",
            )
        twin = known is not None and given["incarnation"] == known["incarnation"]
        if known is not None and twin and given.get("boot_id") != known.get("boot_id"):
            raise StaleIncarnation(
                f"another agent has started as host {host_id}",
                asked=f"incarnation {given['incarnation']} again",
                found="another boot of it is registered",
                hint="is this a copy of its data directory? Each host needs one of its own: stop one of the two",
            )
        if known is not None and twin and given.get("told", known.get("told", 0)) < known.get("told", 0):
            # Proposed before what is known, and on its way for longer: its devices may be about to be cut by now.
            return {"host_id": host_id, "incarnation": given["incarnation"]}
        record: HostRecord = {**new_host(given, entry.at), "seen_index": entry.index}
        if known is not None:
            # What it said of itself before, and what was said of it, stays true; what it left running goes by its
            # absence until the shims have heard of it again.
            kept = {
                name: known[name] for name in ("draining", "measured", "absence_s", "absence_index") if known.get(name)
            }
            record = cast("HostRecord", {**record, **kept})
        if known is not None and known["state"] == LOST and record["state"] == UP:
            record = {**record, "state": LOST, "lost_at": known["lost_at"], "heard_at": known["heard_at"]}
        self._put(record, record["state"])
        return {"host_id": host_id, "incarnation": given["incarnation"]}

    @applies(DrainHost)
    def drain(self, command: DrainHost, _entry: EntryContext) -> HostAnswer:
        """Begin or end a drain: a drained host gets nothing new. A second time changes nothing. Raises NotFound."""
        host_id, draining = command.host, command.draining
        record = self.records.get(host_id)
        if record is None:
            raise NotFound(
                f"host {host_id} is not registered",
                asked=host_id,
                found=f"{len(self.records)} hosts",
                hint="actorgrid hosts lists them",
            )
        if record.get("draining", False) != draining:
            self._put({**record, "draining": draining}, "draining" if draining else "taking work")
        return {"host": host_id, "draining": draining}

    @applies(AllowAbsence)
    def allow_absence(self, command: AllowAbsence, entry: EntryContext) -> HostAnswer:
        """A host is about to be away, and everybody waits for it longer than for others: ``absence_s``, from the last
        word of it on. 0 ends that which began at entry ``began``; a later one stays.

        Raises StaleIncarnation, or WrongState for one that is not up, or that has said so again since.
        """
        record = self.current(command)
        if record["state"] != UP or command.began not in (None, record.get("absence_index")):
            raise WrongState(
                f"host {command.host} is not allowed to be away",
                asked=f"{command.absence_s:g} s",
                found=f"it is {record['state']}; it said so last at entry {record.get('absence_index')}",
            )
        kept = _without(record, "absence_s", "absence_index")
        if command.absence_s:
            # Whoever has decided that it is lost, from what was before, decided from a lesser patience.
            kept["absence_s"], kept["absence_index"], kept["seen_index"] = command.absence_s, entry.index, entry.index
        self._put(kept, "")
        return {"host": command.host, "began": entry.index}

    def remove(self, host_id: str) -> None:
        """Remove a host from the table; none of that id is no error."""
        if self.records.pop(host_id, None) is not None:
            self._changed(host_id, None, "removed")

    @applies(MeasureHost)
    def measure(self, command: MeasureHost, _entry: EntryContext) -> HostAnswer:
        """Keep what a host has measured; it stays when the host starts again. Raises StaleIncarnation."""
        record = self.current(command)
        self._put({**record, "measured": command.measured}, "")
        return {"host": command.host}

    @applies(ConfirmHost)
    def confirm(self, command: ConfirmHost, entry: EntryContext) -> HostAnswer:
        """Confirm a host that says it is up, and that it runs nothing unknown to the ledger.

        With that, one that was lost (``lost_at``) takes work again. Raises StaleIncarnation; WrongState when it was
        lost after it looked, or is not.
        """
        record = self.current(command)
        if record.get("lost_at") != command.lost_at:
            raise WrongState(
                f"host {command.host} was lost since it looked",
                asked=f"lost at {command.lost_at}",
                found=f"lost at {record.get('lost_at')}",
            )
        back = record["state"] == LOST
        kept = _without(record, "lost_at", "heard_at")
        self._put({**kept, "state": UP if back else record["state"], "seen_index": entry.index}, UP if back else "")
        return {"host": command.host, "returned": back}

    def lose(self, command: LoseHost, index: int) -> None:
        """Mark a host lost that was not heard of for too long.

        Raises StaleIncarnation; WrongState when it was heard since.
        """
        record = self.current(command)
        if record.get("seen_index", 0) != command.seen_index:
            raise WrongState(
                f"host {command.host} was heard of since",
                asked=f"what was true before entry {command.seen_index}",
                found=f"it was there at entry {record.get('seen_index', 0)}",
            )
        if record["state"] == UP:
            self._put({**record, "state": LOST, "lost_at": index, "heard_at": command.heard_at}, LOST)

    @applies(MarkUnreachable)
    def mark_unreachable(self, command: MarkUnreachable, _entry: EntryContext) -> HostAnswer:
        """Note who did not reach a host, or that it is reached again. It gets nothing new while it is marked; a start
        of it wipes the mark. Raises StaleIncarnation."""
        record = self.current(command)
        before = record.get("unreachable")
        if not command.witnesses:
            if before is not None:
                self._put(_without(record, "unreachable"), "reached again")
            return {"host": command.host, "unreachable": False}
        since = command.unreachable_since if before is None else before["since"]
        mark: UnreachableRecord = {"since": since, "witnesses": list(command.witnesses)}
        if mark != before:
            self._put({**record, "unreachable": mark}, "unreachable" if before is None else "")
        return {"host": command.host, "unreachable": True}

    def current(self, command: AllowAbsence | MeasureHost | ConfirmHost | LoseHost | MarkUnreachable) -> HostRecord:
        """The record of the host that a command names in this incarnation. Raises StaleIncarnation."""
        record = self.records.get(command.host)
        if record is None or record["incarnation"] != command.incarnation:
            raise StaleIncarnation(
                f"host {command.host} has started again since",
                asked=f"incarnation {command.incarnation}",
                found="no such host" if record is None else f"incarnation {record['incarnation']}",
            )
        return record

    def _put(self, record: HostRecord, word: str) -> None:
        self.records[record["host_id"]] = record
        self._changed(record["host_id"], record, word)


def _without(record: HostRecord, *names: str) -> HostRecord:
    return cast("HostRecord", {name: value for name, value in record.items() if name not in names})


def lost_with(host: HostRecord, attempt_id: str, heard_at: float) -> ErrorRecord:
    """The error of an attempt that ended with its host."""
    heard = datetime.fromtimestamp(heard_at, UTC).isoformat(timespec="seconds")
    return HostLost(
        f"host {host['hostname']} was lost, and attempt {attempt_id} with it",
        found=f"{host['host_id']} was last heard of at {heard}",
        hint="it is tried again elsewhere; max_isolation_s says how long a host may be away",
        host=host["host_id"],
    ).to_dict()
