"""A long queue: what it costs to wait in it, in time for who queues and in memory for every host.

Three agents on one machine, all GPUs taken; what is queued then waits. Memory is the growth of PSS, process by process.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import actorgrid
from tests.processes import until
from tests.system.cluster_host import ClusterHost

from .cluster_agents import GPUS, HOSTS, Hosts, job, patiently, running
from .figures import Figure, latency, registry
from .machine import pss_mb

QUEUED = 20_000
SINGLES = 2_000
IN_FLIGHT = 64
BATCH = 1_000
LISTS = 20
LISTED = 100_000
CALLS = 7
CHOSEN: dict[str, dict[str, str]] = {
    "the newest 100": {},
    "of a label that 100 have": {"--label": "team=vision"},
    "of a name that 11,000 have": {"--name": "train-3"},
    "of a user who has none": {"--user": "nobody"},
}
SETTLE_S = 3.0


def _pss_by_title(host: ClusterHost) -> dict[str, int]:
    """Bytes of each of the agent's processes, by what it is; those of work left out."""
    found: dict[str, int] = {}
    for process in host.processes():
        try:
            title = " ".join(process.cmdline()).strip() or process.name()
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue  # it ended meanwhile
        if "shim" not in title and "worker" not in title.replace("worker_manager", ""):
            found[title] = found.get(title, 0) + sum(
                1024 * int(each.split()[1]) for each in lines if each[:4] == "Pss:"
            )
    return found


def _batches(cluster: Hosts, leader: int, count: int) -> float:
    """Queue *count* in batches; gives jobs a second."""
    with closing(cluster.door(leader)) as door:
        started = time.perf_counter()
        for _ in range(count // BATCH):
            door.post("/api/jobs/batch", {"jobs": [job() for _ in range(BATCH)]})
        return count / (time.perf_counter() - started)


def _one_by_one(cluster: Hosts, leader: int) -> float:
    """Queue 2,000 singly, some at once; gives jobs a second."""
    numbers, lock = iter(range(SINGLES)), threading.Lock()

    def work() -> None:
        with closing(cluster.door(leader)) as door:
            while True:
                with lock:
                    if next(numbers, None) is None:
                        return
                door.post("/api/jobs", job())

    threads = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return SINGLES / (time.perf_counter() - started)


@registry.add("queue")
def queue(_runs: int) -> Iterator[Figure]:
    """20,000 jobs that wait, on three hosts: queued, kept, listed, and there again after the leader was killed."""
    with running() as cluster:
        leader = cluster.whole()
        with closing(cluster.door(leader)) as door:
            door.post("/api/jobs/batch", {"jobs": [job() for _ in range(HOSTS * GPUS)]})
            until(lambda: door.get("/api/jobs", state="queued", limit=1)["total"] == 0, "all GPUs are taken", 60.0)
        time.sleep(SETTLE_S)
        before = {number: _pss_by_title(host) for number, host in cluster.hosts.items()}
        singles = _one_by_one(cluster, leader)
        first = _batches(cluster, leader, QUEUED // 2 - SINGLES)
        time.sleep(SETTLE_S)
        half = _pss_by_title(cluster.hosts[leader])
        batches = [first, _batches(cluster, leader, QUEUED // 2)]
        time.sleep(SETTLE_S)
        after = {number: _pss_by_title(host) for number, host in cluster.hosts.items()}
        grown = {n: {title: size - before[n].get(title, 0) for title, size in after[n].items()} for n in after}
        lists = []
        with closing(cluster.door(leader)) as door:
            for _ in range(LISTS):
                started = time.perf_counter()
                door.get("/api/jobs", state="queued,placed,running", limit=100)
                lists.append(time.perf_counter() - started)
        cluster.hosts[leader].kill()
        other = next(number for number in cluster.hosts if number != leader)
        patiently(lambda: cluster.ask(other, "GET", "/api/hosts"))
        started = time.perf_counter()
        cluster.hosts[leader].start()
        ready = time.perf_counter() - started
        patiently(lambda: cluster.ask(leader, "GET", "/api/jobs"))
        listed = time.perf_counter() - started
    note = f"{QUEUED:,} jobs wait, 3 agents on one machine"
    yield Figure("jobs queued in batches of 1,000", "jobs/s", batches, True, must=1_000, stretch=2_000, note=note)
    yield Figure(f"jobs queued one by one, {IN_FLIGHT} in flight", "jobs/s", [singles], True, note=note)
    for number, sizes in grown.items():
        role = "the leader's host" if number == leader else "another host"
        total = sum(sizes.values()) / 2**20
        yield Figure(f"memory, {role}", "MiB", [total], False, must=60, stretch=30, note=note)
    more = {title: size - half.get(title, 0) for title, size in after[leader].items()}
    where = "on the leader's host; growth from 10,000 to 20,000"
    for title, size in sorted(more.items(), key=lambda entry: -entry[1])[:4]:
        yield Figure(f"a further queued job in {title[-30:]}", "bytes", [size / (QUEUED // 2)], False, note=where)
    yield latency("ps: the newest 100 of them", [lists], "ms", 1e3, note=note)
    yield Figure("the leader killed: its agent ready again", "s", [ready], False, must=10, note=note)
    yield Figure("the same: until it lists jobs", "s", [listed], False, note=note)


@registry.add("ps")
def ps(_runs: int) -> Iterator[Figure]:
    """`actorgrid ps` of one host with 100,000 jobs that wait, and what a job costs each of its processes."""
    with actorgrid.LocalCluster(gpus=1) as cluster, cluster.client() as client:
        client.set_config("scheduling.queue_max", 2 * LISTED)
        client.submit_job(command=["sleep", "36000"], gpus=1, cpus=0.1)
        time.sleep(SETTLE_S)
        sizes = [pss_mb(cluster.pid)[1]]
        for first in range(0, LISTED, BATCH):
            jobs = [
                {
                    "task_id": uuid.uuid4().hex,
                    "command": ["python", "train.py", str(first + number)],
                    "gpus": 1,
                    "cpus": 0.1,
                    "name": f"train-{first // BATCH}",
                    "labels": {"team": "nlp" if number else "vision"},
                }
                for number in range(BATCH)
            ]
            client.http.post("/api/jobs/batch", {"jobs": jobs}, timeout_s=120)
            if first + BATCH == LISTED // 2:
                time.sleep(SETTLE_S)
                sizes.append(pss_mb(cluster.pid)[1])
        time.sleep(SETTLE_S)
        sizes.append(pss_mb(cluster.pid)[1])
        note = f"{LISTED:,} jobs wait"
        for which, chosen in CHOSEN.items():
            words = [word for pair in chosen.items() for word in pair]
            line = [sys.executable, "-m", "actorgrid", "ps", *words, "--data-dir", str(cluster.data_dir)]
            took = []
            for _ in range(CALLS):
                started = time.perf_counter()
                subprocess.run(line, check=True, capture_output=True)
                took.append(time.perf_counter() - started)
            yield Figure(f"actorgrid ps, {which}", "s", took, False, must=0.5, note=note)
    _, half, whole = sizes
    more = {title: whole[title] - half.get(title, 0.0) for title in whole}
    for title, size in sorted(more.items(), key=lambda entry: -entry[1])[:4]:
        per_job = size * 1e6 / (LISTED / 2)
        yield Figure(f"a further queued job in {title[-30:]}", "bytes", [per_job], False, must=1_500, note=note)
