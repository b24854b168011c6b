"""Tells the cluster's other hosts, by way of the shared state, what the devices of this one read together."""

from __future__ import annotations

from time import time

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..replication.messages import Mutate
from ..replication.namespaces import cluster_key
from .device_totals import DeviceTotals, is_worth_telling, totals_of
from .sampling import HostSampling

STATE_S = 10.0


class TotalsTeller:
    """Keeps ``_cluster/devices/HOST_ID`` at what *sampling* has of *server*'s host."""

    def __init__(self, server: Server, ledger: LedgerClient, sampling: HostSampling) -> None:
        self._server = server
        self._ledger = ledger
        self._sampling = sampling
        self._told: DeviceTotals | None = None
        self._telling = False

    def now(self) -> DeviceTotals:
        """The totals of the last samples."""
        return totals_of(self._sampling.manager.get_aggregated_metrics(), time())

    def look(self) -> None:
        """Tell what has changed; one telling at a time. A host that is alone has nobody to tell."""
        if self._server.host.enrolment is None or self._telling:
            return
        now = self.now()
        if (self._told is not None or now["devices"]) and is_worth_telling(self._told, now, len(self._ledger.hosts)):
            self._telling = True
            self._server.spawn(self._tell(now))

    async def _tell(self, now: DeviceTotals) -> None:
        key = cluster_key("devices", str(self._server.host.host_id))
        try:
            await self._server.call("distributed_state", Mutate(key, "lww_register", "put", dict(now)), STATE_S)
            self._told = now
        except ActorGridError as error:
            self._server.log.info("what the devices read is not told to other hosts yet: %s", error)
        finally:
            self._telling = False
