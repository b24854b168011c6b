"""LoadGossip: reads this host's load, tells the other hosts by way of the shared state, and hears theirs.

Nothing is polled from host to host: each puts ``_cluster/load/HOST_ID`` when it changed (host_load.py) and watches the
others'.
"""

from __future__ import annotations

import os
from time import time
from typing import Any

import psutil

from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.balancing.core import STALE_S, Balancer
from actorgrid.balancing.targets import MAX_TARGETS, RouteTarget
from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..gpu.messages import OwnReadings
from ..ledger.client import LedgerClient
from ..replication.messages import Mutate, ReadPrefix, StateChanged, WatchPrefix
from ..replication.namespaces import cluster_key
from .host_load import LOAD_PREFIX, HostLoad, is_worth_telling, load_in_requests, read_load, times_longer

STATE_S = 10.0
READINGS_S = 1.0
WATCH_AGAIN_S = 1.0
LIVE_AGE_S = 1.0
"""News of another host are at most this old when they come: clocks differ by more than news take."""


def publish_load(server: Server, load: HostLoad) -> Any:
    """Put this host's load where the others read it; await it."""
    key = cluster_key("load", str(server.host.host_id))
    return server.call("distributed_state", Mutate(key, "lww_register", "put", dict(load)), STATE_S)


class LoadGossip:
    """What this host knows of the load of all: ``balancer`` has a target for each registered host."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self.balancer = Balancer(BalancingPolicy.LEAST_LOADED)
        self.loads: dict[str, HostLoad] = {}
        """The last load of each registered host, as it told it."""
        self.published_total = 0
        self.heard_total = 0
        self.refused_total = 0
        self._told: HostLoad | None = None
        self._watching = False
        psutil.cpu_percent(None)  # the first reading only starts the count

    # -- the hosts there are

    def look_at_hosts(self) -> None:
        """Take the registered hosts for the targets, and those that are absent for unreachable."""
        hosts = dict(list(self._ledger.hosts.items())[:MAX_TARGETS])
        self.balancer.set_targets(_target(host_id, record) for host_id, record in hosts.items())
        self.balancer.stale_s = STALE_S * times_longer(len(self._ledger.members))
        gone = {host_id for host_id, record in hosts.items() if record.get("draining") or record["state"] != "up"}
        self.balancer.unreachable = frozenset({*self._ledger.absent, *gone})
        self.loads = {host_id: load for host_id, load in self.loads.items() if host_id in hosts}

    def is_reachable(self, host_id: str) -> bool:
        """Whether the host is registered, up, not draining and heard of."""
        return host_id in self.balancer.targets and host_id not in self.balancer.unreachable

    # -- this host

    async def read(self, attempts: int, leases: int, waiting: int) -> None:
        """Read this host's load; tell the others, where there are any and it is worth it."""
        cpus = os.cpu_count() or 1
        load = HostLoad(
            at=time(),
            cpus=cpus,
            cpu=min(1.0, psutil.cpu_percent(None) / 100),
            memory=min(1.0, psutil.virtual_memory().percent / 100),
            gpu=await self._gpu_utilisation(),
            attempts=attempts,
            leases=leases,
            waiting=waiting,
        )
        host_id = str(self._server.host.host_id)
        self._take(host_id, load, self._server.runtime.monotonic())
        members = len(self._ledger.members)
        if members < 2 or not is_worth_telling(self._told, load, members):
            return
        await publish_load(self._server, load)
        self._told = load
        self.published_total += 1

    async def _gpu_utilisation(self) -> float | None:
        try:
            readings = await self._server.call("gpu_coordinator", OwnReadings(), READINGS_S)
        except ActorGridError:
            return None  # it is starting again; the next reading has it
        known = [each["utilization_percent"] for each in readings.values() if each["utilization_percent"] is not None]
        return min(1.0, sum(known) / len(known) / 100) if known else None

    # -- the others

    async def watch(self) -> None:
        """Hear of the others' loads from now on, and read those that are there; tries until it can."""
        if self._watching or self._server.host.enrolment is None:
            return
        self._watching = True
        try:
            while True:
                try:
                    await self._server.call("distributed_state", WatchPrefix(LOAD_PREFIX), STATE_S)
                    ask = ReadPrefix(LOAD_PREFIX, MAX_TARGETS)
                    entries = await self._server.call("distributed_state", ask, STATE_S)
                    break
                except ActorGridError as error:
                    self._server.log.info("the load of other hosts is not heard of yet: %s", error)
                    await self._server.sleep(WATCH_AGAIN_S)
        finally:
            self._watching = False
        now_s, wall_s = self._server.runtime.monotonic(), time()
        for entry in entries:
            load = read_load(entry["value"])
            if load is not None:  # may be of days ago: by its clock, since we did not see it come
                self._take(entry["key"].removeprefix(LOAD_PREFIX), load, now_s - max(0.0, wall_s - load["at"]))

    def changed(self, change: StateChanged) -> None:
        """Take what another host says of itself."""
        host_id = change.key.removeprefix(LOAD_PREFIX)
        if host_id == str(self._server.host.host_id) or not change.key.startswith(LOAD_PREFIX):
            return
        load = read_load(change.value)
        if load is None or host_id not in self.balancer.targets:
            self.refused_total += 1
            return
        self.heard_total += 1
        age_s = min(LIVE_AGE_S, max(0.0, time() - load["at"]))
        self._take(host_id, load, self._server.runtime.monotonic() - age_s)

    def _take(self, host_id: str, load: HostLoad, taken_at: float) -> None:
        if self.balancer.heard(host_id, load_in_requests(load), taken_at):
            self.loads[host_id] = load

    # -- what is known

    def per_cpu(self, host_id: str) -> float | None:
        """The load that is expected on a host now, for each of its CPUs; ``None``: not known."""
        load = self.balancer.host_load(host_id, self._server.runtime.monotonic())
        target = self.balancer.targets.get(host_id)
        return None if load is None or target is None else load / target.weight

    def shown(self) -> list[dict[str, Any]]:
        """What is known of each host's load, for people: fields of gateway.schemas.load.HostLoadAnswer."""
        now_s = self._server.runtime.monotonic()
        found = []
        for host_id, target in sorted(self.balancer.targets.items()):
            history = self.balancer.histories.get(host_id)
            newest = None if history is None else history.newest
            age_s = None if newest is None else now_s - newest.at
            state = "known" if self.balancer.is_known(host_id, now_s) else "unknown" if age_s is None else "stale"
            found.append(
                {
                    "host": host_id,
                    "hostname": target.labels["hostname"],
                    "state": state if self.is_reachable(host_id) else "away",
                    "age_s": age_s,
                    "load": None if newest is None else newest.load,
                    "expected": self.balancer.host_load(host_id, now_s),
                    "trend_per_s": None if history is None else history.trend,
                    "reading": dict(self.loads[host_id]) if host_id in self.loads else None,
                    "history": [
                        {"age_s": now_s - sample.at, "load": sample.load}
                        for sample in (history.samples if history is not None else ())
                    ],
                }
            )
        return found


def _target(host_id: str, record: HostRecord) -> RouteTarget:
    devices = record["devices"]
    labels = {"hostname": record["hostname"]}
    if record.get("rack"):
        labels["rack"] = str(record["rack"])
    return RouteTarget(
        host_id,
        host_id,
        weight=max(1, record["cpu_milli"] // 1000),
        cpu_milli=record["cpu_milli"],
        memory_mib=record["memory_mib"],
        gpu_count=len(devices),
        gpu_memory_mib=max((device["memory_mib"] for device in devices), default=0),
        gpu_models=tuple(sorted({device["model"] for device in devices})),
        labels=labels,
    )
