"""What was done about hosts in trouble, and the maintenance windows in which nothing may be.

The leader decides (``cluster/faults``); this is the fence: an action has a number, the next of its host, so that of two
leaders who decide it only one begins it, and it is begun in the ledger before it is carried out, so that a later leader
finds it and does not do it again. Sixteen actions of a host are kept.

Bound: one record for each host that is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from actorgrid.actors.ledger.answers import MaintenanceAnswer, RecoveryAnswer
from actorgrid.actors.ledger.commands import BeginRecovery, EndRecovery, SetMaintenance
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.errors import NotFound, WrongState

from ..recovery_records import (
    ESCALATION,
    NO_RECOVERY,
    RELEASE,
    WORK_REDISTRIBUTION,
    HostRecoveryRecord,
    RecoveryRecord,
    maintained,
)
from .hosts import Hosts

ACTIONS_KEPT = 16
MAINTENANCE_MAX_S = 30 * 86_400.0


class Recoveries:
    """The records by host id. *changed* is told of each that is new, other or gone: id, record or ``None``, a word."""

    def __init__(self, hosts: Hosts, changed: Callable[[str, HostRecoveryRecord | None, str], None]) -> None:
        self._hosts = hosts
        self._changed = changed
        self.records: dict[str, HostRecoveryRecord] = {}

    def load(self, records: list[HostRecoveryRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((record["host_id"], record) for record in records)

    def forget(self, host_id: str) -> None:
        """Forget a host that is no member any more."""
        if self.records.pop(host_id, None) is not None:
            self._changed(host_id, None, "forgotten")

    @applies(BeginRecovery)
    def begin(self, command: BeginRecovery, entry: EntryContext) -> RecoveryAnswer:
        """Begin an action. Raises NotFound; WrongState in maintenance, or when it is not the next of its host."""
        record = self._of(command.host)
        window = maintained(record, entry.at)
        if window is not None:
            raise WrongState(
                f"host {command.host} is under maintenance",
                asked=command.action,
                found=f"{window['reason'] or 'no reason given'}, by {window['by']}",
                hint="it is left alone until that is over",
            )
        if command.number != record["number"] + 1 or record["open"]:
            raise WrongState(
                f"something was done about host {command.host} meanwhile",
                asked=f"{command.action} as number {command.number}",
                found=f"number {record['number']}" + (" has not ended" if record["open"] else " was the last"),
                hint="decide again from what the ledger has now",
            )
        action: RecoveryRecord = {
            "number": command.number,
            "action": command.action,
            "strategy": command.strategy,
            "reason": command.reason,
            "evidence": command.evidence,
            "failures": command.failures,
            "index": entry.index,
            "term": command.term,
            "at": entry.at,
            "outcome": "",
            "found": "",
            "ended_at": None,
        }
        released = command.action == RELEASE
        level = 0 if released else max(record["level"], ESCALATION.index(command.action) + 1)
        drains = command.action == WORK_REDISTRIBUTION and not self._hosts.records[command.host].get("draining")
        self._put(
            {
                **record,
                "number": command.number,
                "open": command.number,
                "level": level,
                "drained": (record["drained"] or drains) and not released,
                "actions": [*record["actions"], action][-ACTIONS_KEPT:],
            },
            command.action,
        )
        return {"host": command.host, "number": command.number, "undrain": released and record["drained"]}

    @applies(EndRecovery)
    def end(self, command: EndRecovery, entry: EntryContext) -> RecoveryAnswer:
        """End the action that is open. Raises NotFound; WrongState when that one is not."""
        record = self._of(command.host)
        if not record["open"] or record["open"] != command.number:
            raise WrongState(
                f"no such action is under way for host {command.host}",
                asked=f"end number {command.number}",
                found=f"number {record['open']} is open" if record["open"] else "none is open",
            )
        ended = {"outcome": command.outcome, "found": command.found, "ended_at": entry.at}
        actions = [
            cast("RecoveryRecord", {**each, **ended}) if each["number"] == command.number else each
            for each in record["actions"]
        ]
        self._put({**record, "open": 0, "actions": actions}, command.outcome)
        return {"host": command.host, "number": command.number, "undrain": False}

    @applies(SetMaintenance)
    def maintain(self, command: SetMaintenance, entry: EntryContext) -> MaintenanceAnswer:
        """Begin, change or end a maintenance window. Raises NotFound; WrongState for one over 30 days."""
        record = self._of(command.host)
        before = maintained(record, entry.at)
        if command.until is None:
            if before is not None:
                self._put({**record, "maintenance": {**before, "until": entry.at}}, "maintenance_ended")
            return {"host": command.host, "until": None, "was": before is not None}
        if not entry.at < command.until <= entry.at + MAINTENANCE_MAX_S:
            raise WrongState(
                "a maintenance window ends in the future, within 30 days",
                asked=f"one of {command.until - entry.at:.0f} s",
                hint="say a shorter time; it can be prolonged before it ends",
            )
        begun_at = entry.at if before is None else before["begun_at"]
        window = {"begun_at": begun_at, "until": command.until, "reason": command.reason, "by": command.by}
        self._put(cast("HostRecoveryRecord", {**record, "maintenance": window}), "maintenance")
        return {"host": command.host, "until": command.until, "was": before is not None}

    def _of(self, host_id: str) -> HostRecoveryRecord:
        """The record of a host, or a new one. Raises NotFound."""
        if host_id not in self._hosts.records:
            raise NotFound(
                f"host {host_id} is not registered",
                asked=host_id,
                found=f"{len(self._hosts.records)} hosts",
                hint="actorgrid hosts lists them",
            )
        return self.records.get(host_id) or {**NO_RECOVERY, "host_id": host_id}

    def _put(self, record: HostRecoveryRecord, word: str) -> None:
        self.records[record["host_id"]] = record
        self._changed(record["host_id"], record, word)
