"""Services, as one host's agent has them: led on where the ledger is led, asked whether they answer where they run. A
part of ClusterManager.

What does that is loaded with the first service: a cluster without any does not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.messages import Applied
from actorgrid.supervisors.server import Server

from .messages import GatewayTold, ServiceWanted

if TYPE_CHECKING:
    from .replica_keeper import ReplicaKeeper
    from .service_leader import Explain, ServiceLeader

HEARD = ("service", "leader", "host")


class HostServices:
    """The services of the cluster, for *server*; *explain* says why a job waits."""

    def __init__(self, server: Server, ledger: LedgerClient, explain: Explain) -> None:
        self._server = server
        self._ledger = ledger
        self._explain = explain
        self._leader: ServiceLeader | None = None
        self._keeper: ReplicaKeeper | None = None

    def begin(self) -> None:
        """Begin with what the ledger has."""
        if self._leader is not None:
            self._leader.begin()
        self._look()

    def applied(self, message: Applied) -> None:
        """Follow what the ledger tells."""
        if not self._ledger.services and self._leader is None:
            return
        kinds = {kind for kind, _, _ in message.changes}
        if self._leader is not None and "leader" in kinds:
            self._leader.begin()
        replicas = any(kind == "job" and record and "service" in record for kind, _, record in message.changes)
        if replicas or not kinds.isdisjoint(HEARD):
            self._look()

    def told(self, message: GatewayTold) -> None:
        """Take what gateways of a host tell. Raises MalformedMessage."""
        from .table import decode_report

        report = decode_report(message.report)
        if self._leader is not None:
            self._leader.took(message.host_id, report.demands)

    def wanted(self, message: ServiceWanted) -> None:
        """Take that somebody waits for a service."""
        if self._leader is not None:
            self._leader.woke(message.service, message.host_id)

    def _look(self) -> None:
        if self._leader is None or self._keeper is None:
            if not self._ledger.services:
                return
            from .replica_keeper import ReplicaKeeper
            from .service_leader import ServiceLeader

            self._leader = ServiceLeader(self._server, self._ledger, self._explain)
            self._keeper = ReplicaKeeper(self._server, self._ledger)
        self._leader.look()
        self._keeper.look()

    def figures(self) -> Mapping[str, float]:
        """Services, replicas that are watched here, how often these were asked, and services led on."""
        if self._leader is None or self._keeper is None:
            return {"services": 0.0}
        return {
            "services": float(len(self._ledger.services)),
            "service_replicas_here": float(len(self._keeper)),
            "service_probes_total": float(self._keeper.probes_total),
            "service_advances_total": float(self._leader.advances_total),
        }
