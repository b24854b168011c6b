"""Faults of real hosts, one function each: they strike, look at what has to hold meanwhile, and end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from actorgrid.errors import ActorGridError, CallTimeout
from tests.processes import until
from tests.system.net_hosts import NetCluster, NetHost

Scenario = Callable[[NetCluster, random.Random], None]
_serial = count(1)
PATIENCE_S = 300.0
GPUS_A_HOST = 3


def runs(host: NetHost, name: str) -> None:
    """A job that *host* accepts comes to its end."""
    job_id = f"{name}-{next(_serial)}"

    def accepted() -> bool:
        try:
            host.submit(job_id, "true", retries=20)
        except ActorGridError:
            return False
        return True

    until(accepted, f"host {host.number} accepts {job_id}", within_s=60.0)
    until(lambda: host.job(job_id)["state"] == "succeeded", f"{job_id} ends", within_s=60.0)


def refuses(host: NetHost) -> None:
    """*host* accepts nothing new. What it was asked may still be accepted once it is in touch again."""
    try:
        host.submit(f"refused-{next(_serial)}", "true", within_s=2.0)
    except CallTimeout:
        return
    raise AssertionError(f"host {host.number} accepted a job without a majority")


@contextmanager
def work_on_every_host(cluster: NetCluster) -> Iterator[None]:
    """A job on each host that is to go on, as it is, whatever happens to the wires."""
    some = cluster[1]
    jobs = [f"stays-{next(_serial)}" for _ in cluster.hosts]
    for job_id in jobs:
        # More than half of a host's devices: no two fit on one.
        some.submit(job_id, "sleep", "600", gpus=GPUS_A_HOST // 2 + 1, max_isolation_s=PATIENCE_S)
    until(lambda: all(some.job(id)["state"] == "running" for id in jobs), "a job runs on every host", within_s=60.0)
    attempts = {job_id: some.job(job_id)["attempts"] for job_id in jobs}
    assert len({tries[-1]["host"] for tries in attempts.values()}) == len(jobs), attempts
    yield
    for job_id in jobs:
        job = some.job(job_id)
        assert job["state"] == "running" and len(job["attempts"]) == len(attempts[job_id]), job
        some.ask("POST", f"/api/jobs/{job_id}/cancel")
    until(lambda: all(some.job(id)["state"] == "cancelled" for id in jobs), "they are cancelled")


def halves(cluster: NetCluster, dice: random.Random) -> None:
    """The leader and another host against three: these choose a leader and work, the two refuse; running work stays."""
    leader = cluster.leader()
    with work_on_every_host(cluster):
        few = {leader, dice.choice([number for number in cluster.hosts if number != leader])}
        many = [host for number, host in cluster.hosts.items() if number not in few]
        cluster.wires.part(few)
        until(lambda: cluster.leader() not in few, "the majority has a leader of its own", within_s=30.0)
        runs(dice.choice(many), "majority")
        for number in few:
            refuses(cluster[number])
        cluster.wires.heal()
        cluster.whole()


def leader_crashes(cluster: NetCluster, dice: random.Random) -> None:
    """The leader's host loses power, and comes back while others lead."""
    leader = cluster.leader()
    cluster[leader].crash()
    assert cluster.leader() != leader
    runs(dice.choice([host for host in cluster.hosts.values() if host.running]), "crash")
    cluster[leader].up()
    cluster.whole()


def host_stands_still(cluster: NetCluster, dice: random.Random) -> None:
    """All processes of the leader's host stop for a while; it wakes up believing that it leads."""
    leader = cluster.leader()
    cluster[leader].pause()
    assert cluster.leader() != leader
    runs(dice.choice([host for host in cluster.hosts.values() if host.running]), "pause")
    cluster[leader].go_on()
    runs(cluster[leader], "awake")
    cluster.whole()
