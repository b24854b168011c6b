"""What ClusterManager takes about services: from gateways of this host and of others."""

from __future__ import annotations

from typing import Any

from actorgrid.supervisors.server import handles

from ..ledger.client import LedgerClient
from ..serving.host_services import HostServices
from ..serving.messages import GatewayTold, ServiceWanted
from .messages import Why
from .result_places import ResultFinder


class ServiceManager(ResultFinder):
    """The part of ClusterManager that leads services on and watches their replicas."""

    _services: HostServices

    def begin_services(self, ledger: LedgerClient) -> HostServices:
        """The services of the cluster, as this host has them."""

        async def explain(job_id: str) -> dict[str, Any]:
            found: dict[str, Any] = await self.call(self.me, Why(job_id), 5.0)
            return found

        return HostServices(self, ledger, explain)

    @handles(GatewayTold)
    def _gateway_told(self, message: GatewayTold) -> None:
        self._services.told(message)

    @handles(ServiceWanted)
    def _service_wanted(self, message: ServiceWanted) -> None:
        self._services.wanted(message)
