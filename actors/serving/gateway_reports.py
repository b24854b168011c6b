"""What the gateways of all hosts last told of each service, put together where the ledger is led. Decisions only.

A host that tells nothing any more is not one at which nothing is asked: its last word counts until it tells another,
or is no host of the cluster any more. Whoever begins to lead knows no word yet, which is not the same as nothing,
either: what a replica has that leaves is known once every gateway has told since then. Bounds: those of a report
(table.py), one for each host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from actorgrid.actors.ledger.service_records import ServiceRecord

from .table import RevisionReport, ServiceDemand

SAME_AGAIN_S = 5.0
"""Demand that has not changed is told again so often, so that a new leader hears of it."""


class DemandNow(NamedTuple):
    """What is asked of a service at all gateways together."""

    in_flight: int
    held: int
    last_request_at: float
    """Seconds since the epoch; 0: nothing was ever asked."""


class RevisionFigures(NamedTuple):
    """How a revision did at all gateways together, since each of them began."""

    requests: int
    failures: int
    first_byte_p99_s: float
    """The worst of the gateways'."""


class GatewayReports:
    """The last report of each host, by service."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, ServiceDemand]] = {}
        self._told_at: dict[str, float] = {}
        self._before: dict[tuple[str, str, str], tuple[int, int]] = {}

    def took(self, host_id: str, demands: Iterable[ServiceDemand], now: float) -> None:
        """Take what a host's gateways tell; it replaces what they told before."""
        self._last[host_id] = {each.service: each for each in demands}
        self._told_at[host_id] = now

    def oldest_word_at(self, host_ids: Iterable[str], unheard_at: float) -> float:
        """When the one of these hosts told something whose last word is the oldest; *unheard_at* stands for those that
        have told nothing."""
        return min((self._told_at.get(each, unheard_at) for each in host_ids), default=math.inf)

    def woke(self, host_id: str, service: str, now: float) -> None:
        """Take that a request waits at a host, ahead of its next report."""
        told = self._last.setdefault(host_id, {})
        before = told.get(service) or ServiceDemand(service, 0, 0, 0.0, 0, 0, now)
        told[service] = replace(before, held=max(1, before.held), last_request_at=now)

    def keep_only(self, host_ids: Iterable[str]) -> None:
        """Forget hosts that are no more."""
        for host_id in self._last.keys() - set(host_ids):
            del self._last[host_id]
            self._told_at.pop(host_id, None)

    def of_service(self, service: str) -> DemandNow:
        """What is asked of a service now."""
        told = self._of(service)
        return DemandNow(
            sum(each.in_flight for each in told),
            sum(each.held for each in told),
            max((each.last_request_at for each in told), default=0.0),
        )

    def busy(self, service: str) -> dict[str, int]:
        """How many requests each replica of a service has, by its job."""
        found: dict[str, int] = {}
        for each in self._of(service):
            for replica in each.replicas:
                found[replica.replica_id] = found.get(replica.replica_id, 0) + replica.in_flight
        return found

    def begin_comparing(self, service: str) -> None:
        """Count the requests of its revisions from here on."""
        for key in [key for key in self._before if key[1] == service]:
            del self._before[key]
        for host_id, told in self._last.items():
            for each in told[service].revisions if service in told else ():
                self._before[host_id, service, each.revision] = (each.requests_total, each.failures_total)

    def figures(self, service: str, revision: str) -> RevisionFigures:
        """How a revision did since ``begin_comparing``."""
        requests = failures = 0
        slowest = 0.0
        for host_id, told in self._last.items():
            for each in told[service].revisions if service in told else ():
                if each.revision == revision:
                    more, failed = self._since(host_id, service, each)
                    requests, failures = requests + more, failures + failed
                    slowest = max(slowest, each.first_byte_p99_s if more else 0.0)
        return RevisionFigures(requests, failures, slowest)

    def _since(self, host_id: str, service: str, told: RevisionReport) -> tuple[int, int]:
        requests, failures = self._before.get((host_id, service, told.revision), (0, 0))
        if told.requests_total < requests or told.failures_total < failures:
            requests = failures = 0  # that gateway has begun anew, and counts from there
        return told.requests_total - requests, told.failures_total - failures

    def _of(self, service: str) -> list[ServiceDemand]:
        return [told[service] for told in self._last.values() if service in told]


class DemandNews:
    """Whether the leader is to be told what is asked at a host's gateways, of what they say once a second."""

    def __init__(self) -> None:
        self._told_s = -math.inf
        self._before: tuple[ServiceDemand, ...] = ()

    def is_due(self, now_s: float, demands: tuple[ServiceDemand, ...], services: Iterable[ServiceRecord] = ()) -> bool:
        """Whether *demands* are news; they count as told then. Where replicas of *services* leave, the same is news as
        well: they are ended once each gateway has said again what they have."""
        idle = not any(each.in_flight or each.held for each in demands)
        leaving = any(each["state"] == "draining" for record in services for each in record["replicas"])
        if idle and not leaving and demands == self._before and now_s - self._told_s < SAME_AGAIN_S:
            return False
        self._told_s, self._before = now_s, demands
        return True
