"""Mutants of how locks are taken back from clients whose connections broke."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from actorgrid.actors.gateway.lock_wait import entry_of
from actorgrid.actors.ledger.commands import AcquireLock, ReleaseLock
from actorgrid.actors.ledger.entry import EntryContext
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import locks
from actorgrid.chaos.simulator.lock_service import LockService, WaitingAcquire
from actorgrid.chaos.simulator.node import SimulatedHost
from actorgrid.chaos.simulator.requests import ClientReply


class _CountsRenewals(LockService):
    waits_with_ids: ClassVar[bool] = False

    def __init__(self, node: SimulatedHost) -> None:
        super().__init__(node)
        self._seen_renewals: dict[WaitingAcquire, int] = {}

    def answered(self, waiting: WaitingAcquire, told: ClientReply) -> None:
        if told.error is None:
            self._seen_renewals[waiting] = told.result["renewals"]

    def clean_up(self, waiting: WaitingAcquire) -> None:
        super().clean_up(waiting)
        seen, terms = self._seen_renewals.get(waiting), waiting.terms
        if seen is None:
            return

        def left(told: ClientReply) -> None:
            mine = entry_of(self.node.ledger.locks.get(terms.name), terms.owner)
            if not told.result["released"] and mine is not None and mine["token"] and mine["renewals"] == seen + 1:
                self.write(ReleaseLock(terms.name, terms.owner, at=self.node.now, renewals=seen + 1), lambda told: None)

        self.write(ReleaseLock(terms.name, terms.owner, at=self.node.now, renewals=seen), left)


class LocksTakenBackByCount(SimulatedHost):
    """A host takes back the lock of a client that hung up when one sign of life came since, as if the grant was it."""

    lock_service_class = _CountsRenewals


class _Changed(Ledger):
    """Has another rule for what an owner has that asks again; the rule is put in for each command about locks."""

    rule: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        acquire = self._verbs[AcquireLock]

        def with_rule(command: AcquireLock, entry: EntryContext) -> Mapping[str, Any]:
            right, locks._newest = locks._newest, type(self).rule
            try:
                return acquire(command, entry)
            finally:
                locks._newest = right

        self._verbs[AcquireLock] = with_rule


def _always_the_last(mine: dict[str, Any], request: list[Any] | None) -> dict[str, Any]:
    return {**mine, "request": request} if request is not None else mine


def _the_highest(mine: dict[str, Any], request: list[Any] | None) -> dict[str, Any]:
    return {**mine, "request": request} if request is not None and request[0] > mine["request"][0] else mine


class _LastRequestOwns(_Changed):
    rule = staticmethod(_always_the_last)


class _HighestRequestOwns(_Changed):
    rule = staticmethod(_the_highest)


class LateRequestsOwnLocks(SimulatedHost):
    """What an owner has goes over to the request that the ledger came to last, though a later one was sent before."""

    ledger_class = _LastRequestOwns


class HeldLocksChangeRequests(SimulatedHost):
    """What an owner holds and was told of goes over to its next request, with which it is taken back."""

    ledger_class = _HighestRequestOwns
