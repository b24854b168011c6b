"""Services under requests: nothing is cut off because there is one replica too many, and their number follows what is
asked of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from actorgrid.actors.ledger.commands import AdvanceService
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.service_records import ReplicaRecord, ServiceRecord
from actorgrid.actors.raft.messages import Entry

from .checker import Checker, Host, ServedRequest


class ServedRequests(Checker):
    """Checks that a replica which leaves is not ended, by whoever leads, while a gateway has a request there.

    Not of gateways on hosts that are lost; and the time that a replica may take to leave is longer than a run.
    """

    def __init__(self) -> None:
        self._open: Counter[ServedRequest] = Counter()
        self._services: dict[str, ServiceRecord] = {}
        self._lost: set[str] = set()
        self._seen = 0

    def replica_asked(self, request: ServedRequest) -> None:
        """Note what has begun."""
        self._open[request] += 1

    def replica_let_go(self, request: ServedRequest) -> None:
        """Note what is over."""
        self._open[request] -= 1
        if not self._open[request]:
            del self._open[request]

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Look at each entry once, by the first host that applies it."""
        if entry.index <= self._seen:
            return
        self._seen = entry.index
        for kind, id, record in outcome.changes:
            if kind == "job" and record is not None and "service" in record and record["cancel_requested"]:
                self._ends(record["service"]["name"], id)
        for kind, id, record in outcome.changes:
            if kind == "service":
                self._services.pop(id, None)
                if record is not None:
                    self._services[id] = record
            elif kind == "host" and record is not None:
                (self._lost.add if record["state"] != "up" else self._lost.discard)(id)

    def _ends(self, name: str, job_id: str) -> None:
        replica = self._replica(name, job_id)
        if replica is None or replica["state"] != "draining":
            return
        for request in self._open:
            if request.attempt_id == replica["attempt_id"] and request.gateway not in self._lost:
                self.fail(
                    "a replica was ended under a request",
                    asked=f"{job_id} of {name}, which leaves because {replica['reason']}",
                    found=f"the gateway of {request.gateway} has one there",
                )

    def _replica(self, name: str, job_id: str) -> ReplicaRecord | None:
        record = self._services.get(name)
        replicas = [] if record is None else record["replicas"]
        return next((each for each in replicas if each["job_id"] == job_id), None)


class ScaledByDemand(Checker):
    """Checks that a service does not lose its last replica before it was idle for as long as it says, as far as whoever
    leads, or led before, was told; and that there are never more to be, nor fewer, than it says."""

    SLACK_S = 1.0

    def __init__(self) -> None:
        self._services: dict[str, ServiceRecord] = {}
        self._told: dict[str, list[tuple[float, float]]] = {}
        self._seen = 0

    def demand_told(self, service: str, heard_at: float, asked_at: float) -> None:
        """Note when it was asked for."""
        told = self._told.setdefault(service, [])
        if not told or asked_at > told[-1][1]:
            told.append((heard_at, asked_at))

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Look at each entry once, by the first host that applies it."""
        if entry.index <= self._seen:
            return
        self._seen = entry.index
        for kind, id, record in outcome.changes:
            if kind == "service":
                before = self._services.pop(id, None)
                if record is not None:
                    self._services[id] = record
                    self._look(id, before, record, entry)

    def _look(self, name: str, before: ServiceRecord | None, record: ServiceRecord, entry: Entry) -> None:
        _, _, command = decode_entry(entry.data)
        if before is None or command["type"] != AdvanceService.verb or "removed_by" in record:
            return
        scale, target = record["scale"], record["target"]
        if not scale["min"] <= target <= scale["max"]:
            self.fail("more replicas, or fewer, than a service says", asked=name, found=f"{target} of {scale}")
        if target or not before["target"]:
            return
        known = [asked_at for heard_at, asked_at in self._told.get(name, ()) if heard_at <= command["at"]]
        idle_s = command["at"] - max(known, default=0.0)
        if idle_s < scale["idle_s"] - self.SLACK_S:
            self.fail(
                "the last replica was taken from a service that is asked for",
                asked=f"{name}, which is to be idle for {scale['idle_s']:g} s",
                found=f"it was asked for {idle_s:.1f} s before, as a leader had heard",
            )
