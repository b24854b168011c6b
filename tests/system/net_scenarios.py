"""Faults of real hosts, one function each: they strike, look at what has to hold meanwhile, and end."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from actorgrid.errors import ActorGridError, CallTimeout, DiskFull, NoQuorum
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
    """*host* accepts nothing new, and says why and what to do."""

    def told() -> NoQuorum | None:
        try:
            host.submit(f"refused-{next(_serial)}", "true", within_s=20.0)
        except NoQuorum as error:
            return error
        except CallTimeout:
            return None  # asked while it still believed that somebody leads
        raise AssertionError(f"host {host.number} accepted a job without a majority")

    assert "majority" in until(told, f"host {host.number} says NoQuorum", within_s=30.0).hint


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


def job_on(cluster: NetCluster, number: int) -> str:
    """A job that runs on that host and goes on until it is lost there; it succeeds at once anywhere else."""
    some = cluster[number]
    jobs = [f"moves-{next(_serial)}" for _ in cluster.hosts]
    for job_id in jobs:
        some.submit(job_id, "sh", "-c", '[ "$ACTORGRID_ATTEMPT_NUMBER" -gt 1 ] || sleep 600', gpus=GPUS_A_HOST // 2 + 1)
    until(lambda: all(some.job(id)["state"] == "running" for id in jobs), "a job runs on every host", within_s=60.0)
    there = next(job_id for job_id in jobs if some.processes_of(job_id))
    for job_id in jobs:
        if job_id != there:
            some.ask("POST", f"/api/jobs/{job_id}/cancel")
    return there


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
    """All processes of the leader's host stop until its work runs elsewhere; it wakes up believing that it leads."""
    leader = cluster.leader()
    job_id = job_on(cluster, leader)
    cluster[leader].pause()
    assert cluster.leader() != leader
    some = dice.choice([host for host in cluster.hosts.values() if host.running])
    runs(some, "pause")
    try:
        until(lambda: some.job(job_id)["state"] == "succeeded", f"{job_id} ends on another host", within_s=60.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {some.cli('why', job_id).stdout}; {some.job(job_id)['attempts']}") from None
    finally:
        cluster[leader].go_on()
    until(lambda: not cluster[leader].processes_of(job_id), "what it ran is ended")
    first, *_, last = some.job(job_id)["attempts"]
    assert first["state"] == "lost" and last["host"] != first["host"], (first, last)
    runs(cluster[leader], "awake")
    cluster.whole()


def one_is_alone(cluster: NetCluster, dice: random.Random) -> None:
    """A host that follows is cut off from all others: it refuses, the rest goes on, what runs on it too."""
    alone = dice.choice([number for number in cluster.hosts if number != cluster.leader()])
    with work_on_every_host(cluster):
        cluster.wires.part({alone})
        refuses(cluster[alone])
        runs(cluster[next(number for number in cluster.hosts if number != alone)], "rest")
        cluster.wires.heal()
        cluster.whole()


def leader_is_mute(cluster: NetCluster, dice: random.Random) -> None:
    """Nothing that the leader says arrives, and it hears all: the others choose a new one."""
    leader = cluster.leader()
    others = [number for number in cluster.hosts if number != leader]
    cluster.wires.drop({leader}, others)
    until(lambda: cluster.leader() != leader, "another leads", within_s=30.0)
    runs(cluster[dice.choice(others)], "mute")
    cluster.wires.heal()
    cluster.whole()


def leader_is_deaf(cluster: NetCluster, dice: random.Random) -> None:
    """Nothing reaches the leader, and all hear it: it must notice that nobody answers, and make room."""
    leader = cluster.leader()
    others = [number for number in cluster.hosts if number != leader]
    cluster.wires.drop(others, {leader})
    until(lambda: cluster.leader() != leader, "another leads", within_s=30.0)
    runs(cluster[dice.choice(others)], "deaf")
    cluster.wires.heal()
    cluster.whole()


def a_third_is_lost(cluster: NetCluster, dice: random.Random) -> None:
    """Of every frame between any two hosts, three in ten are lost; jobs are still accepted and run."""
    cluster.wires.drop(cluster.hosts, cluster.hosts, percent=30)
    for number in dice.sample(sorted(cluster.hosts), 2):
        runs(cluster[number], "lossy")
    cluster.wires.heal()
    cluster.whole()


def all_lose_power(cluster: NetCluster, dice: random.Random) -> None:
    """Every host crashes at once, and all come back, in any order."""
    numbers = dice.sample(sorted(cluster.hosts), len(cluster.hosts))
    for number in numbers:
        cluster[number].crash()
    cluster.start(numbers)
    cluster.whole()
    runs(cluster[numbers[0]], "power")


def disk_is_full(cluster: NetCluster, dice: random.Random) -> None:
    """The small disk of the last host is filled to its end: it takes no new work, and the others go on."""
    small = cluster[max(cluster.hosts)]
    assert small.disk is not None, "the last host has a disk of its own"
    filler = small.disk / "filler"
    fill(filler)

    def full() -> bool:
        try:
            small.submit(f"full-{next(_serial)}", "true")
        except DiskFull:
            return True
        except ActorGridError:
            return False
        return False

    until(full, "it refuses with DiskFull", within_s=30.0)
    runs(dice.choice([host for host in cluster.hosts.values() if host is not small]), "beside")
    filler.unlink()
    runs(small, "room")
    cluster.whole()


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error


def clocks_step(cluster: NetCluster, dice: random.Random) -> None:
    """The wall clocks of two hosts jump, the leader's by an hour ahead, another's by two minutes back, and return."""
    leader = cluster.leader()
    other = dice.choice([number for number in cluster.hosts if number != leader])
    with work_on_every_host(cluster):
        cluster[leader].step_clock(3600.0)
        cluster[other].step_clock(-120.0)
        for number in (leader, other):
            runs(cluster[number], "clock")
        cluster[leader].step_clock(0.0)
        cluster[other].step_clock(0.0)
        runs(cluster[leader], "back")
        cluster.whole()


QUICK: tuple[Scenario, ...] = (
    halves,
    leader_is_mute,
    a_third_is_lost,
    leader_crashes,
    host_stands_still,
    disk_is_full,
    clocks_step,
)
"""One of each kind of fault; the others are played with the long ones."""
SIMULATED: dict[Scenario, str] = {
    halves: "partitions",
    one_is_alone: "partitions",
    leader_is_mute: "partitions",
    leader_is_deaf: "partitions",
    a_third_is_lost: "partitions",
    leader_crashes: "contested_elections",
    all_lose_power: "power_cuts",
    host_stands_still: "old_leaders",
    disk_is_full: "power_cuts",
    clocks_step: "wrong_clocks",
}
"""All, with the scenario of the simulator that plays the same."""
