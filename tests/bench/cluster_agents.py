"""Three agents on one machine, ports of their own: what a person waits for when a host comes, goes or falls.

All is asked over HTTP, of hosts that live. A killed host is the whole tree of its agent, by SIGKILL.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.cluster_host import ClusterHost

from .figures import Figure, latency, registry

HOSTS = 3
GPUS = 4
FAILOVERS = 20
LOSSES = 5
JOINS = 3
ISOLATION_S = 3.0
CHANGES = 2_000
SINGLES = 200
IN_FLIGHT = 64
POLL_S = 0.01


class Hosts:
    """A cluster of agents, and a door to each."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self._held = held
        self._folder = folder
        self.hosts = {n: self.make(f"h{n}") for n in range(1, HOSTS + 1)}
        first, *others = self.hosts.values()
        first.found()
        for host in others:
            host.join(first, self.token())
        self.whole()

    def make(self, name: str) -> ClusterHost:
        """One more host, not started."""
        host = ClusterHost(self._folder / name, f"simulated:{GPUS}xH100-80GB")
        self._held.callback(host.close)
        return host

    def token(self) -> str:
        """A join token of the first host."""
        made: str = self.ask(1, "POST", "/api/tokens", {})["token"]
        return made

    def door(self, number: int) -> AdminHttp:
        """To be closed."""
        url, token = locate(self.hosts[number].data_dir)
        return AdminHttp(url, token, retry_s=0.0)

    def ask(self, number: int, method: str, path: str, body: Any = None) -> Any:
        """One request to a host."""
        with closing(self.door(number)) as door:
            return door.request(method, path, body=body)

    def leader(self, of: int) -> int:
        """Who leads, as host *of* says; 0 when it does not know."""
        try:
            rows = self.ask(of, "GET", "/api/hosts")["hosts"]
        except ActorGridError:
            return 0
        return next((row["node"] for row in rows if row["raft_role"] == "leader"), 0)

    def whole(self) -> int:
        """Wait until all say that the same one leads and none is missed; gives it."""

        def leader() -> int:
            said = {self.leader(number) for number in self.hosts}
            return said.pop() if len(said) == 1 else 0

        found: int = until(leader, "all know the leader", 60.0)

        def nobody_missed() -> bool:
            rows = self.ask(found, "GET", "/api/hosts")["hosts"]
            voters = [row for row in rows if row["raft_role"] in ("leader", "voter")]
            return len(voters) == HOSTS and all(row["health"] != "unreachable" for row in rows)

        until(nobody_missed, "nobody is missed", 60.0)
        return found


@contextmanager
def running() -> Iterator[Hosts]:
    """A cluster, for as long as the context."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, ExitStack() as held:
        yield Hosts(Path(folder), held)


def patiently(work: Callable[[], Any]) -> Any:
    """What *work* gives, as soon as it raises no named error."""
    while True:
        try:
            return work()
        except ActorGridError:
            time.sleep(POLL_S)


def job(**more: Any) -> dict[str, Any]:
    """A request for a job of one GPU."""
    return {"task_id": uuid.uuid4().hex, "command": ["sleep", "600"], "gpus": 1, "cpus": 0.05, **more}


def wait_for(door: AdminHttp, job_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The job, once *condition* holds."""
    while True:
        found: dict[str, Any] = patiently(lambda: door.get(f"/api/jobs/{job_id}"))
        if condition(found):
            return found
        time.sleep(POLL_S)


@registry.add("cluster_failover")
def cluster_failover(_runs: int) -> Iterator[Figure]:
    """The leader is killed; a follower is asked at once for a GPU, again and again until it takes the job."""
    took = []
    with running() as cluster:
        for _ in range(FAILOVERS):
            leader = cluster.whole()
            other = next(number for number in cluster.hosts if number != leader)
            request = job()
            with closing(cluster.door(other)) as door:
                door.get("/api/hosts")
                started = time.perf_counter()
                cluster.hosts[leader].kill()
                patiently(lambda door=door, request=request: door.post("/api/jobs", request, repeat=True))
                wait_for(door, request["task_id"], lambda found: bool(found["attempts"]))
                took.append(time.perf_counter() - started)
                door.post(f"/api/jobs/{request['task_id']}/cancel", repeat=True)
            cluster.hosts[leader].start()
    ordered = sorted(took)
    note = f"{FAILOVERS} times; 3 agents, asked of a follower over HTTP"
    yield Figure("leader killed, until the next grant: median", "s", [statistics.median(took)], False, must=1.0,
                 stretch=0.5, note=note)  # fmt: skip
    yield Figure("the same: the slowest of them", "s", [ordered[-1]], False, must=2.0, note="the bar is for the p99")
    yield latency("the same: all of them", [took], "s", 1.0)


@registry.add("cluster_loss")
def cluster_loss(_runs: int) -> Iterator[Figure]:
    """A host is killed that runs a job and does not lead; the job runs on another."""
    took = []
    with running() as cluster:
        for _ in range(LOSSES):
            leader = cluster.whole()
            with closing(cluster.door(leader)) as door:
                names = {row["node_id"]: row["node"] for row in door.get("/api/hosts")["hosts"]}
                lost, job_id = 0, ""
                filled = []
                while lost in (0, leader):
                    job_id = door.post("/api/jobs", job(gpus=GPUS, max_isolation_s=ISOLATION_S, retries=5))["job_id"]
                    filled.append(job_id)
                    found = wait_for(door, job_id, lambda found: found["state"] == "running")
                    lost = names[found["attempts"][-1]["host"]]
                for name in filled[:-1]:
                    door.post(f"/api/jobs/{name}/cancel", repeat=True)
                    wait_for(door, name, lambda found: found["state"] == "cancelled")
                started = time.perf_counter()
                cluster.hosts[lost].kill()
                wait_for(door, job_id, lambda found: len(found["attempts"]) > 1 and found["state"] == "running")
                took.append(time.perf_counter() - started)
                door.post(f"/api/jobs/{job_id}/cancel", repeat=True)
            cluster.hosts[lost].start()
    note = f"max_isolation_s is {ISOLATION_S:g}; the bar is that and 3 s"
    yield Figure("host killed, until its job runs elsewhere", "s", took, False, must=ISOLATION_S + 3,
                 stretch=ISOLATION_S + 1, note=note)  # fmt: skip


@registry.add("cluster_join")
def cluster_join(_runs: int) -> Iterator[Figure]:
    """From ``actorgrid up --join`` until a job on the new host has ended: it needs more GPUs than others have."""
    took = []
    with running() as cluster:
        for number in range(JOINS):
            host = cluster.make(f"new{number}")
            host.gpus = f"simulated:{GPUS + 1 + number}xH100-80GB"
            token = cluster.token()
            request = job(gpus=GPUS + 1 + number, command=["true"])
            started = time.perf_counter()
            host.join(cluster.hosts[1], token)
            with closing(cluster.door(1)) as door:
                patiently(lambda door=door, request=request: door.post("/api/jobs", request, repeat=True))
                wait_for(door, request["task_id"], lambda found: found["state"] == "succeeded")
            took.append(time.perf_counter() - started)
    yield Figure("up --join, until a job on the new host has ended", "s", took, False, must=5.0,
                 note="a process of its own, three hosts there already")  # fmt: skip


@registry.add("cluster_http")
def cluster_http(runs: int) -> Iterator[Figure]:
    """Changes of quotas over HTTP: each is a commit on three disks; what a client in Python gets of it."""
    rates, singles = [], []
    with running() as cluster:
        leader = cluster.whole()
        for _ in range(runs):
            numbers = iter(range(CHANGES))
            lock = threading.Lock()

            def work(numbers: Iterator[int] = numbers, lock: threading.Lock = lock) -> None:
                with closing(cluster.door(leader)) as door:
                    while True:
                        with lock:
                            number = next(numbers, None)
                        if number is None:
                            return
                        door.put(f"/api/quotas/u{number % 64}", {"jobs_waiting": number})

            threads = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rates.append(CHANGES / (time.perf_counter() - started))
            with closing(cluster.door(leader)) as door:
                samples = []
                for number in range(SINGLES):
                    began = time.perf_counter()
                    door.put("/api/quotas/single", {"jobs_waiting": number})
                    samples.append(time.perf_counter() - began)
            singles.append(samples)
    note = "threads of one Python process ask the leader"
    yield Figure(f"commits over HTTP, {IN_FLIGHT} in flight", "commits/s", rates, True, note=note)
    yield latency("commit over HTTP, one at a time", singles, "ms", 1e3)
