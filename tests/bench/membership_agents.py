"""Membership on five real agents in network namespaces: what it costs at rest, and how soon a host that is cut off is
suspected, and held for unreachable by the ledger.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.processes import until
from tests.system.net_hosts import NetCluster
from tests.system.net_wires import missing

from .figures import Figure, Skipped, registry

HOSTS = 5
REST_S = 30.0
CUTS = 6
WITHIN_S = 60.0
POLL_S = 0.02
SETTINGS = ("performance.min_free_bytes=1MiB", "performance.reserve_bytes=1MiB", "work.pools.general.warm=0")


@contextmanager
def _cluster(profile: str) -> Iterator[NetCluster]:
    with tempfile.TemporaryDirectory(prefix="actorgrid-") as folder:
        made = NetCluster(Path(folder), HOSTS, (*SETTINGS, f"cluster.membership={profile}"))
        try:
            made.form()
            _all_alive(made)
            yield made
        finally:
            made.close()


def _status(cluster: NetCluster, number: int) -> dict[str, Any]:
    found: dict[str, Any] = cluster[number].ask("GET", "/api/inspect/membership")["inspect"]["status"]
    return found


def _all_alive(cluster: NetCluster) -> None:
    def alive(number: int) -> int:
        return sum(each["state"] == "alive" for each in _status(cluster, number).get("members", {}).values())

    until(lambda: all(alive(number) == HOSTS for number in cluster.hosts), "all are alive to all", WITHIN_S)


def _at_rest(cluster: NetCluster, profile: str) -> Iterator[Figure]:
    found = [psutil.Process(pid) for host in cluster.hosts.values() if (pid := host.pid_of("membership"))]

    def cpu_s() -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in found]

    def sent() -> list[int]:
        return [_status(cluster, number)["datagrams"]["sent"] for number in cluster.hosts]

    begun, cpu, datagrams = time.monotonic(), cpu_s(), sent()
    time.sleep(REST_S)
    took_s = time.monotonic() - begun
    note = f"{HOSTS} agents at rest, {REST_S:g} s, one run a host"
    rates = [(after - before) / took_s for before, after in zip(datagrams, sent(), strict=True)]
    costs = [1e3 * (after - before) / took_s for before, after in zip(cpu, cpu_s(), strict=True)]
    yield Figure(f"{profile}: datagrams a second and host", "", rates, False, must=20.0, note=note)
    yield Figure(f"{profile}: CPU a second and host", "ms", costs, False, note=note)
    memory = [process.memory_full_info().pss / 2**20 for process in found]
    yield Figure(f"{profile}: memory of the server (PSS)", "MiB", memory, False, note=note)


def _cut(cluster: NetCluster) -> tuple[float, float]:
    """Seconds until the leader suspects a host that was cut off, and until the ledger holds it for unreachable."""
    leader = cluster.leader()
    victim = max(number for number in cluster.hosts if number != leader)
    hosts = cluster[leader].ask("GET", "/api/hosts")["hosts"]
    host_id = next(host["node_id"] for host in hosts if host["node"] == victim)
    marked = f"host {host_id} is unreachable"
    before = cluster[leader].log().count(marked)
    begun = time.monotonic()
    cluster.wires.part([victim])
    suspected: float | None = None
    while cluster[leader].log().count(marked) == before and time.monotonic() - begun < WITHIN_S:
        if suspected is None and _status(cluster, leader)["members"][host_id]["state"] != "alive":
            suspected = time.monotonic() - begun
        time.sleep(POLL_S)
    entered = time.monotonic() - begun
    cluster.wires.heal()
    _all_alive(cluster)
    return suspected if suspected is not None else entered, entered


@registry.add("membership_agents")
def membership_agents(_runs: int) -> Iterator[Figure]:
    """What membership costs and finds out on real agents."""
    if reason := missing():
        raise Skipped(reason)
    with _cluster("lan") as cluster:
        yield from _at_rest(cluster, "lan")
    with _cluster("lan_fast") as cluster:
        yield from _at_rest(cluster, "lan_fast")
        found = [_cut(cluster) for _ in range(CUTS)]
    note = f"{HOSTS} agents, one cut off, {CUTS} times"
    yield Figure("lan_fast: suspected by the leader", "s", [each[0] for each in found], False, note=note)
    entered = [each[1] for each in found]
    yield Figure("lan_fast: unreachable in the ledger", "s", entered, False, p99=max(entered), note=note)
    assert statistics.median(entered) < WITHIN_S, "a host that is cut off is found out"
